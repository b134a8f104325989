"""What starting a campaign would do: to how many, by which sender, from whom, under which limits, until when."""

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Optional

import orjson

from schemas.tables import Campaign, Limit, Progress, Setting
from sendonce.config.limits import most_at
from sendonce.config.stored import limit_text
from sendonce.control.expiry import end_of, text_of
from sendonce.control.faults import UnknownCampaign
from sendonce.control.guards import Guards, guards_in, is_real
from sendonce.control.last_rehearsal import LastRehearsal, last_rehearsal
from sendonce.control.progress import count
from sendonce.control.stops import Stop, senders_of, stops_of
from sendonce.moments import utc_text_or_none
from sendonce.stores.base import Reader, Store


@dataclass(frozen=True)
class Forecast:
    """recipients: those without an outcome. seconds: at least so long, if nothing else uses the same limits; None where
    neither a limit nor an earlier campaign of the lane tells. limits: in words, with their scope; those of mailbox
    groups (`domain`) hold for a part of the recipients that nobody counts beforehand, and do not enter `seconds`.
    rehearsal: the last one; None if there was none. starts_at: None for at once. fallback: the lane's second sender,
    real: whether one of the two is.
    """

    campaign: Campaign
    recipients: int
    sender: str
    adapter: str
    real: bool
    guards: Guards
    limits: list[str]
    stops: list[Stop]
    seconds: Optional[float]
    rehearsal: Optional[LastRehearsal]
    starts_at: Optional[datetime] = None
    fallback: Optional[str] = None

    @property
    def reply_to(self) -> Optional[str]:
        """Where answers go if not to the from address."""
        return orjson.loads(self.campaign.options).get("reply_to") or None

    @property
    def unsubscribe(self) -> Optional[str]:
        """What unsubscribe links begin with; None for letters without."""
        return orjson.loads(self.campaign.options).get("unsubscribe_base_url") or None

    def as_json(self) -> dict[str, Any]:
        end = end_of(self.campaign)
        return {
            "recipients": self.recipients,
            "sender": self.sender,
            "adapter": self.adapter,
            "fallback": self.fallback,
            "from": self.campaign.from_address,
            "reply_to": self.reply_to,
            "unsubscribe": self.unsubscribe,
            "limits": self.limits,
            "starts_at": utc_text_or_none(self.starts_at),
            "expires_at": None if end is None else text_of(end),
            "at_least_s": None if self.seconds is None else round(self.seconds, 1),
        }


def forecast(store: Store, campaign_id: str) -> Forecast:
    """What starting a campaign would do as things are. UnknownCampaign."""

    def look(reader: Reader) -> Forecast:
        campaign = reader.get(Campaign, campaign_id)
        if campaign is None:
            raise UnknownCampaign(campaign_id)
        senders = senders_of(reader, campaign.priority, campaign.sender)
        sender = senders[0]
        row = reader.get(Setting, "sender", sender)
        recipients = count(reader, campaign_id).outcomes["open"]
        now = reader.now()
        scopes = (f"lane:{campaign.priority}", f"sender:{sender}", f"warmup:{sender}")
        limits = [limit for scope in scopes for limit in reader.scan(Limit, scope)]
        of_groups = [limit for limit in reader.scan(Limit) if limit.scope.startswith("domain:")]
        return Forecast(
            campaign=campaign,
            recipients=recipients,
            sender=sender,
            adapter="" if row is None else str(orjson.loads(row.value).get("adapter", "")),
            real=any(is_real(reader, name) for name in senders),
            guards=guards_in(reader),
            limits=[f"{limit.scope.replace(':', ' ')}: {limit_text(limit)}" for limit in limits + of_groups],
            stops=stops_of(reader, campaign.priority, sender, now),
            rehearsal=last_rehearsal(campaign),
            seconds=_seconds(recipients, limits, _measured(reader, campaign.priority), now),
            fallback=senders[1] if senders[1:] else None,
        )

    return store.read(look)


def at_least_s(recipients: int, limit: Limit, now: datetime) -> float:
    """Seconds from now in which an untouched limit lets that many through."""
    if limit.kind == "rate":
        return max(0.0, recipients - limit.burst) / (limit.per_s * limit.slow)
    if limit.plan is None:
        windows = math.ceil(recipients / limit.most) - 1
        return max(0, windows) * limit.window_s
    at, passed = now, 0
    while (most := most_at(limit, at)) is not None:
        passed += most
        if passed >= recipients:
            break
        # A window that is used up at once is free again one window later; before the plan starts nothing is used.
        waits_s = (
            (limit.starts_at - at).total_seconds() if limit.starts_at is not None and at < limit.starts_at else 0.0
        )
        at += timedelta(seconds=waits_s or limit.window_s)
    return (at - now).total_seconds()


def _seconds(recipients: int, limits: list[Limit], measured: Optional[float], now: datetime) -> Optional[float]:
    bounds = [at_least_s(recipients, limit, now) for limit in limits]
    if measured:
        bounds.append(recipients / measured)
    return max(bounds) if bounds else None


def _measured(reader: Reader, lane: str) -> Optional[float]:
    """Recipients a second of the lane's latest campaign that had any."""
    for row in sorted(reader.scan(Progress), key=lambda row: row.at, reverse=True):
        campaign = reader.get(Campaign, row.campaign_id) if row.rate_per_s else None
        if campaign is not None and campaign.priority == lane:
            return row.rate_per_s
    return None
