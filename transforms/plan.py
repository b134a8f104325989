"""PlanWork: a tick becomes references to the batches that go next."""

from collections.abc import Iterator
from secrets import token_hex

import apache_beam as beam
from apache_beam.metrics import Metrics

from schemas.elements import Reference, Tick
from sendonce.delivery.fair import FairShare
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.sweeper import sweep_lane
from sendonce.failpoints import failpoint
from transforms.worker import Worker, WorkerSpec, told, worker_for

# Until a lane's pace is measured: enough to measure it, little enough to be quickly done.
FIRST_WINDOW = 4000


class PlanWork(beam.PTransform):
    """In: `Tick`s. Out: `Reference`s of due batches, critical lanes first.

    Each tick first sweeps what needs no owner (expired leases, doubts, cancelled batches, progress, the end of
    campaigns), then plans, per lane, what its window holds. All of it is compare-and-set in the store: a tick that
    runs twice, or in two jobs, does nothing the second time.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__()
        self._spec = spec

    def expand(self, ticks):
        return ticks | "Sweep and plan" >> beam.ParDo(_PlanWork(self._spec)).with_output_types(Reference)


class _PlanWork(beam.DoFn):
    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._planned = Metrics.counter("sendonce", "batches_planned")
        self._expired = Metrics.counter("sendonce", "leases_expired")
        self._settled = Metrics.counter("sendonce", "doubts_settled")

    def setup(self) -> None:
        self._worker = worker_for(self._spec)

    def process(self, tick: Tick) -> Iterator[Reference]:
        with told(self._worker):
            yield from self._plan()

    def _plan(self) -> Iterator[Reference]:
        for name, lane in self._worker.lanes().items():
            swept = sweep_lane(self._worker.store, self._worker.key, lane.terms, lane.policy, lambda: token_hex(16))
            self._expired.inc(swept.expired)
            self._settled.inc(swept.settled)
            if self._worker.stopping.is_set():
                return
            fair = self._worker.fair.setdefault(name, FairShare())
            references = plan_lane(self._worker.store, lane.terms, window_of(self._worker, name), fair)
            if references:
                failpoint("S2")
            self._planned.inc(len(references))
            if not self._worker.spec.can_wait:
                # Here a reference stays in this process until it is claimed; elsewhere it may go to another worker.
                for reference in references:
                    self._worker.keeper.hold(reference, lane.terms.times.visibility_s)
            yield from references


def window_of(worker: Worker, lane: str) -> int:
    """Recipients that the lane passes within its window, as measured; a first guess before that."""
    pace = worker.pace.get(lane)
    if pace is None:
        return FIRST_WINDOW
    return max(1, int(pace * worker.lanes()[lane].terms.times.window_s))
