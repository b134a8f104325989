"""Settling doubt, strongest proof first.

1. Ask again under the same key, at a provider that de-duplicates: planned like work (`planner`, `owning.reclaim`).
2. Evidence: a verdict that an owner learned after it was fenced, kept as an attempt's row; or a delivery event that
   carries the attempt's id. It proves its own letter accepted, and the whole request if that was one call which the
   provider takes whole or not at all (decision 0035).
3. The lane's policy: `hold` for a person at once; `assume` after 24 hours; `resend` once, after a quiet window.

What ends a doubt is a row, written in the transaction that acts on it: proof too.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from schemas.ids import message_id
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Attempt, Decision, DeliveryEvent, Recipient
from sendonce.control.doubts import EVIDENCE, POLICY, Doubt
from sendonce.control.events import proves_all
from sendonce.delivery.protocol import doubts
from sendonce.delivery.terms import Terms
from sendonce.stores.base import Reader, Store, Tx

# Who is written under what proof settled.
PROVIDER = "provider"
ASSUME_AFTER = timedelta(hours=24)
RESEND_AFTER = timedelta(minutes=15)


@dataclass(frozen=True)
class Policy:
    """What a lane does with a doubt that no proof settles. by: who is written under its decisions."""

    in_doubt: str
    outbound_log: str
    by: str = POLICY


def settle_doubt(store: Store, key: bytes, doubt: Doubt, terms: Terms, policy: Policy, decision_id: str) -> str:
    """Take the strongest rung that a doubt allows now; returns which (empty: it stays in doubt).

    `evidence`: by proof. `hold`, `assume`, `resend`: by the lane's policy. One that is held takes no rung but proof.
    Safe to run at several places at once: the step that comes second finds the doubt settled.
    """
    proof = store.read(lambda reader: evidence_of(reader, key, doubt))
    if proof is not None:
        return EVIDENCE if _by_proof(store, key, doubt, proof, policy.outbound_log, decision_id) else ""
    if doubt.held or doubts.may_ask_again(doubt, terms, store.read(lambda reader: reader.now())):
        return ""
    return _by_policy(store, key, doubt, policy, decision_id)


@dataclass(frozen=True)
class Proof:
    """What is proven about those in doubt by a request. outcomes: final ones. source: `event` or `late_answer`."""

    outcomes: dict[int, Outcome]
    source: str


def evidence_of(reader: Reader, key: bytes, doubt: Doubt) -> Proof | None:
    """What is proven about those in doubt by a request: only what somebody saw. None: nothing. key: the store's own."""
    seen = _late_answer(reader, doubt)
    told = [ordinal for ordinal in _told_by_events(reader, key, doubt) if seen.get(ordinal) is not Outcome.ACCEPTED]
    if told:
        return Proof({**seen, **dict.fromkeys(told, Outcome.ACCEPTED)}, "event")
    return Proof(seen, "late_answer") if seen else None


def _told_by_events(reader: Reader, key: bytes, doubt: Doubt) -> list[int]:
    """Of those in doubt, whose letters the provider has told of since: it had taken these."""
    events = reader.scan(DeliveryEvent, doubt.attempt_id, index="events_by_attempt")
    if any(proves_all(event) for event in events):
        return list(doubt.ordinals)
    names = {event.message_id for event in events if event.message_id is not None}
    if not names:
        return []
    people = reader.get_many(
        Recipient, [(doubt.shard, doubt.campaign_id, doubt.batch_no, ordinal) for ordinal in doubt.ordinals]
    )
    return [one.ordinal for one in people if message_id(key, doubt.campaign_id, one.recipient_id) in names]


def _late_answer(reader: Reader, doubt: Doubt) -> dict[int, Outcome]:
    """What an owner was answered after it had been fenced."""
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


def settle_by_proof(store: Store, key: bytes, doubt: Doubt, outbound_log: str, decision_id: str) -> int:
    """Settle those of whom there is proof, before somebody decides on the rest. How many of the doubt that were."""
    proof = store.read(lambda reader: evidence_of(reader, key, doubt))
    if proof is None or not _by_proof(store, key, doubt, proof, outbound_log, decision_id):
        return 0
    return len(proof.outcomes)


def _by_proof(store: Store, key: bytes, doubt: Doubt, proof: Proof, outbound_log: str, decision_id: str) -> bool:
    place = (doubt.campaign_id, doubt.batch_no, doubt.attempt_id)
    row = Decision(
        decision_id, doubt.campaign_id, EVIDENCE, datetime.min, PROVIDER, batch_no=doubt.batch_no, reason=proof.source
    )

    def work(tx: Tx) -> bool:
        return doubts.settle(tx, key, *place, proof.outcomes, outbound_log, row) is not None

    return store.transact(work, tag="settle")


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
