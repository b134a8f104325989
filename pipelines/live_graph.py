"""The campaign graph as a live job runs it: on Beam's streaming local runner, for some lanes, with ticks of its own.

That runner has one thread for a graph. So lanes that must not wait for each other's rendering have graphs of their
own (`GROUPS`), each with its own `Worker`, its own private topic and its own ticks. A graph that fails is started
again: whatever matters is in the store.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import Any

import apache_beam as beam
from apache_beam import typehints
from apache_beam.io.gcp.pubsub import ReadFromPubSub
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from google.api_core import exceptions as google

from pipelines.campaign import CampaignOptions, Ports, build
from pipelines.private_topic import FINAL, PrivateTopic, Waker, tick_of, tick_topic
from schemas.elements import Reference, Tick, TriggerMessage
from schemas.tables import Batch
from sendonce.config import ConfigFault
from sendonce.delivery.protocol import queueing
from sendonce.stores.base import StoreError, StoreUnavailable, Tx
from transforms.inspected import InspectedDoFn
from transforms.plan import sweep
from transforms.worker import WorkerSpec, worker_for

_log = logging.getLogger(__name__)

# Lanes that share a graph. Rendering bulk letters holds up no code, in a graph or in the line for its thread.
GROUPS: Sequence[Sequence[str]] = (("critical", "high"), ("bulk",))
# How soon a thread that waits for its turn gets it, while others compute: a send takes dozens of turns, and who holds
# the store's lock needs them, too.
TURN_S = 0.0005
# Where CPUs are short, a one-time code gets three times the share of a newsletter's rendering (`man 7 sched`).
GIVES_WAY = 5
LOOK_S = 0.1
AGAIN_S = 1.0


class LiveGraph:
    """The graph of some lanes of a job, as often as it has to be started, in a thread of its own.

    on_fault: told, once, what no new start mends. Everything else (Pub/Sub or the store away, the runner's own
    troubles with them) only starts the graph anew; `restarts` counts how often. alone: nothing but its job is in the
    process; if all that this one sends is bulk, what renders it gives way to other processes. Only that: whoever holds
    the store's lock must not wait for a CPU while others wait for the lock (on Linux; elsewhere the whole process).
    """

    def __init__(
        self,
        spec: WorkerSpec,
        project: str,
        stop: threading.Event,
        on_fault: Callable[[Exception], None],
        *,
        alone: bool = False,
    ) -> None:
        self.worker = worker_for(spec)
        self.worker.fit_pools()
        self.lanes = tuple(spec.lanes)
        self.topic = tick_topic(project, spec.job_id, spec.lanes)
        self.restarts = 0
        self.handed_back = 0
        self.all_ended = True
        self._spec = spec
        self._private = PrivateTopic(self.topic)
        self._stop = stop
        self._on_fault = on_fault
        self._faults: list[Exception] = []
        gives_way = alone and set(spec.lanes) <= {"bulk"}
        self._nice = min(19, os.getpriority(os.PRIO_PROCESS, 0) + GIVES_WAY) if gives_way else None
        self._sweep_at_s: dict[str, float] = {}
        self.worker.looks.tick_s = min(lane.terms.times.tick_s for lane in self.worker.lanes().values())
        self._waker = Waker(self._private, self.worker.looks.tick_s)
        self._thread = threading.Thread(target=self._run, name=f"graph-{spec.lanes[0]}", daemon=True)
        self.worker.on_tick, self.worker.on_room = self._waker.seen, self._room
        self.worker.on_fault = self._hear

    def start(self) -> None:
        """Begin. Returns at once."""
        self._thread.start()

    def wake(self) -> None:
        """Something may be to be done. Cheap; from any thread."""
        self.worker.looks.ask()
        self._waker.wake()

    def queue(self, lane: str, batch: Batch, now: datetime) -> Batch:
        """As a `sendonce.control.streams.Queue`: plans a send where it is stored, if this graph can take it now."""
        return self.worker.looks.queue(lane, batch, now)

    def planned(self, references: Sequence[Reference]) -> None:
        """These sends are in the store: they go next, or back if this graph takes nothing any more."""
        if self.worker.looks.give(references):
            self._waker.wake()
        else:
            self._release(references)

    def _room(self, lane: str) -> None:
        """A delivery has ended. Where the last look left nothing behind, the next tick is soon enough."""
        if self.worker.looks.may_be_left(lane):
            self.wake()

    def end(self, patience_s: float) -> None:
        """After `stop` is set: wait for the step and the requests under way, hand back what was not begun.

        handed_back counts those batches; all_ended is False if requests were still in flight when the patience
        ended. The topic is removed.
        """
        until_s = time.monotonic() + patience_s
        self.worker.stopping.set()
        self._waker.stop()
        if self._thread.ident is not None:
            self._thread.join(patience_s / 2)
        self._hand_back(max(1.0, until_s - time.monotonic()))
        self._sum_up()
        if self.all_ended:
            self.worker.end_threads()
        with suppress(google.GoogleAPICallError, google.RetryError):
            self._private.remove()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._one_graph()
            except Exception as fault:
                self._on_fault(fault)
                return
            if not self._stop.is_set():
                self.restarts += 1
                self._stop.wait(AGAIN_S)

    def _one_graph(self) -> None:
        """Run the graph until it fails or the job is to stop. Returns after faults that pass; raises the others."""
        try:
            self._private.make()
        except google.NotFound:
            return  # its topic was taken away before it had a subscription: the next start makes both
        except FINAL as fault:
            raise ConfigFault(
                f"the job's private topic {self.topic} cannot be made ({type(fault).__name__}); "
                "grant roles/pubsub.editor on the project, or create it there"
            ) from None
        except (google.GoogleAPICallError, google.RetryError) as fault:
            _log.warning("Pub/Sub is away: %s; the job waits for it", type(fault).__name__)
            return
        running = self._begin()
        self._waker.start()
        self.wake()
        try:
            while not self._stop.is_set():
                self._sweep()
                if self._faults:
                    raise self._faults[0]
                if (fault := running.fault()) is not None:
                    if self._faults:
                        raise self._faults[0]
                    if not isinstance(fault, (StoreUnavailable, google.GoogleAPICallError, google.RetryError)):
                        raise fault
                    _log.warning("the graph starts again after %s", type(fault).__name__)
                    return
                self._stop.wait(LOOK_S)
        finally:
            if self._stop.is_set():
                self.worker.stopping.set()
                self._waker.stop()
            running.end(8.0)
            if not self._stop.is_set():
                self._hand_back(8.0)

    def _begin(self) -> "_Graph":
        """Start the graph in a thread of its own, whose priority is that of all threads of the runner."""

        def begin() -> _Graph:
            if self._nice is not None:
                os.setpriority(os.PRIO_PROCESS, 0, self._nice)
            return _Graph(self._spec, self._private.subscription)

        with ThreadPoolExecutor(1, thread_name_prefix="begin-graph") as thread:
            return thread.submit(begin).result()

    def _sweep(self) -> None:
        """What needs no owner, once a tick, in this thread: the graph's own has codes to plan."""
        for name, lane in self.worker.lanes().items():
            if time.monotonic() >= self._sweep_at_s.get(name, 0.0):
                self._sweep_at_s[name] = time.monotonic() + lane.terms.times.tick_s
                with suppress(StoreUnavailable):  # the graph meets it, too
                    self.worker.fit_pools()
                    sweep(self.worker, lane)

    def _hand_back(self, patience_s: float) -> None:
        """Wait for the pools, then give what was planned and not begun back to the store, to be planned at once."""
        held = [*self.worker.looks.end(), *self.worker.keeper.held()]
        self.all_ended = self.worker.settle(patience_s)
        self._release(held)

    def _sum_up(self) -> None:
        """What was sent last is in the campaigns' sums when the job is gone."""
        with suppress(StoreError, ConfigFault):  # the next job sums up, too
            for name, lane in self.worker.lanes().items():
                if (memory := self.worker.sweep_memories.get(name)) is not None:
                    memory.summed_at.clear()
                    sweep(self.worker, lane)

    def _release(self, references: Sequence[Reference]) -> None:
        with suppress(StoreUnavailable):  # then they are planned again when they become visible
            for reference in references:
                release = partial(_release, reference=reference)
                self.handed_back += self.worker.store.transact(release, tag="release")

    def _hear(self, fault: BaseException) -> None:
        if isinstance(fault, Exception) and not isinstance(fault, StoreUnavailable):
            self._faults.append(fault)


