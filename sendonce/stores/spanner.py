"""The store on Cloud Spanner, or on its emulator.

A transaction is the library's `run_in_transaction`: its commit is protected against being replayed, and its work runs
again when Spanner aborts it. Reads of one look are at one timestamp and take no locks. Store time is Spanner's own
clock, asked for once a transaction and only where it is needed.

The emulator (environment variable SPANNER_EMULATOR_HOST) runs one read-write transaction at a time and aborts the
others at once: they are tried again after milliseconds, as its answers name no delay.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import groupby
from typing import Any, Final, TypeVar

from google.api_core import exceptions
from google.cloud import spanner
from google.cloud.spanner_v1.database import Database

from schemas.tables import TABLES
from sendonce.stores.base import AlreadyExists, Reader, StoreError, StoreRefused, StoreUnavailable, Tx
from sendonce.stores.spanner_codec import Query, plain_time, spanned

Row = TypeVar("Row")
Result = TypeVar("Result")

# Of the 80,000 mutations and 100 MiB that a commit may hold (https://cloud.google.com/spanner/quotas).
_CHUNK_MUTATIONS: Final = 20_000
_CHUNK_BYTES: Final = 8_000_000
_KEYS_AT_ONCE: Final = 500
# Where an abort names no delay itself, as the emulator's do.
_RETRY_S: Final = 0.005
_NOW: Final = Query("SELECT CURRENT_TIMESTAMP()", {}, {})

_UNREACHED: Final = (
    exceptions.ServiceUnavailable,
    exceptions.DeadlineExceeded,
    exceptions.InternalServerError,
    exceptions.Cancelled,
    exceptions.Aborted,
    exceptions.Unknown,
    exceptions.TooManyRequests,
    exceptions.RetryError,
)


class SpannerReader:
    """Reads inside one snapshot or transaction of the library's."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._now: datetime | None = None

    def now(self) -> datetime:
        if self._now is None:
            ((now,),) = self._rows(_NOW)
            self._now = plain_time(now)
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
        return table.decode(self._rows(table.scan(prefix, index, upto, after, limit, newest_first)))

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
        for found in self._rows(table.tally(prefix, by, sums, index)):
            group = {name: table.group_value(name, value) for name, value in zip(by, found, strict=False)}
            group["rows"] = found[len(by)]
            group.update(zip(sums, found[len(by) + 1 :], strict=True))
            groups.append(group)
        return groups

    def _read(self, kind: type, keys: list[list[Any]]) -> list[list[Any]]:
        table = spanned(kind)
        return list(self._source.read(table.table.name, table.columns, spanner.KeySet(keys=keys)))

    def _rows(self, query: Query) -> list[list[Any]]:
        return list(self._source.execute_sql(query.text, query.parameters or None, query.types or None))


class SpannerTx(SpannerReader):
    """Writes are mutations: Spanner applies them in order, at the commit. Reads do not see them."""

    def __init__(self, source: Any) -> None:
        super().__init__(source)
        self._begun = False

    def begin(self) -> None:
        """See to it that there is something to commit: the library refuses a transaction that did nothing."""
        if not self._begun:
            self._rows(_NOW)

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

    def _rows(self, query: Query) -> list[list[Any]]:
        self._begun = True
        return super()._rows(query)


class SpannerStore:
    """A `Store` on a Spanner database. Safe for threads and processes. `opening.open_store` checks it first.

    patience_s: how long a transaction is tried again, or a call waits, before StoreUnavailable.
    """

    def __init__(self, url: str, database: Database, *, patience_s: float = 30.0) -> None:
        self.url = url
        self._database = database
        self._patience_s = patience_s
        self._here = threading.local()
        self._process = os.getpid()

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        committing = False

        def run(transaction: Any) -> Result:
            nonlocal committing
            committing = False
            tx = SpannerTx(transaction)
            result = work(tx)
            tx.begin()
            committing = True
            return result

        with self._alone():
            try:
                result: Result = self._database.run_in_transaction(
                    run, timeout_secs=self._patience_s, default_retry_delay=_RETRY_S, transaction_tag=tag
                )
            except (exceptions.GoogleAPICallError, exceptions.RetryError) as fault:
                raise self._in_our_words(fault, committing=committing) from fault
        return result

    def read(self, work: Callable[[Reader], Result], *, stale_s: float = 0.0) -> Result:
        staleness = {"exact_staleness": timedelta(seconds=stale_s)} if stale_s else {}
        with self._alone():
            try:
                with self._database.snapshot(multi_use=True, **staleness) as snapshot:
                    return work(SpannerReader(snapshot))
            except (exceptions.GoogleAPICallError, exceptions.RetryError) as fault:
                raise self._in_our_words(fault) from fault

    def write_many(self, rows: Iterable[Any]) -> int:
        written = 0
        for chunk in _chunks(rows):
            with self._alone():
                try:
                    # Not protected against being replayed; a row that is put twice is the same row.
                    with self._database.batch() as batch:
                        for kind, same in groupby(chunk, type):
                            table = spanned(kind)
                            batch.insert_or_update(table.table.name, table.columns, table.encode(list(same)))
                except (exceptions.GoogleAPICallError, exceptions.RetryError) as fault:
                    raise self._in_our_words(fault, committing=True) from fault
            written += len(chunk)
        return written

    def delete_many(self, kind: type[Any], *prefix: Any) -> int:
        query = spanned(kind).delete(prefix)
        with self._alone():
            try:
                # In chunks of Spanner's own, each its own transaction; it counts at least what it deleted.
                self._database.execute_partitioned_dml(query.text, query.parameters or None, query.types or None)
            except (exceptions.GoogleAPICallError, exceptions.RetryError) as fault:
                raise self._in_our_words(fault, committing=True) from fault
        return -1

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

    def _in_our_words(self, fault: Exception, *, committing: bool = False) -> StoreError:
        return in_our_words(self.url, fault, committing=committing)


def in_our_words(url: str, fault: Exception, *, committing: bool = False) -> StoreError:
    """What a call of the library's that failed means for who called the store. Its own text may hold values."""
    name = type(fault).__name__
    if isinstance(fault, exceptions.AlreadyExists):
        # The library's text holds the key, which may be personal; the table's name is not.
        named = next((table.name for table in TABLES.values() if f" {table.name}" in str(fault)), "a table")
        return AlreadyExists(f"store {url}: {named} has a row with this key already")
    if isinstance(fault, _UNREACHED):
        # An abort is Spanner's word that nothing was applied.
        maybe = committing and not isinstance(fault, exceptions.Aborted)
        return StoreUnavailable(f"store {url} could not be reached, or was too busy ({name})", maybe_applied=maybe)
    if isinstance(fault, exceptions.NotFound):
        return StoreRefused(f"there is no store at {url}, or its tables are missing; run `sendonce init`")
    if isinstance(fault, (exceptions.PermissionDenied, exceptions.Unauthenticated)):
        return StoreRefused(
            f"store {url}: this account may not use it ({name}); give it the role roles/spanner.databaseUser"
        )
    return StoreRefused(f"store {url} refused a call ({name}); look at its log, or report it")


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
