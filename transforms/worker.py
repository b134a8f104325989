"""What a worker process keeps for all its steps: the store, the lanes with their senders, compiled templates.

Steps get a `WorkerSpec` (plain values, pickled with the pipeline) and turn it into the process's `Worker` when they
are set up. The cache is at module level because a local runner sets every step up anew for each bundle.
"""

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import datetime

from schemas.elements import Reference
from schemas.letters import Letters
from sendonce.config import topics_in
from sendonce.control.jobs import BEATS_S, JobRow
from sendonce.delivery.deliver import Clocks, Deliverer
from sendonce.delivery.fair import FairShare
from sendonce.delivery.lanes import RunningLane, running_lanes
from sendonce.delivery.letters import compiled_for, render
from sendonce.delivery.sweeper import SweepMemory, Swept
from sendonce.stores.base import Store
from sendonce.stores.opening import shared_store, store_key
from sendonce.stores.turns import urgent
from transforms.hand import Hand
from transforms.keeper import Keeper
from transforms.looks import Looks
from transforms.notices import publisher_of
from transforms.pool import Pool

SETTINGS_FRESH_S = 5.0
# Batches whose letters a process holds: those that a lane's pool delivers (at most 64), and the next one.
LETTERS_HELD = 65


@dataclass(frozen=True)
class TriggerResult:
    """What became of one trigger. ended: `applied`, `ignored` (it came again or too late), `bad` (a dead letter).

    reason: of a bad one, for machines. detail: in words, never a value of the body.
    """

    message_id: str
    ended: str
    reason: str
    detail: str


@dataclass(frozen=True)
class WorkerSpec:
    """Which store, which job, which lanes. can_wait: the runner's timers wait (on one machine they don't).

    live: bundles do not wait for their deliveries; the lanes' pools commit to the store by themselves. For a runner
    that streams with one thread, where critical work must not wait for bulk requests.
    """

    store_url: str
    job_id: str
    lanes: tuple
    can_wait: bool
    live: bool = False


def own_clocks() -> Clocks:
    """The clocks of a real process: CLOCK_BOOTTIME, the wall clock, the system's randomness."""
    return Clocks(
        own_s=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        wall_ms=lambda: time.time_ns() // 1_000_000,
        randomness=os.urandom,
        chance=random.SystemRandom().random,
    )


