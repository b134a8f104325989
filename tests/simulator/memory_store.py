"""A store in this process's memory with the contract of `sendonce.stores.base`, for thousands of histories a minute.

It keeps what `tests/stores/contract.py` asks of every store, save that no other process can open it. A commit puts new
versions of tables in place; a reader keeps those that it began with.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from schemas.tables import SCHEMA_VERSION, Meta
from sendonce.moments import from_micros, to_micros
from sendonce.stores.base import Reader, Tx
from sendonce.stores.sqlite_codec import codec_of
from sendonce.stores.sqlite_time import Kept, SinceBoot, later, no_since_boot
from sendonce.stores.values import check_column
from tests.simulator.memory_tables import Key, Rows, kind_of, none_of

Row = TypeVar("Row")
Result = TypeVar("Result")

_CHUNK_ROWS = 2_000
# Keys that were looked for in vain and are known to be well made.
_CHECKED_AT_MOST = 10_000
_checked: set[tuple[type, Key]] = set()
# As in the SQLite store: a clock that lies so far behind what was shown was set back.
_BEHIND_MICROS = 1_000_000


Tables = dict[type, Rows]


class Moment(NamedTuple):
    """The clocks of a transaction, and the tables that it reads."""

    at: Kept
    tables: Tables


class MemoryReader:
    def __init__(self, moment: Moment) -> None:
        self._moment = moment
        self._tables = moment.tables

    def now(self) -> datetime:
        return from_micros(self._moment.at.now)

    def pace(self) -> datetime:
        return from_micros(self._moment.at.pace)

    def get(self, kind: type[Row], *key: Any) -> Row | None:
        found: Row | None = self._rows(kind).by_key.get(key)
        if found is None and (kind, key) not in _checked:
            self._check_keys(kind, [key])
            if len(_checked) < _CHECKED_AT_MOST:
                _checked.add((kind, key))
        return found

    def get_many(self, kind: type[Row], keys: Iterable[Key]) -> list[Row]:
        keys = self._check_keys(kind, keys)
        by_key = self._rows(kind).by_key
        return [by_key[key] for key in keys if key in by_key]

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
        return self._rows(kind).scan(index, prefix, upto, after, limit, newest_first)

    def tally(
        self,
        kind: type[Any],
        *prefix: Any,
        by: Sequence[str] = (),
        sums: Sequence[str] = (),
        index: str | None = None,
    ) -> list[dict[str, Any]]:
        rows = self._rows(kind)
        for name in (*by, *sums):
            rows.kind.shape.column(name)
        groups: dict[Key, dict[str, Any]] = {}
        if not by:
            groups[()] = {"rows": 0} | dict.fromkeys(sums, 0)
        for row in rows.scan(index, prefix, None, None, None, False):
            values = tuple([getattr(row, name) for name in by])
            group = groups.get(values)
            if group is None:
                group = groups[values] = dict(zip(by, values, strict=True)) | {"rows": 0} | dict.fromkeys(sums, 0)
            group["rows"] += 1
            for name in sums:
                group[name] += getattr(row, name) or 0
        return list(groups.values())

    def _rows(self, kind: type) -> Rows:
        found = self._tables.get(kind)
        return found if found is not None else none_of(kind)

    def _check_keys(self, kind: type, keys: Iterable[Key]) -> list[Key]:
        shape = kind_of(kind).shape
        whole = shape.whole_keys(keys)
        for column, values in zip(shape.key, zip(*whole, strict=True), strict=False):
            check_column(shape.table, column, values)
        return whole


class MemoryTx(MemoryReader):
    """Writes are kept until the commit and then applied in order: reads do not see them."""

    def __init__(self, moment: Moment) -> None:
        super().__init__(moment)
        self._writes: list[tuple[str, type, Any]] = []

    def insert(self, *rows: Any) -> None:
        self._write("insert", rows)

    def put(self, *rows: Any) -> None:
        self._write("put", rows)

    def delete(self, *rows: Any) -> None:
        self._writes += [("delete", type(row), row) for row in rows]

    def _write(self, how: str, rows: Sequence[Any]) -> None:
        for row in rows:
            kind = type(row)
            # What is not stored just as it is goes the way of the other stores, which refuses or converts.
            stored = row if kind_of(kind).plain(row) else codec_of(kind).encode([row])
            self._writes.append((how, kind, stored))

    def applied(self) -> Tables | None:
        """The tables as they are after this transaction; None if it writes nothing."""
        if not self._writes:
            return None
        changed: Tables = {}
        for how, kind, row in self._writes:
            if kind not in changed:
                changed[kind] = self._rows(kind).changed()
            if type(row) is not kind:
                (row,) = codec_of(kind).decode(row.rows(self._moment.at.now))
            getattr(changed[kind], how)(row)
        return {**self._tables, **changed}


class MemoryStore:
    """A `Store` for the threads of one process.

    clock, boot_clock: the machine's time and its time since boot; store time and pace are made of them as in the SQLite
    store.
    """

    rows_at_once = 2_000

    def __init__(
        self,
        clock: Callable[[], datetime],
        *,
        boot_clock: Callable[[], SinceBoot] = no_since_boot,
        key: bytes = bytes(32),
        environment: str = "test",
    ) -> None:
        self.url = "memory:"
        self._clock = clock
        self._boot_clock = boot_clock
        self._writing = threading.RLock()
        self._inside = threading.local()
        self._shown = self._behind = 0
        self._moment = Moment(Kept(0, 0, boot_clock()), {})
        facts = {"schema_version": str(SCHEMA_VERSION).encode(), "key": key, "environment": environment.encode()}
        self.write_many(Meta(name, value) for name, value in facts.items())

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        with self._writing:
            moment = self._begin(writing=True)
            try:
                tx = MemoryTx(moment)
                result = work(tx)
                tables = tx.applied()
                if tables is not None:
                    self._moment = moment._replace(tables=tables)
                return result
            finally:
                self._inside.transaction = False

    def read(self, work: Callable[[Reader], Result], *, stale_s: float = 0.0) -> Result:
        moment = self._begin(writing=False)
        try:
            return work(MemoryReader(moment))
        finally:
            self._inside.transaction = False

    def write_many(self, rows: Iterable[Any]) -> int:
        written = 0
        chunk: list[Any] = []
        for row in rows:
            chunk.append(row)
            if len(chunk) == _CHUNK_ROWS:
                written += self._put(chunk)
                chunk = []
        return written + self._put(chunk)

    def _put(self, rows: list[Any]) -> int:
        if rows:
            self.transact(lambda tx: tx.put(*rows), tag="write_many")
        return len(rows)

    def delete_many(self, kind: type[Any], *prefix: Any) -> int:
        def work(tx: Tx) -> int:
            rows = tx.scan(kind, *prefix)
            tx.delete(*rows)
            return len(rows)

        return self.transact(work, tag="delete_many")

    def close(self) -> None:
        pass

    def _begin(self, *, writing: bool) -> Moment:
        if getattr(self._inside, "transaction", False):
            raise RuntimeError("the store was called inside a transaction; use what the transaction hands over")
        self._inside.transaction = True
        kept, clock = self._moment, to_micros(self._clock())
        if self._shown - (clock + self._behind) > _BEHIND_MICROS:
            self._behind = self._shown - clock
        self._shown = max(clock + self._behind, self._shown + writing)
        return Moment(later(kept.at, self._shown, self._boot_clock, writing=writing), kept.tables)