class _Graph:
    """One start of the campaign graph on Beam's streaming local runner."""

    def __init__(self, spec: WorkerSpec, subscription: str) -> None:
        pipeline = beam.Pipeline(runner=BundleBasedDirectRunner(), options=_Options(["--streaming"]))
        ports = Ports(
            triggers=beam.Create([], reshuffle=False).with_output_types(TriggerMessage), ticks=_TicksFrom(subscription)
        )
        build(pipeline, CampaignOptions(spec), ports)
        self._result = pipeline.run()

    def fault(self) -> Exception | None:
        """What ended the graph, if anything has. `wait_until_finish` would say it, too, but cannot be ended itself."""
        update = self._result._executor._executor.visible_updates.poll()
        if update is None:
            return None
        fault: Any = update.exception
        while isinstance(fault, tuple):
            fault = fault[0]
        return fault if isinstance(fault, Exception) else RuntimeError("the graph ended by itself")

    def end(self, patience_s: float) -> None:
        """Let the step under way end, and begin no other."""
        ending = threading.Thread(target=self._result.cancel, name="end-graph", daemon=True)
        ending.start()
        ending.join(patience_s)


class _Options(PipelineOptions):
    """Options that are read once: the runner asks for a view of them at every look, and each parses all of Beam's
    options anew, which was a fifteenth of an idle job's time."""

    def view_as(self, cls):
        views = self.__dict__.setdefault("_views", {})
        if cls not in views:
            views[cls] = super().view_as(cls)
        return views[cls]


class _TicksFrom(beam.PTransform):
    """Out: the `Tick`s of a job's private subscription."""

    def __init__(self, subscription: str) -> None:
        super().__init__()
        self._subscription = subscription

    def expand(self, pipeline):
        data = pipeline | "Read" >> ReadFromPubSub(subscription=self._subscription)
        return data | "Tick" >> beam.ParDo(_Tick())


@typehints.with_input_types(bytes)
@typehints.with_output_types(Tick)
class _Tick(InspectedDoFn):
    def process(self, data: bytes) -> list[Tick]:
        return [tick_of(data)]


def _release(tx: Tx, reference: Reference) -> bool:
    return queueing.release(tx, reference, tx.now())
