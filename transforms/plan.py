"""PlanWork: a tick becomes references to the batches that go next."""

from collections.abc import Iterator
from secrets import token_hex

import apache_beam as beam
from apache_beam.metrics import Metrics

from schemas.elements import Reference, Tick
from sendonce.delivery.fair import FairShare
from sendonce.delivery.lanes import RunningLane
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.sweeper import SweepMemory, Swept, sweep_lane
from sendonce.failpoints import failpoint
from sendonce.stores.turns import urgent
from transforms.inspected import InspectedDoFn
from transforms.looks import HANDED_S
from transforms.worker import Worker, WorkerSpec, told, worker_for

# Until a lane's pace is measured: enough to measure it, little enough to be quickly done.
FIRST_WINDOW = 4000
# A live job plans this much at a time: it is rendered by the one thread of its runner, and critical work waits for it.
LIVE_WINDOW_S = 0.15
# Bulk has a graph of its own; a look costs the same however much it plans.
LIVE_BULK_WINDOW_S = 1.0
LIVE_FIRST_WINDOW = 1000


NOTHING_SWEPT = Swept()
RUNGS = ("evidence", "hold", "assume", "resend")


class PlanWork(beam.PTransform):
    """In: `Tick`s. Out: `Reference`s of due batches, critical lanes first.

    Each tick first sweeps what needs no owner (expired leases, doubts, cancelled batches, progress, the end of
    campaigns; a live job has a thread for that), then plans, per lane, what its window holds. In a live job some ticks
    only bring sends that were planned where they were stored (`transforms/looks.py`). All of it is
    compare-and-set in the store: a tick that runs twice, or in two jobs, does nothing the second time.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__()
        self._spec = spec

    def expand(self, ticks):
        return ticks | "Sweep and plan" >> beam.ParDo(_PlanWork(self._spec)).with_output_types(Reference)


class _PlanWork(InspectedDoFn):
    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._planned = Metrics.counter("sendonce", "batches_planned")
        self._expired = Metrics.counter("sendonce", "leases_expired")
        self._settled = Metrics.counter("sendonce", "doubts_settled")
        # By what settled them; docs/doubts.md explains these names.
        self._rungs = {rung: Metrics.counter("sendonce", f"doubts_{rung}") for rung in RUNGS}

    def setup(self) -> None:
        self._worker = worker_for(self._spec)

    def process(self, tick: Tick) -> Iterator[Reference]:
        # Whoever asks for a look from here on gets another one: this one may not see what they did.
        self._worker.on_tick()
        with told(self._worker):
            if self._worker.spec.can_wait:
                self._worker.beat()
            self._count()
            yield from self._given()
            if not self._worker.spec.live or self._worker.looks.due():
                yield from self._plan()

    def _given(self) -> list[Reference]:
        """What was planned where it was stored; from here on this process keeps it alive."""
        given = self._worker.looks.given()
        lanes = self._worker.lanes()
        for reference in given:
            self._worker.keeper.hold(reference, lanes[reference.priority].terms.times.visibility_s, HANDED_S)
        self._planned.inc(len(given))
        return given

    def _plan(self) -> Iterator[Reference]:
        for name, lane in self._worker.lanes().items():
            if not self._worker.spec.live:
                sweep(self._worker, lane)
                self._count()
            if self._worker.stopping.is_set():
                return
            self._worker.looks.seen(name, 0)  # until this look has ended
            window = window_of(self._worker, name)
            if not window:
                continue
            fair = self._worker.fair.setdefault(name, FairShare())
            with urgent():  # a lane's one thread of rendering waits for it; its own writes take far longer
                plan = plan_lane(self._worker.store, lane.terms, window, fair)
            references = plan.references
            if references:
                failpoint("S2")
            self._planned.inc(len(references))
            if not self._worker.spec.can_wait:
                # Here a reference stays in this process until it is claimed; elsewhere it may go to another worker.
                for reference in references:
                    self._worker.keeper.hold(reference, lane.terms.times.visibility_s)
            if self._worker.spec.live:
                room = min(plan.room, self._worker.pool(name).room - len(references))
                self._worker.looks.seen(name, max(0, room))
            yield from references

    def _count(self) -> None:
        """Metrics exist in steps only: in a live job another thread sweeps."""
        while self._worker.swept:
            swept = self._worker.swept.popleft()
            self._expired.inc(swept.expired)
            self._settled.inc(swept.settled)
            for rung, counter in self._rungs.items():
                counter.inc(getattr(swept, rung))


def sweep(worker: Worker, lane: RunningLane) -> Swept:
    """Do what a lane needs without anybody asking. In a live job another thread does it: nothing that is to be sent
    waits for it."""
    memory = worker.sweep_memories.setdefault(lane.terms.lane, SweepMemory())
    swept = sweep_lane(worker.store, worker.key, lane.terms, lane.policy, lambda: token_hex(16), memory)
    if swept != NOTHING_SWEPT:
        worker.swept.append(swept)
        worker.notices.look()
    return swept


def window_of(worker: Worker, lane: str) -> int:
    """Recipients that the lane passes within its window, as measured; a first guess before that. In a live job what is
    rendered in `LIVE_WINDOW_S` (bulk: more), and none while the lane's pool has enough to do."""
    pace = worker.pace.get(lane)
    if worker.spec.live:
        if not worker.pool(lane).room:
            return 0
        window_s = LIVE_BULK_WINDOW_S if lane == "bulk" else LIVE_WINDOW_S
        return LIVE_FIRST_WINDOW if pace is None else max(1, int(pace * window_s))
    if pace is None:
        return FIRST_WINDOW
    return max(1, int(pace * worker.lanes()[lane].terms.times.window_s))
