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
from schemas.tables import Attempt, Decision, DeliveryEvent
from sendonce.control.doubts import Doubt
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


def settle_doubt(store: Store, key: bytes, doubt: Doubt, terms: Terms, policy: Policy, decision_id: str) -> str:
    """Take the strongest rung that a doubt allows now; returns which (empty: it stays in doubt).

    `evidence`: by proof. `hold`, `assume`, `resend`: by the lane's policy. One that is held takes no rung but proof.
    Safe to run at several places at once: the step that comes second finds the doubt settled.
    """
    proof = store.read(lambda reader: evidence_of(reader, doubt))
    if proof:
        after = store.transact(
            lambda tx: doubts.settle(
                tx, key, doubt.campaign_id, doubt.batch_no, doubt.attempt_id, proof, policy.outbound_log, decision=None
            ),
            tag="settle",
        )
        return "evidence" if after is not None else ""
    if doubt.held or doubts.may_ask_again(doubt, terms, store.read(lambda reader: reader.now())):
        return ""
    return _by_policy(store, key, doubt, policy, decision_id)


def evidence_of(reader: Reader, doubt: Doubt) -> dict[int, Outcome]:
    """What is proven about those in doubt by a request: only final outcomes, and only what somebody saw."""
    if reader.scan(DeliveryEvent, doubt.attempt_id, index="events_by_attempt", limit=1):
        return dict.fromkeys(doubt.ordinals, Outcome.ACCEPTED)
    attempt = reader.get(Attempt, doubt.shard, doubt.campaign_id, doubt.batch_no, doubt.attempt_id)
    if attempt is None or not attempt.evidence or attempt.outcomes is None:
        return {}
    seen = dict(zip(unpack(attempt.ordinals), (Outcome(code) for code in attempt.outcomes), strict=True))
    # One acceptance is proof whatever else was said. A refusal is proof only if it answered the only call: of two calls
    # under one key the other may have been accepted.
    repeated = doubt.permit_at is not None and doubt.permit_at != doubt.intent_at
    return {
        ordinal: seen[ordinal]
        for ordinal in doubt.ordinals
        if ordinal in seen and (seen[ordinal] is Outcome.ACCEPTED or (seen[ordinal].final and not repeated))
    }


def _by_policy(store: Store, key: bytes, doubt: Doubt, policy: Policy, decision_id: str) -> str:
    now = store.read(lambda reader: reader.now())
    since = doubt.since or now

    def carry_out(kind: str, reason: str) -> str:
        return decide(store, key, doubt, kind, policy.by, reason, policy.outbound_log, decision_id)

    if policy.in_doubt == "assume":
        return carry_out("assume", "no proof within 24 h") if now - since >= ASSUME_AFTER else ""
    if policy.in_doubt == "resend" and doubt.round == 0 and not store.read(lambda reader: resent(reader, doubt)):
        return carry_out("resend", "lane policy") if now - since >= RESEND_AFTER else ""
    return carry_out("hold", "left to a person")


def resent(reader: Reader, doubt: Doubt) -> bool:
    """Whether somebody in doubt was sent to again before, by whoever's decision: a lane does so once for each."""
    return any(
        row.kind == "resend"
        and row.batch_no == doubt.batch_no
        and set(unpack(row.ordinals or b"")) & set(doubt.ordinals)
        for row in reader.scan(Decision, doubt.campaign_id, index="decisions_by_campaign")
    )


def decide(
    store: Store, key: bytes, doubt: Doubt, kind: str, by: str, reason: str, outbound_log: str, decision_id: str
) -> str:
    """Carry out a decision about a doubt: `assume`, `resend` or `hold`. Empty if the doubt was settled meanwhile.

    assume: the recipients in doubt become `assumed`, never counted as accepted. resend: they are open again, and a
    second letter may reach those who already got one. hold: nothing moves until a person decides.
    """
    decision = Decision(
        decision_id, doubt.campaign_id, kind, datetime.min, by, batch_no=doubt.batch_no, reason=reason or None
    )
    place = (doubt.campaign_id, doubt.batch_no, doubt.attempt_id)
    outcomes = dict.fromkeys(doubt.ordinals, Outcome.ASSUMED if kind == "assume" else Outcome.OPEN)

    def work(tx: Tx) -> bool:
        if kind == "hold":
            return doubts.hold(tx, *place, decision)
        return doubts.settle(tx, key, *place, outcomes, outbound_log, decision) is not None

    return kind if store.transact(work, tag=f"decide_{kind}") else ""
