"""Set aside, end: a request in doubt keeps nobody waiting but those who were in it."""

from dataclasses import replace
from datetime import datetime

from schemas.ordinals import pack, unpack
from schemas.outcomes import Outcome
from schemas.tables import AsideDoubt, Batch
from sendonce.delivery import batches
from sendonce.delivery.terms import batch_key
from sendonce.stores.base import Reader, Tx


def set_aside(tx: Tx, campaign_id: str, batch_no: int) -> Batch | None:
    """Put a batch's doubt beside it, so that its open recipients are due. None: it has none, or nobody else is open."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or found.state not in (batches.IN_DOUBT, batches.HELD) or not found.n_open:
        return None
    after = without_doubt(tx, found, found.state)
    tx.put(after)
    return after


def without_doubt(tx: Tx, batch: Batch, state: str) -> Batch:
    """The batch without the doubt that it has, which is written beside it in `state`; its open recipients are due."""
    now = tx.now()
    # Others of the request may be in doubt by a later one before this doubt has ended: it must not speak for them.
    intent = unpack(batch.intent_ordinals or b"")
    doubted = [ordinal for ordinal in intent if batch.outcomes[ordinal] == Outcome.IN_DOUBT]
    tx.insert(
        AsideDoubt(
            batch.shard,
            batch.campaign_id,
            batch.batch_no,
            attempt_id=batch.attempt_id or "",
            state=state,
            ordinals=pack(doubted),
            payload_hash=batch.payload_hash or "",
            provider=batch.provider or "",
            intent_at=batch.intent_at or now,
            permit_at=batch.permit_at or batch.intent_at or now,
            doubt_since=batch.doubt_since or now,
            provider_ref=batch.provider_ref,
            wait_reason=batch.wait_reason if doubted == intent else batches.PAYLOAD_CHANGED,
        )
    )
    return replace(batches.waiting(batch, now, None), token=batch.token + 1, plan_no=batch.plan_no + 1)


def ended(tx: Tx, batch: Batch, now: datetime, state: str = batches.DONE) -> Batch:
    """A batch in which nobody is open: final, or in doubt by the next of its requests that were set aside."""
    if not batch.n_in_doubt:
        return batches.finished(batch, now, state)
    beside = aside_of(tx, batch)
    if not beside:
        raise AssertionError(f"batch {batch.campaign_id}/{batch.batch_no}: in doubt, and by no request")
    doubt = beside[0]
    tx.delete(doubt)
    return replace(
        batch,
        state=doubt.state,
        open_state=doubt.state,
        token=batch.token + 1,
        plan_no=batch.plan_no + 1,
        due_at=now,
        visible_at=None,
        worker_id=None,
        lease_s=None,
        wait_reason=doubt.wait_reason,
        attempt_id=doubt.attempt_id,
        intent_at=doubt.intent_at,
        intent_ordinals=doubt.ordinals,
        payload_hash=doubt.payload_hash,
        provider=doubt.provider,
        provider_ref=doubt.provider_ref,
        permit_at=doubt.permit_at,
        doubt_since=doubt.doubt_since,
    )


def aside_of(reader: Reader, batch: Batch) -> list[AsideDoubt]:
    """The doubts beside a batch, oldest first: attempt ids rise with time."""
    return reader.scan(AsideDoubt, batch.shard, batch.campaign_id, batch.batch_no)
