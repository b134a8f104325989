"""What people and machines are told about a campaign: one record, made from the store as it is now."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Optional

from schemas.ids import SHARDS
from schemas.tables import Batch, Campaign, Limit, Progress
from sendonce.control.campaigns import ENDED, LOADING, RUNNING
from sendonce.control.decisions import Decided, decided
from sendonce.control.expiry import end_of
from sendonce.control.faults import UnknownCampaign
from sendonce.control.in_flight import Awaited, awaited, in_flight, sender_seen
from sendonce.control.jobs import BEATS_S, STOPPING, seen_jobs
from sendonce.control.jobs import RUNNING as RUNS
from sendonce.control.notices import late_notices
from sendonce.control.progress import Counts, active_seconds, count, count_reasons, estimate, quick_count
from sendonce.control.rounds import Retried, retried
from sendonce.control.schedule import start_of, starts_later
from sendonce.control.sender_health import SenderHealth, sender_health
from sendonce.control.stops import Stop, fallback_of, sender_of, stops_of
from sendonce.control.stream_names import STREAM
from sendonce.moments import utc_text_or_none
from sendonce.stores.base import Reader, Store


@dataclass(frozen=True)
class Jobs:
    """How many jobs there are, and how many seconds ago one of them was last heard of; None without any. stopping: how
    many more only end what they have in flight."""

    count: int
    heard_s: Optional[float]
    stopping: int = 0

    @property
    def silent(self) -> bool:
        """Whether none has said a word for longer than a job that lives is silent."""
        return self.heard_s is not None and self.heard_s > BEATS_S


@dataclass(frozen=True)
class Status:
    """One campaign. total: None while it loads. oldest_due: when the longest-waiting batch was or is due.

    active_s: time from the first work on, without pauses. jobs: running jobs that serve its lane. reasons: recipients
    by the reason of their outcome. stops: what keeps its lane or sender from sending. sender_now: another one while the
    lane goes by its fallback. health: of its sender. late_notices: kinds of notices of the whole store, that wait for
    longer than they should. decided: how its doubts were settled. awaited: its requests that take longer than a request
    may. oldest_due, reasons, late_notices, retries and decided: None unless looked at in full; retries: None without
    any.
    """

    campaign: Campaign
    at: datetime
    total: Optional[int]
    counts: Counts
    percent: Optional[float]
    rate_per_s: Optional[float]
    eta_s: Optional[float]
    active_s: float
    delivered: Optional[int]
    oldest_due: Optional[datetime]
    jobs: Jobs
    reasons: Optional[dict[str, int]]
    stops: list[Stop]
    sender: str
    sender_now: str
    health: SenderHealth
    late_notices: Optional[list[str]]
    retries: Optional[Retried] = None
    decided: Optional[Decided] = None
    awaited: list[Awaited] = field(default_factory=list)

    @property
    def starts_at(self) -> Optional[datetime]:
        """When it starts, if it was submitted and has not begun."""
        return starts_later(self.campaign, self.at)

    @property
    def starts_in_s(self) -> Optional[float]:
        return (self.starts_at - self.at).total_seconds() if self.starts_at is not None else None

    def as_json(self) -> dict[str, Any]:
        """The seed metrics under their names, and the rest. Plain JSON values; unknown is null, never NaN."""
        outcomes, batches = self.counts.outcomes, self.counts.batches
        return {
            "campaign": self.campaign.campaign_id,
            "kind": self.campaign.kind,
            "state": self.campaign.state,
            "state_reason": self.campaign.state_reason,
            "priority": self.campaign.priority,
            "template": self.campaign.template,
            "sender": self.sender,
            "sender_now": self.sender_now,
            "at": utc_text_or_none(self.at),
            "total_recipients": self.total,
            "queued_batches": batches["pending"] + batches["queued"],
            "processing_batches": batches["sending"],
            "in_doubt_batches": batches["in_doubt"],
            "held": batches["held"],
            "sent_count": outcomes["accepted"],
            "delivered_count": self.delivered,
            "failed_count": outcomes["refused"],
            "skipped": outcomes["skipped"],
            "suppressed": outcomes["suppressed"],
            "cancelled": outcomes["cancelled"],
            "assumed": outcomes["assumed"],
            "in_doubt": outcomes["in_doubt"],
            "open": outcomes["open"],
            "reasons": self.reasons,
            "retries": self.retries.as_json() if self.retries else None,
            "decisions": self.decided.as_json() if self.decided else None,
            "percent": self.percent,
            "rate_per_s": None if self.rate_per_s is None else round(self.rate_per_s, 2),
            "eta_minutes": None if self.eta_s is None else round(self.eta_s / 60, 2),
            "active_s": round(self.active_s, 3),
            "wait_reasons": self.counts.waiting,
            "stops": [stop.as_json() for stop in self.stops],
            "sender_health": self.health.as_json(),
            "awaiting_answers": [one.as_json() for one in self.awaited],
            "late_notices": self.late_notices,
            "oldest_due": utc_text_or_none(self.oldest_due),
            "jobs": self.jobs.count,
            "jobs_stopping": self.jobs.stopping,
            "jobs_heard_s": None if self.jobs.heard_s is None else round(self.jobs.heard_s, 1),
            "created_at": utc_text_or_none(self.campaign.created_at),
            "started_at": utc_text_or_none(start_of(self.campaign)),
            "starts_in_s": None if self.starts_in_s is None else round(self.starts_in_s, 3),
            "finished_at": utc_text_or_none(self.campaign.finished_at),
            "expires_at": utc_text_or_none(end_of(self.campaign)),
        }


def campaign_status(store: Store, campaign_id: str, *, in_full: bool = True, stale_s: float = 0.0) -> Status:
    """One campaign as of now, or UnknownCampaign. in_full: with what takes a look at every batch or shard.

    stale_s: how old the look may be, for who only watches; everything in it is then of that moment.
    """

    def look(reader: Reader) -> Status:
        campaign = reader.get(Campaign, campaign_id)
        if campaign is None:
            raise UnknownCampaign(campaign_id)
        return _status(reader, campaign, in_full=in_full)

    return store.read(look, stale_s=stale_s)


def all_statuses(store: Store) -> list[Status]:
    """Every campaign, newest first; not in full."""

    def look(reader: Reader) -> list[Status]:
        campaigns = sorted(reader.scan(Campaign), key=lambda row: row.created_at, reverse=True)
        return [_status(reader, campaign, in_full=False) for campaign in campaigns]

    return store.read(look)


def _status(reader: Reader, campaign: Campaign, *, in_full: bool) -> Status:
    now = reader.now()
    sender = sender_of(reader, campaign)
    by = sender_seen(reader, campaign.priority, sender, fallback_of(reader, campaign), now)
    progress = reader.get(Progress, campaign.campaign_id)
    counts = count(reader, campaign.campaign_id) if in_full else quick_count(reader, campaign.campaign_id)
    active_s = active_seconds(reader, campaign, progress, now)
    total = None if campaign.sealed_at is None and campaign.kind != STREAM else campaign.recipients
    if campaign.kind == STREAM:
        total = counts.recipients
    cancelled = counts.outcomes["cancelled"]
    flights = in_flight(reader, [campaign]) if counts.batches["sending"] else []
    waits = awaited(flights, now)
    # While everything in flight is only waited for, the pace so far says nothing about the end.
    stands = bool(waits) and sum(one.requests for one in waits) == len(flights)
    found = estimate(total, counts.done, active_s, running=campaign.state == RUNNING, cancelled=cancelled)
    return Status(
        campaign=campaign,
        at=now,
        total=total,
        counts=counts,
        percent=found.percent,
        rate_per_s=found.rate_per_s,
        eta_s=None if stands or _capped(reader, campaign, by, counts) else found.eta_s,
        active_s=active_s,
        delivered=progress.delivered if progress else None,
        oldest_due=_oldest_due(reader, campaign) if in_full else None,
        jobs=running_jobs(reader, campaign.priority),
        reasons=_reasons(reader, campaign, counts) if in_full else None,
        stops=[] if campaign.state in ENDED else stops_of(reader, campaign.priority, sender, now),
        sender=sender,
        sender_now=by,
        health=sender_health(reader, sender, now),
        late_notices=late_notices(reader, now) if in_full else None,
        retries=retried(reader, campaign.campaign_id) if in_full else None,
        decided=decided(reader, campaign.campaign_id) if in_full else None,
        awaited=waits,
    )


def _reasons(reader: Reader, campaign: Campaign, counts: Counts) -> dict[str, int]:
    explained = sum(counts.outcomes[kind] for kind in ("refused", "skipped", "suppressed"))
    return count_reasons(reader, campaign.campaign_id) if explained else {}


def _capped(reader: Reader, campaign: Campaign, sender: str, counts: Counts) -> bool:
    """Whether a cap decides when the rest goes: the pace so far then says nothing about the end."""
    scopes = (
        {f"lane:{campaign.priority}", f"sender:{sender}", f"warmup:{sender}"} if counts.waiting.get("limit") else set()
    )
    scopes |= {reason for reason in counts.waiting if reason.startswith("domain:")}
    return any(limit.kind == "cap" for scope in sorted(scopes) for limit in reader.scan(Limit, scope))


def _oldest_due(reader: Reader, campaign: Campaign) -> Optional[datetime]:
    if campaign.state in ENDED or campaign.state == LOADING:
        return None
    firsts = [
        row.due_at
        for shard in range(SHARDS)
        for row in reader.scan(Batch, shard, campaign.campaign_id, "pending", index="batches_open", limit=1)
    ]
    return min(firsts, default=None)


def running_jobs(reader: Reader, lane: str) -> Jobs:
    """The jobs that serve a lane and were heard of lately. One that was killed cannot say so: it counts for a while."""
    serving = [job for job in seen_jobs(reader) if lane in job.row.lanes.split(",")]
    running = [job for job in serving if job.state == RUNS]
    stopping = sum(job.state == STOPPING for job in serving)
    return Jobs(len(running), min((job.silent_s for job in running), default=None), stopping)
