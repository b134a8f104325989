"""Delivery events on record: each once, whatever order they come in. They are proof for requests in doubt.

An event is recorded if it is of a request that this store made. Whoever was in doubt by that request is settled by the
next sweep of any job (`delivery.resolver`); an event of anybody else changes nothing. Every event on record proves that
the provider had taken the letter: what proves nothing is not recorded (decision 0035).
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

import orjson

from schemas.ids import shard_of
from schemas.tables import COMMIT_TIME, AsideDoubt, Attempt, Batch, Campaign, Decision, DeliveryEvent, OutboundMessage
from sendonce.control.campaigns import ENDED
from sendonce.control.event_payloads import Event
from sendonce.stores.base import ANY_SHARD, Reader, Store, Tx

# Events in one transaction: claims wait no longer than that takes.
EVENTS_AT_ONCE: Final = 500
# States of batches that have a request in flight or in doubt.
_ASKING: Final = ("sending", "in_doubt", "held")


@dataclass(frozen=True)
class Recorded:
    """What became of some events. already: on record before, or twice among them. The others are left out: their
    campaign is not in this store, or their attempt is none of it."""

    added: int = 0
    already: int = 0
    unknown_campaign: int = 0
    unknown_attempt: int = 0

    def __add__(self, other: "Recorded") -> "Recorded":
        return Recorded(
            self.added + other.added,
            self.already + other.already,
            self.unknown_campaign + other.unknown_campaign,
            self.unknown_attempt + other.unknown_attempt,
        )


def record_events(store: Store, events: Iterable[Event]) -> Recorded:
    """Put events on record, EVENTS_AT_ONCE in a transaction. The same ones again, also in part, change nothing."""
    total, waiting = Recorded(), iter(events)
    while some := list(islice(waiting, EVENTS_AT_ONCE)):
        total += store.transact(lambda tx, some=some: _record(tx, some), tag="events")  # type: ignore[misc]
    return total


def proves_all(row: DeliveryEvent) -> bool:
    """Whether an event proves that its attempt was taken with all its letters, not only its own."""
    return orjson.loads(row.body).get("whole") is True


def _record(tx: Tx, events: Sequence[Event]) -> Recorded:
    """Each event id once. Reads come first, as the store asks."""
    single = {event.event_id: event for event in events}
    there = {row.event_id for row in tx.get_many(DeliveryEvent, [(name,) for name in single])}
    fresh = [event for name, event in single.items() if name not in there]
    known = known_attempts(tx, fresh)
    strange = [event for event in fresh if event.attempt_id not in known]
    campaigns = _campaigns_of(tx, strange)
    tx.insert(*(_row(event) for event in fresh if event.attempt_id in known))
    elsewhere = sum(event.campaign_id is not None and event.campaign_id not in campaigns for event in strange)
    return Recorded(len(fresh) - len(strange), len(events) - len(fresh), elsewhere, len(strange) - elsewhere)


def _row(event: Event) -> DeliveryEvent:
    body = {"campaign_id": event.campaign_id, "batch_no": event.batch_no, "whole": event.whole}
    return DeliveryEvent(
        event.event_id,
        event.provider,
        event.kind,
        event.at,
        received_at=COMMIT_TIME,
        body=orjson.dumps(body).decode(),
        message_id=event.message_id,
        attempt_id=event.attempt_id,
        provider_ref=event.provider_ref,
    )


def _campaigns_of(reader: Reader, events: Iterable[Event]) -> set[str]:
    names = {event.campaign_id for event in events if event.campaign_id is not None}
    return {row.campaign_id for row in reader.get_many(Campaign, [(name,) for name in names])} if names else set()


def known_attempts(reader: Reader, events: Collection[Event]) -> set[str]:
    """Those of the events' attempts that this store made: looked for where they are likely first.

    A request that is in flight or in doubt stands in its batch or beside it, a finished one has a row. One in doubt
    that was settled has neither: what settled it names it, a decision or an earlier event. Events need not say of
    which batch they are.
    """
    known: set[str] = set()
    for look in (_by_batch, _by_trace, _by_campaign, _in_flight):
        left = [event for event in events if event.attempt_id not in known]
        if not left:
            break
        known |= look(reader, left)
    return known


def _by_batch(reader: Reader, events: Sequence[Event]) -> set[str]:
    batches, attempts = set(), set()
    for event in events:
        if event.campaign_id is not None and event.batch_no is not None:
            place = (shard_of(event.campaign_id, event.batch_no), event.campaign_id, event.batch_no)
            batches.add(place)
            attempts.add((*place, event.attempt_id))
    if not batches:
        return set()
    known = {row.attempt_id for row in reader.get_many(Batch, sorted(batches)) if row.attempt_id is not None}
    known |= {row.attempt_id for row in reader.get_many(AsideDoubt, sorted(attempts))}
    return known | {row.attempt_id for row in reader.get_many(Attempt, sorted(attempts))}


def _by_trace(reader: Reader, events: Sequence[Event]) -> set[str]:
    messages = {event.message_id for event in events if event.message_id is not None}
    rows = reader.get_many(OutboundMessage, [(name,) for name in messages]) if messages else []
    known = {row.attempt_id for row in rows if row.attempt_id is not None}
    for attempt_id in {event.attempt_id for event in events} - known:
        if reader.scan(DeliveryEvent, attempt_id, index="events_by_attempt", limit=1):
            known.add(attempt_id)
    return known


def _by_campaign(reader: Reader, events: Sequence[Event]) -> set[str]:
    return {
        row.attempt_id
        for name in _campaigns_of(reader, events)
        for row in reader.scan(Decision, name, index="decisions_by_campaign")
        if row.attempt_id is not None
    }


def _in_flight(reader: Reader, events: Sequence[Event]) -> set[str]:
    """Requests in flight or in doubt now, if an event says of no batch."""
    if all(event.campaign_id is not None and event.batch_no is not None for event in events):
        return set()
    return set(_asked(reader))


def _asked(reader: Reader) -> Iterator[str]:
    for campaign in reader.scan(Campaign):
        if campaign.state in ENDED:
            continue
        for state in _ASKING:
            for batch in reader.scan(Batch, ANY_SHARD, campaign.campaign_id, state, index="batches_open"):
                if batch.attempt_id is not None:
                    yield batch.attempt_id
        for beside in reader.scan(AsideDoubt, ANY_SHARD, campaign.campaign_id):
            yield beside.attempt_id
