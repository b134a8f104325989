"""Versions of tables in memory: each never changes, so what one look found in it is remembered for the next look."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from operator import attrgetter
from typing import Any

from schemas.tables import TABLES, Column, Table
from sendonce.stores.base import ANY_SHARD, AlreadyExists
from sendonce.stores.key_shape import IN_ANY_SHARD, IS_NULL, KeyShape
from sendonce.stores.values import check_column

Key = tuple[Any, ...]


class Kind:
    """What is the same for every version of a table."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.shape = KeyShape(table)
        self.key_of = _values_of(table.key)
        self.orders = {index: tuple(column.name for column in order) for index, order in self.shape.orders.items()}
        self.unique = {index.name: _values_of(index.columns) for index in table.indexes if index.unique}
        self._values = _values_of(tuple(column.name for column in table.columns))
        self._shapes: set[Any] = set()
        self._columns = [(column.type, column.nullable, column.limit) for column in table.columns]

    def stands_in(self, index: str | None) -> Callable[[Any], bool] | None:
        """Which rows an index has; None: all."""
        if index is None or not self.table.index_named(index).null_filtered:
            return None
        values = _values_of(self.table.index_named(index).columns)
        return lambda row: None not in values(row)

    def check(self, index: str | None, prefix: Key, upto: Any, after: Any) -> None:
        """What is wrong with a look is an error of the caller, in every store the same."""
        shape = (index, tuple(map(type, prefix)), type(upto), type(after))
        if shape in self._shapes and all(type(value) is not str or value.isascii() for value in prefix):
            return
        for column, sign, wanted in self.shape.conditions(index, prefix, upto, after):
            if sign not in (IN_ANY_SHARD, IS_NULL):
                check_column(self.table, column, (wanted,))
        self._shapes.add(shape)

    def plain(self, row: Any) -> bool:
        """Whether a row is stored just as it is: every value fits, and none has to be converted."""
        for value, (wanted, nullable, limit) in zip(self._values(row), self._columns, strict=True):
            if value is None:
                if not nullable:
                    return False
            elif type(value) is not wanted:
                return False
            elif wanted is str:
                if (limit is not None and len(value) > limit) or not value.isascii():
                    return False
            elif wanted is datetime:
                if value.tzinfo is not UTC:
                    return False
            elif wanted is int:
                if not -(2**63) <= value < 2**63:
                    return False
            elif wanted is bytes:
                if limit is not None and len(value) > limit:
                    return False
            elif wanted is float and not isfinite(value):
                return False
        return True


@cache
def kind_of(kind: type) -> Kind:
    if kind not in TABLES:
        raise TypeError(f"{kind.__name__} is no table of schemas.tables")
    return Kind(TABLES[kind])


class Rows:
    """One version of a table."""

    def __init__(self, kind: Kind, by_key: dict[Key, Any], unique: dict[str, dict[Key, Key]]) -> None:
        self.kind = kind
        self.by_key = by_key
        self.unique = unique
        self._ordered: dict[str | None, list[Any]] = {}
        self._found: dict[Any, Sequence[Any]] = {}

    def scan(
        self, index: str | None, prefix: Key, upto: Any, after: Any, limit: int | None, newest_first: bool
    ) -> list[Any]:
        asked = (index, prefix, upto, after, limit, newest_first)
        found = self._found.get(asked)
        if found is None:
            found = self._found[asked] = self._scan(*asked)
        return list(found)

    def _scan(
        self, index: str | None, prefix: Key, upto: Any, after: Any, limit: int | None, newest_first: bool
    ) -> Sequence[Any]:
        self.kind.check(index, prefix, upto, after)
        rows = self._in_order(index)
        if rows:
            names, values = self.kind.orders[index], len(prefix)
            skipped = int(values > 0 and prefix[0] is ANY_SHARD)
            if values > skipped:
                key_of, wanted = _values_of(names[skipped:values]), prefix[skipped:]
                rows = [row for row in rows if key_of(row) == wanted]
            if upto is not None or after is not None:
                rows = _between(rows, names[values], upto, after)
        return (rows[::-1] if newest_first else rows)[:limit]

    def _in_order(self, index: str | None) -> list[Any]:
        if index not in self._ordered:
            among = self.kind.stands_in(index)
            rows = [row for row in self.by_key.values() if among is None or among(row)]
            self._ordered[index] = sorted(rows, key=_order_by(tuple(self.kind.shape.orders[index])))
        return self._ordered[index]

    def changed(self) -> "Rows":
        """A version to write into, until it is put in place."""
        return Rows(self.kind, dict(self.by_key), {name: dict(taken) for name, taken in self.unique.items()})

    def insert(self, row: Any) -> None:
        if self.kind.key_of(row) in self.by_key:
            raise AlreadyExists(f"{self.kind.table.name}: a row with this key exists; nothing was stored")
        self.put(row)

    def put(self, row: Any) -> None:
        key = self.kind.key_of(row)
        before = self.by_key.get(key)
        for name, values in self.kind.unique.items():
            taken, place = self.unique[name], values(row)
            if taken.get(place, key) != key:
                raise AlreadyExists(f"{self.kind.table.name}: a row with this {name} exists; nothing was stored")
            if before is not None:
                del taken[values(before)]
            taken[place] = key
        self.by_key[key] = row

    def delete(self, row: Any) -> None:
        before = self.by_key.pop(self.kind.key_of(row), None)
        if before is not None:
            for name, values in self.kind.unique.items():
                del self.unique[name][values(before)]


@cache
def _values_of(names: tuple[str, ...]) -> Callable[[Any], Key]:
    get = attrgetter(*names)
    return get if len(names) > 1 else lambda row: (get(row),)


@cache
def none_of(kind: type) -> Rows:
    found = kind_of(kind)
    return Rows(found, {}, {name: {} for name in found.unique})


@cache
def _order_by(columns: tuple[Column, ...]) -> Callable[[Any], Key]:
    """By these columns; null first, text by its code points."""
    values = _values_of(tuple(column.name for column in columns))
    nullable = [place for place, column in enumerate(columns) if column.nullable]
    if not nullable:
        return values

    def order(row: Any) -> Key:
        found = list(values(row))
        for place in nullable:
            found[place] = (found[place] is not None, found[place])
        return tuple(found)

    return order


def _between(rows: list[Any], name: str, upto: Any, after: Any) -> list[Any]:
    value = attrgetter(name)
    known = [row for row in rows if value(row) is not None]
    return [row for row in known if (upto is None or value(row) <= upto) and (after is None or value(row) > after)]
