"""Parquet, through pyarrow (which Beam brings): values keep their exact meaning on the way to text and JSON.

pandas is left out on purpose: its tables turn nullable whole numbers into floats and lists into arrays.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, time
from decimal import Decimal
from math import isinf, isnan
from pathlib import Path
from typing import Any

from sendonce.control.columns import resolve
from sendonce.control.json_rows import ObjectRows
from sendonce.control.load_faults import LoadFault
from sendonce.control.raw_rows import FIELDS, Chunk, FileOptions, Reject

# Rows may be wide and a batch is held as Python objects, so it is smaller than a chunk of text.
_BATCH_ROWS = 2_000


class _NoJson(ValueError):
    pass


class ParquetReader:
    """Reads the schema at once: LoadFault if it has no fitting columns, or pyarrow is missing or finds damage."""

    def __init__(self, path: Path, options: FileOptions) -> None:
        try:
            import pyarrow as arrow  # type: ignore[import-untyped]
            from pyarrow import parquet
        except ImportError:
            raise LoadFault("Parquet needs pyarrow", str(path), "install pyarrow, or export the list as CSV") from None
        self._path = path
        self._damage = (arrow.ArrowException, OSError)
        try:
            self._file = parquet.ParquetFile(path)
        except self._damage:
            raise self._damaged() from None
        names = list(self._file.schema_arrow.names)
        resolve(names, options.column_map, str(path))
        by_field = {name.strip().casefold(): name for name in names}
        spelled = {field: by_field[field] for field in FIELDS if field in by_field}
        mapped = {ours: by_field[theirs.strip().casefold()] for ours, theirs in options.column_map.items()}
        self._take_object = ObjectRows({**spelled, **mapped})
        self.settings: dict[str, Any] = {}

    def chunks(self) -> Iterator[Chunk]:
        """The `line` of a row is its number, from 1. A value that JSON cannot say rejects its row."""
        number = 0
        try:
            for batch in self._file.iter_batches(batch_size=_BATCH_ROWS):
                chunk = Chunk()
                for value in batch.to_pylist(maps_as_pydicts="strict"):
                    number += 1
                    self._take(number, value, chunk)
                yield chunk
        except self._damage:
            raise self._damaged() from None

    def _take(self, number: int, value: dict[str, Any], chunk: Chunk) -> None:
        plain = {}
        for name, item in value.items():
            try:
                plain[name] = _plain(item)
            except _NoJson as fault:
                chunk.rejects.append(Reject(number, name, "bad_value", str(fault)))
                return
        if any(item is not None for item in plain.values()):
            chunk.rows.append(self._take_object(number, plain))
        else:
            chunk.blank += 1

    def _damaged(self) -> LoadFault:
        return LoadFault("the Parquet file is damaged or cut off", str(self._path), "export it again")


def _plain(value: Any) -> Any:
    """A value of JSON's types. Times are ISO 8601, UTC where a zone is known; decimals are text with all digits.

    NaN is what other tools write for a blank number: null.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if isinf(value):
                raise _NoJson("an infinite number")
            return None if isnan(value) else value
        case bytes():
            try:
                return value.decode()
            except UnicodeDecodeError:
                raise _NoJson("bytes that are not UTF-8") from None
        case Decimal():
            return str(value)
        case datetime():
            if value.tzinfo is None:
                return value.isoformat()
            return value.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"
        case date() | time():
            return value.isoformat()
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {_name(name): _plain(item) for name, item in value.items()}
    raise _NoJson("a value that JSON cannot say")


def _name(name: Any) -> str:
    plain = _plain(name)
    if not isinstance(plain, str):
        raise _NoJson("a map whose keys are not text")
    return plain
