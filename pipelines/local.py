"""The campaign job on one machine, bounded: rounds of the graph until nothing is left to do.

One round is the same graph over one tick, on Beam's FnApiRunner. What cannot go in a round (no permit, a pause)
is handed back to the store, and the next round starts when it is due. Any number of such processes may share one
store.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from secrets import token_hex

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.portability.api import beam_runner_api_pb2
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner
from apache_beam.transforms.environments import EmbeddedPythonEnvironment

from pipelines.campaign import CampaignOptions, Ports, build
from pipelines.quiet import errors_kept_back
from schemas.elements import PRIORITIES, Tick, TriggerMessage
from sendonce.config import ConfigFault
from sendonce.control.jobs import Heartbeat, JobRow, new_job_id
from sendonce.delivery.halting import release_senders
from sendonce.delivery.outlook import Left, left_to_do
from sendonce.delivery.sweeper import SweepMemory, sweep_lane
from sendonce.stores.base import StoreError, StoreUnavailable
from transforms.worker import TriggerResult, Worker, WorkerSpec, worker_for

# Longest sleep between two looks: another process may finish or fail at any time.
LOOK_AGAIN_S = 1.0
# Rounds that fail in a row because the store is away, before the job gives up.
MOST_FAILURES = 5


@dataclass(frozen=True)
class Round:
    """What a caller may show after each look: rounds so far, what is left, and how long the next sleep is."""

    number: int
    left: Left
    sleep_s: float


@dataclass(frozen=True)
class RunReport:
    """How a run ended. `ended`: `done` (nothing left), `once`, `stopped` (asked to), `blocked` (a person is needed).

    waits_for: why work is left that does not move by itself: `held`, `paused`, `halted`, `stopped`, `in_doubt`.
    triggers: a `TriggerResult` for each trigger that the run came to, in their order.
    """

    ended: str
    rounds: int
    seconds: float
    unfinished: int
    waits_for: tuple = ()
    triggers: tuple = ()


def run_bounded(
    store_url: str,
    *,
    lanes: Sequence[str] = PRIORITIES,
    once: bool = False,
    triggers: Sequence[TriggerMessage] = (),
    stop: threading.Event | None = None,
    progress: Callable[[Round], None] = lambda round: None,
    job_id: str | None = None,
) -> RunReport:
    """Work until nothing is open in these lanes (or for one round), then say how it ended.

    triggers: applied in the first round; their message ids tell them apart. stop: when it is set, nothing new is
    claimed, requests in flight end (within a lane's request_timeout_s, or answer_s more), the rest goes back to the
    store, and the run returns. job_id: what it is called in the store, for who wants to know before it begins. Raises
    StoreRefused when the store will not do, StoreUnavailable when it stays away, ConfigFault when it holds no lanes.
    Whatever was in flight then is found by its lease.
    """
    stop = stop or threading.Event()
    named = job_id or new_job_id()
    spec = WorkerSpec(store_url, named, tuple(lane for lane in PRIORITIES if lane in lanes), can_wait=False)
    worker = worker_for(spec)
    worker.stopping = stop
    results: dict[str, TriggerResult] = {}
    # A bundle that runs again finds its triggers applied: what became of them the first time counts.
    worker.on_trigger = lambda result: results.setdefault(result.message_id, result)
    job = _Job(worker, spec)
    heart = Heartbeat(job.row, stop)
    release_senders(worker.store, {name for lane in worker.lanes().values() for name in lane.lane.senders()})
    heart.start()
    try:
        report = _rounds(job, list(triggers), once, stop, progress)
        return replace(report, triggers=tuple(results.values()))
    finally:
        worker.end_threads()
        heart.end()
        with suppress(StoreError):
            job.row.beat("ended")


def _rounds(
    job: "_Job",
    triggers: list[TriggerMessage],
    once: bool,
    stop: threading.Event,
    progress: Callable[[Round], None],
) -> RunReport:
    started_s = time.monotonic()
    failures = 0

    def report(ended: str, left: Left) -> RunReport:
        return RunReport(ended, job.rounds, time.monotonic() - started_s, left.unfinished, left.waits_for)

    while True:
        try:
            left = job.look()
            sleep_s = 0.0 if triggers else job.sleep_s(left)
            progress(Round(job.rounds, left, sleep_s))
            if stop.is_set():
                return report("stopped", left)
            if not triggers and left.due_at is None:
                return report("blocked" if left.unfinished else "done", left)
            if sleep_s > 0 and not once:
                stop.wait(sleep_s)
                continue
            job.run_round(triggers)
            triggers, failures = [], 0
            if once:
                return report("stopped" if stop.is_set() else "once", job.look())
        except StoreUnavailable:
            failures += 1
            if failures >= MOST_FAILURES:
                raise
            stop.wait(LOOK_AGAIN_S)


class _Job:
    """One run: its row in the store, its rounds, and its measured pace."""

    def __init__(self, worker: Worker, spec: WorkerSpec) -> None:
        self._worker = worker
        self._spec = spec
        self._graph = _Graph(spec)
        self.row = JobRow(worker.store, spec.job_id, spec.lanes)
        self.rounds = 0

    def look(self) -> Left:
        """Sweep what needs no owner, then see what is left. Cheap: no pipeline runs for it."""
        lanes = self._worker.lanes()
        for lane in lanes.values():
            memory = self._worker.sweep_memories.setdefault(lane.terms.lane, SweepMemory())
            memory.summed_at.clear()  # whoever looks next may look at nothing but these sums
            sweep_lane(self._worker.store, self._worker.key, lane.terms, lane.policy, lambda: token_hex(16), memory)
        return self._worker.store.read(lambda reader: left_to_do(reader, list(lanes.values())))

    def sleep_s(self, left: Left) -> float:
        """Seconds until the next work is due, at most `LOOK_AGAIN_S`."""
        if left.due_at is None:
            return 0.0
        now = self._worker.store.read(lambda reader: reader.now())
        return max(0.0, min(LOOK_AGAIN_S, (left.due_at - now).total_seconds()))

    def run_round(self, triggers: list[TriggerMessage]) -> None:
        """One round of the graph over one tick."""
        self.rounds += 1
        failed: list[BaseException] = []
        self._worker.on_fault = failed.append
        with errors_kept_back() as beams_words:
            try:
                self._graph.run(triggers)
            except Exception as fault:
                # The runner turns what a step raised into text; the step kept the original.
                known = [kept for kept in failed if isinstance(kept, (StoreError, ConfigFault))]
                if known:
                    beams_words.clear()
                    raise known[0] from fault
                raise
            finally:
                self._worker.settle()
        self._measure()

    def _measure(self) -> None:
        """Each lane's pace, smoothed over the last few rounds."""
        worker = self._worker
        for lane, passed in worker.passed.items():
            if passed:
                rendering_s, sending_s = worker.rendering_s.get(lane, 0.0), worker.sending_s.get(lane, 0.0)
                now = pace_of(passed, rendering_s, sending_s, worker.pool(lane).threads)
                before = worker.pace.get(lane, now)
                worker.pace[lane] = (before + now) / 2
        for measured in (worker.passed, worker.sending_s, worker.rendering_s):
            measured.clear()


def pace_of(passed: int, rendering_s: float, sending_s: float, threads: int) -> float:
    """Recipients a second while the one thread that renders, or all of those that send, have enough to do.

    Not those of the round: one that kept a few threads busy would never plan enough for all of them.
    """
    return passed / max(rendering_s, sending_s / threads, 0.05)


class _Graph:
    """The campaign graph, ready for Beam's runner. It is the same in each round without triggers, so it is made once:
    making it costs more than running it over nothing."""

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._without_triggers: beam_runner_api_pb2.Pipeline | None = None

    def run(self, triggers: list[TriggerMessage]) -> None:
        """Run it over one tick. Raises what the runner makes of a step's exception."""
        if triggers:
            graph = self._made(triggers)
        else:
            self._without_triggers = graph = self._without_triggers or self._made([])
        FnApiRunner().run_via_runner_api(graph, PipelineOptions([])).wait_until_finish()

    def _made(self, triggers: list[TriggerMessage]) -> beam_runner_api_pb2.Pipeline:
        ports = Ports(
            triggers=beam.Create(triggers, reshuffle=False).with_output_types(TriggerMessage), ticks=_OneTick()
        )
        pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
        build(pipeline, CampaignOptions(self._spec), ports)
        return pipeline.to_runner_api(default_environment=EmbeddedPythonEnvironment.default())


class _OneTick(beam.PTransform):
    """Out: one `Tick`, with the time at which it is made."""

    def expand(self, pipeline):
        return pipeline | "Impulse" >> beam.Impulse() | "Now" >> beam.Map(_tick).with_output_types(Tick)


def _tick(_: bytes) -> Tick:
    return Tick(1, time.time_ns() // 1_000_000)


def quiet_beam() -> None:
    """Beam's own log lines say nothing to a person at a terminal; its warnings and errors still come."""
    logging.getLogger("apache_beam").setLevel(logging.WARNING)
