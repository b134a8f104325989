"""What a stream is called, and until when it takes sends. Light: whoever only looks at campaigns needs no more."""

from datetime import UTC, date, datetime, timedelta
from typing import Final

import orjson

from schemas.ids import STREAM_PREFIX
from schemas.tables import Campaign

# The kind of campaign that sends come into.
STREAM: Final = "stream"


def stream_id(template: str, priority: str, day: date) -> str:
    """`stream.otp.critical.2026-11-30`: readable, and no two streams share one, for the last two parts have no dots."""
    return f"{STREAM_PREFIX}{template}.{priority}.{day.isoformat()}"


def day_ends(stream: Campaign) -> datetime:
    """When a stream's day is over: no send comes into it from then on."""
    day = date.fromisoformat(orjson.loads(stream.options)["day"])
    return datetime(day.year, day.month, day.day, tzinfo=UTC) + timedelta(days=1)
