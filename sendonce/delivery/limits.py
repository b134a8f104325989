"""Permits: leave to hand recipients to a provider, granted inside the transaction that writes the intent.

Two kinds of limit, both counted in recipients (a request for 1,000 people takes 1,000).

rate    a bucket of `burst` permits that fills at `per_s`. Any window of T seconds grants at most burst + per_s x T.
cap     at most `most` in any sliding window of `window_s`, never one more. What was granted stands in the grant
        log until its last possible arrival at the provider (`Permit.used_by`) has left the window, so that the
        cap holds for arrivals, not only for grants. With a plan (a warm-up), `most` rises from window to window.

A rate is waited for in full: a request never exceeds a bucket, and small leftovers would tear form letters into
tiny requests. A cap is cut to: what is left of a day's quota is used.

Limits count by the store's pace, not by store time: a clock that is set ahead fills no bucket and opens no window. What
is told to wait is told in store time. Only a plan's windows go by the calendar.

A request draws from its lane and sender with all its recipients, and from the limits of each group of mailbox
providers (`domain:GROUP`) with its share: those recipients whose mailboxes are there. Where a share gets less than it
wants, only the share is cut, and the others go.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil, floor

from schemas.tables import Limit, Permit
from sendonce.config.limits import most_at
from sendonce.stores.base import Reader, Tx

# Rounding of floats must not make a bucket that is full by arithmetic look one permit short for ever.
_EPSILON = 1e-9
_PRUNE_AT_ONCE = 200
_SLOWEST = 1 / 64
_SPEED_UP_EVERY_S = 10.0


@dataclass(frozen=True)
class Grant:
    """n permits (1 or more) may be taken now; `write` holds the changed limit rows."""

    n: int
    write: tuple[Limit, ...]


@dataclass(frozen=True)
class Wait:
    """No permit now; worth asking again at `until` (store time). `scope` names the limit that decides."""

    until: datetime
    scope: str


@dataclass(frozen=True)
class Cut:
    """What a share of a request gets instead of all: n permits (0 or more).

    With 0, others are worth asking for at `until` (store time), which is in `wait_s` seconds.
    """

    n: int
    until: datetime
    wait_s: float = 0.0


def _next_step_at(limit: Limit, now: datetime) -> datetime | None:
    """When the next window of a plan begins, which may let more through; None for a cap without a plan."""
    if limit.plan is None or limit.starts_at is None:
        return None
    passed = (now - limit.starts_at).total_seconds() // limit.window_s
    return limit.starts_at + timedelta(seconds=max(0.0, passed + 1) * limit.window_s)


def largest_request(limits: Sequence[Limit], permit_ttl_s: float, most: int, now: datetime) -> int:
    """The most recipients that one request may ask for: `most`, or less where a rate is low.

    A request carries no more than the rate passes within the life of a permit, and no more than half of its bucket:
    waiting for a full one would waste what flows in between its being full and somebody's coming for it.
    """
    for limit in limits:
        if limit.kind == "rate":
            most = min(most, max(1, floor(limit.per_s * permit_ttl_s)), ceil(limit.burst / 2))
        else:
            passes = most_at(limit, now)
            most = most if passes is None else min(most, passes)
    return max(1, most)


def limits_of(reader: Reader, scopes: Sequence[str]) -> list[Limit]:
    """Every limit of the scopes, in a fixed order."""
    return [limit for scope in scopes for limit in reader.scan(Limit, scope)]


def ask(reader: Reader, limits: Sequence[Limit], n: int, now: datetime) -> Grant | Wait:
    """Whether n recipients may go now. The smallest grant of all limits wins; the latest wait of all decides.

    Reads the grant log of each cap. Writes nothing: `take` does, in the same transaction.
    """
    waits: list[Wait] = []
    granted = n
    pace = reader.pace()
    for limit in limits:
        answer = _ask_rate(limit, n, now, pace) if limit.kind == "rate" else _ask_cap(reader, limit, n, now, pace)
        if isinstance(answer, Wait):
            waits.append(answer)
        else:
            granted = min(granted, answer)
    if waits:
        return max(waits, key=lambda wait: wait.until)
    return Grant(granted, tuple(_drawn(limit, granted, pace) for limit in limits if limit.kind == "rate"))


def ask_again(
    reader: Reader, limits: Sequence[Limit], n: int, attempt_id: str, granted_at: datetime | None, now: datetime
) -> Grant | Wait | None:
    """Whether a request of n recipients that may have gone out may be repeated now; it can't be cut.

    A rate gives it as soon as its bucket is full, and goes into debt for what is over. A cap counts the request once:
    as long as its own line stands in the grant log, the repeat needs no other. None: a cap would never pass it.
    """
    waits: list[Wait] = []
    pace = reader.pace()
    for limit in limits:
        if limit.kind == "rate":
            answer = _ask_rate(limit, n, now, pace)
        elif granted_at is not None and reader.get(Permit, limit.scope, granted_at, attempt_id) is not None:
            continue
        elif limit.plan is None and n > limit.most:
            return None
        else:
            counted = _counted(reader, limit, pace)
            most = most_at(limit, now)
            if most is None or sum(permit.n for permit in counted) + n <= most:
                continue
            answer = Wait(_sooner(limit, counted[0].used_by if counted else None, now, pace), _name(limit))
        if isinstance(answer, Wait):
            waits.append(answer)
    if waits:
        return max(waits, key=lambda wait: wait.until)
    return Grant(n, tuple(_drawn(limit, n, pace) for limit in limits if limit.kind == "rate"))


def ask_shares(
    reader: Reader, shares: Mapping[str, Sequence[int]], now: datetime
) -> tuple[dict[str, Cut], list[tuple[list[Limit], Grant]]]:
    """Whether each share of a request may go, by scope: the cuts, and what the others take. Writes nothing.

    shares: the recipients of a request that draw from a scope besides its lane and sender.
    """
    cuts: dict[str, Cut] = {}
    grants: list[tuple[list[Limit], Grant]] = []
    for scope, share in shares.items():
        limits = limits_of(reader, [scope])
        answer = ask(reader, limits, len(share), now)
        if isinstance(answer, Wait):
            cuts[scope] = Cut(0, answer.until, (answer.until - now).total_seconds())
        elif answer.n < len(share):
            cuts[scope] = Cut(answer.n, now)
        else:
            grants.append((limits, answer))
    return cuts, grants


def take(
    tx: Tx,
    limits: Sequence[Limit],
    grant: Grant,
    attempt_id: str,
    now: datetime,
    use_within_s: float,
    before: datetime | None = None,
) -> None:
    """Write a grant down: the buckets' new levels, and one line in the grant log of every scope that has a cap.

    use_within_s: seconds until the last byte of the request can reach the provider (permit time + time-out). before:
    when the same request got its earlier permit, whose line this one replaces.
    """
    tx.put(*grant.write)
    pace = tx.pace()
    used_by = pace + timedelta(seconds=use_within_s)
    for scope, window_s in _capped(limits):
        old = tx.scan(
            Permit, scope, index="permits_by_use", upto=pace - timedelta(seconds=window_s), limit=_PRUNE_AT_ONCE
        )
        earlier = tx.get(Permit, scope, before, attempt_id) if before is not None else None
        tx.delete(*old, *([earlier] if earlier is not None else []))
        tx.insert(Permit(scope, now, attempt_id, grant.n, used_by))


def give_back(tx: Tx, limits: Sequence[Limit], attempt_id: str, granted_at: datetime, n: int) -> list[Limit]:
    """Return n permits of a request that provably reached nobody. A bucket never holds more than its burst.

    Gives the limits as they are afterwards: a transaction that asks again must ask with these.
    """
    after = []
    pace = tx.pace()
    for limit in limits:
        if limit.kind == "rate":
            limit = replace(limit, level=min(float(limit.burst), _level(limit, pace) + n), level_at=pace)
            tx.put(limit)
        after.append(limit)
    for scope, _ in _capped(limits):
        permit = tx.get(Permit, scope, granted_at, attempt_id)
        if permit is None:
            continue
        if permit.n > n:
            tx.put(replace(permit, n=permit.n - n))
        else:
            tx.delete(permit)
    return after


def used(tx: Tx, limits: Sequence[Limit], attempt_id: str, granted_at: datetime) -> None:
    """Note that a request is over: nothing of it can arrive later than now, so a cap's window counts from here."""
    for scope, _ in _capped(limits):
        permit = tx.get(Permit, scope, granted_at, attempt_id)
        if permit is not None and permit.used_by > tx.pace():
            tx.put(replace(permit, used_by=tx.pace()))


