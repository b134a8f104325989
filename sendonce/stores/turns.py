"""Whose turn it is to write: a store in one file has one writer at a time, and a one-time code must not queue for it
behind the whole of a newsletter.

Threads that do urgent work say so (`urgent`); where nobody does, turns are taken in the order in which they are asked
for.
"""

import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

# Urgent turns in a row while somebody else waits: urgent work goes first, but not alone.
_URGENT_IN_A_ROW: Final = 16
# Between a turn and the next one that is not urgent: other processes ask for the lock every 0.5 ms, and would hardly
# ever meet it free. A long turn has kept them waiting for longer, so its gap is longer: a tenth of it.
_GAP_S: Final = 0.001
_GAP_MOST_S: Final = 0.01
_GAP_SHARE: Final = 0.1


class _Urgency(threading.local):
    urgent = False


_urgency = _Urgency()


@contextmanager
def urgent(so: bool = True) -> Iterator[None]:
    """What this thread writes in the block goes before what other threads of the process write, if `so`."""
    before, _urgency.urgent = _urgency.urgent, so
    try:
        yield
    finally:
        _urgency.urgent = before


class Turns:
    """One turn at a time for the threads of a process: urgent ones first, each kind in its order. Safe for threads."""

    def __init__(self) -> None:
        self._changed = threading.Lock()
        self._taken = False
        self._waiting: tuple[deque[threading.Event], deque[threading.Event]] = (deque(), deque())
        self._in_a_row = 0
        self._taken_s = self._free_s = float("-inf")

    def take(self, patience_s: float) -> bool:
        """Wait for a turn, at most so long; False if none came. Whoever got one gives it back by `give`."""
        mine = threading.Event()
        line = self._waiting[0 if _urgency.urgent else 1]
        with self._changed:
            if not self._taken and not any(self._waiting):
                self._taken = True
                mine.set()
            else:
                line.append(mine)
                self._next()
        try:
            mine.wait(patience_s)
        except BaseException:  # Ctrl-C: nobody would give back a turn that came meanwhile
            if not self._leave(line, mine):
                self.give()
            raise
        if self._leave(line, mine):
            return False
        if not _urgency.urgent and (gap_s := self._free_s - time.monotonic()) > 0:
            try:
                time.sleep(gap_s)
            except BaseException:
                self.give()
                raise
        self._taken_s = time.monotonic()
        return True

    def give(self) -> None:
        """The turn is over."""
        with self._changed:
            self._taken = False
            now_s = time.monotonic()
            self._free_s = now_s + min(_GAP_MOST_S, max(_GAP_S, _GAP_SHARE * (now_s - self._taken_s)))
            self._next()

    def _leave(self, line: deque[threading.Event], mine: threading.Event) -> bool:
        """Wait no longer; False when the turn has come."""
        with self._changed:
            if mine.is_set():
                return False
            line.remove(mine)
            return True

    def _next(self) -> None:
        if self._taken or not any(self._waiting):
            return
        first, others = self._waiting
        if first and (not others or self._in_a_row < _URGENT_IN_A_ROW):
            chosen, self._in_a_row = first.popleft(), self._in_a_row + 1
        else:
            chosen, self._in_a_row = others.popleft(), 0
        self._taken = True
        chosen.set()
