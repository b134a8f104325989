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


def export_csv(lines: Iterable[RecipientOutcome], out: TextIO, *, with_address: bool = False) -> int:
    """Write a header and one row per recipient; returns how many. Unknown values are empty, ids stay as loaded."""
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_columns(with_address))
    written = 0
    for line in lines:
        writer.writerow("" if value is None else value for value in _values(line, with_address))
        written += 1
    return written


def export_ndjson(lines: Iterable[RecipientOutcome], out: TextIO, *, with_address: bool = False) -> int:
    """Write one JSON object per recipient; returns how many. Unknown values are null."""
    columns = _columns(with_address)
    written = 0
    for line in lines:
        out.write(orjson.dumps(dict(zip(columns, _values(line, with_address), strict=True))).decode() + "\n")
        written += 1
    return written


def _columns(with_address: bool) -> tuple[str, ...]:
    return (*COLUMNS, "email") if with_address else COLUMNS


def _values(line: RecipientOutcome, with_address: bool) -> list[Any]:
    known = line.as_json()
    values = [known[column] for column in COLUMNS]
    return [*values, line.email] if with_address else values