def slowed(limit: Limit, pace: datetime) -> Limit:
    """A rate halved, down to a sixty-fourth, because the provider throttled; a cap as it is."""
    if limit.kind != "rate":
        return limit
    return replace(limit, level=_level(limit, pace), level_at=pace, slow=max(_SLOWEST, limit.slow / 2), slow_at=pace)


def sped_up(limit: Limit, pace: datetime) -> Limit:
    """A slowed rate a tenth of the whole faster, if it was changed 10 s ago or more: additive increase."""
    if limit.slow >= 1.0 or limit.slow_at is None or (pace - limit.slow_at).total_seconds() < _SPEED_UP_EVERY_S:
        return limit
    return replace(limit, level=_level(limit, pace), level_at=pace, slow=min(1.0, limit.slow + 0.1), slow_at=pace)


def outlook(reader: Reader, limits: Sequence[Limit], horizon_s: float, now: datetime) -> int | None:
    """How many recipients the limits will pass within the horizon; None when nothing limits. For the planner."""
    passes: int | None = None
    pace = reader.pace()
    for limit in limits:
        if limit.kind == "rate":
            here = floor(_level(limit, pace) + limit.per_s * limit.slow * horizon_s + _EPSILON)
        else:
            most = most_at(limit, now)
            if most is None:
                continue
            counted = _counted(reader, limit, pace + timedelta(seconds=horizon_s))
            here = most - sum(permit.n for permit in counted)
        passes = max(0, here) if passes is None else max(0, min(passes, here))
    return passes


