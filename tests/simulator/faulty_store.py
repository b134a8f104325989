"""The store as a process sees it that may die, and as it is when the network or the store itself fails."""

from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from typing import Any, Protocol, TypeVar

from schemas.tables import Batch
from sendonce.delivery.terms import Move, Turn
from sendonce.stores.base import Reader, StoreUnavailable, Tx
from tests.simulator.course import Course
from tests.simulator.memory_store import MemoryStore

Result = TypeVar("Result")


class Killed(BaseException):
    """The process is gone. Not an Exception: nothing in the core may catch it."""


class Aborted(Exception):
    """The store runs the work again."""


class Interrupts(Protocol):
    course: Course
    aborts: int

    def store_is_away(self) -> bool: ...

    def stand_still(self) -> float: ...


class FaultyStore:
    """Before a commit or right after it the process is killed, stands still, or hears that the store is away; the store
    runs the work again, at times again and again; reads fail.

    intended: when each request was first intended, by its attempt.
    """

    def __init__(self, store: MemoryStore, world: Interrupts) -> None:
        self._store = store
        self._world = world
        self.url = store.url
        self.rows_at_once = store.rows_at_once
        self.intended: dict[str, datetime] = {}

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        course = self._world.course
        if self._world.store_is_away():
            raise StoreUnavailable("away")
        before = course.fault(f"before {tag}", ("", 940), ("unavailable", 35), ("kill", 15), ("pause", 10))
        if before == "unavailable":
            raise StoreUnavailable("away")
        self._stop(before, tag)
        while course.happens(tag, "abort", self._world.aborts):
            with suppress(Aborted):
                self._store.transact(lambda tx: _abort_after(work, tx), tag="aborted")
        result = self._store.transact(work, tag=tag)
        if isinstance(result, Turn) and result.move is Move.GO and result.batch is not None:
            self._note(result.batch)
        after = course.fault(f"after {tag}", ("", 940), ("reply lost", 35), ("kill", 15), ("pause", 10))
        if after == "reply lost":
            raise StoreUnavailable("away after the commit", maybe_applied=True)
        self._stop(after, tag)
        return result

    def _note(self, owned: Batch) -> None:
        """The intent as it really stands in the store."""
        found = self._store.read(lambda reader: reader.get(Batch, owned.shard, owned.campaign_id, owned.batch_no))
        if found is not None and found.attempt_id is not None and found.intent_at is not None:
            self.intended.setdefault(found.attempt_id, found.intent_at)

    def _stop(self, fault: str, tag: str) -> None:
        if fault == "kill":
            raise Killed(tag)
        if fault == "pause":
            self._world.stand_still()

    def read(self, work: Callable[[Reader], Result], *, stale_s: float = 0.0) -> Result:
        if self._world.store_is_away() or self._world.course.fault("a read", ("", 993), ("unavailable", 7)):
            raise StoreUnavailable("away")
        return self._store.read(work, stale_s=stale_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _abort_after(work: Callable[[Tx], Any], tx: Tx) -> None:
    work(tx)
    raise Aborted
