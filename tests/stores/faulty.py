"""Stores that do what Spanner may do at any time, around a store that works."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from sendonce.stores.base import Reader, Result, Store, StoreUnavailable, Tx


class _Around:
    def __init__(self, store: Store) -> None:
        self.store = store
        self.url = store.url
        self.rows_at_once = store.rows_at_once

    def read(self, work: Callable[[Reader], Result], *, stale_s: float = 0.0) -> Result:
        return self.store.read(work, stale_s=stale_s)

    def write_many(self, rows: Iterable[Any]) -> int:
        return self.store.write_many(rows)

    def delete_many(self, kind: type[Any], *prefix: Any) -> int:
        return self.store.delete_many(kind, *prefix)

    def close(self) -> None:
        self.store.close()


class Aborting(_Around):
    """Runs the work of every transaction `aborts` times for nothing before the run that commits."""

    def __init__(self, store: Store, aborts: int = 1) -> None:
        super().__init__(store)
        self._aborts = aborts

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        for _ in range(self._aborts):
            with suppress(_Aborted):
                self.store.transact(lambda tx: _abort_after(work, tx), tag=tag)
        return self.store.transact(work, tag=tag)


class LosingReplies(_Around):
    """Commits the next `losses` transactions and then says that the store could not be reached."""

    def __init__(self, store: Store, losses: int = 1) -> None:
        super().__init__(store)
        self.losses = losses

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        result = self.store.transact(work, tag=tag)
        if self.losses:
            self.losses -= 1
            raise StoreUnavailable("the reply to the commit was lost", maybe_applied=True)
        return result


class _Aborted(Exception):
    pass


def _abort_after(work: Callable[[Tx], Result], tx: Tx) -> Result:
    work(tx)
    raise _Aborted
