"""The SQL text of each shape of access, made once per shape, so that SQLite's statement cache finds it prepared."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

from schemas.ids import SHARDS
from schemas.tables import TABLES, Table
from sendonce.stores.ddl import sqlite_index_condition
from sendonce.stores.key_shape import IN_ANY_SHARD, IS_NULL, KeyShape
from sendonce.stores.sqlite_codec import encode_parameter, encode_parameters

_EVERY_SHARD: Final = ", ".join(map(str, range(SHARDS)))


class Where(NamedTuple):
    """A key prefix as a condition: its text depends on the shape alone, its parameters on the values."""

    text: str
    parameters: list[Any]


class Statements:
    """The statements of one table; columns are in the order of the dataclass."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._name = _quoted(table.name)
        self._columns = _list([column.name for column in table.columns])
        self._key_equal = " AND ".join(f"{_quoted(name)} = ?" for name in table.key)
        self._shape = KeyShape(table)
        self._inserts: dict[int, str] = {}
        self._puts: dict[int, str] = {}
        self._scans: dict[tuple[str, str | None, bool, bool], str] = {}

    @cached_property
    def get(self) -> str:
        return f"SELECT {self._columns} FROM {self._name} WHERE {self._key_equal}"

    def get_many(self, count: int) -> str:
        """Selects by `count` keys, given one behind the other.

        A join, its keys first: for `(a, b) IN (VALUES ...)` SQLite reads the whole table.
        """
        one = f"({', '.join('?' * len(self.table.key))})"
        keys = ", ".join([one] * count)
        names = [column.name for column in self.table.columns]
        columns = ", ".join(f"{self._name}.{_quoted(name)}" for name in names)
        same = " AND ".join(
            f"{self._name}.{_quoted(name)} = wanted.column{place}" for place, name in enumerate(self.table.key, 1)
        )
        return f"SELECT {columns} FROM (VALUES {keys}) AS wanted CROSS JOIN {self._name} ON {same}"

    def keys_in_sqlite(self, keys: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Whole primary keys in SQLite's types, each once. TypeError unless each of their columns has a value."""
        distinct = self._shape.whole_keys(keys)
        columns = [
            encode_parameters(self.table, column, values)
            for column, values in zip(self._shape.key, zip(*distinct, strict=True), strict=False)
        ]
        return list(zip(*columns, strict=True))

    def insert(self, rows: int) -> str:
        """Inserts so many rows, their values given one row behind the other."""
        if rows not in self._inserts:
            marks = f"({', '.join('?' * len(self.table.columns))})"
            values = ", ".join([marks] * rows)
            self._inserts[rows] = f"INSERT INTO {self._name} ({self._columns}) VALUES {values}"
        return self._inserts[rows]

    def put(self, rows: int) -> str:
        """The same, in place of rows that have the same primary keys."""
        if rows not in self._puts:
            # No INSERT OR REPLACE: that would also delete another row that holds the same unique secondary key.
            others = [_quoted(column.name) for column in self.table.columns if column.name not in self.table.key]
            changes = ", ".join(f"{name} = excluded.{name}" for name in others)
            self._puts[rows] = f"{self.insert(rows)} ON CONFLICT ({_list(self.table.key)}) DO UPDATE SET {changes}"
        return self._puts[rows]

    @cached_property
    def delete(self) -> str:
        return f"DELETE FROM {self._name} WHERE {self._key_equal}"

    def scan(self, where: str, index: str | None, newest_first: bool, limited: bool) -> str:
        shape = (where, index, newest_first, limited)
        if shape not in self._scans:
            self._scans[shape] = self._scan(where, index, newest_first, limited)
        return self._scans[shape]

    def keys(self, where: str) -> str:
        """The primary keys under a prefix, as many as the last parameter says."""
        return f"SELECT {_list(self.table.key)} FROM {self._name}{_where(where)} LIMIT ?"

    def tally(self, where: str, by: Sequence[str], sums: Sequence[str], index: str | None = None) -> str:
        """Selects `by`, the number of rows, then `sums`."""
        for name in (*by, *sums):
            self._shape.column(name)
        totals = [f"coalesce(sum({_quoted(name)}), 0)" for name in sums]
        chosen = ", ".join([*map(_quoted, by), "count(*)", *totals])
        group = f" GROUP BY {_list(by)}" if by else ""
        source, condition = self._source(where, index)
        return f"SELECT {chosen} FROM {source}{_where(condition)}{group}"

    def prefix(self, index: str | None, prefix: Sequence[Any], upto: Any = None, after: Any = None) -> Where:
        """The condition for a key prefix and for bounds on the column behind it.

        TypeError for an index that the table does not have, or for more values than the key has columns.
        """
        conditions, parameters = [], []
        for column, sign, value in self._shape.conditions(index, prefix, upto, after):
            name = _quoted(column.name)
            if sign == IN_ANY_SHARD:
                conditions.append(f"{name} IN ({_EVERY_SHARD})")
            elif sign == IS_NULL:
                conditions.append(f"{name} IS NULL")
            else:
                conditions.append(f"{name} {sign} ?")
                parameters.append(encode_parameter(self.table, column, value))
        return Where(" AND ".join(conditions), parameters)

    def _source(self, where: str, index: str | None) -> tuple[str, str]:
        """Where to look, and the condition that lets SQLite use the index."""
        if index is None:
            return self._name, where
        filtered = sqlite_index_condition(self.table, self.table.index_named(index))
        return f"{self._name} INDEXED BY {_quoted(index)}", " AND ".join(filter(None, (where, filtered)))

    def _scan(self, where: str, index: str | None, newest_first: bool, limited: bool) -> str:
        source, condition = self._source(where, index)
        direction = " DESC" if newest_first else ""
        order = ", ".join(f"{_quoted(column.name)}{direction}" for column in self._shape.orders[index])
        limit = " LIMIT ?" if limited else ""
        return f"SELECT {self._columns} FROM {source}{_where(condition)} ORDER BY {order}{limit}"


_statements: dict[type, Statements] = {}


def statements_of(kind: type) -> Statements:
    """The statements of a row class. TypeError for a class that is no table."""
    if kind not in _statements:
        if kind not in TABLES:
            raise TypeError(f"{kind.__name__} is no table of schemas.tables")
        _statements[kind] = Statements(TABLES[kind])
    return _statements[kind]


def _where(condition: str) -> str:
    return f" WHERE {condition}" if condition else ""


def _list(names: Sequence[str]) -> str:
    return ", ".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return f'"{name}"'
