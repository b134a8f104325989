"""Lanes and senders as people look at them: their limits, what is left of them, how fast they go, who waits for what.

Everything is read from the store as it is now, for every scope that has a lane, a sender or a limit there: a scope of
a new kind appears by itself.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

import orjson

from schemas.ids import SHARDS
from schemas.ordinals import unpack
from schemas.tables import Attempt, Batch, Campaign, Limit, Permit, Progress, Setting
from sendonce.config import LANE_NAMES, LimitSetting
from sendonce.config.limits import most_at
from sendonce.config.stored import limit_text
from sendonce.control.campaigns import CANCELLING, HALTED, PAUSED, RUNNING
from sendonce.control.in_flight import Awaited, awaited, in_flight, sender_seen, unfinished_of
from sendonce.control.progress import LARGE
from sendonce.control.schedule import starts_later
from sendonce.control.sender_health import sender_health
from sendonce.control.stops import Stop, stops_of
from sendonce.control.stream_names import STREAM
from sendonce.delivery import batches
from sendonce.delivery.lane_report import LimitUse, ScopeUse, Waiting
from sendonce.delivery.limits import Wait, ask, limits_of, outlook
from sendonce.senders.base import name_in
from sendonce.stores.base import ANY_SHARD, Reader, Store

# Over which time a speed is measured.
SPEED_OVER_S: Final = 60.0


@dataclass
class _Lane:
    """A lane while it is looked at. by: the one of its senders by which new requests go now; stops: what keeps that
    from sending. sent: recipients of the last minute, by the account that they went to."""

    sender: str
    fallback: str | None
    by: str
    stops: list[Stop]
    awaiting: list[Awaited]
    sent: Counter[str] = field(default_factory=Counter)
    open: int = 0
    waiting: list[Waiting] = field(default_factory=list)


def lane_uses(store: Store, stale_s: float = 0.0) -> tuple[datetime, list[ScopeUse]]:
    """Store time, and every scope: lanes, critical first; senders; then others by name. One consistent look.

    stale_s: how old it may be; then its time is that moment.
    """
    return store.read(_look, stale_s=stale_s)


def _look(reader: Reader) -> tuple[datetime, list[ScopeUse]]:
    now = reader.now()
    settings = {
        f"{row.kind}:{row.name}": orjson.loads(row.value)
        for kind in ("lane", "sender", "domain")
        for row in reader.scan(Setting, kind)
    }
    limits = reader.scan(Limit)
    uses = {
        scope: [_use(reader, limit, settings.get(scope, {}), now) for limit in limits if limit.scope == scope]
        for scope in _in_order({*settings, *(limit.scope for limit in limits)})
    }
    lanes = {
        scope: _lane(reader, scope.removeprefix("lane:"), value, now)
        for scope, value in settings.items()
        if scope.startswith("lane:")
    }
    for campaign in reader.scan(Campaign):
        lane = lanes.get(f"lane:{campaign.priority}")
        if lane is not None:
            _add(reader, lane, campaign, uses, now)
    return now, [_scope(reader, scope, uses, lanes, now) for scope in uses]


def _lane(reader: Reader, name: str, setting: dict[str, Any], now: datetime) -> _Lane:
    sender, fallback = str(setting["sender"]), setting.get("fallback")
    by = sender_seen(reader, name, sender, fallback, now)
    waits = awaited(in_flight(reader, unfinished_of(reader, name)), now)
    return _Lane(sender, fallback, by, stops_of(reader, name, by, now), waits)


def _in_order(scopes: Iterable[str]) -> list[str]:
    lanes = [f"lane:{name}" for name in LANE_NAMES]

    def place(scope: str) -> tuple[int, int, str]:
        kind = ("lane", "sender").index(scope.split(":")[0]) if scope.startswith(("lane:", "sender:")) else 2
        return kind, lanes.index(scope) if scope in lanes else len(lanes), scope

    return sorted(scopes, key=place)


def _use(reader: Reader, limit: Limit, setting: dict[str, Any], now: datetime) -> LimitUse:
    free = outlook(reader, [limit], 0.0, now)
    if limit.kind == "rate":
        used = limit.burst - (free or 0)
        most: int | None = limit.burst
    else:
        since = reader.pace() - timedelta(seconds=limit.window_s)
        used = sum(permit.n for permit in reader.scan(Permit, limit.scope, index="permits_by_use", after=since))
        most = most_at(limit, now)
    answer = ask(reader, [limit], 1, now)
    next_at = answer.until if isinstance(answer, Wait) else None
    return LimitUse(limit.name, _text(limit, setting, now), limit.kind, free, used, most, limit.slow, next_at)


def _text(limit: Limit, setting: dict[str, Any], now: datetime) -> str:
    """As it was written: a rate of 900/min is kept as 15/s, and means the same, but nobody looks for it.

    Of a plan, its step of now: the whole may be long.
    """
    if limit.plan is not None and limit.starts_at is not None:
        steps = len(orjson.loads(limit.plan))
        step = int((now - limit.starts_at).total_seconds() // limit.window_s) + 1
        if step < 1:
            return f"nothing before {limit.starts_at:%Y-%m-%d %H:%M} UTC"
        return f"day {step} of {steps}" if step <= steps else "over"
    for written in setting.get("limits", []):
        made = LimitSetting.model_validate(written)
        if made.name == limit.name and limit_text(made.row(limit.scope)) == limit_text(limit):
            return f"{made.rate}, burst {limit.burst}" if made.rate is not None else str(made.cap)
    return limit_text(limit)


def _add(reader: Reader, lane: _Lane, campaign: Campaign, uses: dict[str, list[LimitUse]], now: datetime) -> None:
    """What a campaign adds to its lane: what was sent in the last minute, and who waits."""
    lately = campaign.finished_at is not None and (now - campaign.finished_at).total_seconds() <= SPEED_OVER_S
    if campaign.state in (RUNNING, PAUSED, HALTED, CANCELLING) or lately:
        lane.sent.update(_sent_since(reader, campaign, now - timedelta(seconds=SPEED_OVER_S)))
    if campaign.state not in (RUNNING, PAUSED, HALTED):
        return
    groups = reader.tally(
        Batch,
        ANY_SHARD,
        campaign.campaign_id,
        by=("state", "wait_reason", "due_at"),
        sums=("n_open",),
        index="batches_open",
    )
    lane.open += sum(group["n_open"] for group in groups)
    idle = [group for group in groups if group["state"] in (batches.PENDING, batches.QUEUED) and group["n_open"]]
    lane.waiting += _waits(lane, campaign, idle, uses, now) if idle else []


def _waits(
    lane: _Lane, campaign: Campaign, idle: list[dict[str, Any]], uses: dict[str, list[LimitUse]], now: datetime
) -> list[Waiting]:
    """For what the recipients wait who are not under way: the first thing in the way is what counts."""
    everybody = sum(group["n_open"] for group in idle)
    if campaign.state != RUNNING:
        return [Waiting(campaign.state, everybody)]
    if (start := starts_later(campaign, now)) is not None:
        return [Waiting("scheduled", everybody, until=start)]
    if lane.stops:
        first = lane.stops[0]
        return [Waiting(first.kind, everybody, first.what, "", first.until)]
    drawn = [f"lane:{campaign.priority}", f"sender:{lane.by}", f"warmup:{lane.by}"]
    if full := _full(drawn, uses):
        return [replace(full, recipients=everybody)]
    later = [group for group in idle if group["due_at"] > now and group["state"] == batches.PENDING]
    return [_sent_away(group, drawn, uses) for group in later]


def _full(scopes: Sequence[str], uses: dict[str, list[LimitUse]]) -> Waiting | None:
    """The limit that lets the next one through last, if any lets nobody through now."""
    full = [
        Waiting("limit", 0, scope, use.text, use.next_at)
        for scope in scopes
        for use in uses.get(scope, [])
        if use.next_at is not None
    ]
    return max(full, key=lambda waiting: waiting.until or datetime.min, default=None)


def _sent_away(group: dict[str, Any], drawn: Sequence[str], uses: dict[str, list[LimitUse]]) -> Waiting:
    """A batch that is due later: for what, as its own row says."""
    reason, recipients, due_at = group["wait_reason"] or "retry", group["n_open"], group["due_at"]
    if reason == "limit" or ":" in reason:  # by itself the scope of a limit that only some recipients draw from
        found = _tightest(drawn if reason == "limit" else [reason], uses)
        return replace(found, recipients=recipients, until=due_at)
    return Waiting(reason, recipients, until=due_at)


def _tightest(scopes: Sequence[str], uses: dict[str, list[LimitUse]]) -> Waiting:
    """The limit of which least is left: a request waits for all that it asks of a rate, not for one permit."""
    shares = [
        ((use.free or 0) / use.most, scope, use.text) for scope in scopes for use in uses.get(scope, []) if use.most
    ]
    share, scope, text = min(shares, default=(1.0, "", ""))
    return Waiting("limit", 0, scope, text) if share < 1 else Waiting("limit", 0)


def _sent_since(reader: Reader, campaign: Campaign, since: datetime) -> Counter[str]:
    """Recipients whose requests ended since then, save those that were surely not sent, by the account asked.

    Attempts have no order in time, so the batches that were touched since tell where to look. Of a stream with very
    many batches some shards are looked at, and stand for all: which shard a send is in is up to a hash.
    """
    touched = ("finished_at", "heartbeat_at", "claimed_at")
    sent: Counter[str] = Counter()
    shards = _shards_looked_at(reader, campaign)
    for shard in shards or (ANY_SHARD,):
        for group in reader.tally(Batch, shard, campaign.campaign_id, by=("shard", "batch_no", *touched)):
            if any(group[name] is not None and group[name] >= since for name in touched):
                for attempt in reader.scan(Attempt, group["shard"], campaign.campaign_id, group["batch_no"]):
                    if attempt.finished_at >= since and attempt.verdict != "not_sent":
                        sent[attempt.provider] += len(unpack(attempt.ordinals))
    if shards:
        return Counter({account: times * SHARDS // len(shards) for account, times in sent.items()})
    return sent


def _shards_looked_at(reader: Reader, campaign: Campaign) -> range:
    """So many shards of a stream as hold `LARGE` batches; none for all of them."""
    progress = reader.get(Progress, campaign.campaign_id) if campaign.kind == STREAM else None
    done = 0 if progress is None else progress.batches_done
    return range(max(1, LARGE * SHARDS // done)) if done > LARGE else range(0)


def _scope(
    reader: Reader, scope: str, uses: dict[str, list[LimitUse]], lanes: dict[str, _Lane], now: datetime
) -> ScopeUse:
    kind, _, name = scope.partition(":")
    if kind == "lane" and scope in lanes:
        lane = lanes[scope]
        return ScopeUse(
            scope,
            lane.sender,
            lane.fallback,
            lane.by,
            uses[scope],
            lane.sent.total() / SPEED_OVER_S,
            lane.open,
            _merged(lane.waiting),
            [stop for stop in lane.stops if not stop.what.startswith("sender:")],
            lane.awaiting,
        )
    if kind == "sender":
        senders = [scope.removeprefix("sender:") for scope in uses if scope.startswith("sender:")]
        sent = sum((lane.sent for lane in lanes.values()), Counter[str]())
        return ScopeUse(
            scope,
            None,
            None,
            None,
            uses[scope],
            sum(times for account, times in sent.items() if name_in(account, senders) == name) / SPEED_OVER_S,
            sum(lane.open for lane in lanes.values() if lane.by == name),
            _merged(found for lane in lanes.values() for found in lane.waiting if found.scope == scope),
            [stop for stop in stops_of(reader, "", name, now) if stop.what.startswith("sender:")],
            health=sender_health(reader, name, now),
        )
    waiting = _merged(found for lane in lanes.values() for found in lane.waiting if found.scope == scope)
    return ScopeUse(
        scope,
        None,
        None,
        None,
        uses[scope],
        _granted_per_s(reader, scope, now),
        sum(found.recipients for found in waiting),
        waiting,
        [],
    )


def _granted_per_s(reader: Reader, scope: str, now: datetime) -> float | None:
    """From the grant log, which is kept as long as the longest cap looks back; None where that is too short."""
    kept_s = max((limit.window_s for limit in limits_of(reader, [scope]) if limit.kind == "cap"), default=0.0)
    if kept_s < SPEED_OVER_S:
        return None
    since = now - timedelta(seconds=SPEED_OVER_S)
    return sum(permit.n for permit in reader.scan(Permit, scope, after=since)) / SPEED_OVER_S


def _merged(found: Iterable[Waiting]) -> list[Waiting]:
    """Those who wait for the same thing together, most first; until the first of them may go."""
    recipients: Counter[tuple[str, str, str]] = Counter()
    until: dict[tuple[str, str, str], list[datetime]] = {}
    for waiting in found:
        key = (waiting.reason, waiting.scope, waiting.what)
        recipients[key] += waiting.recipients
        until.setdefault(key, []).extend([waiting.until] if waiting.until is not None else [])
    return [
        Waiting(reason, times, scope, what, min(until[reason, scope, what], default=None))
        for (reason, scope, what), times in recipients.most_common()
    ]
