"""A few threads of a process that deliver batches side by side. No Beam.

While one batch waits for its provider or for the disk, others are rendered, packed and committed. Nothing is queued:
who hands work over waits until a thread is free, so what is in memory is what the threads hold.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Pool:
    """At most `threads` pieces of work at a time. Safe for threads."""

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._changed = threading.Condition()
        self._running = 0
        self._hurrying = threading.Event()

    @property
    def hurrying(self) -> bool:
        """Whether work under way should come to its next good end instead of its last."""
        return self._hurrying.is_set()

    def hand(self, work: Callable[[], Result]) -> "Future[Result]":
        """Start a piece of work as soon as a thread is free. The future holds what it returns or raises."""
        with self._changed:
            self._changed.wait_for(lambda: self._running < self.threads)
            self._running += 1
        future = self._executor.submit(work)
        future.add_done_callback(self._ended)
        return future

    def settle(self) -> None:
        """Wait until nothing runs, and let what runs know that it should hurry. The pool can be used again then."""
        self._hurrying.set()
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._running)
        finally:
            self._hurrying.clear()

    def close(self) -> None:
        """End the threads, after the work that is under way."""
        self._executor.shutdown()

    def _ended(self, _: "Future[Result]") -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()
