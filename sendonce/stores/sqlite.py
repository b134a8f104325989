"""The store on one machine: a SQLite file that several processes share.

Write-ahead log, so that readers and the one writer do not wait for each other; `synchronous=FULL`, so that a
commit that was reported survives a power cut. A transaction starts with BEGIN IMMEDIATE: one that starts by
reading and then writes could not wait for the lock. SQLite's own waiting backs off to 100 ms; here a waiter
asks again every 0.5 ms, so that a critical claim gets in between two bulk commits.
"""

import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, groupby
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from sendonce.moments import from_micros, to_micros
from sendonce.stores.base import NoStore, Reader, StoreRefused, Tx
from sendonce.stores.migrations import check_version, fact_number
from sendonce.stores.sqlite_codec import (
    Encoded,
    codec_of,
    decode_parameter,
)
from sendonce.stores.sqlite_connections import Connections, Held
from sendonce.stores.sqlite_faults import in_our_words, is_busy, still_locked
from sendonce.stores.sqlite_statements import statements_of
from sendonce.stores.sqlite_time import Kept, SinceBoot, kept_from, later, no_since_boot, since_boot
from sendonce.stores.turns import Turns

Row = TypeVar("Row")
Result = TypeVar("Result")

_RETRY_S: Final = 0.0005
# More than processes on one machine differ while they wait for each other.
_BEHIND_MICROS: Final = 1_000_000
# A chunk holds the write lock for some 20 ms.
_CHUNK_ROWS: Final = 2_000
_CHUNK_BYTES: Final = 8_000_000
# Keys in one statement: its text stays short, and nearly every batch's look-up has the same few lengths.
_KEYS_AT_ONCE: Final = 250
# Few sizes, so that each statement is prepared once; 40 columns of 500 rows are within SQLite's 32,766 parameters.
_ROWS_A_STATEMENT: Final = (500, 100, 20, 5, 1)
_FORMS: Final = "sqlite:///relative/path, sqlite:////absolute/path or spanner://PROJECT/INSTANCE/DATABASE"
_FACTS_SQL: Final = "SELECT name, value FROM meta WHERE name IN ('clock', 'pace', 'schema_version')"
_CLOCK_SQL: Final = "UPDATE meta SET value = CASE name WHEN 'clock' THEN ? ELSE ? END WHERE name IN ('clock', 'pace')"


def utc_now() -> datetime:
    return datetime.now(UTC)


def sqlite_path(url: str) -> Path:
    """The file of a `sqlite:` URL. NoStore for any other URL."""
    path = url.removeprefix("sqlite:///")
    if path == url or not path or path.endswith("/") or path == ":memory:":
        raise NoStore(f"store {url!r} is not a store URL; write {_FORMS}")
    return Path(path)


class _Write(NamedTuple):
    """statement: the text of one that takes so many rows; or of one that takes one, for a deletion."""

    statement: Callable[[int], str] | str
    rows: Encoded | list[tuple[Any, ...]]


def _apply(connection: sqlite3.Connection, write: _Write, now_micros: int) -> None:
    """Write rows, as many as there are in few statements.

    Python's SQLite lets other threads run during each statement, and `executemany` is one for each row. A thousand rows
    beside a thread that renders took 180 ms that way, beside two 700 ms, with the lock held; like this 10 and 14 ms.
    Alone both take 6 ms.
    """
    rows = write.rows.rows(now_micros) if isinstance(write.rows, Encoded) else write.rows
    if isinstance(write.statement, str):
        connection.executemany(write.statement, rows)
        return
    start = 0
    for size in _ROWS_A_STATEMENT:
        while len(rows) - start >= size:
            values = chain.from_iterable(rows[start : start + size])
            connection.execute(write.statement(size), list(values))
            start += size


def _roll_back(connection: sqlite3.Connection) -> None:
    # After some faults, a full disk for one, SQLite has rolled back by itself.
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _keep_clock(connection: sqlite3.Connection, at: Kept) -> None:
    """Neither clock falls behind what a commit has shown, also when the machine's clock is set back."""
    connection.execute(_CLOCK_SQL, (str(at.now).encode(), at.text()))


