"""The store on Cloud Spanner, or on its emulator.

A transaction is the library's `run_in_transaction`: its commit is protected against being replayed, and its work runs
again when Spanner aborts it. Reads of one look are at one timestamp and take no locks. Store time is Spanner's own
clock, asked for once a transaction and only where it is needed.

The emulator (environment variable SPANNER_EMULATOR_HOST) runs one read-write transaction at a time. Whoever asks for
another is aborted, or, once in five times, the one under way is: many that ask again at once let nobody finish. There
the threads of a process queue up, and processes ask again after random delays, as its answers name none.
"""

import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final, TypeVar

from google.api_core import exceptions
from google.api_core.retry import Retry, if_exception_type
from google.cloud import spanner
from google.cloud.spanner_v1.database import Database

from sendonce.stores.base import Reader, StoreRefused, StoreUnavailable, Tx
from sendonce.stores.spanner_codec import Query, plain_time, spanned
from sendonce.stores.spanner_faults import FAULTS, in_our_words

Row = TypeVar("Row")
Result = TypeVar("Result")

# Of the 80,000 mutations and 100 MiB that a commit may hold (https://cloud.google.com/spanner/quotas), little: on the
# emulator a commit of 3,000 recipients takes 14 s, and 15 commits of 200 take 1 s.
_CHUNK_MUTATIONS: Final = 3_000
_CHUNK_BYTES: Final = 8_000_000
_KEYS_AT_ONCE: Final = 500
# Where an abort names no delay itself, as the emulator's do: between these, so that two who met do not meet again.
_RETRY_S: Final = (0.01, 0.1)
_NOW: Final = Query("SELECT CURRENT_TIMESTAMP()", {}, {})


class SpannerReader:
    """Reads inside one snapshot or transaction of the library's. Each is tagged with what it does to which table."""

    def __init__(self, source: Any, patience_s: float, stale_s: float = 0.0) -> None:
        self._source = source
        self._now: datetime | None = None
        self._stale = timedelta(seconds=stale_s)
        # The library's own way with a server that nobody reaches is to ask again without a pause and without an end;
        # of one that is silent, to wait for an hour.
        again = Retry(if_exception_type(exceptions.ServiceUnavailable), 0.05, 1.0, 2.0, timeout=patience_s)
        self._call: dict[str, Any] = {"retry": again, "timeout": patience_s}

    def now(self) -> datetime:
        if self._now is None:
            ((now,),) = self._rows(_NOW, "now")
            self._now = plain_time(now) - self._stale
        return self._now

    def pace(self) -> datetime:
        return self.now()

    def get(self, kind: type[Row], *key: Any) -> Row | None:
        table = spanned(kind)
        found = table.decode(self._read(kind, table.keys([key])))
        return found[0] if found else None

    def get_many(self, kind: type[Row], keys: Iterable[tuple[Any, ...]]) -> list[Row]:
        table = spanned(kind)
        wanted = table.keys(keys)
        found: list[Row] = []
        for start in range(0, len(wanted), _KEYS_AT_ONCE):
            found += table.decode(self._read(kind, wanted[start : start + _KEYS_AT_ONCE]))
        return found

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
        table = spanned(kind)
        query = table.scan(prefix, index, upto, after, limit, newest_first)
        return table.decode(self._rows(query, f"scan:{index or table.table.name}"))

    def tally(
        self,
        kind: type[Any],
        *prefix: Any,
        by: Sequence[str] = (),
        sums: Sequence[str] = (),
        index: str | None = None,
    ) -> list[dict[str, Any]]:
        table = spanned(kind)
        groups = []
        for found in self._rows(table.tally(prefix, by, sums, index), f"tally:{index or table.table.name}"):
            group = {name: table.group_value(name, value) for name, value in zip(by, found, strict=False)}
            group["rows"] = found[len(by)]
            group.update(zip(sums, found[len(by) + 1 :], strict=True))
            groups.append(group)
        return groups

    def _read(self, kind: type, keys: list[list[Any]]) -> list[list[Any]]:
        table = spanned(kind)
        keyset, tag = spanner.KeySet(keys=keys), _tag(f"get:{table.table.name}")
        return list(self._source.read(table.table.name, table.columns, keyset, request_options=tag, **self._call))

    def _rows(self, query: Query, tag: str) -> list[list[Any]]:
        parameters, types = query.parameters or None, query.types or None
        return list(self._source.execute_sql(query.text, parameters, types, request_options=_tag(tag), **self._call))


class SpannerTx(SpannerReader):
    """Writes are mutations: Spanner applies them in order, at the commit. Reads do not see them."""

    def __init__(self, source: Any, patience_s: float) -> None:
        super().__init__(source, patience_s)
        self._begun = False

    def begin(self) -> None:
        """See to it that there is something to commit: the library refuses a transaction that did nothing."""
        if not self._begun:
            self._rows(_NOW, "now")

    def insert(self, *rows: Any) -> None:
        for kind, same in groupby(rows, type):
            table = spanned(kind)
            self._begun = True
            self._source.insert(table.table.name, table.columns, table.encode(list(same)))

    def put(self, *rows: Any) -> None:
        for kind, same in groupby(rows, type):
            table = spanned(kind)
            self._begun = True
            self._source.insert_or_update(table.table.name, table.columns, table.encode(list(same)))

    def delete(self, *rows: Any) -> None:
        for kind, same in groupby(rows, type):
            table = spanned(kind)
            self._begun = True
            self._source.delete(table.table.name, spanner.KeySet(keys=table.encode_keys(list(same))))

    def _read(self, kind: type, keys: list[list[Any]]) -> list[list[Any]]:
        self._begun = True
        return super()._read(kind, keys)

    def _rows(self, query: Query, tag: str) -> list[list[Any]]:
        self._begun = True
        return super()._rows(query, tag)


