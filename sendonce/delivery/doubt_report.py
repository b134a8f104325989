"""What is known of a request in doubt, what happens to it if nobody acts, and what either choice of a person risks."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Optional

from schemas.ids import message_id
from schemas.tables import DeliveryEvent, Recipient
from sendonce.control.campaigns import CANCELLING
from sendonce.control.doubts import Doubt
from sendonce.delivery.protocol.doubts import may_ask_again
from sendonce.delivery.resolver import ASSUME_AFTER, RESEND_AFTER, evidence_of, resent
from sendonce.delivery.terms import Terms
from sendonce.moments import utc_text_or_none
from sendonce.senders.base import name_in
from sendonce.stores.base import Reader

# What comes next of itself.
PROOF, ASK_AGAIN, ASSUME, RESEND, PERSON, UNKNOWN = "evidence", "ask_again", "assume", "resend", "person", "unknown"


@dataclass(frozen=True)
class Told:
    """One doubt. adapter: of the sender that was asked; None if it is not configured any more.

    proven: of those in doubt, who certainly were reached or refused; the next sweep settles them. events: on record for
    the attempt. resent: somebody among them was sent to again before. asks_again_until: until when the provider takes
    the same request under its key once; None: it does not, or not this one. next: what a running job does of itself
    (evidence, ask_again, assume, resend), person: nothing, unknown: its lane or sender cannot be read here. next_at:
    the earliest time for that. may_resend: false in a campaign that is being cancelled.
    """

    doubt: Doubt
    sender: str
    adapter: Optional[str]
    proven: int
    events: int
    resent: bool
    asks_again_until: Optional[datetime]
    next: str
    next_at: Optional[datetime]
    message_ids: list[str]
    at: datetime

    @property
    def unproven(self) -> int:
        return self.doubt.recipients - self.proven

    @property
    def may_resend(self) -> bool:
        return self.doubt.campaign_state != CANCELLING

    def as_json(self) -> dict[str, Any]:
        """As `Doubt`'s, and more. Message ids hold nothing of a person."""
        return {
            **self.doubt.as_json(),
            "sender": self.sender,
            "adapter": self.adapter,
            "asked_at": utc_text_or_none(self.doubt.intent_at),
            "asked_again_at": utc_text_or_none(self.doubt.permit_at) if self.asked_again else None,
            "wait_reason": self.doubt.wait_reason,
            "events": self.events,
            "proven": self.proven,
            "resent_before": self.resent,
            "asks_again_until": utc_text_or_none(self.asks_again_until),
            "next": self.next,
            "next_at": utc_text_or_none(self.next_at),
            "risks": {
                "assume": {"may_have_got_nothing": self.unproven},
                "resend": {"may_get_two": self.unproven} if self.may_resend else None,
            },
            "message_ids": self.message_ids,
        }

    @property
    def asked_again(self) -> bool:
        return self.doubt.permit_at is not None and self.doubt.permit_at != self.doubt.intent_at


@dataclass(frozen=True)
class LaneRule:
    """What the doubt's lane does: its terms (None: they cannot be made here) and its `in_doubt`."""

    terms: Optional[Terms]
    in_doubt: str


def tell(reader: Reader, key: bytes, doubt: Doubt, rule: Optional[LaneRule], adapters: Mapping[str, str]) -> Told:
    """Look at one doubt. rule: None if its lane is not configured. adapters: by sender; the doubt's may be missing."""
    now = reader.now()
    sender = name_in(doubt.provider or "", adapters)
    proof = evidence_of(reader, key, doubt)
    again = resent(reader, doubt)
    terms = rule.terms if rule is not None else None
    until = _asks_until(doubt, terms, now)
    step, at = (PROOF, now) if proof is not None else _next(doubt, rule, again, until, now)
    people = reader.get_many(
        Recipient, [(doubt.shard, doubt.campaign_id, doubt.batch_no, ordinal) for ordinal in doubt.ordinals]
    )
    return Told(
        doubt=doubt,
        sender=sender or (doubt.provider or "").partition("/")[0],
        adapter=adapters[sender] if sender is not None else None,
        proven=len(proof.outcomes) if proof is not None else 0,
        events=len(reader.scan(DeliveryEvent, doubt.attempt_id, index="events_by_attempt")),
        resent=again,
        asks_again_until=until,
        next=step,
        next_at=at,
        message_ids=[
            message_id(key, doubt.campaign_id, one.recipient_id) for one in sorted(people, key=lambda one: one.ordinal)
        ],
        at=now,
    )


def _asks_until(doubt: Doubt, terms: Optional[Terms], now: datetime) -> Optional[datetime]:
    asked = terms.of(doubt.provider) if terms is not None else None
    if terms is None or asked is None or not may_ask_again(doubt, terms, now):
        return None
    assert asked.asks_again_s is not None, "else it is not asked again"
    assert doubt.intent_at is not None, "else it is not asked again"
    try:
        return doubt.intent_at + timedelta(seconds=asked.asks_again_s - asked.times.longest_call_s)
    except OverflowError:  # for ever
        return datetime.max.replace(tzinfo=now.tzinfo)


def _next(
    doubt: Doubt, rule: Optional[LaneRule], again: bool, until: Optional[datetime], now: datetime
) -> tuple[str, Optional[datetime]]:
    """What `resolver.settle_doubt` will do without proof, and when at the earliest."""
    if doubt.held:
        return PERSON, None
    if rule is None or rule.terms is None:
        return UNKNOWN, None
    if until is not None:
        return ASK_AGAIN, now
    since = doubt.since or now
    if rule.in_doubt == "assume":
        return ASSUME, since + ASSUME_AFTER
    if rule.in_doubt == "resend" and doubt.round == 0 and not again:
        return RESEND, since + RESEND_AFTER
    return PERSON, None
