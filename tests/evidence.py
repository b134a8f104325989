"""What a store and a provider say happened, read without any of the code that made it happen.

A store is read with plain SQL, on SQLite or on Spanner; an outbox with the standard library's mailbox module.
"""

import base64
import hashlib
import mailbox
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.message import Message
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import IO, Any, TypeVar

from schemas.tables import TABLES, Column, Meta

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = TypeVar("Row")


@dataclass(frozen=True)
class Arrival:
    """One letter that the provider took. `at`: when, by the provider's clock; `place`: where its log says so.

    batch_no: None if the protocol carries neither campaign nor batch, as SMTP does not.
    payload_hash: SHA-256 in hex of the request that brought it; empty if the log does not keep requests. provider: the
    name of the sender that it came by; empty if there is one only.
    """

    message_id: str
    campaign_id: str
    batch_no: int | None
    attempt_id: str
    at: datetime
    place: str
    payload_hash: str = ""
    provider: str = ""


@dataclass(frozen=True)
class Records:
    """Every row of a store, at one moment."""

    rows: Mapping[type, Sequence[Any]]

    def of(self, kind: type[Row]) -> Sequence[Row]:
        return self.rows.get(kind, ())

    @property
    def store_key(self) -> bytes:
        return next(row.value for row in self.of(Meta) if row.name == "key")


def read_sqlite(path: Path, kinds: Iterable[type] = tuple(TABLES)) -> Records:
    """The rows of these tables (default: all), in one snapshot. Opened read-only: looking changes nothing."""
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30, isolation_level=None)
    try:
        connection.execute("BEGIN")
        return Records({kind: _rows(connection, kind) for kind in kinds})
    finally:
        connection.close()


def _rows(connection: sqlite3.Connection, kind: type[Row]) -> list[Row]:
    table = TABLES[kind]
    names = ", ".join(column.name for column in table.columns)
    found = connection.execute(f"SELECT {names} FROM {table.name}")
    return [kind(*(_value(column, raw) for column, raw in zip(table.columns, row, strict=True))) for row in found]


def _value(column: Column, raw: Any) -> Any:
    if raw is None:
        return None
    if column.type is datetime:
        return EPOCH + timedelta(microseconds=raw)
    return bool(raw) if column.type is bool else raw


def read_spanner(database: Any, kinds: Iterable[type] = tuple(TABLES)) -> Records:
    """The same of a store on Spanner. database: Google's own object of it."""
    with database.snapshot(multi_use=True) as snapshot:
        return Records({kind: _spanner_rows(snapshot, kind) for kind in kinds})


def _spanner_rows(snapshot: Any, kind: type[Row]) -> list[Row]:
    table = TABLES[kind]
    names = ", ".join(f"`{column.name}`" for column in table.columns)
    found = snapshot.execute_sql(f"SELECT {names} FROM `{table.name}`")
    return [
        kind(*(_spanner_value(column, raw) for column, raw in zip(table.columns, row, strict=True))) for row in found
    ]


def _spanner_value(column: Column, raw: Any) -> Any:
    if raw is None:
        return None
    if column.type is datetime:
        # Google's own class compares and prints otherwise.
        return datetime(raw.year, raw.month, raw.day, raw.hour, raw.minute, raw.second, raw.microsecond, UTC)
    return base64.b64decode(raw) if column.type is bytes else raw


def read_outbox(folder: Path) -> list[Arrival]:
    """Every letter below an outbox folder, as it stands now: a repeated request has replaced its file."""
    return [letter for path in sorted(folder.glob("*/*.mbox")) for letter in read_mbox(path)]


def read_mbox(path: Path) -> list[Arrival]:
    """The letters of one mbox file. They arrived when it was last written."""
    at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
    payload_hash = hashlib.sha256(path.read_bytes()).hexdigest()
    box = mailbox.mbox(path, factory=_headers, create=False)  # type: ignore[arg-type]
    try:
        return [
            arrival_of(letter, at, f"{path.parent.name}/{path.name}:{number}", payload_hash)
            for number, letter in enumerate(box)
        ]
    finally:
        box.close()


def _headers(file: IO[bytes]) -> Message:
    return BytesHeaderParser().parse(file)


def arrival_of(letter: Message, at: datetime, place: str, payload_hash: str = "") -> Arrival:
    """What a letter's own headers say. A header that is missing or odd stays empty: the checker finds it."""
    batch = str(letter["X-Sendonce-Batch"] or "")
    return Arrival(
        str(letter["Message-ID"] or "").strip("<> ").partition("@")[0],
        str(letter["X-Sendonce-Campaign"] or ""),
        int(batch) if batch.isdecimal() else -1,
        str(letter["X-Sendonce-Attempt"] or ""),
        at,
        place,
        payload_hash,
    )
