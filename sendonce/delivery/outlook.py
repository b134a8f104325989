"""What is left to do in a store, and when it is worth looking again. For a job that stops when nothing is open."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from schemas.ids import SHARDS
from schemas.tables import Batch, Campaign, Limit
from sendonce.config.stored import limit_text
from sendonce.control.expiry import is_over
from sendonce.control.schedule import starts_later
from sendonce.control.stops import Stop, stops_of
from sendonce.delivery import batches, limits
from sendonce.delivery.group_line import GroupLine
from sendonce.delivery.lanes import RunningLane
from sendonce.delivery.planner import lane_campaigns, limit_waiters, open_batches
from sendonce.delivery.protocol.doubts import may_ask_again
from sendonce.delivery.routes import route
from sendonce.stores.base import ANY_SHARD, Reader


@dataclass(frozen=True)
class Left:
    """unfinished: recipients without a final outcome, in campaigns that run or are being cancelled.

    due_at: when the first of their batches is worth a look; None when nothing moves by itself. waits_for: why work does
    not move by itself: `held`, `in_doubt`, `paused`, `halted` (the campaign), `sender_halted`, `stopped`, each once.
    due_for: what the work at due_at waits for: `limit`, `lease` (of an owner that may be gone), `doubt`, `retry`,
    `throttled`, `breaker_open`, `scheduled` (its campaign's start). full_limits: limits that pass nothing now, as
    people wrote them.
    """

    unfinished: int
    due_at: datetime | None
    waits_for: tuple[str, ...] = field(default=())
    due_for: str = ""
    full_limits: tuple[str, ...] = ()


def left_to_do(reader: Reader, lanes: Sequence[RunningLane]) -> Left:
    """Look at every campaign of the lanes that is not over."""
    now = reader.now()
    unfinished = 0
    due: list[tuple[datetime, str]] = []
    waits: set[str] = set()
    full: list[str] = []
    for lane in lanes:
        terms = route(reader, lane.terms, now)
        scopes = limits.limits_of(reader, terms.scopes)
        passes = limits.outlook(reader, scopes, lane.terms.times.window_s, now)
        # A plan finds nothing while the limits pass nothing: the first permit is what the pending batches wait for.
        first = limits.ask(reader, scopes, 1, now) if passes == 0 else None
        free_at = first.until if isinstance(first, limits.Wait) else now
        full += _full(reader, lane, scopes, now)
        stops = stops_of(reader, terms.lane, terms.sender, now)
        for campaign in lane_campaigns(reader, lane.lane.name):
            counts = reader.tally(
                Batch,
                ANY_SHARD,
                campaign.campaign_id,
                by=("wait_reason",),
                sums=("n_open", "n_in_doubt"),
                index="batches_open",
            )
            unfinished += sum(int(row["n_open"]) + int(row["n_in_doubt"]) for row in counts)
            groups = {str(row["wait_reason"]) for row in counts if str(row["wait_reason"]).startswith(batches.DOMAIN)}
            full += _full(reader, lane, limits.limits_of(reader, sorted(groups)), now)
            moments, reasons = _moments(reader, lane, campaign, now, stops, free_at)
            due += moments
            waits |= reasons
    due_at, due_for = min(due, default=(None, ""))
    return Left(unfinished, due_at, tuple(sorted(waits)), due_for, tuple(dict.fromkeys(full)))


def _full(reader: Reader, lane: RunningLane, scopes: Sequence[Limit], now: datetime) -> list[str]:
    """Those of the limits that pass nothing within the lane's window, in words."""
    window_s = lane.terms.times.window_s
    return [_name(limit) for limit in scopes if limits.outlook(reader, [limit], window_s, now) == 0]


def _name(limit: Limit) -> str:
    return f"{limit.scope.replace(':', ' ')}: {limit_text(limit)}"


def _moments(
    reader: Reader, lane: RunningLane, campaign: Campaign, now: datetime, stops: Sequence[Stop], free_at: datetime
) -> tuple[list[tuple[datetime, str]], set[str]]:
    """When batches of a campaign come due, each with what it waits for; and why others do not move by themselves.

    free_at: when the lane's limits pass something; now, if they do.
    """
    campaign_id = campaign.campaign_id
    due: list[tuple[datetime, str]] = []
    waits: set[str] = set()
    for batch in open_batches(reader, campaign_id, batches.SENDING):
        if batch.heartbeat_at is not None and batch.lease_s is not None:
            due.append((batch.heartbeat_at + timedelta(seconds=batch.lease_s), "lease"))
    for batch in open_batches(reader, campaign_id, batches.IN_DOUBT):
        if may_ask_again(batch, lane.terms, now):
            if stops and stops[0].until is None:
                waits.add(stops[0].kind)
                continue
            ends = stops[0].until if stops and stops[0].until is not None else now
            due.append((max(batch.due_at, batch.visible_at or batch.due_at, free_at, ends), "doubt"))
        else:
            waits.add("in_doubt")
    if reader.scan(Batch, ANY_SHARD, campaign_id, batches.HELD, index="batches_open", limit=1):
        waits.add("held")
    pending = _first_pending(reader, campaign_id)
    queued = open_batches(reader, campaign_id, batches.QUEUED)
    if campaign.state in ("paused", "halted"):
        if pending or queued:
            waits.add(campaign.state)
    elif (start := starts_later(campaign, now)) is not None and (not stops or stops[0].until is not None):
        if pending or queued:
            due.append((max([start, *(stop.until for stop in stops if stop.until is not None)]), "scheduled"))
    elif stops and (pending or queued):
        if stops[0].until is None:
            waits.add(stops[0].kind)
        else:
            due.append((stops[0].until, stops[0].kind))
    else:
        due += [(batch.visible_at or now, "lease") for batch in queued]
        if pending is not None:
            tried = pending.wait_reason is not None and not batches.waits_for_limit(pending)
            due.append((max(pending.due_at, free_at), "retry" if tried and pending.due_at > free_at else "limit"))
            line = GroupLine(reader, lane.terms, now)
            if pending.due_at > free_at and any(limit_waiters(reader, lane.terms, line, campaign_id, now)):
                due.append((free_at, "limit"))
    if (pending or queued) and (campaign.state == "cancelling" or is_over(campaign, None, now)):
        due.append((now, "close"))
    return due, waits


def _first_pending(reader: Reader, campaign_id: str) -> Batch | None:
    """The pending batch that is due first. The index is ordered by due time within each shard."""
    firsts = [
        batch
        for shard in range(SHARDS)
        for batch in reader.scan(Batch, shard, campaign_id, batches.PENDING, index="batches_open", limit=1)
    ]
    return min(firsts, key=lambda batch: batch.due_at, default=None)
