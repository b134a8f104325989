"""Keeping references alive that this process holds and has not claimed yet.

A queued batch that nobody claims becomes visible to planners again, because its reference may be lost. Rendering can
take longer than that: without a sign of life two processes would plan each other's batches over and over, and neither
would ever send. The keeper gives that sign, from a thread of its own, only for references that are held for long; a
killed process gives none, so its batches are planned again in time.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from schemas.elements import Reference
from sendonce.delivery.protocol.queueing import keep
from sendonce.stores.base import Store, StoreError

# Of a visibility time: when a reference that is still held is extended.
EXTEND_AFTER = 0.4
LOOK_EVERY = 0.1
# In one transaction: a process may hold many, and each claim waits for its turn at the store, too.
KEPT_AT_ONCE = 32


@dataclass
class _Held:
    visibility_s: float
    since_s: float


class Keeper:
    """The references in this process's hands. Safe for threads; its own thread runs only while there are any."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.monotonic) -> None:
        self._store = store
        self._clock = clock
        self._held: dict[Reference, _Held] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._sooner = threading.Event()

    def hold(self, reference: Reference, visibility_s: float, hidden_s: float | None = None) -> None:
        """Keep a reference alive from now on. hidden_s: for how long it is hidden so far, if that is not the visibility
        time."""
        early_s = 0.0 if hidden_s is None else max(0.0, visibility_s - hidden_s) * EXTEND_AFTER
        with self._lock:
            if reference not in self._held:
                self._held[reference] = _Held(visibility_s, self._clock() - early_s)
                if early_s:
                    self._sooner.set()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
                self._thread.start()

    def drop(self, *references: Reference) -> None:
        """These are claimed, or not wanted any more."""
        with self._lock:
            for reference in references:
                self._held.pop(reference, None)

    def held(self) -> list[Reference]:
        """What is held and not claimed now."""
        with self._lock:
            return list(self._held)

    def drop_all(self) -> None:
        with self._lock:
            self._held.clear()

    def extend(self) -> int:
        """Extend what is held for long; returns how many references were. Stale ones are dropped."""
        now_s = self._clock()
        with self._lock:
            due = [
                (reference, held)
                for reference, held in self._held.items()
                if now_s - held.since_s >= held.visibility_s * EXTEND_AFTER
            ]
        extended = 0
        for visibility_s in {held.visibility_s for _, held in due}:
            same = [(reference, held) for reference, held in due if held.visibility_s == visibility_s]
            for start in range(0, len(same), KEPT_AT_ONCE):
                extended += self._extend(dict(same[start : start + KEPT_AT_ONCE]), visibility_s, now_s)
        return extended

    def _extend(self, some: dict[Reference, _Held], visibility_s: float, now_s: float) -> int:
        alive = set(self._store.transact(partial(keep, references=list(some), visibility_s=visibility_s), tag="keep"))
        self.drop(*(reference for reference in some if reference not in alive))
        for reference in alive:
            some[reference].since_s = now_s
        return len(alive)

    def _due_in_s(self, held: _Held) -> float:
        """Seconds until one is to be extended, at most until the next look that its visibility time asks for."""
        due_s = held.since_s + held.visibility_s * EXTEND_AFTER - self._clock()
        return max(0.01, min(due_s, held.visibility_s * LOOK_EVERY))

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._held:
                    self._thread = None
                    return
                wait_s = min(self._due_in_s(held) for held in self._held.values())
                self._sooner.clear()
            self._sooner.wait(wait_s)
            try:
                self.extend()
            except StoreError:
                continue  # the steps meet the same fault and tell it; the next look tries again
