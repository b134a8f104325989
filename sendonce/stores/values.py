"""What a column may hold: the same on every store, checked before a row leaves the process.

A refusal names the table, the column and the rule, never the value: values may be addresses.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from math import isfinite
from typing import Any, Final

from schemas.tables import COMMIT_TIME, Column, Table
from sendonce.stores.base import ValueRefused
from sendonce.stores.ddl import takes_commit_time

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_ACCEPTED: Final[dict[type, tuple[type, ...]]] = {float: (float, int)}
_NONE = type(None)


def check_column(table: Table, column: Column, values: Sequence[Any]) -> None:
    """Check the values that some rows hold in one column. StoreRefused for the first that the column cannot hold.

    str: at most `limit` Unicode characters, no lone surrogates. bytes: at most `limit`. int: 64 bits, no bool.
    float: finite. datetime: aware, or COMMIT_TIME where the column takes it.
    """
    kinds = set(map(type, values))
    present = values
    if _NONE in kinds:
        if not column.nullable:
            raise _refused(table, column, "must have a value")
        kinds.discard(_NONE)
        present = [value for value in values if value is not None]
    for kind in kinds:
        if kind is not column.type and not _accepts(column.type, kind):
            raise _refused(table, column, f"holds {column.type.__name__}, not {kind.__name__}")
    if present:
        _CHECKS[column.type](table, column, present)


def _accepts(wanted: type, given: type) -> bool:
    if given is bool:
        return wanted is bool
    return issubclass(given, _ACCEPTED.get(wanted, (wanted,)))


def _check_str(table: Table, column: Column, values: Sequence[str]) -> None:
    _check_length(table, column, values, "characters")
    if all(map(str.isascii, values)):
        return
    try:
        "".join(values).encode()
    except UnicodeEncodeError:
        # Without its context: the exception carries the text.
        raise _refused(table, column, "holds text with a lone surrogate, which is no Unicode character") from None


def _check_length(table: Table, column: Column, values: Sequence[Any], unit: str) -> None:
    longest = max(map(len, values))
    if column.limit is not None and longest > column.limit:
        raise _refused(table, column, f"takes at most {column.limit} {unit}, not {longest}")


def _check_bytes(table: Table, column: Column, values: Sequence[bytes]) -> None:
    _check_length(table, column, values, "bytes")


def _check_int(table: Table, column: Column, values: Sequence[int]) -> None:
    if min(values) < _INT64_MIN or max(values) > _INT64_MAX:
        raise _refused(table, column, "takes whole numbers of 64 bits")


def _check_float(table: Table, column: Column, values: Sequence[float]) -> None:
    if not all(map(isfinite, values)):
        raise _refused(table, column, "takes finite numbers only")


def _check_bool(table: Table, column: Column, values: Sequence[bool]) -> None:
    pass


def _check_datetime(table: Table, column: Column, values: Sequence[datetime]) -> None:
    seen = None
    for value in values:
        if value is seen:  # one moment for a thousand outcomes
            continue
        seen = value
        if value.tzinfo is None:
            if value != COMMIT_TIME:
                raise _refused(table, column, "takes times with a time zone")
            if not takes_commit_time(table, column):
                raise _refused(table, column, "may lie ahead, so it cannot take the commit time")


_CHECKS: Final[dict[type, Callable[[Table, Column, Sequence[Any]], None]]] = {
    str: _check_str,
    bytes: _check_bytes,
    int: _check_int,
    float: _check_float,
    bool: _check_bool,
    datetime: _check_datetime,
}


def _refused(table: Table, column: Column, problem: str) -> ValueRefused:
    return ValueRefused(f"{table.name}.{column.name} {problem}")
