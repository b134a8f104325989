"""Expire, ask again, settle, hold: requests of which nobody knows whether they arrived."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from schemas.ordinals import pack, unpack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Decision
from sendonce.delivery import batches
from sendonce.delivery.rows import names_of, write_rows
from sendonce.delivery.terms import Terms, batch_key
from sendonce.stores.base import Tx

# Why a doubt can't be settled by asking again: its bytes can't be made again, or no limit would ever pass it.
PAYLOAD_CHANGED, OVER_LIMIT = "payload_changed", "over_limit"


def expire(tx: Tx, campaign_id: str, batch_no: int) -> Batch | None:
    """A batch whose lease is over by store time: its open intent is in doubt, never "not sent". None: it is not so."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    now = tx.now()
    if found is None or found.state != batches.SENDING or not lease_is_over(found, now):
        return None
    if found.attempt_id is None:
        after = replace(batches.waiting(found, now, None), token=found.token + 1)
    else:
        after = batches.doubtful(found, unpack(found.intent_ordinals or b""), now)
    tx.put(after)
    return after


def lease_is_over(batch: Batch, now: datetime) -> bool:
    if batch.heartbeat_at is None or batch.lease_s is None:
        return True
    return batch.heartbeat_at + timedelta(seconds=batch.lease_s) < now


def may_ask_again(batch: Batch, terms: Terms, now: datetime) -> bool:
    """Whether a batch in doubt can be settled by its own request, sent once more under the same key.

    The provider must take the same key once, and its window must still be open when the repeat arrives. A payload
    that could not be made again byte for byte rules it out for good. terms: the lane's own.
    """
    asked = terms.of(batch.provider)
    if asked is None:  # the lane sends by other accounts, or to other places, now
        return False
    if asked.asks_again_s is None or batch.intent_at is None or batch.wait_reason in (PAYLOAD_CHANGED, OVER_LIMIT):
        return False
    return (now - batch.intent_at).total_seconds() + asked.times.longest_call_s < asked.asks_again_s


def skip_rung(tx: Tx, campaign_id: str, batch_no: int) -> None:
    """Note that the bytes of a request in doubt can't be made again: the resolver takes the next rung."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is not None and found.state == batches.IN_DOUBT:
        tx.put(replace(found, wait_reason=PAYLOAD_CHANGED, visible_at=None))


def settle(
    tx: Tx,
    key: bytes,
    campaign_id: str,
    batch_no: int,
    outcomes: Mapping[int, Outcome],
    outbound_log: str,
    decision: Decision | None,
) -> Batch | None:
    """End a doubt: by proof (`decision` is None), or by a decision, which is a row before anything acts on it.

    outcomes: what each ordinal in doubt becomes: ACCEPTED, ASSUMED, a refusal, or OPEN (it will be sent again).
    Ordinals that are no longer in doubt are left alone. None: the batch is neither in doubt nor held.
    """
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or found.state not in (batches.IN_DOUBT, batches.HELD):
        return None
    now = tx.now()
    changes = {o: outcome for o, outcome in outcomes.items() if found.outcomes[o] == Outcome.IN_DOUBT}
    names = names_of(tx, key, found)
    after = batches.apply(found, changes)
    if after.n_in_doubt:
        after = replace(after, due_at=now, visible_at=None)
    elif after.n_open:
        after = batches.waiting(after, now, None)
    else:
        after = batches.finished(after, now)
    if decision is not None:
        tx.insert(replace(decision, attempt_id=found.attempt_id, ordinals=pack(changes), at=now))
    write_rows(tx, outbound_log, found, after, names, None, now)
    tx.put(replace(after, token=found.token + 1))
    return after


def hold(tx: Tx, campaign_id: str, batch_no: int, decision: Decision) -> Batch | None:
    """Leave a doubt to a person: nothing but `doubts resend` or `doubts assume` moves the batch from here."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or found.state != batches.IN_DOUBT:
        return None
    after = replace(found, state=batches.HELD, open_state=batches.HELD, visible_at=None)
    doubted = batches.with_outcome(found, Outcome.IN_DOUBT)
    tx.insert(replace(decision, attempt_id=found.attempt_id, ordinals=pack(doubted), at=tx.now()))
    tx.put(after)
    return after
