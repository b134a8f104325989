"""A campaign's outcomes as CSV or NDJSON, line by line, in flat memory."""

import csv
from collections.abc import Iterable
from typing import Any, Final, TextIO

import orjson

from sendonce.control.outcomes import RecipientOutcome

COLUMNS: Final = (
    "recipient_id",
    "message_id",
    "outcome",
    "reason",
    "at",
    "attempt_id",
    "provider_ref",
    "batch",
    "detail",
)


def export_csv(
    lines: Iterable[RecipientOutcome], out: TextIO, *, with_address: bool = False, with_key: bool = False
) -> int:
    """Write a header and one row per recipient; returns how many. Unknown values are empty, ids stay as loaded.

    with_key: a stream's recipients have the idempotency key of their send, too.
    """
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_columns(with_address, with_key))
    written = 0
    for line in lines:
        writer.writerow("" if value is None else value for value in _values(line, with_address, with_key))
        written += 1
    return written


def export_ndjson(
    lines: Iterable[RecipientOutcome], out: TextIO, *, with_address: bool = False, with_key: bool = False
) -> int:
    """Write one JSON object per recipient; returns how many. Unknown values are null. with_key: as in CSV."""
    columns = _columns(with_address, with_key)
    written = 0
    for line in lines:
        out.write(orjson.dumps(dict(zip(columns, _values(line, with_address, with_key), strict=True))).decode() + "\n")
        written += 1
    return written


def _columns(with_address: bool, with_key: bool) -> tuple[str, ...]:
    return (*COLUMNS, *(["idempotency_key"] if with_key else []), *(["email"] if with_address else []))


def _values(line: RecipientOutcome, with_address: bool, with_key: bool) -> list[Any]:
    known = line.as_json()
    values = [known[column] for column in COLUMNS]
    if with_key:
        values.append(line.idempotency_key)
    return [*values, line.email] if with_address else values
