"""The small interface behind which SQLite and Spanner stand.

Rows are the frozen dataclasses of `schemas.tables`. Two ways in:

* `Store.transact(work)` runs `work(tx)` in one serialisable read-write transaction. `work` may run several
  times (a store may abort and retry it), so it has no side effects but its writes, and its result is taken
  from the run that committed. Inside, read first and write afterwards: a read need not see the
  transaction's own writes.
* `Store.read(work)` runs `work(reader)` on a consistent snapshot, taking no locks.

Errors: `AlreadyExists` for an insert over an existing primary or unique key; `StoreUnavailable` when the
store cannot be reached or stays locked beyond its patience (safe to try again: nothing was applied, unless
`maybe_applied` says that a commit may have been); `StoreRefused` for what trying again cannot mend (disk
full, read-only, newer schema, wrong permissions). Each message names the store, the fault and the mend.
"""

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import Enum
from typing import Any, Final, Protocol, TypeVar

Row = TypeVar("Row")
Result = TypeVar("Result")


class Any_(Enum):
    SHARD = "any shard"


# In place of a leading shard in a key prefix: look in every shard.
ANY_SHARD: Final = Any_.SHARD


class StoreError(Exception):
    """Base of what a store raises on purpose."""


class AlreadyExists(StoreError):
    """An insert met an existing primary or unique key; nothing of its transaction was applied."""


class StoreUnavailable(StoreError):
    """The store could not be reached, or stayed busy beyond its patience. Trying again later is right.

    `maybe_applied`: the reply to a commit was lost; read the row back before deciding anything.
    """

    def __init__(self, message: str, *, maybe_applied: bool = False) -> None:
        super().__init__(message)
        self.maybe_applied = maybe_applied


class StoreRefused(StoreError):
    """The store cannot do this and will not later: full disk, read-only folder, newer schema, no permission."""


class NoStore(StoreRefused):
    """What was named is no store: not there when it is opened, somebody else's, or a URL that none can have."""


class ValueRefused(StoreRefused):
    """A value does not fit its column: wrong in whatever gave it, not in the store. Nothing was applied."""


class Reader(Protocol):
    def now(self) -> datetime:
        """Store time, UTC. Never goes backwards; leases and due times are judged by it alone.

        In a stale read it is the moment that is read.
        """

    def pace(self) -> datetime:
        """The clock by which limits count: only the differences mean something.

        Never goes backwards, and never forward by more than really passed, as far as the store can tell. In a store
        with a clock of its own, which no machine sets, it is store time.
        """

    def get(self, kind: type[Row], *key: Any) -> Row | None:
        """The row with this primary key, or None."""

    def get_many(self, kind: type[Row], keys: Iterable[tuple[Any, ...]]) -> list[Row]:
        """The rows that exist among these primary keys, each once, in no order: one look for a whole batch."""

    def scan(
        self,
        kind: type[Row],
        *prefix: Any,
        index: str | None = None,
        upto: Any = None,
        after: Any = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Row]:
        """Rows whose key starts with `prefix`, in key order; by a secondary index's columns if `index` names one.

        `upto` bounds the next key column after the prefix from above (inclusive), `after` from below
        (exclusive). `prefix[0]` may be ANY_SHARD in a table or index that leads with `shard`: then the order
        is by shard first.
        """

    def tally(
        self,
        kind: type[Any],
        *prefix: Any,
        by: Sequence[str] = (),
        sums: Sequence[str] = (),
        index: str | None = None,
    ) -> list[dict[str, Any]]:
        """Group the rows under a primary-key prefix by the columns `by`; each group is a dict of those columns,

        `rows` (their number) and the sums of `sums` (0 for none). Order is unspecified. With `index`, the prefix is of
        that index's columns, and only rows that stand in it count.
        """


class Tx(Reader, Protocol):
    def insert(self, *rows: Any) -> None:
        """Add rows, of any tables. AlreadyExists (then or at commit) if a primary or unique key is taken."""

    def put(self, *rows: Any) -> None:
        """Write rows whole, replacing those with the same primary key."""

    def delete(self, *rows: Any) -> None:
        """Remove rows by their primary keys; a missing one is no error."""


class Store(Protocol):
    """rows_at_once: how many small rows go best into one transaction, where there are many to write."""

    url: str
    rows_at_once: int

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        """Run and commit `work`. `tag` names the transaction in traces and lock statistics, e.g. `claim`."""

    def read(self, work: Callable[[Reader], Result], *, stale_s: float = 0.0) -> Result:
        """Run `work` on a snapshot, at most `stale_s` old (a store without stale reads gives the present)."""

    def write_many(self, rows: Iterable[Any]) -> int:
        """Put any number of rows in chunks of the store's own size; returns how many.

        Each chunk is atomic, the whole is not: for rows that nobody reads until a later transaction says so.
        """

    def delete_many(self, kind: type[Any], *prefix: Any) -> int:
        """Delete every row under a primary-key prefix, in chunks; returns how many (or -1 if the store can't say)."""

    def close(self) -> None:
        """Release connections. The object is not used afterwards."""
