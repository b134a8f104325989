"""Which batches go next: due work of a lane, campaign by campaign in turn, no more than the lane's window."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, groupby

from schemas.elements import Reference
from schemas.tables import Batch, Campaign
from sendonce.control.stops import stops_of
from sendonce.delivery import batches
from sendonce.delivery.limits import limits_of, outlook
from sendonce.delivery.protocol import may_ask_again, plan
from sendonce.delivery.terms import Terms
from sendonce.stores.base import ANY_SHARD, Reader, Store, Tx

# Batches marked in one transaction: enough to be cheap, few enough not to hold up claims.
MARKED_AT_ONCE = 32
# Batches that are due later, looked at for those that only wait for a limit.
LATER_LOOKED_AT = 256


@dataclass(frozen=True)
class Candidate:
    """A batch that was due when the planner looked, and how many recipients of it a plan would move."""

    campaign_id: str
    batch_no: int
    recipients: int


def plan_lane(store: Store, terms: Terms, window: int) -> list[Reference]:
    """Mark due batches of a lane as queued, up to `window` recipients (and at least one batch), and refer to them.

    Looks outside any transaction, so that planning never blocks claims; each mark then is a compare-and-set.
    Doubts that may be settled by asking again come before new work. A lane that is stopped, halted, throttled or out of
    permits is left alone.
    """
    candidates = store.read(lambda reader: _candidates(reader, terms, window))
    references: list[Reference] = []
    for start in range(0, len(candidates), MARKED_AT_ONCE):
        mark = partial(_mark, terms=terms, candidates=candidates[start : start + MARKED_AT_ONCE])
        references += store.transact(mark, tag="plan")
    return references


def _mark(tx: Tx, terms: Terms, candidates: Sequence[Candidate]) -> list[Reference]:
    return [
        reference
        for campaign_id, group in groupby(candidates, key=lambda candidate: candidate.campaign_id)
        for reference in plan(tx, terms, campaign_id, [candidate.batch_no for candidate in group])
    ]


def _candidates(reader: Reader, terms: Terms, window: int) -> list[Candidate]:
    now = reader.now()
    if stops_of(reader, terms.lane, terms.sender, now):
        return []
    passes = outlook(reader, limits_of(reader, terms.scopes), terms.times.window_s, now)
    if passes is not None:
        window = min(window, passes)
    if window <= 0:
        return []
    campaigns = lane_campaigns(reader, terms.lane)
    doubts = [_doubts(reader, terms, campaign, now) for campaign in campaigns]
    running = [campaign for campaign in campaigns if campaign.state == "running"]
    due = [_due(reader, campaign, now, window) for campaign in running]
    freed = [_freed(reader, terms, campaign, now) for campaign in running]
    chosen: list[Candidate] = []
    total = 0
    for candidate in chain(_in_turn(doubts), _in_turn(due), _in_turn(freed)):
        if total >= window:
            break
        chosen.append(candidate)
        total += candidate.recipients
    return chosen


def lane_campaigns(reader: Reader, lane: str) -> list[Campaign]:
    """The campaigns of a lane that are not over: running, paused, halted or being cancelled."""
    return [
        campaign
        for state in ("running", "paused", "halted", "cancelling")
        for campaign in reader.scan(Campaign, state, index="campaigns_by_state")
        if campaign.priority == lane
    ]


def _due(reader: Reader, campaign: Campaign, now: datetime, window: int) -> Iterator[Candidate]:
    """Lost references first (queued, not claimed in time), then pending batches; lazily, for most stay unlooked at."""
    for batch in open_batches(reader, campaign.campaign_id, batches.QUEUED):
        if batch.visible_at is not None and batch.visible_at <= now:
            yield Candidate(batch.campaign_id, batch.batch_no, batch.n_open)
    # Each pending batch moves at least one recipient, so `window` batches are always enough.
    most = min(window, 1000)
    due = reader.scan(
        Batch, ANY_SHARD, campaign.campaign_id, batches.PENDING, index="batches_open", upto=now, limit=most
    )
    for batch in due:
        yield Candidate(batch.campaign_id, batch.batch_no, batch.n_open)


def _freed(reader: Reader, terms: Terms, campaign: Campaign, now: datetime) -> Iterator[Candidate]:
    for batch in limit_waiters(reader, terms, campaign.campaign_id, now):
        yield Candidate(batch.campaign_id, batch.batch_no, batch.n_open)


def limit_waiters(reader: Reader, terms: Terms, campaign_id: str, now: datetime) -> list[Batch]:
    """Batches that a limit sent away for longer than the lane's window.

    Their due time is what the limit said then. It may have been raised or removed since, so when the limits pass
    something now they are worth a claim.
    """
    soon = now + timedelta(seconds=terms.times.window_s)
    later = reader.scan(
        Batch, ANY_SHARD, campaign_id, batches.PENDING, index="batches_open", after=soon, limit=LATER_LOOKED_AT
    )
    return [batch for batch in later if batch.wait_reason == "limit"]


def _doubts(reader: Reader, terms: Terms, campaign: Campaign, now: datetime) -> Iterator[Candidate]:
    for batch in open_batches(reader, campaign.campaign_id, batches.IN_DOUBT):
        unseen = batch.visible_at is None or batch.visible_at <= now
        if unseen and batch.due_at <= now and may_ask_again(batch, terms, now):
            yield Candidate(batch.campaign_id, batch.batch_no, batch.n_in_doubt)


def open_batches(reader: Reader, campaign_id: str, state: str) -> list[Batch]:
    """Every batch of a campaign in an unfinished state. For states that hold few: queued, sending, in doubt, held."""
    return reader.scan(Batch, ANY_SHARD, campaign_id, state, index="batches_open")


def _in_turn(queues: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    """One of each in turn, so that a small campaign is not kept waiting by a large one."""
    while queues:
        for queue in list(queues):
            candidate = next(queue, None)
            if candidate is None:
                queues.remove(queue)
            else:
                yield candidate