class SpannerStore:
    """A `Store` on a Spanner database. Safe for threads and processes. `opening.open_store` checks it first.

    patience_s: how long a transaction is tried again, or a call waits, before StoreUnavailable. one_writer: threads
    wait for each other with their read-write transactions, as is best on the emulator.
    """

    rows_at_once = 200

    def __init__(self, url: str, database: Database, *, patience_s: float = 30.0, one_writer: bool = False) -> None:
        self.url = url
        self._database = database
        self._patience_s = patience_s
        self._writer = threading.Lock() if one_writer else None
        self._here = threading.local()
        self._process = os.getpid()

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        committing = False

        def run(transaction: Any) -> Result:
            nonlocal committing
            committing = False
            tx = SpannerTx(transaction, self._patience_s)
            result = work(tx)
            tx.begin()
            committing = True
            return result

        with self._alone(), self._turn():
            try:
                result: Result = self._database.run_in_transaction(run, transaction_tag=tag, **self._patience())
            except FAULTS as fault:
                self._forget_transaction()
                raise in_our_words(self.url, fault, committing=committing) from fault
        return result

    def _forget_transaction(self) -> None:
        """Google's client (3.71) notes in the thread that a transaction runs before it has got a session. When it gets
        none, because Spanner is away, the note stays, and no transaction ever runs in that thread again."""
        running = getattr(self._database, "_local", None)
        if running is not None:
            running.transaction_running = False

    def read(self, work: Callable[[Reader], Result], *, stale_s: float = 0.0) -> Result:
        staleness = {"exact_staleness": timedelta(seconds=stale_s)} if stale_s else {}
        with self._alone():
            try:
                with self._database.snapshot(multi_use=True, **staleness) as snapshot:
                    return work(SpannerReader(snapshot, self._patience_s, stale_s))
            except FAULTS as fault:
                raise in_our_words(self.url, fault) from fault

    def write_many(self, rows: Iterable[Any]) -> int:
        written = 0
        for chunk in _chunks(rows):
            with self._alone(), self._turn():
                try:
                    # Not protected against being replayed; a row that is put twice is the same row.
                    with self._database.batch({"transaction_tag": "write_many"}, **self._patience()) as batch:
                        for kind, same in groupby(chunk, type):
                            table = spanned(kind)
                            batch.insert_or_update(table.table.name, table.columns, table.encode(list(same)))
                except FAULTS as fault:
                    raise in_our_words(self.url, fault, committing=True) from fault
            written += len(chunk)
        return written

    def delete_many(self, kind: type[Any], *prefix: Any) -> int:
        query = spanned(kind).delete(prefix)
        with self._alone():
            try:
                # In chunks of Spanner's own, each its own transaction; it counts at least what it deleted.
                parameters, types = query.parameters or None, query.types or None
                tag = _tag(f"delete:{spanned(kind).table.name}")
                self._database.execute_partitioned_dml(query.text, parameters, types, request_options=tag)
            except FAULTS as fault:
                raise in_our_words(self.url, fault, committing=True) from fault
        return -1

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One read-write transaction at a time, where that is asked for."""
        if self._writer is None:
            yield
            return
        if not self._writer.acquire(timeout=self._patience_s):
            raise StoreUnavailable(f"store {self.url} was too busy: others of this process wait for it, too")
        try:
            yield
        finally:
            self._writer.release()

    def _patience(self) -> dict[str, float]:
        """How the library tries an aborted transaction again, where Spanner names no delay."""
        return {"timeout_secs": self._patience_s, "default_retry_delay": random.uniform(*_RETRY_S)}

    def close(self) -> None:
        """Nothing: the library's own `close` blocks, and a process that ends ends its sessions."""

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One call at a time in a thread. RuntimeError inside a transaction: what it hands over is to be used."""
        if getattr(self._here, "inside", False):
            raise RuntimeError("the store was called inside a transaction; use what the transaction hands over")
        if self._process != os.getpid():
            raise StoreRefused(
                f"store {self.url}: this process was forked after it opened the store, whose connections do not "
                "survive that; start it by spawn"
            )
        self._here.inside = True
        try:
            yield
        finally:
            self._here.inside = False


def _tag(request_tag: str) -> dict[str, str]:
    """Request options that name a call in Spanner's statistics of queries and reads; at most 50 characters."""
    return {"request_tag": request_tag}


def _chunks(rows: Iterable[Any]) -> Iterator[list[Any]]:
    chunk: list[Any] = []
    mutations = weight = 0
    for row in rows:
        table = spanned(type(row))
        if chunk and (mutations + table.mutations > _CHUNK_MUTATIONS or weight + table.weight(row) > _CHUNK_BYTES):
            yield chunk
            chunk, mutations, weight = [], 0, 0
        chunk.append(row)
        mutations += table.mutations
        weight += table.weight(row)
    if chunk:
        yield chunk
