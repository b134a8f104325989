"""How a sender is doing, as all its lanes and processes share it: slowing down when asked to, a circuit breaker.

Both live in the store, in the transaction that writes a request's outcome, so they hold over processes and restarts.

* Throttled (429, 454, 421): nothing more is claimed until the time that the provider named, and the rates of lane and
  sender are halved; they come back by a tenth every ten seconds in which requests are accepted. Throttled again without
  an acceptance in between, the wait doubles, to 5 min. What was in flight when it came neither ends the wait nor halves
  the rates once more.
* Failing (not reached, no answer): after `FAILURES_TO_OPEN` in a row the breaker opens. Nothing is claimed for a while
  that doubles from 5 s to 5 min; then one request goes as a probe while the others wait: a repeat of one in doubt, or a
  new one to `PROBE_RECIPIENTS`. If it is accepted the breaker is closed, if not it is open again; if its owner dies,
  another probes after the lease. A failure that finds or makes the breaker open spends no try of a batch.
* Slow (no answer within the request's time, where it is waited for longer): a failure, if the lane has a fallback;
  else there is nothing better to do than to wait. A probe that is waited for keeps the others waiting.
* Halted (credentials, a full disk): until somebody mends it and starts a job.

A sender in good health has no row. The breaker bounds what a provider puts in doubt that takes requests and never
answers: at most the requests in flight in all processes and `FAILURES_TO_OPEN` - 1 more, then one letter a probe.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from schemas.outcomes import Outcome
from schemas.tables import Limit, Switch
from sendonce.delivery import retry
from sendonce.delivery.limits import slowed, sped_up
from sendonce.delivery.terms import LATE, Report, Terms
from sendonce.stores.base import Reader, Tx

FAILURES_TO_OPEN = 5
FIRST_OPEN_S = 5.0
LONGEST_OPEN_S = 300.0
# Letters in a probe: a provider that stalls for a day is probed some 300 times, and each may end in doubt.
PROBE_RECIPIENTS = 1

# Why a sender fails whose answers take longer than a request may.
SLOW = "slow_answer"

FAILING, OPEN, PROBING, THROTTLED, HALTED = "failing", "open", "probing", "throttled", "halted"
PASSING = frozenset((FAILING, OPEN, PROBING, THROTTLED))


@dataclass(frozen=True)
class Health:
    """What a report means for its sender. switch: its row from now on, None when it is well. open: spends no try."""

    switch: Switch | None
    limits: list[Limit]
    open: bool


def after_report(
    reader: Reader, terms: Terms, report: Report, scopes: Sequence[Limit], now: datetime, by: str
) -> Health:
    """The sender's health after a request. Writes nothing; `write` does."""
    scope = f"sender:{terms.sender}"
    before = reader.get(Switch, scope)
    if before is not None and before.kind not in PASSING:
        # Whoever stopped the sender by hand, or halted it meanwhile, is not overruled by what was still in flight.
        healthy = not (report.halts or report.throttled) and _was_answered(report)
        return Health(
            before, [sped_up(limit, reader.pace()) for limit in scopes] if healthy else list(scopes), open=not healthy
        )
    if report.halts:
        return Health(Switch(scope, HALTED, now, by, report.reason), list(scopes), open=True)
    if report.throttled:
        in_flight = before is not None and before.kind == THROTTLED and _lasts(before, now)
        slower = list(scopes) if in_flight else [slowed(limit, reader.pace()) for limit in scopes]
        return Health(_throttled(before, scope, report, now, by), slower, open=True)
    if _was_answered(report):
        waits = before is not None and before.kind == THROTTLED and _lasts(before, now)
        return Health(before if waits else None, [sped_up(limit, reader.pace()) for limit in scopes], open=False)
    if report.reason == LATE:
        return Health(_probe_given_up(before, report, now), list(scopes), open=False)
    switch = _failed(before, scope, report, now, by)
    return Health(switch, list(scopes), open=switch.kind in (OPEN, PROBING))


def while_waiting(
    reader: Reader, terms: Terms, attempt_id: str, now: datetime, by: str, *, late: bool
) -> Switch | None:
    """What a request whose answer is still waited for says of its sender; None: nothing new. Writes nothing.

    late: the request's own time is over, and it has not been told before.
    """
    scope = f"sender:{terms.sender}"
    before = reader.get(Switch, scope)
    if before is not None and before.kind not in PASSING:
        return None
    if late and terms.fallback is not None:
        failed = _failed(before, scope, Report(attempt_id, "unknown", {}, SLOW), now, by)
        return failed if failed != before else None
    if before is not None and before.kind == PROBING and _detail(before).get("probe") == attempt_id:
        return replace(before, until_at=now + timedelta(seconds=terms.times.lease_s))
    return None


