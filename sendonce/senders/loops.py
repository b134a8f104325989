"""An event loop in a thread of its own, for adapters whose client is asynchronous and whose callers are not."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class LoopThread:
    """Runs coroutines for callers in other threads. Safe for threads. The thread starts when it is first needed."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._changing = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self._calls = 0
        self._idle = threading.Condition(self._changing)

    def run(self, make: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
        """Run what `make` makes, to its end, and give its result or raise what it raises.

        RuntimeError after `close`. A caller that is interrupted leaves nothing running.
        """
        with self._changing:
            if self._closed:
                raise RuntimeError(f"{self._name} is closed")
            loop = self._started()
            self._calls += 1
        try:
            running = asyncio.run_coroutine_threadsafe(make(), loop)
            try:
                return running.result()
            except BaseException:
                running.cancel()
                raise
        finally:
            with self._changing:
                self._calls -= 1
                self._idle.notify_all()

    def close(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for the calls that are under way, run `last`, end the thread. Once; later calls do nothing."""
        with self._changing:
            if self._closed:
                return
            self._closed = True
            self._idle.wait_for(lambda: self._calls == 0)
        if self._loop is None or self._thread is None:
            return
        try:
            asyncio.run_coroutine_threadsafe(last(), self._loop).result()
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._work, args=(self._loop,), name=self._name, daemon=True)
            self._thread.start()
        return self._loop

    @staticmethod
    def _work(loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
        finally:
            loop.close()
