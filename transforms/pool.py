"""A few threads of a process that deliver batches side by side. No Beam.

While one batch waits for its provider or for the disk, others are rendered, packed and committed. Whoever
hands work over waits until a thread is free, so what is in memory is what the threads hold. A live job queues a
little instead: its one thread serves all lanes.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")


class Pool:
    """At most `threads` pieces of work at a time. Safe for threads.

    Its threads are those of whoever makes or fits it, and begin there: a thread that hands work over may have a lower
    priority (`pipelines/live_graph.py`), which threads inherit, and theirs must not fall with it.
    """

    def __init__(self, threads: int, name: str) -> None:
        self.threads = threads
        self._name = name
        self._executor = _begun(threads, name)
        self._changed = threading.Condition(threading.RLock())  # what is over at once says so where it was handed over
        self._running = 0
        self._hurrying = threading.Event()

    @property
    def hurrying(self) -> bool:
        """Whether work under way should come to its next good end instead of its last."""
        return self._hurrying.is_set()

    @property
    def room(self) -> int:
        """How many pieces of work can be handed over before twice the threads' number are under way or queued."""
        with self._changed:
            return max(0, 2 * self.threads - self._running)

    def fit(self, threads: int) -> None:
        """Have so many threads from now on. What runs or is queued ends where it is."""
        if threads == self.threads:
            return
        executor = _begun(threads, self._name)
        with self._changed:
            former, self.threads, self._executor = self._executor, threads, executor
            self._changed.notify_all()
        former.shutdown(wait=False)

    def queue(self, work: Callable[[], Result]) -> "Future[Result]":
        """Hand a piece of work over without waiting for a thread; `room` says when that is wise."""
        with self._changed:
            return self._submit(work)

    def hand(self, work: Callable[[], Result]) -> "Future[Result]":
        """Start a piece of work as soon as a thread is free. The future holds what it returns or raises."""
        with self._changed:
            self._changed.wait_for(lambda: self._running < self.threads)
            return self._submit(work)

    def settle(self, until_s: float | None = None) -> bool:
        """Wait until nothing runs, and let what runs know that it should hurry. The pool can be used again then.

        until_s: not longer than this moment of `time.monotonic`; False when something still runs then.
        """
        self._hurrying.set()
        try:
            with self._changed:
                wait_s = None if until_s is None else max(0.0, until_s - time.monotonic())
                return self._changed.wait_for(lambda: not self._running, wait_s)
        finally:
            self._hurrying.clear()

    def close(self) -> None:
        """End the threads, after the work that is under way."""
        with self._changed:
            self._changed.wait_for(lambda: not self._running)
        self._executor.shutdown()

    def _submit(self, work: Callable[[], Result]) -> "Future[Result]":
        future = self._executor.submit(work)
        self._running += 1
        future.add_done_callback(self._ended)
        return future

    def _ended(self, _: "Future[Result]") -> None:
        with self._changed:
            self._running -= 1
            self._changed.notify_all()


def _begun(threads: int, name: str) -> ThreadPoolExecutor:
    """An executor all of whose threads run."""
    executor, all_run = ThreadPoolExecutor(threads, thread_name_prefix=name), threading.Barrier(threads + 1)
    for _ in range(threads):
        executor.submit(all_run.wait)
    all_run.wait()
    return executor
