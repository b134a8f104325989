"""How a sender is doing, as all its lanes and processes share it: slowing down when asked to, a circuit breaker.

Both live in the store, in the transaction that writes a request's outcome, so they hold over processes and restarts.

* Throttled (429, 454, 421): nothing more is claimed until the time that the provider named, and the rates of lane and
  sender are halved; they come back by a tenth every ten seconds in which requests are accepted.
* Failing (not reached, no answer): after `FAILURES_TO_OPEN` in a row the breaker opens. Nothing is claimed for a while
  that doubles from 5 s to 5 min; then one request goes as a probe while the others wait. If it is accepted the breaker
  is closed, if not it is open again. A failure that finds or makes the breaker open spends no try of a batch.
* Halted (credentials, a full disk): until somebody mends it and starts a job.

A sender in good health has no row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import orjson

from schemas.outcomes import Outcome
from schemas.tables import Limit, Switch
from sendonce.delivery.limits import slowed, sped_up
from sendonce.delivery.terms import LATE, Report, Terms
from sendonce.stores.base import Reader, Tx

FAILURES_TO_OPEN = 5
FIRST_OPEN_S = 5.0
LONGEST_OPEN_S = 300.0

FAILING, OPEN, PROBING, THROTTLED, HALTED = "failing", "open", "probing", "throttled", "halted"


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
    if report.halts:
        return Health(Switch(scope, HALTED, now, by, report.reason), list(scopes), open=True)
    if report.throttled:
        until = now + timedelta(seconds=report.wait_s or 0.0)
        if before is not None and before.kind == THROTTLED and before.until_at is not None:
            until = max(until, before.until_at)
        slow = [slowed(limit, reader.pace()) for limit in scopes]
        return Health(Switch(scope, THROTTLED, now, by, report.reason or "throttled", until), slow, open=True)
    if any(outcome in (Outcome.ACCEPTED,) or outcome.kind == "refused" for outcome in report.outcomes.values()):
        # Whoever stopped the sender by hand, or halted it meanwhile, is not overruled by one that still went out.
        keep = before if before is not None and before.kind not in (FAILING, OPEN, PROBING, THROTTLED) else None
        return Health(keep, [sped_up(limit, reader.pace()) for limit in scopes], open=False)
    if report.reason == LATE:
        return Health(before, list(scopes), open=False)
    return _failed(before, scope, report, scopes, now, by)


def _failed(
    before: Switch | None, scope: str, report: Report, scopes: Sequence[Limit], now: datetime, by: str
) -> Health:
    if before is not None and before.kind not in (FAILING, OPEN, PROBING, THROTTLED):
        return Health(before, list(scopes), open=True)
    detail: dict[str, Any] = orjson.loads(before.detail) if before is not None else {}
    failures = int(detail.get("failures", 0)) + 1
    if failures < FAILURES_TO_OPEN:
        told = orjson.dumps({"failures": failures}).decode()
        return Health(Switch(scope, FAILING, now, by, report.reason, None, told), list(scopes), open=False)
    if before is not None and before.kind == OPEN and before.until_at is not None and before.until_at > now:
        return Health(before, list(scopes), open=True)  # sent before it opened; it has been counted
    times = int(detail.get("opened", 0)) + 1
    open_s = min(LONGEST_OPEN_S, FIRST_OPEN_S * 2.0 ** min(times - 1, 10))
    told = orjson.dumps({"failures": failures, "opened": times}).decode()
    since = before.since if before is not None and times > 1 else now
    switch = Switch(scope, OPEN, since, by, report.reason, now + timedelta(seconds=open_s), told)
    return Health(switch, list(scopes), open=True)


def write(tx: Tx, terms: Terms, health: Health, before: Sequence[Limit]) -> None:
    """Write what changed: the sender's row, and the limits that were slowed or sped up."""
    if health.switch is None:
        tx.delete(Switch(f"sender:{terms.sender}", "", datetime.min, "", ""))
    else:
        tx.put(health.switch)
    tx.put(*(limit for limit, old in zip(health.limits, before, strict=True) if limit != old))


def probe(reader: Reader, terms: Terms, now: datetime, for_s: float, by: str) -> Switch | None:
    """The row that makes the next request the breaker's probe: others wait until it must be over. None: no probe."""
    found = reader.get(Switch, f"sender:{terms.sender}")
    if found is None or found.kind not in (OPEN, PROBING):
        return None
    return replace(found, kind=PROBING, by=by, until_at=now + timedelta(seconds=for_s))
