"""I7: arrivals at the provider keep to every limit that the store holds, all jobs together.

Source of the two rules: the contract of limits. rate: any window T holds at most burst + rate x (T + permit time).
cap: any sliding window holds at most N, never N + 1. A warm-up is a cap whose N is that of the day in which a window
ends; nothing comes before it starts. A mailbox group's limits count the letters that went to its domains.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta

from schemas.tables import Limit, Setting
from sendonce.mailboxes import DomainGroups
from tests.checker.case import CLOCK_GRAIN, Arrivals, Case, Violation

PERMIT_TTL_S = 2.0


def hold(case: Case, requests: list[Arrivals]) -> Iterator[Violation]:
    for limit in case.records.of(Limit):
        kind, _, name = limit.scope.partition(":")
        if kind == "domain":
            inside = _to_mailboxes_of(case, name)
        else:
            inside = [request for request in requests if _in_scope(case, request, kind, name)]
        inside.sort(key=lambda request: request.at)
        where = f"{limit.scope} {limit.name}"
        if limit.kind == "rate":
            yield from _rate_holds(where, inside, limit.per_s or 0.0, limit.burst or 0)
        elif limit.kind == "cap":
            yield from _cap_holds(where, inside, _most(limit), limit.window_s or 0.0)


def _in_scope(case: Case, request: Arrivals, kind: str, name: str) -> bool:
    campaign = case.campaign_of(request)
    if campaign is None:
        return False
    sender = request.sender or campaign.sender
    return (kind == "lane" and campaign.priority == name) or (kind in ("sender", "warmup") and sender == name)


def _to_mailboxes_of(case: Case, group: str) -> list[Arrivals]:
    """The letters whose recipients have their mailbox with the group, by the settings in the store."""
    settings = [json.loads(row.value) for row in case.records.of(Setting) if row.kind == "domain"]
    groups = DomainGroups({setting["name"]: setting["domains"] for setting in settings})
    found = []
    for letter in case.letters:
        place = case.place_of.get(letter.message_id)
        if place is None or letter.attempt_id in case.late_requests:
            continue
        if groups.of(case.recipient[place].email) == group:
            found.append(Arrivals(letter.campaign_id, letter.at, 1))
    return found


def _most(limit: Limit) -> Callable[[datetime], float]:
    """How many a window of the cap may hold that ends at a moment."""
    plan = json.loads(limit.plan) if limit.plan else None
    start = limit.starts_at
    if plan is None or start is None:
        return lambda at: limit.most or 0

    def most(at: datetime) -> float:
        if at < start:
            return 0
        day = (at - start) // timedelta(seconds=limit.window_s)
        return plan[day] if day < len(plan) else float("inf")

    return most


def _rate_holds(where: str, requests: Sequence[Arrivals], per_s: float, burst: int) -> Iterator[Violation]:
    """Each end of a window that holds too many counts once.

    With S the running sum, the window from i to j holds too many if (S_j - rate x t_j) - (S_before_i - rate x t_i) is
    more than burst + rate x permit time: for each j only the least second term matters.
    """
    if not requests:
        return
    allowed = burst + per_s * (PERMIT_TTL_S + CLOCK_GRAIN.total_seconds())
    start = requests[0].at
    running = 0
    least, least_at = float("inf"), start
    for request in requests:
        since_s = (request.at - start).total_seconds()
        if running - per_s * since_s < least:
            least, least_at = running - per_s * since_s, request.at
        running += request.n
        over = running - per_s * since_s - least - allowed
        if over > 1e-6:
            yield Violation(
                "I7",
                where,
                f"{over:.1f} too many arrived from {least_at.isoformat()} to {request.at.isoformat()}, at "
                f"{per_s:g}/s and burst {burst}",
                "limit_violations",
            )


def _cap_holds(
    where: str, requests: Sequence[Arrivals], most_at: Callable[[datetime], float], window_s: float
) -> Iterator[Violation]:
    """Each end of a window that holds too many counts once."""
    window = timedelta(seconds=window_s) - CLOCK_GRAIN
    first = 0
    inside = 0
    for request in requests:
        inside += request.n
        while requests[first].at <= request.at - window:
            inside -= requests[first].n
            first += 1
        most = most_at(request.at)
        if inside > most:
            yield Violation(
                "I7",
                where,
                f"{inside} arrived from {requests[first].at.isoformat()} to {request.at.isoformat()}, of at most "
                f"{most} in {window_s:g} s",
                "limit_violations",
            )
