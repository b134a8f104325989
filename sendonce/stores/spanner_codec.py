"""Rows to Spanner and back, and the GoogleSQL of each shape of access.

Point reads, and many keys, go by the read API; what is ordered or bounded goes by SQL, whose text depends on the shape
alone, so that Spanner finds its plan cached. An index is forced: an optimiser that changes its mind reads tables whole.
"""

import base64
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from google.cloud.spanner_v1 import COMMIT_TIMESTAMP, Type, param_types

from schemas.ids import SHARDS
from schemas.tables import TABLES, Column, Table
from sendonce.stores.key_shape import IN_ANY_SHARD, IS_NULL, KeyShape
from sendonce.stores.values import check_column

_TYPES: Final[dict[type, Type]] = {
    str: param_types.STRING,
    int: param_types.INT64,
    float: param_types.FLOAT64,
    bool: param_types.BOOL,
    bytes: param_types.BYTES,
    datetime: param_types.TIMESTAMP,
}
_NULLS_LEFT_OUT: Final = "spanner_emulator.disable_query_null_filtered_index_check=true"
_EVERY_SHARD: Final = ", ".join(map(str, range(SHARDS)))


class Query(NamedTuple):
    """A statement with its parameters, their types by the same names."""

    text: str
    parameters: dict[str, Any]
    types: dict[str, Type]


class Spanned:
    """One table as Spanner sees it; columns are in the order of the dataclass."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.columns = [column.name for column in table.columns]
        self._shape = KeyShape(table)
        indexed = sum(len(self._shape.orders[index.name]) for index in table.indexes)
        # Spanner counts a mutation for each cell, also those of indexes (docs/quotas).
        self.mutations = len(self.columns) + indexed
        self._text_and_bytes = [column.name for column in table.columns if column.limit is not None]

    # -- values ------------------------------------------------------------------------------------------------

    def encode(self, rows: Sequence[Any]) -> list[list[Any]]:
        """StoreRefused names the table and column of a value that the column cannot hold."""
        columns = []
        for column in self.table.columns:
            values = [getattr(row, column.name) for row in rows]
            check_column(self.table, column, values)
            columns.append([_encode(value) for value in values])
        return [list(row) for row in zip(*columns, strict=True)]

    def encode_keys(self, rows: Sequence[Any]) -> list[list[Any]]:
        return [[self._value(column, getattr(row, column.name)) for column in self._shape.key] for row in rows]

    def decode(self, rows: Iterable[Sequence[Any]]) -> list[Any]:
        return [
            self.table.row(*[_decode(column, value) for column, value in zip(self.table.columns, row, strict=True)])
            for row in rows
        ]

    def keys(self, keys: Iterable[Sequence[Any]]) -> list[list[Any]]:
        """Whole primary keys, each once. TypeError unless each of their columns has a value."""
        return [
            [self._value(column, value) for column, value in zip(self._shape.key, key, strict=True)]
            for key in self._shape.whole_keys(keys)
        ]

    def weight(self, row: Any) -> int:
        """About how many bytes a row takes in a request; bytes travel as base64."""
        return 16 * len(self.columns) + sum(2 * len(getattr(row, name) or "") for name in self._text_and_bytes)

    # -- statements --------------------------------------------------------------------------------------------

    def scan(
        self,
        prefix: Sequence[Any],
        index: str | None = None,
        upto: Any = None,
        after: Any = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Query:
        """TypeError for an index that the table does not have, or for more values than the key has columns."""
        where = self._where(prefix, index, upto, after)
        source = self._source(index)
        direction = " DESC" if newest_first else ""
        order = ", ".join(f"{_quoted(column.name)}{direction}" for column in self._shape.orders[index])
        text = f"SELECT {_list(self.columns)} FROM {source}{where.text} ORDER BY {order}"
        if limit is not None:
            text += " LIMIT @most"
            where.parameters["most"], where.types["most"] = limit, param_types.INT64
        return where._replace(text=text)

    def _source(self, index: str | None) -> str:
        source = _quoted(self.table.name)
        if index is None:
            return source
        # The emulator cannot tell that the conditions leave no null to be missed; Spanner ignores the hint.
        sure = f", {_NULLS_LEFT_OUT}" if self.table.index_named(index).null_filtered else ""
        return f"{source}@{{FORCE_INDEX={index}{sure}}}"

    def tally(self, prefix: Sequence[Any], by: Sequence[str], sums: Sequence[str], index: str | None = None) -> Query:
        """Selects `by`, the number of rows, then `sums`."""
        for name in (*by, *sums):
            self._shape.column(name)
        where = self._where(prefix, index)
        totals = [f"COALESCE(SUM({_quoted(name)}), 0)" for name in sums]
        chosen = ", ".join([*map(_quoted, by), "COUNT(*)", *totals])
        group = f" GROUP BY {_list(by)}" if by else ""
        return where._replace(text=f"SELECT {chosen} FROM {self._source(index)}{where.text}{group}")

    def delete(self, prefix: Sequence[Any]) -> Query:
        where = self._where(prefix)
        return where._replace(text=f"DELETE FROM {_quoted(self.table.name)}{where.text or ' WHERE true'}")

    def group_value(self, name: str, value: Any) -> Any:
        return _decode(self._shape.column(name), value)

    def _where(self, prefix: Sequence[Any], index: str | None = None, upto: Any = None, after: Any = None) -> Query:
        texts: list[str] = []
        parameters: dict[str, Any] = {}
        types: dict[str, Type] = {}
        for column, sign, value in self._shape.conditions(index, prefix, upto, after):
            quoted = _quoted(column.name)
            if sign == IN_ANY_SHARD:
                texts.append(f"{quoted} IN ({_EVERY_SHARD})")
            elif sign == IS_NULL:
                texts.append(f"{quoted} IS NULL")
            else:
                name = f"p{len(parameters)}"
                texts.append(f"{quoted} {sign} @{name}")
                parameters[name], types[name] = self._value(column, value), _TYPES[column.type]
        if index is not None and self.table.index_named(index).null_filtered:
            named = [self._shape.column(name) for name in self.table.index_named(index).columns]
            texts += [f"{_quoted(column.name)} IS NOT NULL" for column in named if column.nullable]
        return Query(f" WHERE {' AND '.join(texts)}" if texts else "", parameters, types)

    def _value(self, column: Column, value: Any) -> Any:
        """One value to look for, checked like a stored one."""
        check_column(self.table, column, (value,))
        return _encode(value)


def spanned(kind: type) -> Spanned:
    """TypeError for a class that is no table."""
    if kind not in _spanned:
        if kind not in TABLES:
            raise TypeError(f"{kind.__name__} is no table of schemas.tables")
        _spanned[kind] = Spanned(TABLES[kind])
    return _spanned[kind]


_spanned: dict[type, Spanned] = {}


def _encode(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value)
    if isinstance(value, datetime):
        return COMMIT_TIMESTAMP if value.tzinfo is None else value.astimezone(UTC)
    return value


def _decode(column: Column, value: Any) -> Any:
    if value is None:
        return None
    if column.type is datetime:
        return plain_time(value)
    if column.type is bytes:
        return base64.b64decode(value)
    return value


def plain_time(value: datetime) -> datetime:
    """A plain `datetime` in UTC, to the microsecond: the library's own class compares and prints otherwise."""
    return datetime(value.year, value.month, value.day, value.hour, value.minute, value.second, value.microsecond, UTC)


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return f"`{name}`"
