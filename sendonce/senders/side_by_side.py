"""The calls of one request, made by a few threads at once: by whoever asks, and by as many helpers as are free."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class SideBySide:
    """An account's helpers: at most `parallel` threads work on one request. Safe for threads."""

    def __init__(self, parallel: int, name: str) -> None:
        self._parallel = parallel
        self._helpers = ThreadPoolExecutor(parallel, thread_name_prefix=f"sender-{name}")

    def work(self, work: Callable[[], None], calls: int) -> None:
        """Run `work`, which makes calls until none waits, here and in helpers; all have ended when this returns."""
        helpers: list[Future[None]] = [self._helpers.submit(work) for _ in range(min(calls, self._parallel) - 1)]
        try:
            work()
        finally:
            waited_for = [helper for helper in helpers if not helper.cancel()]
        for helper in waited_for:
            helper.result()

    def close(self) -> None:
        """End the threads, after what is under way."""
        self._helpers.shutdown()
