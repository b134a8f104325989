"""A file of addresses becomes suppressions: plain lines, or a CSV, NDJSON or Parquet table with a column of addresses.

Read like a recipients file, some thousand rows in memory at a time. Each transaction writes some of them; a kill
leaves those that were written, and the same import again adds the rest.
"""

import codecs
import csv
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Optional

import orjson

from schemas.ids import address_key
from schemas.tables import COMMIT_TIME, Suppression
from sendonce.addresses import BadAddress, normalise
from sendonce.control.csv_rows import DELIMITERS
from sendonce.control.load_faults import LoadFault
from sendonce.control.raw_rows import CHUNK_ROWS, Chunk, FileOptions, Lines, RawRow, Reject
from sendonce.control.recipients_file import RecipientsFile
from sendonce.control.suppressions import EVERYWHERE, REASONS, checked_list, insert_new, reason_named
from sendonce.stores.base import Store
from sendonce.stores.opening import store_key

# Column names under which programs export addresses; the first that a file has is taken.
ADDRESS_COLUMNS: Final = ("email", "email_address", "e-mail", "address", "recipient")
# Rows in one transaction: claims wait no longer than that takes.
_AT_ONCE: Final = 1_000
_HEAD: Final = 64 << 10
_LINES_SHOWN: Final = 10


@dataclass
class ImportReport:
    """rows_read = added + already + rejected. already: suppressed before, or twice in the file.

    rejected_by_reason and lines (the first ones) tell of rows without an address; they name no value.
    unknown_reasons: rows whose own reason means nothing here; they count under the import's.
    """

    list_name: str
    rows_read: int = 0
    added: int = 0
    already: int = 0
    rejected: int = 0
    unknown_reasons: int = 0
    rejected_by_reason: Counter[str] = field(default_factory=Counter)
    lines: list[int] = field(default_factory=list)


def import_suppressions(
    store: Store,
    path: Path,
    *,
    by: str,
    list_name: str = EVERYWHERE,
    reason: str = "manual",
    column: Optional[str] = None,
    encoding: Optional[str] = None,
    progress: Callable[[ImportReport], None] = lambda report: None,
) -> ImportReport:
    """Suppress every address of a file. Who is suppressed already keeps since, why and by whom: again adds nobody.

    reason: of rows without one of their own (a column `reason`). column: that of the addresses, if its name is not one
    of ADDRESS_COLUMNS. LoadFault for a file that cannot be read or holds no address; BadSuppression for the list.
    """
    report = ImportReport(checked_list(list_name))
    key = store_key(store)
    file = _opened(path, column, encoding)
    try:
        for chunk in file.chunks():
            report.rows_read += len(chunk.rows) + len(chunk.rejects)
            for reject in chunk.rejects:
                _reject(report, reject.line, reject.reason)
            rows = [
                Suppression(address, report.list_name, int(REASONS[word]), COMMIT_TIME, by, "import")
                for address, word in _judged(chunk.rows, key, reason, report)
            ]
            for start in range(0, len(rows), _AT_ONCE):
                _write(store, rows[start : start + _AT_ONCE], report)
                progress(report)
    finally:
        file.close()
    if report.rows_read and report.rejected == report.rows_read:
        reasons = ", ".join(f"{times} x {why}" for why, times in report.rejected_by_reason.most_common(3))
        raise LoadFault(
            f"none of its {report.rows_read} rows holds an address ({reasons})",
            str(path),
            "name the column of addresses with --column",
        )
    return report


def _write(store: Store, rows: list[Suppression], report: ImportReport) -> None:
    added = store.transact(lambda tx: len(insert_new(tx, rows)), tag="suppressions_import")
    report.added += added
    report.already += len(rows) - added


def _judged(rows: list[RawRow], key: bytes, default: str, report: ImportReport) -> Iterator[tuple[str, str]]:
    """Address key and reason of each row that holds an address; the others are counted."""
    for line, _, raw, *_, extras in rows:
        if raw is None or raw == "":
            _reject(report, line, "missing_address")
            continue
        try:
            key_form = normalise(raw).key_form if type(raw) is str else ""
        except BadAddress:
            key_form = ""
        if not key_form:
            _reject(report, line, "bad_address")
            continue
        given = next((value for name, value in extras.items() if name.casefold() == "reason"), None)
        named = reason_named(given) if type(given) is str else None
        report.unknown_reasons += named is None and bool(given)
        yield address_key(key, key_form), named or default


def _reject(report: ImportReport, line: int, reason: str) -> None:
    report.rejected += 1
    report.rejected_by_reason[reason] += 1
    if len(report.lines) < _LINES_SHOWN:
        report.lines.append(line)


def _opened(path: Path, column: Optional[str], encoding: Optional[str]) -> RecipientsFile:
    """The file as a table whose addresses stand in a column, or, if its first line names none, as plain lines."""
    options = FileOptions(encoding=encoding)
    first = _first_line(path, encoding)
    if column is None:
        names = _names(first)
        column = next((names[name] for name in ADDRESS_COLUMNS if name in names), None)
    if column is None and first.startswith("PAR1"):
        column = "email"
    if column is None:
        return RecipientsFile(path, options, AddressLines)
    # The readers ask for an id in each row; the address is that, too.
    columns = {"recipient_id": column, "email": column}
    return RecipientsFile(path, FileOptions(encoding=encoding, column_map=columns))


def _first_line(path: Path, encoding: Optional[str]) -> str:
    """The first line with something in it, as far as it can be read; what is wrong with the file shows when it is."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return ""
    marked = "utf-16" if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) else "utf-8-sig"
    try:
        text = head.decode(encoding or marked, "replace")
    except LookupError:
        return ""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def _names(first: str) -> dict[str, str]:
    """The column names of a header, or those of a JSON object: in lower case, each with its own spelling."""
    if first.startswith("{"):
        try:
            found: Any = orjson.loads(first)
        except orjson.JSONDecodeError:
            return {"email": "email"}  # its line is rejected, and the others tell
        return {name.strip().casefold(): name for name in found}
    for delimiter in DELIMITERS:
        values = next(csv.reader([first], delimiter=delimiter), [])
        names = {value.strip().strip("'").casefold(): value.strip() for value in values}
        if names.keys() & set(ADDRESS_COLUMNS):
            return names
    return {}


class AddressLines:
    """Plain lines: an address each, and behind a comma, a semicolon or a tab its reason. No column names."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self.settings: dict[str, Any] = {}

    def chunks(self) -> Iterator[Chunk]:
        """Blank lines are nothing."""
        chunk = Chunk()
        while line := self._lines.next():
            number = self._lines.number
            if self._lines.skip_rest(line):
                chunk.rejects.append(Reject(number, "", "line_too_long", "no address is as long"))
            elif not line.strip():
                chunk.blank += 1
            else:
                chunk.rows.append(_row(number, line))
            if len(chunk.rows) + len(chunk.rejects) >= CHUNK_ROWS:
                yield chunk
                chunk = Chunk()
        yield chunk


def _row(number: int, line: str) -> RawRow:
    for delimiter in DELIMITERS:
        address, found, reason = line.partition(delimiter)
        if found:
            break
    extras = {"reason": reason.strip(" \t\r\n\"'")} if found else {}
    return number, None, address.strip(" \t\r\n\"'"), None, None, None, extras
