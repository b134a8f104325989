"""Cancel, end, refuse: what is open in a batch that nobody owns becomes final."""

from dataclasses import replace
from datetime import datetime

from schemas.elements import Reference
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign
from sendonce.control.expiry import is_over
from sendonce.delivery import batches
from sendonce.delivery.protocol.aside import ended
from sendonce.delivery.protocol.doubts import PAYLOAD_CHANGED
from sendonce.delivery.protocol.finished_request import maybe_reached
from sendonce.delivery.rows import names_of, write_rows
from sendonce.delivery.terms import batch_key
from sendonce.stores.base import Tx


def cancel(tx: Tx, key: bytes, campaign_id: str, batch_no: int, outbound_log: str) -> Batch | None:
    """Close what is open in a batch that nobody owns. What is being sent, in doubt or held settles first."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or not batches.closable(found):
        return None
    return _close_unowned(tx, key, found, Outcome.CANCELLED, batches.CANCELLED, outbound_log)


def end_expired(tx: Tx, key: bytes, campaign_id: str, batch_no: int, outbound_log: str) -> Batch | None:
    """Close what is open in a batch that nobody owns and whose end is past, whatever blocks its lane or sender.

    Of a batch in doubt or held only the open intent's recipients go on waiting; its others were never in a request.
    """
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    campaign = tx.get(Campaign, campaign_id)
    if found is None or campaign is None or not batches.closable(found):
        return None
    if not is_over(campaign, found, tx.now()):
        return None
    return _close_unowned(tx, key, found, Outcome.EXPIRED, batches.DONE, outbound_log)


def refuse(tx: Tx, key: bytes, reference: Reference, outcome: Outcome, detail: str, outbound_log: str) -> Batch | None:
    """End a send of which no letter can be made: whoever is open gets `outcome`, and the rest of its stream goes on.

    Of one in doubt the next rung is taken instead, as by `skip_rung`; what is open beside it ends at its next plan.
    None: the reference is stale.
    """
    found = tx.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    if found is None or found.plan_no != reference.plan_no:
        return None
    if found.state == batches.IN_DOUBT:
        after = replace(found, wait_reason=PAYLOAD_CHANGED, visible_at=None)
        tx.put(after)
        return after
    if found.state != batches.QUEUED:
        return None
    after = replace(closed(tx, found, outcome, tx.now(), batches.DONE), token=found.token + 1)
    details = dict.fromkeys(batches.open_ordinals(found), detail)
    write_rows(tx, outbound_log, found, after, names_of(tx, key, found), None, tx.now(), details)
    tx.put(after)
    return after


def _close_unowned(tx: Tx, key: bytes, found: Batch, outcome: Outcome, state: str, outbound_log: str) -> Batch:
    now = tx.now()
    names = names_of(tx, key, found)
    if found.state in (batches.IN_DOUBT, batches.HELD):
        after = batches.apply(found, _ended(tx, found, outcome))
    else:
        after = replace(closed(tx, found, outcome, now, state), token=found.token + 1)
    write_rows(tx, outbound_log, found, after, names, None, now)
    tx.put(after)
    return after


def closed(tx: Tx, batch: Batch, outcome: Outcome, now: datetime, state: str) -> Batch:
    """Everything open gets one outcome: final at once, but for doubts beside it. Without anything open it is done."""
    left = _ended(tx, batch, outcome)
    after = batches.apply(batch, left)
    return ended(tx, after, now, state if left else batches.DONE)


def _ended(tx: Tx, batch: Batch, outcome: Outcome) -> dict[int, Outcome]:
    left = dict.fromkeys(batches.open_ordinals(batch), outcome)
    return {**left, **maybe_reached(tx, batch, left)}
