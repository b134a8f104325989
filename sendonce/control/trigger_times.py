"""Times in triggers."""

import re
from datetime import UTC, datetime
from typing import Final

from sendonce.control.trigger_faults import BadTrigger

# RFC 3339, section 5.6. A time without an offset is nobody's in particular. 24:00 is ISO 8601 and not RFC 3339; newer
# Pythons would take it for midnight of the next day.
_RFC3339: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt]((?:[01]\d|2[0-3]):\d\d:\d\d)(\.\d{1,9})?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)


def moment_in(field: str, text: str) -> datetime:
    """The moment, UTC, that a field says in RFC 3339. BadTrigger `invalid` names the field and the mend."""
    found = _RFC3339.fullmatch(text)
    try:
        if found is None:
            raise ValueError
        day, time, fraction, offset = found.groups()
        micros = (fraction or ".")[1:7].ljust(6, "0")
        offset = "+00:00" if offset in "Zz" else offset
        return datetime.fromisoformat(f"{day}T{time}.{micros}{offset}").astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadTrigger(
            "invalid",
            f"{field}: must be a time with its offset and hours from 00 to 23, like 2026-01-15T09:00:00Z (RFC 3339)",
        ) from None
