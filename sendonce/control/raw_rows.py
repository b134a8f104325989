"""What readers of recipients files share: rows as they stand in the file, and its physical lines."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Optional, Protocol, TextIO

FIELDS: Final = ("recipient_id", "email", "locale", "timezone", "template_variables")

# Characters of one line, and of one record over several lines. No letter needs more, and memory stays flat.
RECORD_MAX: Final = 1 << 20
CHUNK_ROWS: Final = 5_000
CHUNK_CHARACTERS: Final = 4 << 20


# One record as it stands in the file: its line (from 1; the first, if it has several; in Parquet the row), the five
# FIELDS, and the columns beyond them. Values are text in CSV, JSON values elsewhere; None is absent. A plain tuple:
# there are millions, and the garbage collector leaves plain ones alone.
RawRow = tuple[int, Any, Any, Any, Any, Any, dict[str, Any]]


class Reject(NamedTuple):
    """A record that is not taken: where, which column ("" for the whole row), a reason for machines, words for people.

    Never holds the value.
    """

    line: int
    column: str
    reason: str
    detail: str


@dataclass
class Chunk:
    """Some records in file order. `blank` counts lines and rows without any value, which are nothing at all."""

    rows: list[RawRow] = field(default_factory=list)
    rejects: list[Reject] = field(default_factory=list)
    blank: int = 0


class Reader(Protocol):
    """What reads one format. `settings` tells how the file was read, for the record."""

    settings: dict[str, Any]

    def chunks(self) -> Iterator[Chunk]:
        """All records, in order."""


@dataclass(frozen=True)
class FileOptions:
    """How to read the file; None is found out. `column_map`: our name (a field or a variable) to the file's column."""

    format: Optional[str] = None
    delimiter: Optional[str] = None
    quote: Optional[str] = None
    encoding: Optional[str] = None
    column_map: Mapping[str, str] = field(default_factory=dict)


class Lines:
    """The physical lines of a text, with their numbers; LF, CR LF and CR end one. Lines can be put back."""

    def __init__(self, text: TextIO) -> None:
        self._readline = text.readline
        self._again = [text.readline(RECORD_MAX).removeprefix("\ufeff")]
        self.number = 0

    def next(self) -> str:
        """The next line with its end, "" after the last. A line of RECORD_MAX characters is cut: see `skip_rest`."""
        line = self._again.pop() if self._again else self._readline(RECORD_MAX)
        if line:
            self.number += 1
        return line

    def put_back(self, lines: list[str]) -> None:
        """Undo `next` for the last lines, given in their order."""
        self._again.extend(reversed(lines))
        self.number -= len(lines)

    def skip_rest(self, line: str) -> bool:
        """Whether `line` was cut. If so, the rest of it is read and dropped."""
        if len(line) < RECORD_MAX or line.endswith(("\n", "\r")):
            return False
        while line and not line.endswith(("\n", "\r")):
            line = self._readline(RECORD_MAX)
        return True
