"""Expire, ask again, settle, hold: requests of which nobody knows whether they arrived."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Optional, Protocol

from schemas.ordinals import pack, unpack
from schemas.outcomes import Outcome
from schemas.tables import AsideDoubt, Batch, Decision
from sendonce.delivery import batches
from sendonce.delivery.protocol.aside import ended, without_doubt
from sendonce.delivery.rows import names_of, write_rows
from sendonce.delivery.terms import Terms, batch_key
from sendonce.stores.base import Tx

PAYLOAD_CHANGED, OVER_LIMIT = batches.PAYLOAD_CHANGED, batches.OVER_LIMIT


class Intent(Protocol):
    """What a batch, and a doubt beside it, say of a request."""

    @property
    def provider(self) -> Optional[str]: ...
    @property
    def intent_at(self) -> Optional[datetime]: ...
    @property
    def wait_reason(self) -> Optional[str]: ...


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


def may_ask_again(doubt: Intent, terms: Terms, now: datetime) -> bool:
    """Whether a request in doubt can be settled by itself, sent once more under the same key.

    The provider must take the same key once, and its window must still be open when the repeat arrives. A payload
    that could not be made again byte for byte rules it out for good. terms: the lane's own.
    """
    asked = terms.of(doubt.provider)
    if asked is None:  # the lane sends by other accounts, or to other places, now
        return False
    if asked.asks_again_s is None or doubt.intent_at is None or doubt.wait_reason in (PAYLOAD_CHANGED, OVER_LIMIT):
        return False
    return (now - doubt.intent_at).total_seconds() + asked.times.longest_call_s < asked.asks_again_s


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
    attempt_id: str,
    outcomes: Mapping[int, Outcome],
    outbound_log: str,
    decision: Decision,
) -> Batch | None:
    """End a doubt, or a part of it: by proof or by a decision. Either is a row before anything acts on it.

    outcomes: what each ordinal in doubt becomes: ACCEPTED, ASSUMED, a refusal, or OPEN (it will be sent again).
    Ordinals that are no longer in doubt, or were not in that request, are left alone. None: none of them is in doubt.
    """
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None:
        return None
    mine = found.attempt_id == attempt_id and found.state in (batches.IN_DOUBT, batches.HELD)
    beside = None if mine else tx.get(AsideDoubt, found.shard, campaign_id, batch_no, attempt_id)
    if not mine and beside is None:
        return None
    now = tx.now()
    intent = set(unpack((found.intent_ordinals if beside is None else beside.ordinals) or b""))
    changes = {o: outcome for o, outcome in outcomes.items() if o in intent and found.outcomes[o] == Outcome.IN_DOUBT}
    if not changes:
        return None
    names = names_of(tx, key, found)
    after = batches.apply(found, changes)
    left = any(after.outcomes[ordinal] == Outcome.IN_DOUBT for ordinal in intent)
    if beside is not None:  # whoever owns the batch goes on; who is open again is so for the next request
        if not left:
            tx.delete(beside)
        if after.n_open and found.state in (batches.IN_DOUBT, batches.HELD):  # nor does another doubt hold them up
            after = without_doubt(tx, after, found.state)
        elif found.state != batches.SENDING:
            after = replace(after, token=found.token + 1)
    elif left:
        after = replace(after, due_at=now, visible_at=None, token=found.token + 1)
    elif after.n_open:
        after = replace(batches.waiting(after, now, None), token=found.token + 1)
    else:
        after = replace(ended(tx, after, now), token=found.token + 1)
    tx.insert(replace(decision, attempt_id=attempt_id, ordinals=pack(changes), at=now))
    # Rows say by which request somebody was reached.
    asked = found if beside is None else _with_intent_of(found, beside)
    write_rows(tx, outbound_log, asked, after, names, None, now)
    tx.put(after)
    return after


def _with_intent_of(batch: Batch, beside: AsideDoubt) -> Batch:
    return replace(batch, attempt_id=beside.attempt_id, provider=beside.provider, provider_ref=beside.provider_ref)


def hold(tx: Tx, campaign_id: str, batch_no: int, attempt_id: str, decision: Decision) -> bool:
    """Leave a doubt to a person: nothing but proof, `doubts resend` or `doubts assume` ends it from here.

    The others of its batch need not wait for that: it goes beside the batch at once.
    """
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None:
        return False
    held: Batch | AsideDoubt | None
    if found.attempt_id == attempt_id and found.state == batches.IN_DOUBT:
        intent = found.intent_ordinals or b""
        if found.n_open:
            held = without_doubt(tx, found, batches.HELD)
        else:
            held = replace(found, state=batches.HELD, open_state=batches.HELD, visible_at=None)
    else:
        beside = tx.get(AsideDoubt, found.shard, campaign_id, batch_no, attempt_id)
        if beside is None or beside.state != batches.IN_DOUBT:
            return False
        intent, held = beside.ordinals, replace(beside, state=batches.HELD)
    doubted = [ordinal for ordinal in unpack(intent) if found.outcomes[ordinal] == Outcome.IN_DOUBT]
    tx.insert(replace(decision, attempt_id=attempt_id, ordinals=pack(doubted), at=tx.now()))
    tx.put(held)
    return True
