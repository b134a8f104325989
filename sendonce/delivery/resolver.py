"""Settling doubt, strongest proof first.

1. Ask again under the same key, at a provider that de-duplicates: planned like work (`planner`, `owning.reclaim`).
2. Evidence: a verdict that an owner learned after it was fenced, kept as an attempt's row; or a delivery event that
   carries the attempt's id, which proves the whole request accepted.
3. The lane's policy: `hold` for a person at once; `assume` after 24 hours; `resend` once, after a quiet window.
   Every decision is a row, written in the transaction that acts on it.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Attempt, Batch, Decision, DeliveryEvent
from sendonce.delivery import batches
from sendonce.delivery.protocol import doubts
from sendonce.delivery.terms import Terms
from sendonce.stores.base import Reader, Store, Tx

ASSUME_AFTER = timedelta(hours=24)
RESEND_AFTER = timedelta(minutes=15)


@dataclass(frozen=True)
class Policy:
    """What a lane does with a doubt that no proof settles. by: who is written under its decisions."""

    in_doubt: str
    outbound_log: str
    by: str = "policy"


def settle_doubt(store: Store, key: bytes, batch: Batch, terms: Terms, policy: Policy, decision_id: str) -> str:
    """Take the strongest rung that a batch in doubt allows now; returns which (empty: it stays in doubt).

    `evidence`: by proof. `hold`, `assume`, `resend`: by the lane's policy. Safe to run at several places at once: the
    step that comes second finds the batch settled.
    """
    proof = store.read(lambda reader: evidence_of(reader, batch))
    if proof:
        after = store.transact(
            lambda tx: doubts.settle(
                tx, key, batch.campaign_id, batch.batch_no, proof, policy.outbound_log, decision=None
            ),
            tag="settle",
        )
        return "evidence" if after is not None else ""
    if doubts.may_ask_again(batch, terms, store.read(lambda reader: reader.now())):
        return ""
    return _by_policy(store, key, batch, policy, decision_id)


def evidence_of(reader: Reader, batch: Batch) -> dict[int, Outcome]:
    """What is proven about the ordinals of a batch's intent: only final outcomes, and only what somebody saw."""
    if batch.attempt_id is None:
        return {}
    intent = unpack(batch.intent_ordinals or b"")
    if reader.scan(DeliveryEvent, batch.attempt_id, index="events_by_attempt", limit=1):
        return dict.fromkeys(intent, Outcome.ACCEPTED)
    attempt = reader.get(Attempt, batch.shard, batch.campaign_id, batch.batch_no, batch.attempt_id)
    if attempt is None or not attempt.evidence or attempt.outcomes is None:
        return {}
    seen = dict(zip(unpack(attempt.ordinals), (Outcome(code) for code in attempt.outcomes), strict=True))
    # One acceptance is proof whatever else was said. A refusal is proof only if it answered the only call: of two calls
    # under one key the other may have been accepted.
    repeated = batch.permit_at is not None and batch.permit_at != batch.intent_at
    return {
        ordinal: seen[ordinal]
        for ordinal in intent
        if ordinal in seen and (seen[ordinal] is Outcome.ACCEPTED or (seen[ordinal].final and not repeated))
    }


def _by_policy(store: Store, key: bytes, batch: Batch, policy: Policy, decision_id: str) -> str:
    now = store.read(lambda reader: reader.now())
    since = batch.doubt_since or now
    if policy.in_doubt == "assume":
        if now - since < ASSUME_AFTER:
            return ""
        return decide(store, key, batch, "assume", policy.by, "no proof within 24 h", policy.outbound_log, decision_id)
    if policy.in_doubt == "resend" and batch.round == 0:
        if now - since < RESEND_AFTER:
            return ""
        return decide(store, key, batch, "resend", policy.by, "lane policy", policy.outbound_log, decision_id)
    return decide(store, key, batch, "hold", policy.by, "left to a person", policy.outbound_log, decision_id)


def decide(
    store: Store,
    key: bytes,
    batch: Batch,
    kind: str,
    by: str,
    reason: str,
    outbound_log: str,
    decision_id: str,
) -> str:
    """Carry out a decision about a doubt: `assume`, `resend` or `hold`. Empty if the doubt was settled meanwhile.

    assume: the recipients in doubt become `assumed`, never counted as accepted. resend: they are open again, and a
    second letter may reach those who already got one. hold: nothing moves until a person decides.
    """
    decision = Decision(
        decision_id, batch.campaign_id, kind, datetime.min, by, batch_no=batch.batch_no, reason=reason or None
    )

    def work(tx: Tx) -> Batch | None:
        if kind == "hold":
            return doubts.hold(tx, batch.campaign_id, batch.batch_no, decision)
        found = tx.get(Batch, batch.shard, batch.campaign_id, batch.batch_no)
        doubted = batches.with_outcome(found, Outcome.IN_DOUBT) if found is not None else []
        outcome = Outcome.ASSUMED if kind == "assume" else Outcome.OPEN
        return doubts.settle(
            tx, key, batch.campaign_id, batch.batch_no, dict.fromkeys(doubted, outcome), outbound_log, decision
        )

    after = store.transact(work, tag=f"decide_{kind}")
    return kind if after is not None else ""
