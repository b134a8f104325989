"""The campaign job on one machine, streaming: until it is told to stop, on Beam's BundleBasedDirectRunner.

That runner has one thread, acknowledges messages before they are processed, and reads only when nothing runs. So
an intake of its own takes the triggers (`pipelines/intake.py`), what the graph reads are ticks on a private topic
(`pipelines/private_topic.py`), and the send step hands batches to the pools of their lanes without waiting. When the
runner, Pub/Sub or the store fails, the graph is started again: whatever matters is in the store.
"""

import logging
import os
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import apache_beam as beam
import orjson
from apache_beam.io.gcp.pubsub import ReadFromPubSub
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from google.api_core import exceptions as google
from google.auth.exceptions import GoogleAuthError
from google.cloud import pubsub_v1

from pipelines.campaign import CampaignOptions, Ports, build
from pipelines.intake import FINAL, Intake
from pipelines.jobs import JobRow, new_job_id
from pipelines.private_topic import PrivateTopic, Waker, remove_topic, tick_of
from pipelines.quiet import errors_kept_back
from schemas.elements import PRIORITIES, Reference, Tick, TriggerMessage
from schemas.tables import Job
from sendonce.config import ConfigFault
from sendonce.control.status import JOB_BEATS_S
from sendonce.delivery import protocol
from sendonce.delivery.halting import release_senders
from sendonce.delivery.outlook import left_to_do
from sendonce.stores.base import StoreError, StoreUnavailable, Tx
from transforms.worker import Worker, WorkerSpec, worker_for

_log = logging.getLogger(__name__)

LOOK_S = 0.1
AGAIN_S = 1.0
# A stop gives the intake, the graph and the requests in flight this long together; 30 s is what was promised.
STOP_S = 25.0
# A job that was silent for so long is gone, and its private topic with it.
GONE = timedelta(days=1)


@dataclass(frozen=True)
class LiveReport:
    """How a live job ended. applied, ignored, bad: triggers. handed_back: batches that it had planned and not begun.

    unfinished: recipients without a final outcome. in_flight: whether requests were still under way when the patience
    of a stop ended; their batches come into doubt when their leases end.
    """

    seconds: float
    applied: int
    ignored: int
    bad: int
    handed_back: int
    unfinished: int
    waits_for: tuple
    restarts: int
    in_flight: bool


def run_live(
    store_url: str, subscription: str, *, lanes: Sequence[str] = PRIORITIES, stop: threading.Event | None = None
) -> LiveReport:
    """Take triggers from a subscription and send what is due, until `stop` is set.

    Then nothing new is claimed, requests in flight end, the rest goes back to the store, all within 30 s. Raises
    ConfigFault for a subscription that is not there or may not be read, StoreRefused when the store will not do. A
    store or Pub/Sub that is away is waited for.
    """
    stop = stop or threading.Event()
    spec = WorkerSpec(store_url, new_job_id(), tuple(x for x in PRIORITIES if x in lanes), can_wait=False, live=True)
    worker = worker_for(spec)
    release_senders(worker.store, {lane.terms.sender for lane in worker.lanes().values()})
    project = subscription.split("/")[1]
    _check(subscription)
    job = _Live(worker, spec, project, subscription)
    return job.run(stop)


