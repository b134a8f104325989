"""What a look-up by key means, in whatever language: which columns, in which order, and what is a mistake."""

from collections.abc import Iterable, Sequence
from typing import Any

from schemas.tables import Column, Table
from sendonce.stores.base import ANY_SHARD

# How a column is compared. The first three stand in statements as they are; the others need no value.
EQUAL, UPTO, AFTER, IS_NULL, IN_ANY_SHARD = "=", "<=", ">", "is null", "in any shard"
# Column, sign, value. A plain tuple: one is made for each column of each look-up.
Condition = tuple[Column, str, Any]


class KeyShape:
    """The keys of one table. What its caller gets wrong is a TypeError."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self._named = {column.name: column for column in table.columns}
        self.orders: dict[str | None, list[Column]] = {None: self._order_of(())}
        self.orders.update({index.name: self._order_of(index.columns) for index in table.indexes})

    @property
    def key(self) -> list[Column]:
        """The columns of the primary key."""
        return self.orders[None]

    def column(self, name: str) -> Column:
        if name not in self._named:
            raise TypeError(f"{self.table.name} has no column {name}")
        return self._named[name]

    def whole_keys(self, keys: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
        """Primary keys with a value for each of their columns, each once."""
        distinct = list(dict.fromkeys(map(tuple, keys)))
        if any(len(key) != len(self.key) or None in key or ANY_SHARD in key for key in distinct):
            raise TypeError(f"{self.table.name}: each column of the key needs a value: {self.table.key}")
        return distinct

    def conditions(
        self, index: str | None, prefix: Sequence[Any], upto: Any = None, after: Any = None
    ) -> list[Condition]:
        """For a key prefix and for bounds on the column behind it."""
        if index not in self.orders:
            raise TypeError(f"{self.table.name} has no index {index}")
        order = self.orders[index]
        bounds = [(sign, value) for sign, value in ((UPTO, upto), (AFTER, after)) if value is not None]
        if len(prefix) + bool(bounds) > len(order):
            raise TypeError(f"the key of {index or self.table.name} has {len(order)} columns")
        found: list[Condition] = []
        for column, value in zip(order, prefix, strict=False):
            if value is ANY_SHARD:
                if column is not order[0] or column.name != "shard":
                    raise TypeError("ANY_SHARD stands only for a leading shard")
                found.append((column, IN_ANY_SHARD, None))
            elif value is None:
                found.append((column, IS_NULL, None))
            else:
                found.append((column, EQUAL, value))
        for sign, value in bounds:
            found.append((order[len(prefix)], sign, value))
        return found

    def _order_of(self, names: Sequence[str]) -> list[Column]:
        """The columns by which a scan is ordered: those of the index, then those of the primary key."""
        return [self._named[name] for name in (*names, *(name for name in self.table.key if name not in names))]
