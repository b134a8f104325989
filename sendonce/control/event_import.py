"""A file of delivery events goes on record: one JSON value a line, or one JSON document, also compressed with gzip.

A line, or the document, is an event or a list of events: as SendGrid posts them, as SES publishes them, or as SNS
hands on what SES publishes. Some megabytes are in memory at a time. A kill leaves what was written; the same import
again adds the rest.
"""

import gzip
import io
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Optional, Protocol

import orjson

from sendonce.control.event_payloads import Event, NotOurs, events_in
from sendonce.control.events import EVENTS_AT_ONCE, Recorded, record_events
from sendonce.control.faults import ControlFault
from sendonce.stores.base import Store

# SendGrid posts up to 768 KB at once, SNS hands on 256 KB.
LINE_MAX: Final = 16 << 20
# A document of many lines is read whole, and takes some times as much memory.
DOCUMENT_MAX: Final = 64 << 20
# Lines that are named; all are counted.
_REJECTS_SHOWN: Final = 20
_GZIP: Final = b"\x1f\x8b"
_BOM: Final = b"\xef\xbb\xbf"
_BLANK: Final = b" \t\r\n" + _BOM


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def readline(self, size: int, /) -> bytes: ...


class EventsFault(ControlFault):
    """The file cannot be read, or there is no event in it. Nothing was recorded, or what was read before stays so."""

    reason = "bad_events_file"


class RejectedEvent(NamedTuple):
    """An entry that cannot be understood: its line, its place in the line's list (from 1; 0: the line itself), why."""

    line: int
    entry: int
    reason: str


@dataclass
class EventsReport:
    """events = added + already + unknown_campaign + unknown_attempt (`Recorded`).

    ignored: entries that tell nothing of a letter of ours, by why. rejected: what could not be understood, by reason;
    rejects: the first of them.
    """

    lines: int = 0
    events: int = 0
    recorded: Recorded = field(default_factory=Recorded)
    ignored: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    rejects: list[RejectedEvent] = field(default_factory=list)

    def reject(self, line: int, entry: int, reason: str) -> None:
        self.rejected[reason] += 1
        if len(self.rejects) < _REJECTS_SHOWN:
            self.rejects.append(RejectedEvent(line, entry, reason))


def import_events(
    store: Store,
    path: Path,
    *,
    provider: Optional[str] = None,
    progress: Callable[[EventsReport], None] = lambda report: None,
) -> EventsReport:
    """Record the events of a file. provider: whose all of them must be; None: found by the content of each.

    EventsFault for a file that cannot be read, or in which nothing can be understood.
    """
    report = EventsReport()
    waiting: list[Event] = []

    def write() -> None:
        report.recorded += record_events(store, waiting)
        waiting.clear()
        progress(report)

    try:
        with _opened(path) as file:
            for number, value in _values(file, report):
                for entry, found in enumerate(events_in(value, provider), 1):
                    if isinstance(found, Event):
                        report.events += 1
                        waiting.append(found)
                    elif isinstance(found, NotOurs):
                        report.ignored[found.why] += 1
                    else:
                        report.reject(number, entry if type(value) is list else 0, found.reason)
                    if len(waiting) == EVENTS_AT_ONCE:
                        write()
            write()
    except (EOFError, zlib.error, gzip.BadGzipFile) as fault:
        raise EventsFault(f"{path}: damaged by compression or cut off ({fault}); fetch it again") from None
    except OSError as fault:
        raise EventsFault(f"{path}: cannot be read ({fault.strerror or fault}); check the path") from None
    if report.rejected and not report.events and not report.ignored:
        reasons = ", ".join(f"{times} x {why}" for why, times in report.rejected.most_common(3))
        raise EventsFault(
            f"{path}: holds no event of SendGrid or SES ({reasons}); it must have JSON as they post or publish it, one "
            "value a line (`jq -c '.[]'` makes lines of a long list)"
        )
    return report


@contextmanager
def _opened(path: Path) -> Iterator[_Readable]:
    with path.open("rb") as raw:
        if raw.peek(len(_GZIP)).startswith(_GZIP):
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield unpacked
        else:
            yield raw


def _values(file: _Readable, report: EventsReport) -> Iterator[tuple[int, Any]]:
    """The JSON values of a file with the lines they begin in; lines that are no JSON are rejected."""
    first, document = _document(file)
    if document is not None:
        report.lines = len(first.splitlines())
        yield 1, document
        return
    for number, line in enumerate(_lines(io.BytesIO(first), file), 1):
        report.lines = number
        if line is None:
            report.reject(number, 0, "line_too_long")
        elif line.strip():
            value = _parsed(line)
            if value is None:
                report.reject(number, 0, "not_json")
            else:
                yield number, value


def _document(file: _Readable) -> tuple[bytes, Optional[Any]]:
    """What was read of a file, up to the end of a line, and its value if it is one document over many lines.

    It is not if its first line with something in it is JSON by itself.
    """
    read = b""
    while line := file.readline(LINE_MAX):
        read += line
        if line.strip(_BLANK):
            break
    if _parsed(read) is not None or read.strip(_BLANK)[:1] not in (b"[", b"{"):
        return read, None
    read += file.read(DOCUMENT_MAX)
    if len(read) >= DOCUMENT_MAX:
        return read + file.readline(LINE_MAX), None
    return read, _parsed(read)


def _lines(*files: _Readable) -> Iterator[Optional[bytes]]:
    """The lines of some files; None for one that is too long, of which no more than LINE_MAX is held."""
    for file in files:
        while line := file.readline(LINE_MAX):
            if len(line) < LINE_MAX or line.endswith(b"\n"):
                yield line
                continue
            while line and not line.endswith(b"\n"):
                line = file.readline(LINE_MAX)
            yield None


def _parsed(text: bytes) -> Optional[Any]:
    """The value of a JSON text; None for what is none, and for `null`."""
    try:
        return orjson.loads(text.removeprefix(_BOM))
    except orjson.JSONDecodeError:
        return None