class Worker:
    """The resources of one process.

    pace: recipients a second that each lane was measured to pass (in a live job: to render), for the planner. passed:
    recipients that got their outcome since that was last measured, and what that took: rendering_s of the one thread
    that renders, sending_s of all that send, without waits for permits. fair: what the campaigns of each lane got.
    sweep_memories: what the sweeps of each lane remember. swept: what they changed, until a step counts it. on_fault:
    told what a step raises, before a runner makes text of it. on_trigger: told what became of each trigger; again, if
    its bundle runs again. on_tick: told when a look for work begins. on_room: told the lane whose pool has room again.
    looks: what a live job's looks have found. notices: publishes what is to be told over Pub/Sub; whoever may have
    written any says so.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.store: Store = shared_store(spec.store_url)
        self.key = store_key(self.store)
        self.clocks = own_clocks()
        self.stopping = threading.Event()
        self.pace: dict[str, float] = {}
        self.passed: dict[str, int] = {}
        self.rendering_s: dict[str, float] = {}
        self.sending_s: dict[str, float] = {}
        self.fair: dict[str, FairShare] = {}
        self.sweep_memories: dict[str, SweepMemory] = {}
        self.swept: deque[Swept] = deque()
        self.on_fault: Callable[[BaseException], None] = lambda fault: None
        self.keeper = Keeper(self.store)
        self.notices = publisher_of(self.store)
        self.hand = Hand(LETTERS_HELD)
        self.looks = Looks()
        self.on_trigger: Callable[[TriggerResult], None] = lambda result: None
        self.on_tick: Callable[[], None] = lambda: None
        self.on_room: Callable[[str], None] = lambda lane: None
        self._row = JobRow(self.store, spec.job_id, spec.lanes)
        self._beaten_s = float("-inf")
        self._turns: dict[str, threading.Lock] = {}
        self._lanes: dict[str, RunningLane] = {}
        self._lanes_until_s = 0.0
        self._looking_at_lanes = threading.Lock()
        self._pools: dict[str, Pool] = {}

    def beat(self) -> None:
        """Say every few seconds that the job lives. For processes that nobody else speaks for."""
        now_s = self.clocks.own_s()
        if now_s - self._beaten_s >= BEATS_S / 2:
            self._beaten_s = now_s
            self._row.beat("running")

    def lanes(self) -> dict[str, RunningLane]:
        """The lanes as the store configures them, looked at every few seconds: `config apply` needs no restart."""
        with self._looking_at_lanes:
            now_s = self.clocks.own_s()
            if now_s >= self._lanes_until_s:
                self._lanes = running_lanes(self.store, self.spec.lanes, self._lanes)
                self.notices.follow(self, self.store.read(topics_in))
                self._lanes_until_s = now_s + SETTINGS_FRESH_S
            return self._lanes

    def read_settings_again(self) -> None:
        """Somebody applied settings: the next look at the lanes reads them."""
        with self._looking_at_lanes:
            self._lanes_until_s = 0.0

    def letters(self, reference: Reference) -> tuple[Letters, datetime] | None:
        """The letters of a reference that came without them: as they are in this process's hand, or rendered again."""
        return self.hand.get(reference) or self.render(reference)

    def render(self, reference: Reference) -> tuple[Letters, datetime] | None:
        return render(self.store, self.key, reference, lambda template: compiled_for(self.store, template))

    def deliverer(self, priority: str) -> Deliverer:
        lane = self.lanes()[priority]
        fallback = lane.fallback.sender if lane.fallback is not None else None
        return Deliverer(
            self.store, lane.sender, lane.terms, self.spec.job_id, self.clocks, self.letters, self.must_stop, fallback
        )

    def pool(self, priority: str) -> Pool:
        """The threads that deliver a lane's batches side by side, as many as its configuration says; in a live job, as
        it said at the last `fit_pools`."""
        found = self._pools.get(priority)
        if found is None:
            found = self._pools[priority] = Pool(self.lanes()[priority].lane.parallel, f"send-{priority}")
        elif not self.spec.live:
            found.fit(self.lanes()[priority].lane.parallel)
        return found

    def fit_pools(self) -> None:
        """Give each lane's pool as many threads as its configuration says now. They are threads of whoever calls."""
        for name, lane in self.lanes().items():
            self.pool(name).fit(lane.lane.parallel)

    def turn(self, priority: str) -> threading.Lock:
        """Whoever holds it is the one batch of a lane that waits for a permit in this process."""
        return self._turns.setdefault(priority, threading.Lock())

    def must_stop(self) -> bool:
        """Whether nothing new is to be claimed: somebody asked the job to stop, or a round has failed."""
        return self.stopping.is_set() or any(pool.hurrying for pool in list(self._pools.values()))

    def settle(self, patience_s: float | None = None) -> bool:
        """After a round, also one that failed: wait for the deliveries that are still under way, which end with their
        requests in flight, and let go what was not delivered, so that it is planned again. False: the patience, in
        seconds, ended first, and some requests are still in flight."""
        until_s = None if patience_s is None else time.monotonic() + patience_s
        ended = [pool.settle(until_s) for pool in self._pools.values()]
        self.hand.clear()
        self.keeper.drop_all()
        return all(ended)

    def end_threads(self) -> None:
        """After a run: none of its threads stays, and what there is to tell is told."""
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
        self.notices.leave(self)


def in_turn_of(lane: str) -> AbstractContextManager[None]:
    """A block in which the store is asked for one lane: bulk lets the others go first."""
    return urgent(lane != "bulk")


@contextmanager
def told(worker: Worker) -> Iterator[None]:
    """Tell the worker of an exception on its way out of a step."""
    try:
        yield
    except Exception as fault:
        worker.on_fault(fault)
        raise


_workers: dict[WorkerSpec, Worker] = {}
_lock = threading.Lock()


def worker_for(spec: WorkerSpec) -> Worker:
    """The process's worker for a spec, made at the first call."""
    with _lock:
        if spec not in _workers:
            _workers[spec] = Worker(spec)
        return _workers[spec]