def _was_answered(report: Report) -> bool:
    """Whether the provider took or refused somebody, or put them off for their mailbox's sake: it works."""
    outcomes = set(report.outcomes.values())
    if report.put_off and Outcome.OPEN in outcomes:
        return True
    return any(outcome is Outcome.ACCEPTED or outcome.kind == "refused" for outcome in outcomes)


def _lasts(switch: Switch, now: datetime) -> bool:
    return switch.until_at is not None and switch.until_at > now


def _throttled(before: Switch | None, scope: str, report: Report, now: datetime, by: str) -> Switch:
    """Wait as asked, longer each time that the wait was over and the first request found the provider still at it."""
    until = now + timedelta(seconds=report.wait_s or 0.0)
    reason, again = report.reason or "throttled", before is not None and before.kind == THROTTLED
    if again and before is not None and _lasts(before, now) and before.until_at is not None:
        return replace(before, until_at=max(until, before.until_at))  # it was in flight: the same throttling
    times = int(_detail(before).get("throttled", 0)) + 1 if again else 1
    until = max(until, now + timedelta(seconds=0.0 if times == 1 else retry.longest_s(times) / 2))
    since = before.since if again and before is not None else now
    return Switch(scope, THROTTLED, since, by, reason, until, _text(throttled=times))


def _failed(before: Switch | None, scope: str, report: Report, now: datetime, by: str) -> Switch:
    detail = _detail(before)
    is_open = before is not None and before.kind in (OPEN, PROBING) and _lasts(before, now)
    is_probe = before is not None and before.kind == PROBING and detail.get("probe") == report.attempt_id
    if before is not None and is_open and not is_probe:
        return before  # sent before it opened: it says nothing new, and the probe is still to be heard
    failures, times = int(detail.get("failures", 0)) + 1, int(detail.get("opened", 0))
    waiting = before if before is not None and before.kind == THROTTLED and _lasts(before, now) else None
    if failures < FAILURES_TO_OPEN:
        if waiting is not None:
            return replace(waiting, detail=_text(**{**detail, "failures": failures}))
        since = before.since if before is not None and before.kind == FAILING else now
        return Switch(scope, FAILING, since, by, report.reason, None, _text(failures=failures))
    open_s = min(LONGEST_OPEN_S, FIRST_OPEN_S * 2.0 ** min(times, 10))
    until = now + timedelta(seconds=open_s)
    if waiting is not None and waiting.until_at is not None:
        until = max(until, waiting.until_at)
    since = before.since if before is not None and times > 0 else now
    return Switch(scope, OPEN, since, by, report.reason, until, _text(failures=failures, opened=times + 1))


def _probe_given_up(before: Switch | None, report: Report, now: datetime) -> Switch | None:
    """A request that its owner dropped as late says nothing of the provider; if it was the probe, another may go."""
    if before is None or before.kind != PROBING or _detail(before).get("probe") != report.attempt_id:
        return before
    return replace(before, kind=OPEN, until_at=now)


def write(tx: Tx, terms: Terms, health: Health, before: Sequence[Limit]) -> None:
    """Write what changed: the sender's row, and the limits that were slowed or sped up."""
    if health.switch is None:
        tx.delete(Switch(f"sender:{terms.sender}", "", datetime.min, "", ""))
    else:
        tx.put(health.switch)
    tx.put(*(limit for limit, old in zip(health.limits, before, strict=True) if limit != old))


def probe(reader: Reader, terms: Terms, attempt_id: str, now: datetime, by: str) -> Switch | None:
    """The row that makes a request the breaker's probe: others wait until its lease is over. None: no probe is due.

    Asked for in the transaction that grants the request, so one of several processes gets it.
    """
    found = reader.get(Switch, f"sender:{terms.sender}")
    if found is None or found.kind not in (OPEN, PROBING):
        return None
    until, told = now + timedelta(seconds=terms.times.lease_s), {**_detail(found), "probe": attempt_id}
    return replace(found, kind=PROBING, by=by, until_at=until, detail=_text(**told))


def _detail(switch: Switch | None) -> dict[str, Any]:
    found: dict[str, Any] = orjson.loads(switch.detail) if switch is not None else {}
    return found


def _text(**detail: Any) -> str:
    return orjson.dumps(detail).decode()
