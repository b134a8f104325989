"""The campaign job on one machine, streaming: until it is told to stop, on Beam's BundleBasedDirectRunner.

That runner has one thread, acknowledges messages before they are processed, and reads only when nothing runs. So
an intake of its own takes the triggers (`pipelines/intake.py`), what the graphs read are ticks on private topics
(`pipelines/private_topic.py`), the lanes have graphs of their own (`pipelines/live_graph.py`), bulk's in a process of
its own (`pipelines/lane_process.py`), and the send step hands batches to the pools of their lanes without waiting.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

from google.api_core import exceptions as google
from google.auth.exceptions import GoogleAuthError
from google.cloud import pubsub_v1

from pipelines.intake import Intake
from pipelines.lane_process import LaneProcess
from pipelines.live_graph import GROUPS, TURN_S, LiveGraph
from pipelines.private_topic import FINAL, remove_topic
from pipelines.quiet import errors_kept_back
from schemas.elements import PRIORITIES
from sendonce.config import ConfigFault
from sendonce.control.faults import JobFault
from sendonce.control.jobs import Heartbeat, JobRow, forget_old_jobs, new_job_id, seen_jobs
from sendonce.delivery.halting import release_senders
from sendonce.delivery.lanes import running_lanes
from sendonce.delivery.outlook import left_to_do
from sendonce.stores.base import StoreError
from sendonce.stores.opening import shared_store
from sendonce.stores.spanner_opening import EMULATOR
from transforms.worker import WorkerSpec

Result = TypeVar("Result")

LOOK_S = 0.1
# A stop gives the intake, the graphs and the requests in flight this long together; 30 s is what was promised.
STOP_S = 20.0
# Then come the job's row and its report, at a store that may not answer: at least so long for each, and longer where a
# stop has taken less than this.
LAST_LOOK_S = 2.0
STOPPED_S = 24.0
# A job that was silent for so long is gone, and its private topics with it.
GONE_S = 24 * 3600.0


@dataclass(frozen=True)
class LiveReport:
    """How a live job ended. applied, ignored, bad: triggers. handed_back: batches that it had planned and not begun.

    unfinished: recipients without a final outcome, None if the store did not answer. in_flight: whether requests were
    still under way when the patience of a stop ended; their batches come into doubt when their leases end.
    """

    seconds: float
    applied: int
    ignored: int
    bad: int
    handed_back: int
    unfinished: Optional[int]
    waits_for: tuple
    restarts: int
    in_flight: bool


def run_live(
    store_url: str,
    subscription: str,
    *,
    lanes: Sequence[str] = PRIORITIES,
    stop: threading.Event | None = None,
    begun: Callable[[], None] = lambda: None,
    alone: bool = False,
) -> LiveReport:
    """Take triggers from a subscription and send what is due, until `stop` is set. begun: called once all is checked.

    alone: nothing but this job is in the process. Then the groups of lanes that follow the first one have processes of
    their own, which end with this one (with more than one CPU, and not on the emulator of Spanner), and the rendering
    of a process for bulk alone gives way to others.

    Then nothing new is claimed, requests in flight end, the rest goes back to the store, all within 30 s. Raises
    ConfigFault for a subscription that is not there or may not be read, JobFault for one that was taken away meanwhile,
    StoreRefused when the store will not do. A store or Pub/Sub that is away later is waited for; at the start it is a
    JobFault or StoreUnavailable.
    """
    chosen = tuple(lane for lane in PRIORITIES if lane in lanes)
    _check(subscription)
    job = _Live(store_url, chosen, subscription, alone=alone)
    begun()
    turn_s = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        return job.run(stop or threading.Event())
    finally:
        sys.setswitchinterval(turn_s)


class _Live:
    """One live job: its intake, and a graph for each group of its lanes, the first one here."""

    def __init__(self, store_url: str, lanes: tuple[str, ...], subscription: str, *, alone: bool) -> None:
        self._store = shared_store(store_url)
        self._subscription = subscription
        self._stopping = threading.Event()
        self._faults: list[Exception] = []
        self._over_s = 0.0
        job_id, project = new_job_id(), subscription.split("/")[1]
        groups = [group for group in (tuple(lane for lane in lanes if lane in group) for group in GROUPS) if group]
        specs = [WorkerSpec(store_url, job_id, group, can_wait=False, live=True) for group in groups]
        self._first = LiveGraph(specs[0], project, self._stopping, self._hear, alone=alone)
        apart = alone and _several_cpus() and not _one_at_a_time(store_url)
        elsewhere = LaneProcess if apart else LiveGraph
        others = [elsewhere(spec, project, self._stopping, self._hear) for spec in specs[1:]]
        self._graphs: list[LiveGraph | LaneProcess] = [self._first, *others]
        self._lanes = list(running_lanes(self._store, lanes).values())
        topics = [graph.topic for graph in self._graphs]
        self._row = JobRow(self._store, job_id, lanes, subscription=subscription, topics=topics)
        # A job that nobody hears of must not seem to live, nor seem dead: such a fault ends it.
        self._heart = Heartbeat(self._row, self._stopping, self._facts, self._hear)
        self._intake = Intake(self._store, subscription, self._wake, self._hear, on_bad=self._tell, queue=self._first)

    def run(self, stop: threading.Event) -> LiveReport:
        started_s = time.monotonic()
        release_senders(self._store, {name for lane in self._lanes for name in lane.lane.senders()})
        self._row.beat("running")
        self._remove_left_over()
        with errors_kept_back() as beams_words:
            try:
                self._intake.start()
                for graph in self._graphs:
                    graph.start()
                self._heart.start()
                while not stop.wait(LOOK_S) and not self._faults:
                    continue
            finally:
                self._end()
            beams_words.clear()
        if self._faults:
            fault = self._faults[0]
            raise _lost(self._subscription, fault) if isinstance(fault, google.GoogleAPICallError) else fault
        left = self._last(lambda: self._store.read(lambda reader: left_to_do(reader, self._lanes)))
        return LiveReport(
            time.monotonic() - started_s,
            self._intake.applied,
            self._intake.ignored,
            self._intake.bad,
            sum(graph.handed_back for graph in self._graphs),
            None if left is None else left.unfinished,
            () if left is None else left.waits_for,
            sum(graph.restarts for graph in self._graphs),
            not all(graph.all_ended for graph in self._graphs),
        )

    def _end(self) -> None:
        """Stop everything, side by side: the graphs have one patience together."""
        until_s = time.monotonic() + STOP_S
        self._over_s = time.monotonic() + STOPPED_S
        self._stopping.set()
        self._intake.stop(3.0)
        ending = [
            threading.Thread(target=graph.end, args=(until_s - time.monotonic() - 2.0,), daemon=True)
            for graph in self._graphs
        ]
        for thread in ending:
            thread.start()
        for thread in ending:
            thread.join(max(0.0, until_s - time.monotonic()))
        self._heart.end()
        self._last(lambda: self._row.beat("ended", **self._facts()))

    def _last(self, work: Callable[[], Result]) -> Optional[Result]:
        """The result of something to be done at the store at the end; None if it does not answer in time."""
        return _within(max(LAST_LOOK_S, (self._over_s - time.monotonic()) / 2), work)

    def _wake(self, lane: str | None) -> None:
        """A trigger changed something: of one lane, or nobody knows of which."""
        for graph in self._graphs:
            if lane is None or lane in graph.lanes:
                graph.wake()
        self._tell()  # recipients of a send may be final at once

    def _tell(self) -> None:
        """There may be notices to publish; any of the workers does it."""
        self._first.worker.notices.look()

    def _facts(self) -> dict[str, Any]:
        return {
            "lane_processes": {
                ",".join(graph.lanes): graph.pid for graph in self._graphs if isinstance(graph, LaneProcess)
            },
            "triggers_applied": self._intake.applied,
            "triggers_ignored": self._intake.ignored,
            "triggers_bad": self._intake.bad,
            "restarts": sum(graph.restarts for graph in self._graphs),
        }

    def _hear(self, fault: Exception) -> None:
        self._faults.append(fault)

    def _remove_left_over(self) -> None:
        """Remove private topics of jobs that were killed long ago."""
        for job in self._store.read(seen_jobs):
            if job.state != "ended" and job.silent_s > GONE_S:
                for topic in job.facts.get("topics", []):
                    with suppress(google.GoogleAPICallError, google.RetryError):
                        remove_topic(topic)
        forget_old_jobs(self._store)


def _within(patience_s: float, work: Callable[[], Result]) -> Optional[Result]:
    """What some work at the store returns; None when the store is away, or has not answered in time."""
    found: list[Result] = []

    def run() -> None:
        with suppress(StoreError):
            found.append(work())

    thread = threading.Thread(target=run, name="last-look", daemon=True)
    thread.start()
    thread.join(patience_s)
    return found[0] if found else None


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
        raise JobFault(f"{where} does not answer ({type(fault).__name__}); is it there, and is the way free?") from None
    except GoogleAuthError as fault:
        raise ConfigFault(
            f"no credentials for Pub/Sub ({type(fault).__name__}); run `gcloud auth application-default login`, "
            "or set PUBSUB_EMULATOR_HOST"
        ) from None


def _lost(subscription: str, fault: Exception) -> Exception:
    """What to say of a subscription that was there when the job began."""
    if not isinstance(fault, google.NotFound):
        return _wrong(subscription, fault)
    name = subscription.rpartition("/")[2]
    return JobFault(
        f"the subscription {subscription} is not there any more: somebody removed it, or the emulator was started anew "
        "and has forgotten everything. Triggers that it held are gone, too. "
        f"`gcloud pubsub subscriptions create {name} --topic TOPIC --expiration-period=never` makes it again; then "
        "start the job again, and "
        "publish again what the store does not show: a trigger that comes twice changes nothing"
    )


def _wrong(subscription: str, fault: Exception) -> ConfigFault:
    name = subscription.rpartition("/")[2]
    if isinstance(fault, google.NotFound):
        return ConfigFault(
            f"there is no subscription {subscription}; "
            f"`gcloud pubsub subscriptions create {name} --topic TOPIC --expiration-period=never` makes it"
        )
    return ConfigFault(f"the subscription {subscription} may not be read; grant roles/pubsub.subscriber on it")


def _several_cpus() -> bool:
    usable = getattr(os, "sched_getaffinity", None)
    return (len(usable(0)) if usable else os.cpu_count() or 1) > 1


def _one_at_a_time(store_url: str) -> bool:
    """Google's emulator of Spanner takes one transaction at a time: more processes would only wait for each other."""
    return store_url.startswith("spanner://") and EMULATOR in os.environ
