"""What became of each recipient: one of them in full, or all of them in a stream."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Optional, Union

from schemas.ids import SHARDS, message_id, own_recipient_id, send_recipient_ids, shard_of
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import AsideDoubt, Attempt, Batch, Campaign, OutboundMessage, Recipient
from sendonce.control.faults import UnknownCampaign, UnknownRecipient
from sendonce.control.stream_names import STREAM
from sendonce.moments import utc_text_or_none
from sendonce.stores.base import Reader, Store
from sendonce.stores.opening import store_key

_PAGE: Final = 200
# A stream's batches are small: so many are read in one look.
_SENDS_A_LOOK: Final = 50
# Of the sends to one recipient in one day: beyond, somebody's program is mad.
SENDS_SHOWN: Final = 1_000


@dataclass(frozen=True)
class RecipientOutcome:
    """One recipient's line. at, attempt_id, provider, provider_ref: of the request that settled it, if one did.

    attempts: how many finished requests carried this recipient. detail holds no personal data. `email` leaves this
    record only where a person asks for it by name; it is empty once a send is final. idempotency_key: of the send.
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
    idempotency_key: Optional[str] = None

    def as_json(self) -> dict[str, Any]:
        """All but the address. A send's has its key, too."""
        key = {} if self.idempotency_key is None else {"idempotency_key": self.idempotency_key}
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
            **key,
        }


@dataclass(frozen=True)
class Carried:
    """A recipient's outcome, and the finished requests that carried it, oldest first."""

    outcome: RecipientOutcome
    attempts: list[Attempt]


def outcomes_of(store: Store, campaign_id: str, recipient_id: str) -> list[Carried]:
    """What became of one recipient: one outcome in a campaign, in a stream that of each send, the newest last.

    UnknownCampaign, UnknownRecipient.
    """
    key = store_key(store)

    def look(reader: Reader) -> list[Carried]:
        campaign = reader.get(Campaign, campaign_id)
        if campaign is None:
            raise UnknownCampaign(campaign_id)
        found = [_carried(reader, key, person) for person in people_named(reader, campaign, recipient_id)]
        if not found:
            raise UnknownRecipient(campaign_id)
        return sorted(found, key=lambda one: one.outcome.at or datetime.max.replace(tzinfo=UTC))

    return store.read(look)


def recipient_outcome(store: Store, campaign_id: str, recipient_id: str) -> tuple[RecipientOutcome, list[Attempt]]:
    """The newest of `outcomes_of`: a recipient's outcome and the finished requests that carried it, oldest first."""
    newest = outcomes_of(store, campaign_id, recipient_id)[-1]
    return newest.outcome, newest.attempts


def people_named(reader: Reader, campaign: Campaign, recipient_id: str) -> list[Recipient]:
    """Those whom a campaign knows by an id: one at most, in a stream one for each send (`SENDS_SHOWN` at most)."""
    index = "snapshot_by_recipient"
    if campaign.kind != STREAM:
        return reader.scan(Recipient, campaign.campaign_id, recipient_id, index=index, limit=1)
    after, upto = send_recipient_ids(recipient_id)
    return reader.scan(Recipient, campaign.campaign_id, index=index, after=after, upto=upto, limit=SENDS_SHOWN)


def _carried(reader: Reader, key: bytes, person: Recipient) -> Carried:
    batch = reader.get(Batch, person.shard, person.campaign_id, person.batch_no)
    if batch is None:
        raise UnknownRecipient(person.campaign_id)
    message = reader.get(OutboundMessage, message_id(key, person.campaign_id, person.recipient_id))
    attempts = _carriers(reader, batch).get(person.ordinal, [])
    return Carried(_outcome(key, batch, person, message, attempts, _doubted(reader, batch)), attempts)


def recipient_outcomes(store: Store, campaign_id: str) -> Iterator[RecipientOutcome]:
    """Every recipient of a campaign in the order of batches. One batch in memory at a time, each a consistent view.

    UnknownCampaign at the call, so that whoever writes lines can wait with the first until the campaign is known.
    """
    campaign = store.read(lambda reader: reader.get(Campaign, campaign_id))
    if campaign is None:
        raise UnknownCampaign(campaign_id)
    at_once = _SENDS_A_LOOK if campaign.kind == STREAM else 1
    return _outcomes(store, store_key(store), campaign_id, batch_numbers(store, campaign_id), at_once)


def _outcomes(
    store: Store, key: bytes, campaign_id: str, numbers: list[int], at_once: int
) -> Iterator[RecipientOutcome]:
    for start in range(0, len(numbers), at_once):
        some = numbers[start : start + at_once]
        yield from store.read(
            lambda reader, some=some: [  # type: ignore[misc]
                line for number in some for line in _batch_outcomes(reader, key, campaign_id, number)
            ]
        )


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
    carriers, doubted = _carriers(reader, batch), _doubted(reader, batch)
    return [
        _outcome(key, batch, who, messages.get(who.ordinal), carriers.get(who.ordinal, []), doubted) for who in people
    ]


def _doubted(reader: Reader, batch: Batch) -> Mapping[int, AsideDoubt]:
    """The requests in doubt that were put beside a batch, by ordinal."""
    beside = reader.scan(AsideDoubt, batch.shard, batch.campaign_id, batch.batch_no) if batch.n_in_doubt else []
    return {ordinal: doubt for doubt in beside for ordinal in unpack(doubt.ordinals)}


def _carriers(reader: Reader, batch: Batch) -> Mapping[int, list[Attempt]]:
    """The finished requests of a batch by ordinal, oldest first."""
    carriers: dict[int, list[Attempt]] = {}
    attempts = reader.scan(Attempt, batch.shard, batch.campaign_id, batch.batch_no)
    for attempt in sorted(attempts, key=lambda row: (row.started_at, row.attempt_id)):
        for ordinal in unpack(attempt.ordinals):
            carriers.setdefault(ordinal, []).append(attempt)
    return carriers


def _outcome(
    key: bytes,
    batch: Batch,
    person: Recipient,
    message: Optional[OutboundMessage],
    carried: list[Attempt],
    doubted: Mapping[int, AsideDoubt],
) -> RecipientOutcome:
    outcome = Outcome(batch.outcomes[person.ordinal])
    doubt = doubted.get(person.ordinal, batch)
    at, attempt_id, provider, provider_ref = _request(doubt, outcome, message, carried)
    return RecipientOutcome(
        recipient_id=own_recipient_id(person.recipient_id),
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
        idempotency_key=batch.idempotency_key,
    )


def _request(
    doubt: Union[Batch, AsideDoubt],
    outcome: Outcome,
    message: Optional[OutboundMessage],
    carried: list[Attempt],
) -> tuple[Optional[datetime], Optional[str], Optional[str], Optional[str]]:
    """When, by which attempt, at which provider, under which reference an outcome came about."""
    if message is not None:
        return message.at, message.attempt_id, message.provider, message.provider_ref
    if outcome == Outcome.IN_DOUBT:
        return doubt.doubt_since, doubt.attempt_id, doubt.provider, doubt.provider_ref
    # With `outbound_log: packed` an accepted message has no row of its own: its request tells the rest.
    if outcome == Outcome.ACCEPTED and carried:
        last = carried[-1]
        return last.finished_at, last.attempt_id, last.provider, last.provider_ref
    return None, None, None, None