class SQLiteReader:
    """Reads on one connection, inside a transaction that is open on it."""

    def __init__(self, connection: sqlite3.Connection, at: Kept) -> None:
        self._connection = connection
        self._at = at

    def now(self) -> datetime:
        return from_micros(self._at.now)

    def pace(self) -> datetime:
        return from_micros(self._at.pace)

    def get(self, kind: type[Row], *key: Any) -> Row | None:
        statements = statements_of(kind)
        where = statements.prefix(None, key)
        if len(where.parameters) != len(statements.table.key):
            raise TypeError(f"{statements.table.name}: each column of the key needs a value: {statements.table.key}")
        found = self._connection.execute(statements.get, where.parameters).fetchall()
        return codec_of(kind).decode(found)[0] if found else None

    def get_many(self, kind: type[Row], keys: Iterable[tuple[Any, ...]]) -> list[Row]:
        statements = statements_of(kind)
        wanted = statements.keys_in_sqlite(keys)
        found: list[tuple[Any, ...]] = []
        for start in range(0, len(wanted), _KEYS_AT_ONCE):
            some = wanted[start : start + _KEYS_AT_ONCE]
            parameters = list(chain.from_iterable(some))
            found += self._connection.execute(statements.get_many(len(some)), parameters).fetchall()
        return codec_of(kind).decode(found)

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
        statements = statements_of(kind)
        where = statements.prefix(index, prefix, upto, after)
        if limit is not None:
            where.parameters.append(limit)
        statement = statements.scan(where.text, index, newest_first, limit is not None)
        return codec_of(kind).decode(self._connection.execute(statement, where.parameters).fetchall())

    def tally(
        self,
        kind: type[Any],
        *prefix: Any,
        by: Sequence[str] = (),
        sums: Sequence[str] = (),
        index: str | None = None,
    ) -> list[dict[str, Any]]:
        statements = statements_of(kind)
        where = statements.prefix(index, prefix)
        statement = statements.tally(where.text, by, sums, index)
        named = {column.name: column for column in statements.table.columns}
        groups = []
        for found in self._connection.execute(statement, where.parameters).fetchall():
            group = {name: decode_parameter(named[name], value) for name, value in zip(by, found, strict=False)}
            group["rows"] = found[len(by)]
            group.update(zip(sums, found[len(by) + 1 :], strict=True))
            groups.append(group)
        return groups


class SQLiteTx(SQLiteReader):
    """Writes are kept until the commit and then applied in order, as Spanner does: reads do not see them."""

    def __init__(self, connection: sqlite3.Connection, at: Kept) -> None:
        super().__init__(connection, at)
        self._writes: list[_Write] = []

    def insert(self, *rows: Any) -> None:
        for kind, same in groupby(rows, type):
            self._writes.append(_Write(statements_of(kind).insert, codec_of(kind).encode(list(same))))

    def put(self, *rows: Any) -> None:
        for kind, same in groupby(rows, type):
            self._writes.append(_Write(statements_of(kind).put, codec_of(kind).encode(list(same))))

    def delete(self, *rows: Any) -> None:
        for kind, same in groupby(rows, type):
            self._writes.append(_Write(statements_of(kind).delete, codec_of(kind).encode_keys(list(same))))

    def apply(self) -> None:
        """Hand the writes to SQLite, and with them the time of this transaction."""
        for write in self._writes:
            _apply(self._connection, write, self._at.now)
        if self._writes:
            _keep_clock(self._connection, self._at)