def passes_by(reader: Reader, limits: Sequence[Limit], n: int, now: datetime) -> datetime:
    """About when the limits will have let n recipients through, if nobody else draws. To put waiting work in a line."""
    waits_s = [_passes_in_s(reader, limit, n, now) for limit in limits]
    return now + timedelta(seconds=max([0.0, *waits_s]))


def _passes_in_s(reader: Reader, limit: Limit, n: int, now: datetime) -> float:
    pace = reader.pace()
    if limit.kind == "rate":
        return (n - _level(limit, pace)) / (limit.per_s * limit.slow)
    most = most_at(limit, now)
    if most is None:
        return 0.0
    counted = _counted(reader, limit, pace)
    left = most - sum(permit.n for permit in counted)
    if left >= n:
        return 0.0
    for permit in counted:
        left += permit.n
        if left >= n:
            return (permit.used_by - pace).total_seconds() + limit.window_s + 1e-6
    return limit.window_s * min(ceil(n / max(1, most)), 1000)


def _ask_rate(limit: Limit, n: int, now: datetime, pace: datetime) -> int | Wait:
    wanted = min(n, limit.burst)
    level = _level(limit, pace)
    if level + _EPSILON >= wanted:
        return wanted
    wait_s = (wanted - level) / (limit.per_s * limit.slow)
    return Wait(now + timedelta(microseconds=ceil(wait_s * 1e6)), _name(limit))


def _level(limit: Limit, pace: datetime) -> float:
    """Permits in the bucket. A bucket that was never drawn from is full; a clock that fell back fills nothing."""
    if limit.level is None or limit.level_at is None:
        return float(limit.burst)
    passed_s = max(0.0, (pace - limit.level_at).total_seconds())
    return min(float(limit.burst), limit.level + passed_s * limit.per_s * limit.slow)


def _drawn(limit: Limit, n: int, pace: datetime) -> Limit:
    at = pace if limit.level_at is None else max(pace, limit.level_at)
    return replace(limit, level=_level(limit, pace) - n, level_at=at)


def _ask_cap(reader: Reader, limit: Limit, n: int, now: datetime, pace: datetime) -> int | Wait:
    most = most_at(limit, now)
    if most is None:
        return n
    counted = _counted(reader, limit, pace)
    left = most - sum(permit.n for permit in counted)
    if left >= 1:
        return min(n, left)
    # The window moves on when the grant that leaves it first has left: one permit is worth waking up for.
    leaves = None
    for permit in counted:
        left += permit.n
        if left >= 1:
            leaves = permit.used_by
            break
    return Wait(_sooner(limit, leaves, now, pace), _name(limit))


def _sooner(limit: Limit, leaves: datetime | None, now: datetime, pace: datetime) -> datetime:
    """When a cap passes something again: a grant that was used by `leaves` has left the window, or its plan rises."""
    moments = [_next_step_at(limit, now)]
    if leaves is not None:
        moments.append(now + (leaves - pace) + timedelta(seconds=limit.window_s, microseconds=1))
    return min(moment for moment in moments if moment is not None)


def _name(limit: Limit) -> str:
    return f"{limit.scope} {limit.name}"


def _counted(reader: Reader, limit: Limit, pace: datetime) -> list[Permit]:
    """The grants whose arrivals may lie in the window that ends at `pace`, in the order in which they leave it."""
    return reader.scan(Permit, limit.scope, index="permits_by_use", after=pace - timedelta(seconds=limit.window_s))


def _capped(limits: Sequence[Limit]) -> list[tuple[str, float]]:
    """Each scope that has a cap, with its longest window: how long its grant log is kept."""
    longest: dict[str, float] = {}
    for limit in limits:
        if limit.kind == "cap":
            longest[limit.scope] = max(limit.window_s, longest.get(limit.scope, 0.0))
    return list(longest.items())
