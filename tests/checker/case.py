"""The evidence of one run, arranged by who asks for it."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

import orjson

from schemas import ids, ordinals
from schemas.outcomes import Outcome
from schemas.tables import AsideDoubt, Attempt, Batch, Campaign, Decision, OutboundMessage, Recipient, Setting
from tests.evidence import Arrival, Records

# A file's time comes from the kernel's coarse clock: up to one timer tick (4 ms, 10 ms on some) behind the clock that
# the store reads.
CLOCK_GRAIN = timedelta(milliseconds=10)
UNFINISHED = ("pending", "queued", "sending", "in_doubt", "held")

# Outcomes under which a letter at the provider is no surprise.
MAY_HAVE_ARRIVED = (Outcome.ACCEPTED, Outcome.IN_DOUBT, Outcome.ASSUMED)

# An attempt id is made just before its intent is written. An intent that is younger than its id repeats a request
# that was in doubt: the repeat writes its own time over the first one.
REPEAT_AFTER = timedelta(milliseconds=5)

BatchKey = tuple[str, int]
# campaign_id, batch_no, ordinal
Place = tuple[str, int, int]


@dataclass(frozen=True)
class Violation:
    """`fault`: duplicates, lost, phantoms, unaccounted, limit_violations, or empty for what has no count of its own."""

    invariant: str
    where: str
    what: str
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.invariant} {self.where}: {self.what}"


@dataclass(frozen=True)
class Arrivals:
    """`n` recipients of a campaign reached the provider at one moment.

    sender: by whom, if not by the campaign's.
    message_id: of the only one, if nobody named the campaign.
    """

    campaign_id: str
    at: datetime
    n: int
    sender: str = ""
    message_id: str = ""


def name_of(place: Place) -> str:
    return f"{place[0]} batch {place[1]} ordinal {place[2]}"


def first_began(attempt: Attempt) -> datetime:
    """When an attempt's intent was first written, as well as the store still knows."""
    try:
        made = datetime.fromtimestamp(ids.attempt_time_ms(attempt.attempt_id) / 1000, UTC)
    except ValueError:
        return attempt.started_at
    return made if attempt.started_at - made > REPEAT_AFTER else attempt.started_at


@dataclass(frozen=True)
class Intent:
    """A request without an end. ordinals: packed."""

    attempt_id: str
    began: datetime
    ordinals: bytes
    payload_hash: str
    provider: str


class Case:
    def __init__(
        self,
        records: Records,
        letters: Sequence[Arrival],
        late_requests: frozenset[str],
        intended: Mapping[str, datetime] | None = None,
    ) -> None:
        self.late_requests = late_requests
        self.intended = intended or {}
        self.records = records
        self.letters = letters
        # Until a snapshot is sealed it makes no promise.
        self.campaigns = {
            row.campaign_id: row for row in records.of(Campaign) if row.sealed_at is not None or row.kind == "stream"
        }
        self.recipient: dict[Place, Recipient] = {
            (row.campaign_id, row.batch_no, row.ordinal): row
            for row in records.of(Recipient)
            if row.campaign_id in self.campaigns
        }
        self.batches: dict[BatchKey, Batch] = {
            (row.campaign_id, row.batch_no): row for row in records.of(Batch) if row.campaign_id in self.campaigns
        }
        self.sizes = Counter(place[:2] for place in self.recipient)
        self.message_id = {
            place: ids.message_id(records.store_key, row.campaign_id, row.recipient_id)
            for place, row in self.recipient.items()
        }
        self.place_of = {message: place for place, message in self.message_id.items()}
        self.outcome: dict[Place, int] = {
            place: self.batches[place[:2]].outcomes[place[2]]
            for place in self.recipient
            if place[:2] in self.batches and place[2] < len(self.batches[place[:2]].outcomes)
        }
        self.letters_of: dict[str, list[Arrival]] = defaultdict(list)
        for letter in letters:
            self.letters_of[letter.message_id].append(letter)
        self.attempts: dict[BatchKey, list[Attempt]] = defaultdict(list)
        for attempt in sorted(records.of(Attempt), key=lambda attempt: (attempt.started_at, attempt.attempt_id)):
            self.attempts[attempt.campaign_id, attempt.batch_no].append(attempt)
        self.aside: dict[BatchKey, list[AsideDoubt]] = defaultdict(list)
        for row in records.of(AsideDoubt):
            self.aside[row.campaign_id, row.batch_no].append(row)
        self.decisions: dict[str, list[Decision]] = defaultdict(list)
        for decision in records.of(Decision):
            self.decisions[decision.campaign_id].append(decision)

    def began(self, attempt: Attempt) -> datetime:
        """When an attempt's intent was first written: as somebody saw it, or as well as the store still knows."""
        return self.intended.get(attempt.attempt_id) or first_began(attempt)

    def campaign_of(self, request: Arrivals) -> Campaign | None:
        """The campaign of a request, None if there is no such."""
        place = self.place_of.get(request.message_id)
        return self.campaigns.get(request.campaign_id or (place[0] if place else ""))

    @cached_property
    def messages(self) -> dict[str, OutboundMessage]:
        return {row.message_id: row for row in self.records.of(OutboundMessage)}

    def logs_rows(self, campaign: Campaign) -> bool:
        """True if the lane keeps one outbound row per final message, False if for exceptions only."""
        for setting in self.records.of(Setting):
            if setting.kind == "lane" and setting.name == campaign.priority:
                return bool(orjson.loads(setting.value).get("outbound_log", "rows") == "rows")
        return True

    def decided(self, place: Place, kinds: tuple[str, ...], before: datetime | None = None) -> bool:
        """True if a decision of these kinds covers the place and is not younger than `before`."""
        campaign_id, batch_no, ordinal = place
        return any(
            decision.kind in kinds
            and decision.batch_no in (None, batch_no)
            and (decision.ordinals is None or ordinal in ordinals.unpack(decision.ordinals))
            and (before is None or decision.at <= before + CLOCK_GRAIN)
            for decision in self.decisions.get(campaign_id, ())
        )

    def open_intents(self, key: BatchKey) -> list[Intent]:
        """The requests of a batch that are in flight or in doubt, in it and beside it."""
        batch = self.batches.get(key)
        found = [
            Intent(row.attempt_id, row.intent_at, row.ordinals, row.payload_hash, row.provider)
            for row in self.aside.get(key, ())
        ]
        if batch is not None and batch.attempt_id is not None and batch.intent_at is not None:
            covered, hashed = batch.intent_ordinals or b"", batch.payload_hash or ""
            found.append(Intent(batch.attempt_id, batch.intent_at, covered, hashed, batch.provider or ""))
        return found

    def is_open(self, place: Place, attempt_id: str) -> bool:
        """Whether this request covers the place and is in flight or in doubt."""
        return any(
            intent.attempt_id == attempt_id and place[2] in ordinals.unpack(intent.ordinals)
            for intent in self.open_intents(place[:2])
        )
