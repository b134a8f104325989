"""A campaign that starts later: it is `running`, and no request of it starts before its time.

We hold it ourselves, never a provider: a pause, a cancel or a suppression no longer reaches what a provider has taken,
and SendGrid takes no `send_at` of more than 72 hours ahead
(https://www.twilio.com/docs/sendgrid/for-developers/sending-email/scheduling-parameters). The time stands in the
campaign's options alone, beside its end: every plan and claim reads that row, and its batches are due all along. So
moving it is one row. (Not in its column `started_at`: Spanner takes no time that is ahead in a column that may hold
commit times, https://cloud.google.com/spanner/docs/commit-timestamp.)
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final, Optional

import orjson

from schemas.tables import Campaign
from sendonce.control.expiry import BadEnd, end_of, read_time
from sendonce.control.faults import ControlFault
from sendonce.control.stream_names import STREAM
from sendonce.moments import utc_text

# Farther ahead is more likely a mistyped year than a plan, and who is written to then was asked too long ago.
FURTHEST: Final = timedelta(days=366)
# A time that is past means at once; this one always is.
NOW: Final = datetime.min.replace(tzinfo=UTC)
STARTS_AT: Final = "starts_at"
_MEND: Final = 'write it like 2026-12-24T18:00+01:00 or "2026-12-24 18:00 Europe/Paris"'
# States in which a campaign was submitted and may still begin.
_BEGINS: Final = ("running", "paused", "halted")


class BadStart(ControlFault):
    """A campaign's start that cannot be understood, is too far ahead, or not before its end."""

    reason = "bad_at"


def read_start(text: str) -> datetime:
    """The moment that somebody wrote, as `expiry.read_end` takes it, without `never`. BadStart."""
    return read_time(text, lambda problem: BadStart(f"{problem}; {_MEND}"))


def start_of(campaign: Campaign) -> Optional[datetime]:
    """When a submitted campaign started, or starts; None for one that was not submitted."""
    kept = orjson.loads(campaign.options).get(STARTS_AT)
    return campaign.started_at if kept is None else datetime.fromisoformat(kept)


def starts_later(campaign: Campaign, now: datetime) -> Optional[datetime]:
    """When a submitted campaign starts that has not begun at store time `now`; None for every other.

    At the time itself it has begun. A stream takes sends from its making on.
    """
    if campaign.kind == STREAM or campaign.state not in _BEGINS:
        return None
    at = start_of(campaign)
    return at if at is not None and now < at else None


def with_start(campaign: Campaign, at: Optional[datetime], now: datetime, *, moves: bool) -> Campaign:
    """The campaign as submitting it at `now` leaves its start: of one that is ready `at`, or at once if that is past.

    One that has not begun keeps its time unless `at` names one and `moves`; one that has begun always does. BadStart.
    """
    if campaign.state == "ready":
        start = max(at or now, now)
    elif at is not None and moves and starts_later(campaign, now) is not None:
        start = max(at, now)
    else:
        return campaign
    if start - now > FURTHEST:
        raise BadStart(f"{utc_text(start)} is more than {FURTHEST.days} days ahead; {_MEND}")
    end = end_of(campaign)
    if now < start and end is not None and end <= start:
        raise BadStart(
            f"{utc_text(start)} is not before the campaign's end ({utc_text(end)}): nobody would get a letter"
        )
    if start <= now:
        return replace(never_started(campaign), started_at=start)
    options = {**orjson.loads(campaign.options), STARTS_AT: utc_text(start)}
    return replace(campaign, options=orjson.dumps(options).decode(), started_at=None)


def never_started(campaign: Campaign) -> Campaign:
    """The campaign without a time at which it starts: of one that is cancelled before it began."""
    options = orjson.loads(campaign.options)
    options.pop(STARTS_AT, None)
    return replace(campaign, options=orjson.dumps(options).decode(), started_at=None)


def check_begins_before_end(campaign: Campaign, now: datetime) -> None:
    """BadEnd for a new end that comes before the campaign starts."""
    start, end = starts_later(campaign, now), end_of(campaign)
    if start is not None and end is not None and end <= start:
        raise BadEnd(
            f"{utc_text(end)} is not after the campaign's start ({utc_text(start)}): nobody would get a letter"
        )
