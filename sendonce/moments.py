"""Moments for machines: ISO 8601 in UTC, with a Z."""

from datetime import UTC, datetime
from typing import Optional


def utc_text(at: datetime) -> str:
    """`2026-01-15T09:00:00Z` of an aware datetime."""
    return at.astimezone(UTC).isoformat().replace("+00:00", "Z")


def utc_text_or_none(at: Optional[datetime]) -> Optional[str]:
    return None if at is None else utc_text(at)
