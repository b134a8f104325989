"""Rows to SQLite and back, a column at a time: checks and conversions then run in C for a thousand rows as for one."""

from collections.abc import Sequence
from datetime import datetime
from itertools import starmap
from operator import attrgetter
from typing import Any, Final

from schemas.tables import TABLES, Column, Table
from sendonce.moments import from_micros, to_micros
from sendonce.stores.ddl import is_large
from sendonce.stores.values import check_column


class Encoded:
    """Checked rows of one table in SQLite's types, complete but for the commit time, which only a transaction knows."""

    def __init__(self, table: Table, columns: list[Sequence[Any]], stamped: list[int]) -> None:
        self.table = table
        self._columns = columns
        self._stamped = stamped

    def rows(self, now_micros: int) -> list[tuple[Any, ...]]:
        columns = list(self._columns)
        for place in self._stamped:
            columns[place] = [now_micros if value is _COMMIT else value for value in columns[place]]
        return list(zip(*columns, strict=True))


class _Commit:
    pass


# Stands for COMMIT_TIME in an encoded column.
_COMMIT: Final = _Commit()


class Codec:
    """Encodes and decodes the rows of one table; columns are in the order of the dataclass."""

    def __init__(self, table: Table) -> None:
        names = [column.name for column in table.columns]
        self.table = table
        self._values = attrgetter(*names)
        self._times = [place for place, column in enumerate(table.columns) if column.type is datetime]
        self._bools = [place for place, column in enumerate(table.columns) if column.type is bool]
        self._large = [column.name for column in table.columns if is_large(column)]
        self._key = [column for name in table.key for column in table.columns if column.name == name]
        self._converted = bool(self._times or self._bools)

    def encode(self, rows: Sequence[Any]) -> Encoded:
        """StoreRefused names the table and column of a value that the column cannot hold."""
        columns: list[Sequence[Any]] = list(zip(*map(self._values, rows), strict=True))
        for column, values in zip(self.table.columns, columns, strict=True):
            check_column(self.table, column, values)
        stamped = []
        for place in self._times:
            encoded = _encode_times(columns[place])
            columns[place] = encoded
            if _COMMIT in encoded:
                stamped.append(place)
        return Encoded(self.table, columns, stamped)

    def encode_keys(self, rows: Sequence[Any]) -> list[tuple[Any, ...]]:
        """The primary keys of rows, in the order of the key."""
        return [
            tuple([encode_parameter(self.table, column, getattr(row, column.name)) for column in self._key])
            for row in rows
        ]

    def weight(self, row: Any) -> int:
        """About how many bytes the large columns of a row take."""
        return sum([len(getattr(row, name) or "") for name in self._large])

    def decode(self, rows: list[tuple[Any, ...]]) -> list[Any]:
        if not rows or not self._converted:
            return list(starmap(self.table.row, rows))
        columns: list[Any] = list(zip(*rows, strict=True))
        for place in self._times:
            columns[place] = [None if value is None else from_micros(value) for value in columns[place]]
        for place in self._bools:
            columns[place] = [None if value is None else bool(value) for value in columns[place]]
        return list(map(self.table.row, *columns))


def codec_of(kind: type) -> Codec:
    """The codec of a row class. TypeError for a class that is no table."""
    if kind not in _codecs:
        if kind not in TABLES:
            raise TypeError(f"{kind.__name__} is no table of schemas.tables")
        _codecs[kind] = Codec(TABLES[kind])
    return _codecs[kind]


_codecs: dict[type, Codec] = {}


def encode_parameter(table: Table, column: Column, value: Any) -> Any:
    """One value to look for, checked like a stored one."""
    check_column(table, column, (value,))
    return to_micros(value) if isinstance(value, datetime) else value


def encode_parameters(table: Table, column: Column, values: Sequence[Any]) -> Sequence[Any]:
    """Many values to look for in one column, checked like stored ones."""
    check_column(table, column, values)
    return [to_micros(value) for value in values] if column.type is datetime else values


def decode_parameter(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.type is datetime:
        return from_micros(value)
    return bool(value) if column.type is bool else value


def _encode_times(values: Sequence[datetime | None]) -> list[Any]:
    first = values[0]
    if all(value is first for value in values):  # one moment for a thousand outcomes
        return [_encode_time(first)] * len(values)
    return [_encode_time(value) for value in values]


def _encode_time(value: datetime | None) -> Any:
    if value is None:
        return None
    return _COMMIT if value.tzinfo is None else to_micros(value)
