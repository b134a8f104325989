"""Jinja's filters, operators and methods with an end to what they make, and what may be written into a letter.

The allow-list (`safety.py`) refuses what a template's own text makes too large. Here the data is known: what could
grow is measured before it is made, everything made is charged to the letter's sheet.
"""

import functools
import operator
import re
from collections.abc import Callable, Mapping, Sized
from datetime import date, time
from decimal import Decimal
from typing import Any, Final

from jinja2 import Undefined, pass_context
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import Context
from jinja2.utils import _PassArg
from markupsafe import Markup

from sendonce.rendering import safety
from sendonce.rendering.formats import FILTERS as FORMATS
from sendonce.rendering.limits import INTEGER_BITS, MEMBERS, PART_BYTES, Sheet, TooLarge, weigh

# One call of a filter reports nothing while it runs, so what it gets is bounded: about half a second for the slowest.
LINKED_CHARACTERS: Final = 300_000
WRAPPED_CHARACTERS: Final = 100_000
# textwrap copies what is left of a long word for each line that it cuts off.
WRAPPED_COPIES: Final = 1_000_000_000

_WIDE: Final = re.compile(r"\*|\d{4,}")

# What a letter shows without a second thought; `show` decides about the rest.
SHOWN: Final = frozenset({str, Markup, int, float, bool})
_ALSO_SHOWN: Final = (str, int, float, Decimal, date, time, Undefined)


class NotText(Exception):
    """A template writes something that is no text: null, or a part of Python or Jinja. Names the type only."""

    def __init__(self, kind: str) -> None:
        super().__init__(f"writes {kind}, which is no text")


def show(value: Any) -> Any:
    """A value that is about to be written. NotText for null, for functions, macros and the like."""
    if value is None:
        raise NotText("null")
    if isinstance(value, list | tuple | dict):
        weigh(value)
        _defined(value)
        return value
    if isinstance(value, _ALSO_SHOWN) or hasattr(value, "__html__"):
        return value
    raise NotText(f"a {type(value).__name__}")


def _defined(collection: Any) -> None:
    """Strict about what is undefined inside a collection too: Python would write `Undefined` there."""
    for member in collection.values() if isinstance(collection, dict) else collection:
        if isinstance(member, Undefined):
            str(member)
        elif isinstance(member, list | tuple | dict):
            _defined(member)


def metered_filters() -> dict[str, Callable[..., Any]]:
    """Every filter that templates may use, by name, each bounded and charged."""
    known: Mapping[str, Callable[..., Any]] = {**JINJA_FILTERS, **FORMATS}
    return {name: _metered(name, known[name]) for name in sorted(safety.FILTERS)}


def _metered(name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
    measure = _MEASURES.get(name)
    passed = _PassArg.from_obj(plain)

    @pass_context
    @functools.wraps(plain)
    def metered(context: Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        sheet: Sheet = context.environment.desk.sheet  # type: ignore[attr-defined]
        sheet.step()
        if measure is not None:
            sheet.look()
            value = measure(value, *args, **kwargs)
        if passed is None:
            return sheet.charge(plain(value, *args, **kwargs))
        if passed is _PassArg.context:
            return sheet.charge(plain(context, value, *args, **kwargs))
        first = context.eval_ctx if passed is _PassArg.eval_context else context.environment
        return sheet.charge(plain(first, value, *args, **kwargs))

    return metered


def _fits(size: float) -> None:
    if size > PART_BYTES:
        raise TooLarge


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str) else 0


def _whole(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _measure_center(value: Any, width: Any = 80, *_: Any) -> Any:
    _fits(_whole(width))
    return value


def _measure_indent(value: Any, width: Any = 4, *_: Any, **__: Any) -> Any:
    text = str(value)
    _fits(len(text) + (text.count("\n") + 1) * (_length(width) or _whole(width)))
    return value


def _measure_replace(value: Any, old: Any, new: Any, *_: Any, **__: Any) -> Any:
    text, sought = str(value), str(old)
    found = text.count(sought) if sought else len(text) + 1
    # Escaping, where it happens, makes of one character six at most.
    _fits(len(text) + found * len(str(new)))
    return value


def _measure_join(value: Any, d: Any = "", *_: Any, **__: Any) -> Any:
    items = list(value)
    weigh(items)
    _fits(len(items) * _length(d))
    return items


def _measure_rows(value: Any, number: Any = 0, *_: Any, **__: Any) -> Any:
    if _whole(number) > MEMBERS:
        raise TooLarge
    return _measure_items(value)


def _measure_format(value: Any, *_: Any, **__: Any) -> Any:
    if _WIDE.search(str(value)):
        raise TooLarge
    return value


def _measure_json(value: Any, indent: Any = None) -> Any:
    _fits(_length(indent) or _whole(indent))
    return value


def _measure_wrap(value: Any, width: Any = 79, break_long_words: Any = True, wrapstring: Any = None, *_: Any) -> Any:
    size = len(str(value))
    _fits(size * (1 + _length(wrapstring)))
    if size > WRAPPED_CHARACTERS or size * size > WRAPPED_COPIES * max(1, _whole(width)):
        raise TooLarge
    return value


def _measure_links(value: Any, *_: Any, **__: Any) -> Any:
    if len(str(value)) > LINKED_CHARACTERS:
        raise TooLarge
    return value


def _measure_items(value: Any, *_: Any, **__: Any) -> Any:
    """For filters that take each member by itself, of a text each character. What has no length was bounded before."""
    if isinstance(value, Sized) and len(value) > MEMBERS:
        raise TooLarge
    return value


_MEASURES: Final[Mapping[str, Callable[..., Any]]] = {
    "center": _measure_center,
    "indent": _measure_indent,
    "replace": _measure_replace,
    "join": _measure_join,
    "batch": _measure_rows,
    "slice": _measure_rows,
    "urlize": _measure_links,
    "format": _measure_format,
    "tojson": _measure_json,
    "wordwrap": _measure_wrap,
    **dict.fromkeys(
        ("groupby", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort", "sum", "unique"),
        _measure_items,
    ),
}


def multiply(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int):
        if left.bit_length() + right.bit_length() > INTEGER_BITS:
            raise TooLarge
    elif isinstance(left, str):
        _fits(len(left) * _whole(right))
    elif isinstance(right, str):
        _fits(len(right) * _whole(left))
    elif isinstance(left, list | tuple) or isinstance(right, list | tuple):
        many, times = (left, right) if isinstance(left, list | tuple) else (right, left)
        if len(many) * _whole(times) > MEMBERS:
            raise TooLarge
    return operator.mul(left, right)


def modulo(left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _measure_format(left)
    return operator.mod(left, right)


def power(left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > INTEGER_BITS:
        raise TooLarge
    return operator.pow(left, right)


def check_method(method: Any, args: tuple[Any, ...]) -> None:
    """Measures the call of a text's own method. SecurityError for one that is not on the allow-list."""
    name = getattr(method, "__name__", "")
    if name not in safety.METHODS:
        raise SecurityError(f"the method {name} is out of reach")
    if name == "replace" and len(args) >= 2:
        _measure_replace(method.__self__, args[0], args[1])
    elif name == "join" and args:
        items = list(args[0])
        weigh(items)
        _fits(len(items) * len(method.__self__))
