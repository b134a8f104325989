"""JSON from other people: what is ambiguous or cannot be stored is refused, and no digit is lost.

orjson refuses NaN, numbers beyond a double, lone surrogates and bottomless nesting. It takes the last of two equal
names and rounds whole numbers beyond 64 bits; both are caught here at little cost.
"""

import json
from typing import Any

import orjson


class BadJson(ValueError):
    """Not JSON that can be taken. `reason` says why, and holds no part of the text."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse(text: str) -> tuple[Any, str]:
    """The value of a JSON text and the text in its shortest form, which any strict parser reads. BadJson."""
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as fault:
        raise BadJson(f"not JSON from character {fault.pos + 1} on") from None
    shortest = dump(value)
    # A whole number beyond 64 bits became a float, and one so large is written with an exponent.
    if "e+" in shortest:
        value = _exact(text)
        return value, dump(value)
    # Each string has two quotes and each quote inside a string stays one, so a name that was dropped as a repetition
    # shows as missing quotes. Only \u0022 would upset the count.
    if shortest.count('"') != text.count('"') or "\\u0022" in text:
        _exact(text)
    return value, shortest


def dump(value: Any) -> str:
    """The shortest JSON text of a value made of JSON types. BadJson for what JSON cannot say."""
    try:
        return orjson.dumps(value).decode()
    except (TypeError, RecursionError):  # a whole number beyond 64 bits, or no JSON type
        pass
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (TypeError, ValueError, RecursionError):
        raise BadJson("holds a value that JSON cannot say") from None


def canonical(value: Any) -> bytes:
    """The JSON bytes of a value that `parse` gave, whatever spaces, escapes and order of names it came with."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except (TypeError, RecursionError):  # a whole number beyond 64 bits
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True).encode()


def _exact(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_distinct)
    except BadJson:
        raise
    except (ValueError, RecursionError):  # more digits than Python converts
        raise BadJson("holds a number with too many digits") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise BadJson("the same name twice in one object")
    return found
