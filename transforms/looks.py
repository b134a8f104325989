"""What a live job knows of its lanes since it last looked at them, and the sends that are planned without a look.

A look reads the store, and marking what it finds is a transaction, which waits for the store's lock. A one-time code
need not wait for either: while the last look at its lane found nothing left over, the intake stores it as planned, and
hands its reference to the graph.

Such a send is hidden from other planners for a moment only (`HANDED_S`), until the graph takes it and keeps it alive: a
graph that is busy, or does not hear its ticks, keeps nothing from another job.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from schemas.elements import PRIORITIES, Reference
from schemas.tables import Batch
from sendonce.delivery import batches

# How long a send that was stored as planned waits for its graph to take it, before any planner may plan it.
HANDED_S = 1.0
# So many ticks without the graph: it is busy or deaf, and sends are left to whoever looks first.
DEAF_TICKS = 3


class Looks:
    """One graph's looks. Safe for threads."""

    def __init__(self, tick_s: float = 0.2, clock: Callable[[], float] = time.monotonic) -> None:
        self.tick_s = tick_s
        self._clock = clock
        self._lock = threading.Lock()
        self._asked = True
        self._ended = False
        self._looked_s = self._ticked_s = float("-inf")
        self._room: dict[str, int] = {}
        self._given: deque[Reference] = deque()

    def ask(self) -> None:
        """Something may be to be planned."""
        with self._lock:
            self._asked = True

    def due(self) -> bool:
        """Whether a tick is to look: somebody asked, or the last look was a tick ago. If so, one begins.

        Half a tick is enough: ticks come a little late or early, and none is to be left out for it.
        """
        now_s = self._clock()
        with self._lock:
            if not self._asked and now_s - self._looked_s < self.tick_s / 2:
                return False
            self._asked, self._looked_s = False, now_s
            return True

    def seen(self, lane: str, room: int) -> None:
        """What a look at a lane has found. room: recipients that it could have planned besides; 0: some may be left, as
        while a look is under way, for it does not see what happens during it."""
        with self._lock:
            self._room[lane] = room

    def may_be_left(self, lane: str) -> bool:
        """Whether the last look at a lane may have left something that was due."""
        with self._lock:
            return not self._room.get(lane)

    def queue(self, lane: str, batch: Batch, now: datetime) -> Batch:
        """The batch of a send as it is to be stored: planned, while there is room for it and a graph that takes it.

        Reads nothing but what this process knows.
        """
        with self._lock:
            room = self._room.get(lane, 0)
            deaf = self._clock() - self._ticked_s > DEAF_TICKS * self.tick_s
            if batch.n_open > room or deaf or self._ended:
                return batch
            self._room[lane] = room - batch.n_open
            return batches.queued(batch, now + timedelta(seconds=HANDED_S))

    def give(self, references: Sequence[Reference]) -> bool:
        """These sends were stored as planned: the next tick takes them. False when no tick will."""
        with self._lock:
            if self._ended:
                return False
            self._given.extend(references)
            return True

    def given(self) -> list[Reference]:
        """At a tick: what was given since the last one, each once, critical first."""
        with self._lock:
            self._ended, self._ticked_s = False, self._clock()
            found = sorted(self._given, key=lambda reference: PRIORITIES.index(reference.priority))
            self._given.clear()
            return found

    def end(self) -> list[Reference]:
        """No graph takes anything any more, until one ticks again; returns what was given and not taken."""
        with self._lock:
            self._asked = self._ended = True
            self._room.clear()
            left = list(self._given)
            self._given.clear()
            return left
