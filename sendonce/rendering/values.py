"""The types that a template's variables can have: which values fit, and what they become."""

import math
from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Literal
from urllib.parse import urlsplit

LINK_SCHEMES: Final = ("https", "http", "mailto")

Kind = Literal["text", "integer", "number", "boolean", "date", "datetime", "url", "list", "object"]


class VariableFault(ValueError):
    """A recipient's variable does not fit the manifest. Names the variable and what it should be, never its value."""

    def __init__(self, name: str, expected: str) -> None:
        super().__init__(f"variable {name} is not {expected}")
        self.name = name


EXPECTED: Final[Mapping[str, str]] = {
    "text": "a text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "date": "an ISO 8601 date such as 2026-01-15",
    "datetime": "an ISO 8601 time with an offset, such as 2026-01-15T09:00:00Z",
    "url": "a link with https, http or mailto",
    "list": "a list",
    "object": "an object",
}


def fitted(name: str, kind: Kind, value: Any) -> Any:
    """`value` as the type that the manifest names; VariableFault if it is none.

    A CSV column is text, so text that reads as a number or as true/false becomes one. Text given as a number is
    kept as its digits. Numbers may be written as text to keep every digit; prices should be.
    """
    match kind:
        case "text":
            fits = isinstance(value, str | int | float) and not isinstance(value, bool)
            value = str(value) if fits else value
        case "integer" | "number":
            value, fits = _number(value, whole=kind == "integer")
        case "boolean":
            if isinstance(value, str):
                value = {"true": True, "false": False}.get(value.strip().lower(), value)
            fits = isinstance(value, bool)
        case "date":
            fits = _is_time(value, offset=False)
        case "datetime":
            fits = _is_time(value, offset=True)
        case "url":
            fits = is_link(value)
        case "list":
            fits = isinstance(value, list)
        case "object":
            fits = isinstance(value, dict)
    if not fits:
        raise VariableFault(name, EXPECTED[kind])
    return value


def _number(value: Any, *, whole: bool) -> tuple[Any, bool]:
    if isinstance(value, str):
        if len(value) < 19 and value.isascii() and value.isdigit():  # as most are; the rest says the same of it
            return int(value), True
        try:
            exact = Decimal(value.strip())
        except InvalidOperation:
            return value, False
        if not exact.is_finite() or exact.adjusted() > 30:
            return value, False
        value = int(exact) if exact == exact.to_integral_value() else float(exact)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return value, False
    if whole and isinstance(value, float):
        return (int(value), True) if value.is_integer() else (value, False)
    return value, True


def _is_time(value: Any, *, offset: bool) -> bool:
    if not isinstance(value, str):
        return False
    try:
        parsed = datetime.fromisoformat(value)
    except ValueError:
        return False
    return parsed.tzinfo is not None if offset else len(value) <= 10 or parsed.tzinfo is not None


def is_link(value: Any) -> bool:
    """Whether a value may stand in an `href`: only schemes that run nothing, no white space or control characters."""
    if not isinstance(value, str) or not value or any(char.isspace() or not char.isprintable() for char in value):
        return False
    try:
        parts = urlsplit(value)
    except ValueError:
        return False
    return parts.scheme in LINK_SCHEMES and bool(parts.netloc or parts.scheme == "mailto")
