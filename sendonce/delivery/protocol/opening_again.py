"""Reopen: recipients who were refused are open once more."""

from collections.abc import Callable, Mapping
from datetime import datetime

from schemas.ordinals import pack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Decision, OutboundMessage
from sendonce.control.rounds import RETRY, opened_reason
from sendonce.delivery import batches
from sendonce.stores.base import Tx


def reopen(
    tx: Tx,
    found: Batch,
    refused: Mapping[int, Outcome],
    names: Mapping[int, str],
    round_no: int,
    by: str,
    due_at: datetime,
    decision_id: Callable[[Outcome], str],
) -> Batch:
    """Open refused recipients of a batch that nobody owns and in which nothing is in flight: a retry.

    refused: what each is on record with; a decision row for each of these outcomes is written with it. names: their
    message ids; their messages are final no more, so those rows go. Whether they are worth it, and may not have been
    reached by any request, is the caller's to know (`reopening`).
    """
    if found.state not in (batches.DONE, batches.PENDING):
        raise AssertionError(f"batch {found.campaign_id}/{found.batch_no} is {found.state}: not to be opened again")
    now = tx.now()
    after = batches.reopened(found, refused, round_no, due_at)
    for outcome in sorted(set(refused.values())):
        ordinals = [ordinal for ordinal, was in refused.items() if was == outcome]
        tx.insert(
            Decision(
                decision_id(outcome), found.campaign_id, RETRY, now, by, batch_no=found.batch_no,
                ordinals=pack(ordinals), reason=opened_reason(round_no, outcome),
            )
        )  # fmt: skip
    gone = [
        OutboundMessage(names[ordinal], found.campaign_id, found.batch_no, ordinal, int(outcome), now)
        for ordinal, outcome in refused.items()
    ]
    tx.delete(*gone)
    tx.put(after)
    return after
