"""Which column of a table is which field. Names are matched without regard to letter case and outer spaces."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sendonce.control.load_faults import LoadFault
from sendonce.control.raw_rows import FIELDS

REQUIRED: Final = ("recipient_id", "email")
_SHOWN: Final = 20


@dataclass(frozen=True)
class Columns:
    """The place of each field (None for one that the file does not have), and of each variable; from 0.

    `width` is how many columns a row has; empty ones at the end of the header do not count.
    """

    places: Mapping[str, int | None]
    extras: Sequence[tuple[str, int]]
    width: int


def has_required(names: Sequence[str], column_map: Mapping[str, str]) -> bool:
    """Whether a header names what every row must have."""
    plain = {_plain(name) for name in names}
    return all(_plain(column_map.get(field, field)) in plain for field in REQUIRED)


def resolve(names: Sequence[str], column_map: Mapping[str, str], place: str) -> Columns:
    """The columns of a header. LoadFault lists what was found, for a missing, doubled or unknown column.

    `column_map` goes from our name (a field or a variable) to the file's. A column without a name is left out.
    """
    plain = [_plain(name) for name in names]
    while plain and not plain[-1]:
        plain.pop()
    found = describe(names)
    for ours, theirs in column_map.items():
        if _plain(theirs) not in plain or not _plain(theirs):
            raise LoadFault(
                f"no column {theirs!r}, which is to be {ours}; {found}", place, f"map {ours} to one of these"
            )
    missing = [field for field in REQUIRED if field not in column_map and field not in plain]
    if missing:
        raise LoadFault(
            f"missing columns {', '.join(missing)}; {found}",
            place,
            f"name them so, or map them, for example --column {missing[0]}=YOUR_COLUMN; or give the --delimiter",
        )
    doubled = [name for name, times in Counter(plain).items() if times > 1 and name]
    if doubled:
        raise LoadFault(f"column {doubled[0]!r} is there more than once", place, "keep one of them")
    places = {field: _place(plain, column_map.get(field, field)) for field in FIELDS}
    mapped = {ours: plain.index(_plain(theirs)) for ours, theirs in column_map.items() if ours not in FIELDS}
    taken = {*places.values(), *mapped.values()}
    extras = [
        (names[number].strip(), number)
        for number, name in enumerate(plain)
        if name and number not in taken and names[number].strip() not in mapped
    ]
    return Columns(places, [*extras, *mapped.items()], len(plain))


def describe(names: Sequence[str]) -> str:
    """What stands in a header, for an error: never an address, should the first line be a person."""
    if any("@" in name for name in names):
        return "the first line holds an address instead of column names"
    shown = [f"{name.strip()[:40]!r}" for name in names[:_SHOWN] if name.strip()]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"found {', '.join(shown) or 'no column'}{more}"


def _plain(name: str) -> str:
    return name.strip().casefold()


def _place(plain: Sequence[str], name: str) -> int | None:
    name = _plain(name)
    return plain.index(name) if name in plain else None
