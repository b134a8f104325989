"""A campaign's end: after it no request of the campaign starts, and whoever was not sent to is `refused(expired)`.

It stands in the campaign's options, so every claim and advance reads it with the campaign. A batch of a stream may have
an end of its own; the earlier one holds. What is in doubt at the end settles first: a repeat of a request in doubt is
no new request.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final, Optional
from zoneinfo import ZoneInfo

import orjson

from schemas.tables import Batch, Campaign
from sendonce.control.faults import ControlFault
from sendonce.moments import utc_text

NEVER: Final = datetime.max.replace(tzinfo=UTC)
EXPIRES_AT: Final = "expires_at"
_MEND: Final = 'write it like 2026-12-24T18:00+01:00, "2026-12-24 18:00 Europe/Paris", or never'


class BadEnd(ControlFault):
    """A campaign's end that cannot be understood, or that is past."""

    reason = "bad_expires"


class PastEnd(BadEnd):
    """A retry of a campaign whose end is past: nobody would get a letter."""

    reason = "expired"

    def __init__(self, campaign_id: str, end: datetime) -> None:
        super().__init__(
            f"cannot retry campaign {campaign_id}: its end ({text_of(end)}) is past, so nobody would get a letter; "
            "--expires TIME gives it a later one, --expires never none"
        )


def read_end(text: str) -> datetime:
    """The moment that somebody wrote: ISO 8601 with an offset or `Z`, or a local time and the name of its zone.

    `never` is `NEVER`. A time without a zone is refused, and so is a local time that its zone leaves out or has twice.
    BadEnd.
    """
    if text.strip().casefold() == "never":
        return NEVER
    return read_time(text, lambda problem: BadEnd(f"{problem}; {_MEND}"))


def read_time(text: str, fault: Callable[[str], ControlFault]) -> datetime:
    """The moment, UTC, that somebody wrote, as `read_end` takes it. fault: makes what is raised of what is wrong."""
    from sendonce.zones import zone_name  # loads what `status`, which only reads times, can do without

    words = text.strip()
    local, _, last = words.rpartition(" ")
    zone = zone_name(last) if local and not last[:1].isdigit() else None
    try:
        at = datetime.fromisoformat(local if zone else words)
    except ValueError:
        raise fault(f"{text!r} is no time") from None
    if zone is not None and at.tzinfo is None:
        at = _in_zone(text, at, zone, fault)
    elif at.tzinfo is None:
        raise fault(f"{text!r} does not say in which time zone")
    try:
        return at.astimezone(UTC)
    except OverflowError:
        raise fault(f"{text!r} is beyond all calendars") from None


def _in_zone(text: str, at: datetime, zone: str, fault: Callable[[str], ControlFault]) -> datetime:
    first, second = at.replace(tzinfo=ZoneInfo(zone)), at.replace(tzinfo=ZoneInfo(zone), fold=1)
    if first.utcoffset() == second.utcoffset():
        return first
    back = first.astimezone(UTC).astimezone(first.tzinfo).replace(tzinfo=None)
    what = "comes twice" if back == at else "is left out"
    raise fault(f"{text!r}: this time {what} in {zone} that day, when its clocks change")


def check_end(end: datetime, now: datetime) -> None:
    """BadEnd for an end that is past already: nobody would get a letter."""
    if end <= now:
        raise BadEnd(f"{text_of(end)} is past (it is {text_of(now.replace(microsecond=0))}); {_MEND}")


def end_of(campaign: Campaign) -> Optional[datetime]:
    """When the campaign ends; None if it does not."""
    kept = orjson.loads(campaign.options).get(EXPIRES_AT)
    return None if kept is None else datetime.fromisoformat(kept)


def with_end(campaign: Campaign, end: datetime) -> Campaign:
    """The campaign with another end; `NEVER` takes it away."""
    options = orjson.loads(campaign.options)
    options.pop(EXPIRES_AT, None)
    if end != NEVER:
        options[EXPIRES_AT] = text_of(end)
    return replace(campaign, options=orjson.dumps(options).decode())


def text_of(end: datetime) -> str:
    return utc_text(end)


def is_over(campaign: Campaign, batch: Optional[Batch], now: datetime) -> bool:
    """Whether nothing of the campaign, or of this batch of it, may be sent any more. The end itself is too late."""
    ends = (end_of(campaign), batch.expires_at if batch is not None else None)
    return any(end is not None and end <= now for end in ends)
