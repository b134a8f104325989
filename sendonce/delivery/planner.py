"""Which batches go next: due work of a lane, fairly over its campaigns, no more than the lane's window."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from itertools import chain, groupby
from typing import Optional

from schemas.elements import Reference
from schemas.tables import Batch, Campaign, Progress
from sendonce.control.schedule import starts_later
from sendonce.control.stops import stops_of
from sendonce.control.stream_names import STREAM
from sendonce.delivery import batches
from sendonce.delivery.fair import FairShare
from sendonce.delivery.group_line import GroupLine
from sendonce.delivery.limits import limits_of, outlook
from sendonce.delivery.protocol.doubts import may_ask_again
from sendonce.delivery.protocol.queueing import plan, postpone
from sendonce.delivery.routes import route
from sendonce.delivery.terms import Terms
from sendonce.stores.base import ANY_SHARD, Reader, Store, Tx

# Batches marked in one transaction: enough to be cheap, few enough not to hold up claims.
MARKED_AT_ONCE = 32
# Batches of a campaign that are due, looked at for one plan.
DUE_LOOKED_AT = 1_000
# Batches that are due later, looked at for those that only wait for a limit.
LATER_LOOKED_AT = 256


@dataclass(frozen=True)
class Candidate:
    """A batch that was due when the planner looked, and how many recipients of it a plan would move.

    group: the scope whose share all of them wait for, if so.
    """

    campaign_id: str
    batch_no: int
    recipients: int
    due_at: datetime
    group: str = ""


@dataclass(frozen=True)
class Plan:
    """What goes next. room: recipients that could have gone besides, had any been due; 0 where some may be left."""

    references: list[Reference]
    room: int


@dataclass(frozen=True)
class _Chosen:
    """What to mark as queued, which batches of a mailbox group to let wait until when, and the room that is left."""

    now: list[Candidate]
    later: list[tuple[Candidate, datetime]]
    room: int = 0


def plan_lane(store: Store, terms: Terms, window: int, fair: FairShare | None = None) -> Plan:
    """Mark due batches of a lane as queued, up to `window` recipients (and at least one batch), and refer to them.

    Looks outside any transaction, so that planning never blocks claims; each mark then is a compare-and-set. Doubts
    that may be settled by asking again come before new work. A campaign that has not begun is left alone, and so is a
    lane that is stopped, halted, throttled or out of permits, unless its fallback can send. Batches of which only a
    mailbox group's share is left are planned as far as its limits will pass them; the others get a place in its line,
    as a later due time. fair: what campaigns got at earlier plans.
    """
    chosen = store.read(lambda reader: _choose(reader, terms, window, fair or FairShare()))
    references: list[Reference] = []
    for start in range(0, len(chosen.now), MARKED_AT_ONCE):
        mark = partial(_mark, terms=terms, candidates=chosen.now[start : start + MARKED_AT_ONCE])
        references += store.transact(mark, tag="plan")
    for start in range(0, len(chosen.later), MARKED_AT_ONCE):
        store.transact(partial(_postpone, later=chosen.later[start : start + MARKED_AT_ONCE]), tag="postpone")
    return Plan(references, chosen.room)


def _postpone(tx: Tx, later: Sequence[tuple[Candidate, datetime]]) -> None:
    for candidate, due_at in later:
        postpone(tx, candidate.campaign_id, candidate.batch_no, candidate.due_at, due_at)


def _mark(tx: Tx, terms: Terms, candidates: Sequence[Candidate]) -> list[Reference]:
    return [
        reference
        for campaign_id, group in groupby(candidates, key=lambda candidate: candidate.campaign_id)
        for reference in plan(tx, terms, campaign_id, [candidate.batch_no for candidate in group])
    ]


def _choose(reader: Reader, terms: Terms, window: int, fair: FairShare) -> _Chosen:
    now = reader.now()
    chosen, lane_terms = _Chosen([], []), terms
    terms = route(reader, lane_terms, now)
    if stops_of(reader, terms.lane, terms.sender, now):
        return chosen
    passes = outlook(reader, limits_of(reader, terms.scopes), terms.times.window_s, now)
    if passes is not None:
        window = min(window, passes)
    if window <= 0:
        return chosen
    campaigns = lane_campaigns(reader, terms.lane)
    running = [
        campaign for campaign in campaigns if campaign.state == "running" and starts_later(campaign, now) is None
    ]
    doubts = [_doubts(reader, lane_terms, campaign, now) for campaign in campaigns]
    line = GroupLine(reader, terms, now)
    due = {campaign.campaign_id: _due(reader, campaign, now, window) for campaign in running}
    freed = {campaign.campaign_id: _freed(reader, terms, line, campaign, now) for campaign in running}
    done = {campaign.campaign_id: _done(reader, campaign) for campaign in running}
    served = fair.served(done)
    lane = _FairTurns(served, done)
    total, room = 0, 0
    for candidate in chain(_in_turn(doubts), lane.turns(due), lane.turns(freed)):
        if total >= window:
            break
        if candidate.group and (due_at := line.place(candidate.group, candidate.recipients)) is not None:
            chosen.later.append((candidate, due_at))
            continue
        chosen.now.append(candidate)
        total += candidate.recipients
    else:
        room = max(0, window - total)
    fair.idle(served, lane.without_work)
    return replace(chosen, room=room)


def _done(reader: Reader, campaign: Campaign) -> int:
    progress = reader.get(Progress, campaign.campaign_id)
    return 0 if progress is None else progress.total - progress.n_open


class _FairTurns:
    """Whoever got least goes next, of equals whoever has done least. What is planned counts at once."""

    def __init__(self, served: Mapping[str, int], done: Mapping[str, int]) -> None:
        self._served = dict(served)
        self._done = done
        self._found: set[str] = set()
        self._asked: set[str] = set()

    @property
    def without_work(self) -> set[str]:
        """Campaigns that were asked and had nothing."""
        return self._asked - self._found

    def turns(self, queues: Mapping[str, Iterator[Candidate]]) -> Iterator[Candidate]:
        waiting = [(self._served[name], self._done[name], name) for name in queues]
        heapq.heapify(waiting)
        while waiting:
            *_, name = heapq.heappop(waiting)
            self._asked.add(name)
            candidate = next(queues[name], None)
            if candidate is None:
                continue
            self._found.add(name)
            if not candidate.group:
                self._served[name] += candidate.recipients
            heapq.heappush(waiting, (self._served[name], self._done[name], name))
            yield candidate


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
            yield _candidate(batch)
    # Each pending batch moves at least one recipient, so `window` batches are always enough. The index is ordered by
    # shard: whoever waits for one send must not be overtaken for ever by those of lower shards.
    stream = campaign.kind == STREAM
    most = DUE_LOOKED_AT if stream else min(window, DUE_LOOKED_AT)
    due = reader.scan(
        Batch, ANY_SHARD, campaign.campaign_id, batches.PENDING, index="batches_open", upto=now, limit=most
    )
    for batch in sorted(due, key=lambda batch: batch.due_at) if stream else due:
        yield _candidate(batch)


def _candidate(batch: Batch) -> Candidate:
    group = batch.wait_reason if batch.wait_reason and batch.wait_reason.startswith(batches.DOMAIN) else ""
    return Candidate(batch.campaign_id, batch.batch_no, batch.n_open, batch.due_at, group)


def _freed(reader: Reader, terms: Terms, line: GroupLine, campaign: Campaign, now: datetime) -> Iterator[Candidate]:
    for batch in limit_waiters(reader, terms, line, campaign.campaign_id, now):
        yield _candidate(batch)


def limit_waiters(reader: Reader, terms: Terms, line: GroupLine, campaign_id: str, now: datetime) -> Iterator[Batch]:
    """Batches that a limit sent away for longer than the lane's window, and that might go now.

    Their due time is what the limit said then. It may have been raised or removed since, so when the limits pass
    something now they are worth a claim.
    """
    soon = now + timedelta(seconds=terms.times.window_s)
    later = reader.scan(
        Batch, ANY_SHARD, campaign_id, batches.PENDING, index="batches_open", after=soon, limit=LATER_LOOKED_AT
    )
    for batch in later:
        if batches.waits_for_limit(batch) and (batch.wait_reason == "limit" or line.passes_now(str(batch.wait_reason))):
            yield batch


def _doubts(reader: Reader, terms: Terms, campaign: Campaign, now: datetime) -> Iterator[Candidate]:
    for batch in open_batches(reader, campaign.campaign_id, batches.IN_DOUBT):
        unseen = batch.visible_at is None or batch.visible_at <= now
        if (
            unseen
            and batch.due_at <= now
            and may_ask_again(batch, terms, now)
            and may_be_asked(reader, terms, batch.provider, now)
        ):
            yield Candidate(batch.campaign_id, batch.batch_no, batch.n_in_doubt, batch.due_at)


def may_be_asked(reader: Reader, terms: Terms, provider: Optional[str], now: datetime) -> bool:
    """Whether the account that a doubt lies with may be asked now: the lane may go by its other sender meanwhile."""
    asked = terms.of(provider)
    return terms.fallback is None or (asked is not None and not stops_of(reader, asked.lane, asked.sender, now))


def open_batches(reader: Reader, campaign_id: str, state: str) -> list[Batch]:
    """Every batch of a campaign in an unfinished state. For states that hold few: queued, sending, in doubt, held."""
    return reader.scan(Batch, ANY_SHARD, campaign_id, state, index="batches_open")


def _in_turn(queues: list[Iterator[Candidate]]) -> Iterator[Candidate]:
    """One of each in turn."""
    while queues:
        for queue in list(queues):
            candidate = next(queue, None)
            if candidate is None:
                queues.remove(queue)
            else:
                yield candidate
