"""Delivery events on record: each once, whatever order they come in. They are proof for requests in doubt.

An event is recorded if it is of a request that this store made. Whoever was in doubt by that request is settled by
`delivery.resolver`, at the latest in a sweep of any job; an event of anybody else changes nothing. Every event on
record proves that the provider had taken the letter: what proves nothing is not recorded (decision 0035).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, Optional

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
    """Put events on record, some hundreds in a transaction. The same ones again, also in part, change nothing."""
    total, waiting = Recorded(), iter(events)
    while some := list(islice(waiting, min(EVENTS_AT_ONCE, store.rows_at_once))):
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
    strange = _strange(tx, fresh)
    campaigns = _campaigns_of(tx, strange)
    names = {event.event_id for event in strange}
    tx.insert(*(_row(event) for event in fresh if event.event_id not in names))
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


# Requests that this store made: of which batch each attempt was (None where what tells of it does not say).
_Traces = Mapping[str, Collection[tuple[Optional[str], Optional[int]]]]


def _strange(reader: Reader, events: Sequence[Event]) -> list[Event]:
    """The events whose requests this store did not make; they are looked for where they are likely first.

    A request that is in flight or in doubt stands in its batch or beside it, a finished one has a row. One in doubt
    that was settled has neither: what settled it names it, a decision or an earlier event. An event that names a
    batch must be of a request of that batch; one need not name any.
    """
    left = list(events)
    for look in (_by_batch, _by_trace, _by_campaign, _in_flight):
        if left:
            traces = look(reader, left)
            left = [event for event in left if not _is_of(event, traces)]
    return left


def _is_of(event: Event, traces: _Traces) -> bool:
    return any(
        event.campaign_id in (None, campaign_id) and event.batch_no in (None, batch_no)
        for campaign_id, batch_no in traces.get(event.attempt_id, ())
    )


def _by_batch(reader: Reader, events: Sequence[Event]) -> _Traces:
    batches, attempts = set(), set()
    for event in events:
        if event.campaign_id is not None and event.batch_no is not None:
            place = (shard_of(event.campaign_id, event.batch_no), event.campaign_id, event.batch_no)
            batches.add(place)
            attempts.add((*place, event.attempt_id))
    if not batches:
        return {}
    return _traces(
        *reader.get_many(Batch, sorted(batches)),
        *reader.get_many(AsideDoubt, sorted(attempts)),
        *reader.get_many(Attempt, sorted(attempts)),
    )


def _by_trace(reader: Reader, events: Sequence[Event]) -> _Traces:
    messages = {event.message_id for event in events if event.message_id is not None}
    found = _traces(*reader.get_many(OutboundMessage, [(name,) for name in messages])) if messages else {}
    for attempt_id in {event.attempt_id for event in events}:
        for row in reader.scan(DeliveryEvent, attempt_id, index="events_by_attempt", limit=1):
            said = orjson.loads(row.body)
            found.setdefault(attempt_id, set()).add((said.get("campaign_id"), said.get("batch_no")))
    return found


def _by_campaign(reader: Reader, events: Sequence[Event]) -> _Traces:
    names = sorted(_campaigns_of(reader, events))
    return _traces(*(row for name in names for row in reader.scan(Decision, name, index="decisions_by_campaign")))


def _in_flight(reader: Reader, events: Sequence[Event]) -> _Traces:
    """Requests in flight or in doubt now, if an event does not say of which batch it is."""
    if all(event.campaign_id is not None and event.batch_no is not None for event in events):
        return {}
    return _traces(*_asked(reader))


def _asked(reader: Reader) -> Iterator[Batch | AsideDoubt]:
    for campaign in reader.scan(Campaign):
        if campaign.state not in ENDED:
            for state in _ASKING:
                yield from reader.scan(Batch, ANY_SHARD, campaign.campaign_id, state, index="batches_open")
            yield from reader.scan(AsideDoubt, ANY_SHARD, campaign.campaign_id)


def _traces(
    *rows: Batch | AsideDoubt | Attempt | OutboundMessage | Decision,
) -> dict[str, set[tuple[Optional[str], Optional[int]]]]:
    found: dict[str, set[tuple[Optional[str], Optional[int]]]] = {}
    for row in rows:
        if row.attempt_id is not None:
            found.setdefault(row.attempt_id, set()).add((row.campaign_id, row.batch_no))
    return found
