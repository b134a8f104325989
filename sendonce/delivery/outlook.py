"""What is left to do in a store, and when it is worth looking again. For a job that stops when nothing is open."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from schemas.ids import SHARDS
from schemas.tables import Batch, Campaign
from sendonce.control.stops import Stop, stops_of
from sendonce.delivery import batches, limits
from sendonce.delivery.lanes import RunningLane
from sendonce.delivery.planner import lane_campaigns, limit_waiters, open_batches
from sendonce.delivery.protocol import may_ask_again
from sendonce.stores.base import ANY_SHARD, Reader


@dataclass(frozen=True)
class Left:
    """unfinished: recipients without a final outcome, in campaigns that run or are being cancelled.

    due_at: when the first of their batches is worth a look; None when nothing moves by itself. waits_for: why work does
    not move by itself: `held`, `in_doubt`, `paused`, `halted` (the campaign), `sender_halted`, `stopped`, each once.
    """

    unfinished: int
    due_at: datetime | None
    waits_for: tuple[str, ...] = field(default=())


def left_to_do(reader: Reader, lanes: Sequence[RunningLane]) -> Left:
    """Look at every campaign of the lanes that is not over."""
    now = reader.now()
    unfinished = 0
    due: list[datetime] = []
    waits: set[str] = set()
    for lane in lanes:
        passes = limits.outlook(reader, limits.limits_of(reader, lane.terms.scopes), lane.terms.times.window_s, now)
        stops = stops_of(reader, lane.terms.lane, lane.terms.sender, now)
        for campaign in lane_campaigns(reader, lane.lane.name):
            counts = reader.tally(Batch, ANY_SHARD, campaign.campaign_id, sums=("n_open", "n_in_doubt"))
            unfinished += sum(int(row["n_open"]) + int(row["n_in_doubt"]) for row in counts)
            moments, reasons = _moments(reader, lane, campaign, now, stops, limits_pass=passes is None or passes > 0)
            due += moments
            waits |= reasons
    return Left(unfinished, min(due, default=None), tuple(sorted(waits)))


def _moments(
    reader: Reader, lane: RunningLane, campaign: Campaign, now: datetime, stops: Sequence[Stop], *, limits_pass: bool
) -> tuple[list[datetime], set[str]]:
    """When batches of a campaign come due, and why others do not."""
    campaign_id = campaign.campaign_id
    due: list[datetime] = []
    waits: set[str] = set()
    for batch in open_batches(reader, campaign_id, batches.SENDING):
        if batch.heartbeat_at is not None and batch.lease_s is not None:
            due.append(batch.heartbeat_at + timedelta(seconds=batch.lease_s))
    for batch in open_batches(reader, campaign_id, batches.IN_DOUBT):
        if may_ask_again(batch, lane.terms, now):
            due.append(max(batch.due_at, batch.visible_at or batch.due_at))
        else:
            waits.add("in_doubt")
    if reader.scan(Batch, ANY_SHARD, campaign_id, batches.HELD, index="batches_open", limit=1):
        waits.add("held")
    pending = _first_pending(reader, campaign_id)
    queued = open_batches(reader, campaign_id, batches.QUEUED)
    if campaign.state in ("paused", "halted"):
        if pending or queued:
            waits.add(campaign.state)
    elif stops and (pending or queued):
        if stops[0].until is None:
            waits.add(stops[0].kind)
        else:
            due.append(stops[0].until)
    else:
        due += [batch.visible_at or now for batch in queued]
        due += [pending] if pending else []
        if pending and pending > now and limits_pass and limit_waiters(reader, lane.terms, campaign_id, now):
            due.append(now)
    if campaign.state == "cancelling" and (pending or queued):
        due.append(now)
    return due, waits


def _first_pending(reader: Reader, campaign_id: str) -> datetime | None:
    """When the first pending batch is due. The index is ordered by due time within each shard."""
    firsts = [
        batch.due_at
        for shard in range(SHARDS)
        for batch in reader.scan(Batch, shard, campaign_id, batches.PENDING, index="batches_open", limit=1)
    ]
    return min(firsts, default=None)
