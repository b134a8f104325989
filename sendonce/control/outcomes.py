"""What became of each recipient: one of them in full, or all of them in a stream."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Optional

from schemas.ids import SHARDS, message_id, shard_of
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Attempt, Batch, Campaign, OutboundMessage, Recipient
from sendonce.control.faults import UnknownCampaign, UnknownRecipient
from sendonce.moments import utc_text_or_none
from sendonce.stores.base import Reader, Store
from sendonce.stores.opening import store_key

_PAGE: Final = 200


@dataclass(frozen=True)
class RecipientOutcome:
    """One recipient's line. at, attempt_id, provider, provider_ref: of the request that settled it, if one did.

    attempts: how many finished requests carried this recipient. detail holds no personal data. `email` leaves this
    record only where a person asks for it by name.
    """

    recipient_id: str
    message_id: str
    outcome: str
    reason: str
    at: Optional[datetime]
    attempt_id: Optional[str]
    provider: Optional[str]
    provider_ref: Optional[str]
    batch: int
    ordinal: int
    attempts: int
    detail: Optional[str]
    email: str

    def as_json(self) -> dict[str, Any]:
        """All but the address."""
        return {
            "recipient_id": self.recipient_id,
            "message_id": self.message_id,
            "outcome": self.outcome,
            "reason": self.reason or None,
            "at": utc_text_or_none(self.at),
            "attempt_id": self.attempt_id,
            "provider": self.provider,
            "provider_ref": self.provider_ref,
            "batch": self.batch,
            "ordinal": self.ordinal,
            "attempts": self.attempts,
            "detail": self.detail,
        }


def recipient_outcome(store: Store, campaign_id: str, recipient_id: str) -> tuple[RecipientOutcome, list[Attempt]]:
    """One recipient's outcome and the finished requests that carried it, oldest first.

    UnknownCampaign, UnknownRecipient.
    """
    key = store_key(store)

    def look(reader: Reader) -> tuple[RecipientOutcome, list[Attempt]]:
        if reader.get(Campaign, campaign_id) is None:
            raise UnknownCampaign(campaign_id)
        found = reader.scan(Recipient, campaign_id, recipient_id, index="snapshot_by_recipient", limit=1)
        if not found:
            raise UnknownRecipient(campaign_id)
        person = found[0]
        batch = reader.get(Batch, person.shard, campaign_id, person.batch_no)
        if batch is None:
            raise UnknownRecipient(campaign_id)
        message = reader.get(OutboundMessage, message_id(key, campaign_id, recipient_id))
        carried = _carriers(reader, batch).get(person.ordinal, [])
        return _outcome(key, batch, person, message, carried), carried

    return store.read(look)


def recipient_outcomes(store: Store, campaign_id: str) -> Iterator[RecipientOutcome]:
    """Every recipient of a campaign in the order of batches. One batch in memory at a time, each a consistent view.

    UnknownCampaign at the call, so that whoever writes lines can wait with the first until the campaign is known.
    """
    if store.read(lambda reader: reader.get(Campaign, campaign_id)) is None:
        raise UnknownCampaign(campaign_id)
    return _outcomes(store, store_key(store), campaign_id, batch_numbers(store, campaign_id))


def _outcomes(store: Store, key: bytes, campaign_id: str, numbers: list[int]) -> Iterator[RecipientOutcome]:
    for batch_no in numbers:
        yield from store.read(lambda reader, number=batch_no: _batch_outcomes(reader, key, campaign_id, number))  # type: ignore[misc]


def batch_numbers(store: Store, campaign_id: str) -> list[int]:
    """The numbers of a campaign's batches, rising."""

    def page(reader: Reader, shard: int, after: Optional[int]) -> list[int]:
        rows = reader.scan(Batch, shard, campaign_id, after=after, limit=_PAGE)
        return [row.batch_no for row in rows]

    numbers: list[int] = []
    for shard in range(SHARDS):
        after: Optional[int] = None
        while found := store.read(lambda reader, s=shard, a=after: page(reader, s, a)):  # type: ignore[misc]
            numbers += found
            after = found[-1]
            if len(found) < _PAGE:
                break
    return sorted(numbers)


def _batch_outcomes(reader: Reader, key: bytes, campaign_id: str, batch_no: int) -> list[RecipientOutcome]:
    shard = shard_of(campaign_id, batch_no)
    batch = reader.get(Batch, shard, campaign_id, batch_no)
    if batch is None:
        return []
    people = reader.scan(Recipient, shard, campaign_id, batch_no)
    messages = {
        row.ordinal: row for row in reader.scan(OutboundMessage, campaign_id, batch_no, index="outbound_by_campaign")
    }
    carriers = _carriers(reader, batch)
    return [_outcome(key, batch, who, messages.get(who.ordinal), carriers.get(who.ordinal, [])) for who in people]


def _carriers(reader: Reader, batch: Batch) -> Mapping[int, list[Attempt]]:
    """The finished requests of a batch by ordinal, oldest first."""
    carriers: dict[int, list[Attempt]] = {}
    attempts = reader.scan(Attempt, batch.shard, batch.campaign_id, batch.batch_no)
    for attempt in sorted(attempts, key=lambda row: (row.started_at, row.attempt_id)):
        for ordinal in unpack(attempt.ordinals):
            carriers.setdefault(ordinal, []).append(attempt)
    return carriers


def _outcome(
    key: bytes, batch: Batch, person: Recipient, message: Optional[OutboundMessage], carried: list[Attempt]
) -> RecipientOutcome:
    outcome = Outcome(batch.outcomes[person.ordinal])
    at, attempt_id, provider, provider_ref = _request(batch, outcome, message, carried)
    return RecipientOutcome(
        recipient_id=person.recipient_id,
        message_id=message_id(key, batch.campaign_id, person.recipient_id),
        outcome=outcome.kind,
        reason=outcome.reason,
        at=at,
        attempt_id=attempt_id,
        provider=provider,
        provider_ref=provider_ref,
        batch=batch.batch_no,
        ordinal=person.ordinal,
        attempts=len(carried),
        detail=message.detail if message else None,
        email=person.email,
    )


def _request(
    batch: Batch, outcome: Outcome, message: Optional[OutboundMessage], carried: list[Attempt]
) -> tuple[Optional[datetime], Optional[str], Optional[str], Optional[str]]:
    """When, by which attempt, at which provider, under which reference an outcome came about."""
    if message is not None:
        return message.at, message.attempt_id, message.provider, message.provider_ref
    if outcome == Outcome.IN_DOUBT:
        return batch.doubt_since, batch.attempt_id, batch.provider, batch.provider_ref
    # With `outbound_log: packed` an accepted message has no row of its own: its request tells the rest.
    if outcome == Outcome.ACCEPTED and carried:
        last = carried[-1]
        return last.finished_at, last.attempt_id, last.provider, last.provider_ref
    return None, None, None, None