class SQLiteStore:
    """A `Store` on the SQLite file of a `sqlite:` URL. `opening.open_store` checks the file first.

    Safe for threads (each has its own connection) and processes. `clock` gives the machine's time, aware UTC;
    store time is the larger of it and the last time a commit kept. `boot_clock` gives the machine's time since boot;
    it is the real one only beside the real clock. `patience_s`: how long a transaction waits for a lock before
    StoreUnavailable.
    """

    rows_at_once = 2_000

    def __init__(
        self,
        url: str,
        *,
        clock: Callable[[], datetime] = utc_now,
        boot_clock: Callable[[], SinceBoot] | None = None,
        patience_s: float = 30.0,
    ) -> None:
        self.path = sqlite_path(url).absolute()
        self.url = f"sqlite:///{self.path}"
        self._clock = clock
        self._boot_clock = boot_clock or (since_boot if clock is utc_now else no_since_boot)
        self._patience_s = patience_s
        self._latest_micros = 0
        self._behind_micros = 0
        self._latest_lock = threading.Lock()
        self._connections = Connections(self.path)
        self._turns = Turns()

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        with self._transaction(tag, writing=True) as (connection, at):
            tx = SQLiteTx(connection, at)
            result = work(tx)
            tx.apply()
        return result

    def read(self, work: Callable[[Reader], Result], *, stale_s: float = 0.0) -> Result:
        with self._transaction("read", writing=False) as (connection, at):
            return work(SQLiteReader(connection, at))

    def write_many(self, rows: Iterable[Any]) -> int:
        written = 0
        for chunk in _chunks(rows):
            # Before the lock is taken, so that others find a gap between two chunks.
            writes = [_Write(statements_of(kind).put, codec_of(kind).encode(same)) for kind, same in _by_kind(chunk)]
            with self._transaction("write_many", writing=True) as (connection, at):
                for write in writes:
                    _apply(connection, write, at.now)
                _keep_clock(connection, at)
            written += len(chunk)
        return written

    def delete_many(self, kind: type[Any], *prefix: Any) -> int:
        statements = statements_of(kind)
        where = statements.prefix(None, prefix)
        deleted = 0
        while True:
            with self._transaction("delete_many", writing=True) as (connection, _):
                keys = connection.execute(statements.keys(where.text), [*where.parameters, _CHUNK_ROWS]).fetchall()
                connection.executemany(statements.delete, keys)
            deleted += len(keys)
            if len(keys) < _CHUNK_ROWS:
                return deleted

    def close(self) -> None:
        self._connections.close()

    @contextmanager
    def _transaction(self, tag: str, *, writing: bool) -> Iterator[tuple[sqlite3.Connection, Kept]]:
        """A transaction with its clocks. It waits for locks before it starts, never later."""
        committing = False
        try:
            with self._connections.mine() as held, self._turn(tag, writing=writing):
                connection, kept = self._begin(held, tag, writing=writing)
                try:
                    yield connection, self._time(kept, writing=writing)
                    committing = True
                    connection.execute("COMMIT")
                except BaseException:
                    _roll_back(connection)
                    raise
        except sqlite3.Error as fault:
            raise in_our_words(fault, self.path, committing=committing) from fault

    @contextmanager
    def _turn(self, tag: str, *, writing: bool) -> Iterator[None]:
        """One writer of this process at a time: its threads wait here asleep, not by asking SQLite over and over."""
        if not writing:
            yield
            return
        if not self._turns.take(self._patience_s):
            raise still_locked(self.path, tag, self._patience_s)
        try:
            yield
        finally:
            self._turns.give()

    def _begin(self, held: Held, tag: str, *, writing: bool) -> tuple[sqlite3.Connection, Kept]:
        """Start a transaction and take its snapshot; returns its connection and the clocks that the store has kept."""
        deadline = time.monotonic() + self._patience_s
        while True:
            try:
                connection = held.connection()
                connection.execute("BEGIN IMMEDIATE" if writing else "BEGIN")
                try:
                    return connection, self._kept_time(connection)
                except BaseException:
                    _roll_back(connection)
                    raise
            except sqlite3.Error as fault:
                if not is_busy(fault):
                    raise
                if time.monotonic() >= deadline:
                    raise still_locked(self.path, tag, self._patience_s) from fault
            time.sleep(_RETRY_S)

    def _kept_time(self, connection: sqlite3.Connection) -> Kept:
        """The clocks at the last commit. Checks that the schema is still ours: a newer release may have migrated it."""
        facts = dict(connection.execute(_FACTS_SQL).fetchall())
        for name in ("schema_version", "clock", "pace"):
            if name not in facts:
                raise StoreRefused(f"store {self.path} has lost its {name}; restore it from a backup")
        check_version(fact_number("schema_version", facts["schema_version"], self.path), self.path)
        now = fact_number("clock", facts["clock"], self.path)
        try:
            return kept_from(now, facts["pace"])
        except (ValueError, AttributeError):
            raise StoreRefused(f"store {self.path}: its pace is damaged; restore the store from a backup") from None

    def _time(self, kept: Kept, *, writing: bool) -> Kept:
        """Store time: the larger of the clock and what was shown before; of a writer, later than every commit's.

        A clock that lies well behind what was shown was set back, or another process's was ahead: from then on this
        process counts from what was shown, so that store time goes on at its pace instead of standing still.
        """
        with self._latest_lock:
            clock = to_micros(self._clock())
            shown = max(self._latest_micros, kept.now)
            if shown - (clock + self._behind_micros) > _BEHIND_MICROS:
                self._behind_micros = shown - clock
            self._latest_micros = max(clock + self._behind_micros, shown + writing)
            now = self._latest_micros
        return later(kept, now, self._boot_clock, writing=writing)


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    weight = 0
    for row in rows:
        chunk.append(row)
        weight += codec_of(type(row)).weight(row)
        if len(chunk) >= _CHUNK_ROWS or weight >= _CHUNK_BYTES:
            yield chunk
            chunk, weight = [], 0
    if chunk:
        yield chunk


def _by_kind(rows: list[Any]) -> list[tuple[type, list[Any]]]:
    kinds: dict[type, list[Any]] = {}
    for row in rows:
        kinds.setdefault(type(row), []).append(row)
    return list(kinds.items())
