"""Plan, postpone, keep, release: batches that wait, and the references under which they travel."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from schemas.elements import Reference
from schemas.tables import Batch
from sendonce.delivery import batches
from sendonce.delivery.protocol.doubts import may_ask_again
from sendonce.delivery.terms import Terms, batch_key
from sendonce.stores.base import Tx


def plan(tx: Tx, terms: Terms, campaign_id: str, batch_nos: Iterable[int]) -> list[Reference]:
    """Mark batches as queued and give a reference for each that still was due; the others are left as they are."""
    now = tx.now()
    visible_at = now + timedelta(seconds=terms.times.visibility_s)
    references = []
    keys = [batch_key(campaign_id, batch_no) for batch_no in batch_nos]
    found = {batch.batch_no: batch for batch in tx.get_many(Batch, keys)}
    for _, _, batch_no in keys:
        batch = found.get(batch_no)
        if batch is None or not _plannable(batch, terms, now):
            continue
        if batch.state == batches.IN_DOUBT:
            planned = replace(batch, plan_no=batch.plan_no + 1, visible_at=visible_at)
        else:
            planned = batches.queued(batch, visible_at)
        tx.put(planned)
        references.append(Reference(campaign_id, batch_no, planned.plan_no, terms.lane))
    return references


def postpone(tx: Tx, campaign_id: str, batch_no: int, seen_due_at: datetime, due_at: datetime) -> bool:
    """Let a batch that waits for a mailbox group's limit wait until `due_at`. False: it is not as it was seen."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or found.state != batches.PENDING or found.due_at != seen_due_at:
        return False
    tx.put(replace(found, due_at=due_at))
    return True


def keep(tx: Tx, references: Sequence[Reference], visibility_s: float) -> list[Reference]:
    """Keep queued batches invisible for longer: their references are not lost, only slow. Without the stale ones."""
    keys = [batch_key(reference.campaign_id, reference.batch_no) for reference in references]
    found = {(batch.campaign_id, batch.batch_no): batch for batch in tx.get_many(Batch, keys)}
    visible_at = tx.now() + timedelta(seconds=visibility_s)
    alive = []
    for reference in references:
        batch = found.get((reference.campaign_id, reference.batch_no))
        if batch is None or batch.plan_no != reference.plan_no:
            continue
        if batch.state in (batches.QUEUED, batches.IN_DOUBT):
            tx.put(replace(batch, visible_at=visible_at))
            alive.append(reference)
    return alive


def release(tx: Tx, reference: Reference, due_at: datetime) -> bool:
    """Give a queued batch back to the store before anybody claimed it; False when the reference is stale."""
    found = tx.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    if found is None or found.state != batches.QUEUED or found.plan_no != reference.plan_no:
        return False
    tx.put(batches.waiting(found, due_at, found.wait_reason))
    return True


def _plannable(batch: Batch, terms: Terms, now: datetime) -> bool:
    if batch.state == batches.PENDING:
        return batch.due_at <= now or batches.waits_for_limit(batch)
    if batch.state == batches.QUEUED:
        return batch.visible_at is not None and batch.visible_at <= now
    if batch.state == batches.IN_DOUBT:
        unseen = batch.visible_at is None or batch.visible_at <= now
        return unseen and batch.due_at <= now and may_ask_again(batch, terms, now)
    return False