class _Live:
    """One live job: its intake, its private topic, and the graph, which may be started several times."""

    def __init__(self, worker: Worker, spec: WorkerSpec, project: str, subscription: str) -> None:
        self._worker = worker
        self._spec = spec
        self._topic = PrivateTopic(project, f"sendonce-ticks-{spec.job_id}")
        self._row = JobRow(
            worker.store, spec, orjson.dumps({"topic": self._topic.topic, "subscription": subscription}).decode()
        )
        self._waker = Waker(self._topic, min(lane.terms.times.tick_s for lane in worker.lanes().values()))
        self._faults: list[Exception] = []
        self._intake = Intake(worker.store, subscription, self._waker.wake, self._faults.append)
        self._subscription = subscription
        self._beaten_s = float("-inf")
        self._restarts = 0

    def run(self, stop: threading.Event) -> LiveReport:
        started_s = time.monotonic()
        worker = self._worker
        worker.on_tick, worker.on_room = self._waker.seen, self._waker.wake
        worker.on_fault = self._hear
        self._row.beat("running")
        self._remove_left_over()
        try:
            self._intake.start()
            with errors_kept_back() as beams_words:
                while not stop.is_set():
                    self._one_graph(stop)
                    beams_words.clear()
                    if not stop.is_set():
                        self._restarts += 1
                        stop.wait(AGAIN_S)
        finally:
            ended = self._end()
        left = worker.store.read(lambda reader: left_to_do(reader, list(worker.lanes().values())))
        return LiveReport(
            time.monotonic() - started_s,
            self._intake.applied,
            self._intake.ignored,
            self._intake.bad,
            ended[0],
            left.unfinished,
            left.waits_for,
            self._restarts,
            ended[1],
        )

    def _one_graph(self, stop: threading.Event) -> None:
        """Run the graph until it fails or the job is to stop. Returns after faults that pass; raises the others."""
        try:
            self._topic.make()
        except FINAL as fault:
            raise ConfigFault(
                f"the job's private topic {self._topic.topic} cannot be made ({type(fault).__name__}); "
                "grant roles/pubsub.editor on the project, or create it there"
            ) from None
        except (google.GoogleAPICallError, google.RetryError) as fault:
            _log.warning("Pub/Sub is away: %s; the job waits for it", type(fault).__name__)
            return
        running = _Graph(self._spec, self._topic.subscription)
        self._waker.start()
        self._waker.wake()
        try:
            while not stop.is_set():
                self._beat()
                self._raise_final()
                if (fault := running.fault()) is not None:
                    self._raise_final()
                    if not isinstance(fault, (StoreUnavailable, google.GoogleAPICallError, google.RetryError)):
                        raise fault
                    _log.warning("the graph starts again after %s", type(fault).__name__)
                    return
                stop.wait(LOOK_S)
            self._worker.stopping.set()
        finally:
            if not stop.is_set():
                running.end(STOP_S / 3)
                self._hand_back(STOP_S / 3)
            else:
                self._worker.stopping.set()
                self._waker.stop()
                running.end(STOP_S / 3)

    def _end(self) -> tuple[int, bool]:
        """Stop everything; returns how many batches were handed back, and whether requests are still in flight."""
        until_s = time.monotonic() + STOP_S * 2 / 3
        self._worker.stopping.set()
        self._waker.stop()
        self._intake.stop(3.0)
        handed_back, all_ended = self._hand_back(max(1.0, until_s - time.monotonic() - 4.0))
        if all_ended:
            self._worker.end_threads()
        with suppress(google.GoogleAPICallError, google.RetryError):
            self._topic.remove()
        with suppress(StoreError):
            self._row.beat("ended")
        return handed_back, not all_ended

    def _hand_back(self, patience_s: float) -> tuple[int, bool]:
        """Wait for the pools, then give what was planned and not begun back to the store, to be planned at once."""
        held = self._worker.keeper.held()
        all_ended = self._worker.settle(patience_s)
        count = 0
        with suppress(StoreUnavailable):  # then they are planned again when they become visible
            for reference in held:
                count += self._worker.store.transact(partial(_release, reference=reference), tag="release")
        return count, all_ended

    def _beat(self) -> None:
        if time.monotonic() - self._beaten_s >= JOB_BEATS_S / 2:
            self._beaten_s = time.monotonic()
            with suppress(StoreUnavailable):
                self._row.beat("running")

    def _hear(self, fault: BaseException) -> None:
        if isinstance(fault, Exception) and not isinstance(fault, StoreUnavailable):
            self._faults.append(fault)

    def _raise_final(self) -> None:
        if self._faults:
            fault = self._faults[0]
            if isinstance(fault, google.GoogleAPICallError):
                raise _wrong(self._subscription, fault) from None
            raise fault

    def _remove_left_over(self) -> None:
        """Remove private topics of jobs that were killed long ago."""
        now = self._worker.store.read(lambda reader: reader.now())
        for job in self._worker.store.read(lambda reader: reader.scan(Job)):
            topic = orjson.loads(job.detail).get("topic")
            if topic and job.state != "ended" and now - job.heartbeat_at > GONE:
                with suppress(google.GoogleAPICallError, google.RetryError):
                    remove_topic(topic)


class _Graph:
    """The campaign graph on Beam's streaming local runner, which starts when this is made."""

    def __init__(self, spec: WorkerSpec, subscription: str) -> None:
        pipeline = beam.Pipeline(runner=BundleBasedDirectRunner(), options=PipelineOptions(["--streaming"]))
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


class _TicksFrom(beam.PTransform):
    """Out: the `Tick`s of a job's private subscription."""

    def __init__(self, subscription: str) -> None:
        super().__init__()
        self._subscription = subscription

    def expand(self, pipeline):
        data = pipeline | "Read" >> ReadFromPubSub(subscription=self._subscription)
        return data | "Tick" >> beam.Map(tick_of).with_output_types(Tick)


def _release(tx: Tx, reference: Reference) -> bool:
    return protocol.release(tx, reference, tx.now())


def _check(subscription: str) -> None:
    """Ask for the subscription once. Who may read it, but not ask for it, is not held up."""
    try:
        with pubsub_v1.SubscriberClient() as client:
            client.get_subscription(subscription=subscription, retry=None, timeout=10.0)
    except google.PermissionDenied:
        return
    except FINAL as fault:
        raise _wrong(subscription, fault) from None
    except (google.GoogleAPICallError, google.RetryError) as fault:
        where = os.environ.get("PUBSUB_EMULATOR_HOST", "Pub/Sub")
        raise ConfigFault(
            f"{where} does not answer ({type(fault).__name__}); is it there, and is the way free?"
        ) from None
    except GoogleAuthError as fault:
        raise ConfigFault(
            f"no credentials for Pub/Sub ({type(fault).__name__}); run `gcloud auth application-default login`, "
            "or set PUBSUB_EMULATOR_HOST"
        ) from None


def _wrong(subscription: str, fault: Exception) -> ConfigFault:
    name = subscription.rpartition("/")[2]
    if isinstance(fault, google.NotFound):
        return ConfigFault(
            f"there is no subscription {subscription}; "
            f"`gcloud pubsub subscriptions create {name} --topic TOPIC` makes it"
        )
    return ConfigFault(f"the subscription {subscription} may not be read; grant roles/pubsub.subscriber on it")
