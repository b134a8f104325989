"""Requests that are under way now: by which senders, since when, and how long their answers may still take."""

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Optional

from schemas.ordinals import unpack
from schemas.tables import Batch, Campaign, Switch
from sendonce.config import ConfigFault
from sendonce.config.stored import lane_in, sender_in
from sendonce.control.campaigns import CANCELLING, HALTED, PAUSED, RUNNING
from sendonce.control.stops import sender_now, senders_of
from sendonce.moments import utc_text
from sendonce.senders.base import name_in
from sendonce.stores.base import ANY_SHARD, Reader
from sendonce.times import BULK, DEFAULTS


@dataclass(frozen=True)
class InFlight:
    """One request. worker_id: the job that waits for it. letters: its recipients. since: when it was permitted to go.

    timeout_s: the lane's request_timeout_s. answer_s: for how long its answer is waited for beyond that; 0 where the
    sender's kind asks for no more.
    """

    lane: str
    sender: str
    worker_id: str
    letters: int
    since: datetime
    timeout_s: float
    answer_s: float

    @property
    def ends_at(self) -> datetime:
        """Nobody waits for it for longer."""
        return self.since + timedelta(seconds=self.timeout_s + self.answer_s)

    def is_late(self, now: datetime) -> bool:
        return now >= self.since + timedelta(seconds=self.timeout_s)


@dataclass(frozen=True)
class Awaited:
    """Requests of a lane by one sender that have taken longer than the lane's request_timeout_s, and are still waited
    for. letters: of all of them; since: when the first of them was permitted to go; answer_s: as of `InFlight`."""

    lane: str
    sender: str
    requests: int
    letters: int
    since: datetime
    answer_s: float

    def as_json(self) -> dict[str, Any]:
        return {
            "lane": self.lane,
            "sender": self.sender,
            "requests": self.requests,
            "letters": self.letters,
            "since": utc_text(self.since),
            "answer_s": self.answer_s or None,
        }


def unfinished_of(reader: Reader, lane: Optional[str] = None) -> list[Campaign]:
    """The campaigns that may have requests in flight, of one lane or of all."""
    return [
        campaign
        for state in (RUNNING, PAUSED, HALTED, CANCELLING)
        for campaign in reader.scan(Campaign, state, index="campaigns_by_state")
        if lane is None or campaign.priority == lane
    ]


def in_flight(reader: Reader, campaigns: Iterable[Campaign]) -> list[InFlight]:
    """The requests of these campaigns that were permitted to go and are not settled."""
    return [
        _flight(reader, campaign.priority, batch)
        for campaign in campaigns
        for batch in reader.scan(Batch, ANY_SHARD, campaign.campaign_id, "sending", index="batches_open")
        if batch.attempt_id is not None and batch.permit_at is not None
    ]


def _flight(reader: Reader, lane: str, batch: Batch) -> InFlight:
    assert batch.permit_at is not None
    provider = batch.provider or ""
    sender = name_in(provider, senders_of(reader, lane)) or provider
    timeout_s, answer_s = _times(reader, lane, sender)
    return InFlight(
        lane,
        sender,
        batch.worker_id or "",
        len(unpack(batch.intent_ordinals or b"")),
        batch.permit_at,
        timeout_s,
        answer_s,
    )


def _times(reader: Reader, lane: str, sender: str) -> tuple[float, float]:
    """For how long a request may take to leave, and its answer beyond that. Settings of another release, by which no
    job works, leave the lane's defaults."""
    times, is_patient = DEFAULTS.get(lane, BULK), False
    with suppress(ConfigFault):
        setting, account = lane_in(reader, lane), sender_in(reader, sender)
        times = setting.all_times() if setting is not None else times
        is_patient = account is not None and account.is_patient
    return times.request_timeout_s, times.answer_s if is_patient else 0.0


def awaited(flights: Iterable[InFlight], now: datetime) -> list[Awaited]:
    """Those that are late, by lane and sender, the longest wait first."""
    groups: dict[tuple[str, str], list[InFlight]] = {}
    for flight in flights:
        if flight.is_late(now):
            groups.setdefault((flight.lane, flight.sender), []).append(flight)
    found = [
        Awaited(
            lane,
            sender,
            len(group),
            sum(flight.letters for flight in group),
            min(flight.since for flight in group),
            max(flight.answer_s for flight in group),
        )
        for (lane, sender), group in groups.items()
    ]
    return sorted(found, key=lambda one: one.since)


def sender_seen(reader: Reader, lane: str, sender: str, fallback: Optional[str], now: datetime) -> str:
    """By which of its two senders a lane's letters go, for people: `stops.sender_now`, but as long as its own sender's
    breaker only waits for a probe to be made, by what is in flight."""
    by = sender_now(reader, lane, sender, fallback, now)
    if fallback is None or by == fallback:
        return by
    row = reader.get(Switch, f"sender:{sender}")
    if row is None or row.kind not in ("open", "probing"):
        return by
    flights = in_flight(reader, unfinished_of(reader, lane))
    return fallback if any(flight.sender == fallback for flight in flights) else by
