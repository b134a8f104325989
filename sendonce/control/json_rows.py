"""NDJSON: one object a line, each parsed by itself and strictly, so that one bad line costs one row.

pandas' own reader is not used here: it takes the whole file or none of it, turns ids into numbers and dates into
timestamps, and lets repeated names pass.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from sendonce.control.load_faults import LoadFault
from sendonce.control.raw_rows import (
    CHUNK_CHARACTERS,
    CHUNK_ROWS,
    FIELDS,
    RECORD_MAX,
    Chunk,
    FileOptions,
    Lines,
    RawRow,
    Reject,
)
from sendonce.control.strict_json import BadJson, parse

_SHOWN: Final = 20


class JsonReader:
    """Values keep their JSON types. A blank line is nothing; a line that is no object is rejected."""

    def __init__(self, path: Path, lines: Lines, options: FileOptions, encoding: str) -> None:
        self._path = path
        self._lines = lines
        self._take_object = ObjectRows(options.column_map)
        self.settings: dict[str, Any] = {"encoding": encoding}

    def chunks(self) -> Iterator[Chunk]:
        """LoadFault at the end of the file for a mapped name that no line had."""
        chunk, characters = Chunk(), 0
        while line := self._lines.next():
            number = self._lines.number
            if self._lines.skip_rest(line):
                chunk.rejects.append(Reject(number, "", "line_too_long", f"more than {RECORD_MAX} characters"))
            elif not line.strip():
                chunk.blank += 1
            else:
                characters += len(line)
                self._take(line, number, chunk)
            if len(chunk.rows) + len(chunk.rejects) >= CHUNK_ROWS or characters >= CHUNK_CHARACTERS:
                yield chunk
                chunk, characters = Chunk(), 0
        yield chunk
        self._take_object.check_map(f"{self._path}")

    def _take(self, line: str, number: int, chunk: Chunk) -> None:
        if "\0" in line:
            chunk.rejects.append(Reject(number, "", "control_character", "holds a NUL"))
            return
        if "\ufffd" in line:
            detail = "holds U+FFFD: its characters were lost in an earlier export"
            chunk.rejects.append(Reject(number, "", "damaged_text", detail))
            return
        try:
            value, _ = parse(line.rstrip("\r\n"))
        except BadJson as fault:
            chunk.rejects.append(Reject(number, "", _reason(line), fault.reason))
            return
        if type(value) is not dict:
            chunk.rejects.append(Reject(number, "", "not_an_object", "a line holds one JSON object"))
            return
        chunk.rows.append(self._take_object(number, value))


class ObjectRows:
    """Turns objects into rows: the five fields, under their own or their mapped names; all else is a variable."""

    def __init__(self, column_map: Mapping[str, str]) -> None:
        self._names = [column_map.get(field, field) for field in FIELDS]
        self._variables = {theirs: ours for ours, theirs in column_map.items() if ours not in FIELDS}
        self._left_out = frozenset(self._names)
        self._unseen = set(column_map.values())
        self._found: dict[str, None] = {}

    def __call__(self, line: int, value: dict[str, Any]) -> RawRow:
        if self._unseen:
            self._unseen.difference_update(value)
            if len(self._found) < _SHOWN:
                self._found.update(dict.fromkeys(value))
        recipient_id, email, locale, timezone, variables = map(value.get, self._names)
        extras = {
            self._variables.get(name, name): item
            for name, item in value.items()
            if name not in self._left_out or name in self._variables
        }
        return line, recipient_id, email, locale, timezone, variables, extras

    def check_map(self, place: str) -> None:
        """LoadFault for a mapped name that no object had."""
        if self._unseen and self._found:
            found = ", ".join(f"{name[:40]!r}" for name in self._found if "@" not in name)
            wanted = sorted(self._unseen)[0]
            raise LoadFault(f"no object has {wanted!r}, which the map names; found {found}", place, "map one of these")


def _reason(line: str) -> str:
    """Names the variables if the rest of the line may be sound: their author is somebody else than the file's."""
    return "bad_template_variables" if '"template_variables"' in line and line.rstrip().endswith("}") else "bad_json"
