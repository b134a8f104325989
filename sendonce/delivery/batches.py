"""What happens to a batch's row: pure functions from one row to the next.

The outcome bytes are the truth; the counts always equal their tally. Nothing here reads or writes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from schemas.outcomes import Outcome, tally
from schemas.tables import COMMIT_TIME, Batch

# Batch states. `open_state` repeats a state that is not final.
PENDING, QUEUED, SENDING, IN_DOUBT, HELD = "pending", "queued", "sending", "in_doubt", "held"
DONE, CANCELLED = "done", "cancelled"
FINAL = frozenset((DONE, CANCELLED))

# What a batch waits for whose open recipients all have their mailboxes with one group: `domain:GROUP`, its scope.
DOMAIN = "domain:"
# Why a doubt can't be settled by asking again: its bytes can't be made again, or no limit would ever pass it.
PAYLOAD_CHANGED, OVER_LIMIT = "payload_changed", "over_limit"

NO_INTENT: dict[str, Any] = {
    "attempt_id": None,
    "intent_at": None,
    "intent_ordinals": None,
    "payload_hash": None,
    "provider": None,
    "provider_ref": None,
    "doubt_since": None,
    "permit_at": None,
}


class FinalOutcome(Exception):
    """Somebody tried to change a final outcome (invariant I10). The transaction must not commit."""


def open_ordinals(batch: Batch) -> list[int]:
    """The ordinals without a final outcome and not in doubt, rising."""
    return with_outcome(batch, Outcome.OPEN)


def closable(batch: Batch) -> bool:
    """Whether a batch that nobody owns has open recipients: all, or those beside an intent in doubt."""
    return batch.state in (PENDING, QUEUED) or (batch.state in (IN_DOUBT, HELD) and batch.n_open > 0)


def waits_for_limit(batch: Batch) -> bool:
    """Whether a limit sent a batch away: its due time is what the limit said then, and may come earlier since."""
    return batch.wait_reason == "limit" or (batch.wait_reason or "").startswith(DOMAIN)


def with_outcome(batch: Batch, outcome: Outcome) -> list[int]:
    return [ordinal for ordinal, code in enumerate(batch.outcomes) if code == outcome]


def apply(batch: Batch, changes: Mapping[int, Outcome]) -> Batch:
    """The batch with new outcomes and counts. The same final outcome again is no change; another is FinalOutcome."""
    if not changes:
        return batch
    outcomes = bytearray(batch.outcomes)
    in_doubt = int(Outcome.IN_DOUBT)
    for ordinal, outcome in changes.items():
        before = outcomes[ordinal]
        if before > in_doubt and before != outcome:
            raise FinalOutcome(
                f"batch {batch.campaign_id}/{batch.batch_no} ordinal {ordinal} is {Outcome(before).name.lower()}, "
                f"not to be made {outcome.name.lower()}"
            )
        outcomes[ordinal] = outcome
    return recount(replace(batch, outcomes=bytes(outcomes)))


def recount(batch: Batch) -> Batch:
    counts: dict[str, Any] = {f"n_{kind}": count for kind, count in tally(batch.outcomes).items()}
    return replace(batch, **counts)


def newly_final(before: Batch, after: Batch) -> dict[int, Outcome]:
    """The ordinals that became final between two rows of the same batch."""
    named = {code: Outcome(code) for code in set(after.outcomes)}
    in_doubt = int(Outcome.IN_DOUBT)
    return {
        ordinal: named[new]
        for ordinal, (old, new) in enumerate(zip(before.outcomes, after.outcomes, strict=True))
        if old != new and new > in_doubt
    }


def queued(batch: Batch, visible_at: datetime) -> Batch:
    """Planned: a new plan number makes every older reference worthless."""
    return replace(
        batch, state=QUEUED, open_state=QUEUED, plan_no=batch.plan_no + 1, visible_at=visible_at, wait_reason=None
    )


def owned(batch: Batch, worker_id: str) -> Batch:
    """Taken by a worker: the new token fences every earlier owner."""
    return replace(
        batch, state=SENDING, open_state=SENDING, token=batch.token + 1, worker_id=worker_id, claimed_at=COMMIT_TIME
    )


def waiting(batch: Batch, due_at: datetime, reason: str | None) -> Batch:
    """Back to the store, nothing in flight: pending until `due_at`."""
    return replace(
        batch,
        state=PENDING,
        open_state=PENDING,
        due_at=due_at,
        visible_at=None,
        wait_reason=reason,
        worker_id=None,
        lease_s=None,
        **NO_INTENT,
    )


def finished(batch: Batch, now: datetime, state: str = DONE) -> Batch:
    """Final: no ordinal is open or in doubt."""
    return replace(
        batch,
        state=state,
        open_state=None,
        visible_at=None,
        wait_reason=None,
        worker_id=None,
        lease_s=None,
        finished_at=now,
        **NO_INTENT,
    )


def reopened(batch: Batch, ordinals: Iterable[int], round_no: int, due_at: datetime) -> Batch:
    """Open again, as part of a retry's round. FinalOutcome unless each ordinal is refused: only those got no letter.

    A batch that was done, or of which the same round opened a part just before, is due at `due_at`. Another that waits
    goes on waiting, unless it waits for a mailbox group: the others of it need not.
    """
    outcomes = bytearray(batch.outcomes)
    for ordinal in ordinals:
        before = Outcome(outcomes[ordinal])
        if before.kind != "refused":
            raise FinalOutcome(
                f"batch {batch.campaign_id}/{batch.batch_no} ordinal {ordinal} is {before.name.lower()}, "
                "not refused, so it is not to be opened again"
            )
        outcomes[ordinal] = Outcome.OPEN
    opened = recount(replace(batch, outcomes=bytes(outcomes), round=max(batch.round, round_no)))
    waits = batch.state == PENDING and batch.round != round_no
    if waits and not (batch.wait_reason or "").startswith(DOMAIN):
        return opened
    return replace(waiting(opened, due_at, None), tries=0, finished_at=None)


def doubtful(batch: Batch, ordinals: Iterable[int], now: datetime) -> Batch:
    """In doubt: the open intent's ordinals may have been accepted.

    The new token fences whoever owned it, and the new plan number makes every reference worthless that is still under
    way: nothing but a plan made for the doubt may touch it.
    """
    marked = apply(
        batch, {ordinal: Outcome.IN_DOUBT for ordinal in ordinals if batch.outcomes[ordinal] == Outcome.OPEN}
    )
    return replace(
        marked,
        state=IN_DOUBT,
        open_state=IN_DOUBT,
        token=batch.token + 1,
        plan_no=batch.plan_no + 1,
        due_at=now,
        visible_at=None,
        worker_id=None,
        lease_s=None,
        doubt_since=now,
    )
