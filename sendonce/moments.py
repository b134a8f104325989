"""Moments for machines: as text, ISO 8601 in UTC with a Z; as a number, microseconds since 1970."""

from datetime import UTC, datetime, timedelta
from typing import Final, Optional

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def utc_text(at: datetime) -> str:
    """`2026-01-15T09:00:00Z` of an aware datetime."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def utc_text_or_none(at: Optional[datetime]) -> Optional[str]:
    return None if at is None else utc_text(at)


def to_micros(moment: datetime) -> int:
    """Whole microseconds since 1970 of an aware datetime."""
    since = moment - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def from_micros(micros: int) -> datetime:
    """The inverse of `to_micros`, in UTC."""
    return _EPOCH + timedelta(microseconds=micros)
