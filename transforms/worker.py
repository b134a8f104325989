"""What a worker process keeps for all its steps: the store, the lanes with their senders, compiled templates.

Steps get a `WorkerSpec` (plain values, pickled with the pipeline) and turn it into the process's `Worker` when they
are set up. The cache is at module level because a local runner sets every step up anew for each bundle.
"""

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from schemas.elements import Reference
from schemas.letters import Letters
from sendonce.delivery.deliver import Clocks, Deliverer
from sendonce.delivery.fair import FairShare
from sendonce.delivery.lanes import RunningLane, running_lanes
from sendonce.delivery.letters import compiled_for, render
from sendonce.stores.base import Store
from sendonce.stores.opening import shared_store, store_key
from transforms.keeper import Keeper

SETTINGS_FRESH_S = 5.0


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
    """Which store, which job, which lanes. can_wait: the runner's timers wait (in bounded local runs they don't)."""

    store_url: str
    job_id: str
    lanes: tuple
    can_wait: bool


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

    pace: recipients a second that each lane was measured to pass, for the planner. passed: recipients that got their
    outcome since that was last measured. fair: what the campaigns of each lane got. on_fault: told what a step raises,
    before a runner makes text of it. on_trigger: told what became of each trigger; again, if its bundle runs again.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        self.spec = spec
        self.store: Store = shared_store(spec.store_url)
        self.key = store_key(self.store)
        self.clocks = own_clocks()
        self.stopping = threading.Event()
        self.pace: dict[str, float] = {}
        self.passed: dict[str, int] = {}
        self.fair: dict[str, FairShare] = {}
        self.on_fault: Callable[[BaseException], None] = lambda fault: None
        self.keeper = Keeper(self.store)
        self.on_trigger: Callable[[TriggerResult], None] = lambda result: None
        self._lanes: dict[str, RunningLane] = {}
        self._lanes_until_s = 0.0

    def lanes(self) -> dict[str, RunningLane]:
        """The lanes as the store configures them, looked at every few seconds: `config apply` needs no restart."""
        now_s = self.clocks.own_s()
        if now_s >= self._lanes_until_s:
            self._lanes = running_lanes(self.store, self.spec.lanes, self._lanes)
            self._lanes_until_s = now_s + SETTINGS_FRESH_S
        return self._lanes

    def render(self, reference: Reference) -> tuple[Letters, datetime] | None:
        return render(self.store, self.key, reference, lambda template: compiled_for(self.store, template))

    def deliverer(self, priority: str) -> Deliverer:
        lane = self.lanes()[priority]
        return Deliverer(
            self.store, lane.sender, lane.terms, self.spec.job_id, self.clocks, self.render, self.stopping.is_set
        )


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
