"""Letters that this process has rendered and is about to send: the send step takes them as they are. No Beam."""

import threading
from datetime import datetime
from typing import Optional

from schemas.elements import Reference
from schemas.letters import Letters


class Hand:
    """The letters of at most `most` batches, by reference; more than that drops the oldest, which is rendered again.

    For a runner whose steps share a process: packing letters up and unpacking them again would be for nothing. Safe
    for threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Reference, tuple[Letters, datetime]] = {}
        self._lock = threading.Lock()

    def put(self, reference: Reference, letters: Letters, at: datetime) -> None:
        """Hold letters, and the store time at which their batch was read."""
        with self._lock:
            self._held[reference] = (letters, at)
            while len(self._held) > self._most:
                del self._held[next(iter(self._held))]

    def get(self, reference: Reference) -> Optional[tuple[Letters, datetime]]:
        """The letters of a reference, if they are still held; they stay."""
        with self._lock:
            return self._held.get(reference)

    def drop(self, reference: Reference) -> None:
        """This batch is delivered, or goes back to the store."""
        with self._lock:
            self._held.pop(reference, None)

    def clear(self) -> None:
        with self._lock:
            self._held.clear()

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)
