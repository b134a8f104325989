"""What a live job knows of its lanes since it last looked at them, and the sends that are planned without a look.

A look reads the store, and marking what it finds is a transaction, which waits for the store's lock. A one-time code
need not wait for either: while the last look at its lane found nothing left over, the intake stores it as planned, and
hands its reference to the graph.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.elements import PRIORITIES, Reference
from schemas.tables import Batch
from sendonce.delivery import batches


@dataclass
class _Seen:
    room: int
    visibility_s: float


class Looks:
    """One graph's looks. Safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asked = True
        self._looked_s = float("-inf")
        self._lanes: dict[str, _Seen] = {}
        self._given: deque[Reference] = deque()

    def ask(self) -> None:
        """Something may be to be planned."""
        with self._lock:
            self._asked = True

    def due(self, tick_s: float) -> bool:
        """Whether a tick is to look: somebody asked, or `tick_s` seconds are over since the last look. One begins."""
        now_s = time.monotonic()
        with self._lock:
            if not self._asked and now_s - self._looked_s < tick_s:
                return False
            self._asked, self._looked_s = False, now_s
            return True

    def seen(self, lane: str, room: int, visibility_s: float) -> None:
        """A look at a lane has ended. room: recipients that it could have planned besides; 0: some may be left."""
        with self._lock:
            self._lanes[lane] = _Seen(room, visibility_s)

    def may_be_left(self, lane: str) -> bool:
        """Whether the last look at a lane may have left something that was due."""
        with self._lock:
            return lane not in self._lanes or self._lanes[lane].room == 0

    def queue(self, lane: str, batch: Batch, now: datetime) -> Batch:
        """A `sendonce.control.streams.Queue`: plans a send while there is room for it. Reads nothing."""
        with self._lock:
            seen = self._lanes.get(lane)
            if seen is None or batch.n_open > seen.room:
                return batch
            seen.room -= batch.n_open
            return batches.queued(batch, now + timedelta(seconds=seen.visibility_s))

    def give(self, references: Sequence[Reference]) -> None:
        """These sends were stored as planned: the next tick takes them."""
        with self._lock:
            self._given.extend(references)

    def given(self) -> list[Reference]:
        """What was given since, each once, critical first."""
        with self._lock:
            found = sorted(self._given, key=lambda reference: PRIORITIES.index(reference.priority))
            self._given.clear()
            return found

    def end(self) -> None:
        """No graph takes anything any more: forget what was given and seen, until another one looks."""
        with self._lock:
            self._lanes.clear()
            self._given.clear()
            self._asked = True
