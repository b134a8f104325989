"""Rounds of retries as the store remembers them: who opened whom again, when, and what they were refused for.

A round is a number that rises over the whole campaign. One decision row (`retry_round`) says that it was begun, by whom
and for which reasons; one for each batch and reason (`retry`) says who was opened. Ids are made of what is decided, so
a step that runs again finds its own row.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from itertools import count
from typing import Any, Final, Optional

import orjson

from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Decision
from sendonce.moments import utc_text
from sendonce.stores.base import Reader

RETRY: Final = "retry"
RETRY_ROUND: Final = "retry_round"


@dataclass(frozen=True)
class Round:
    """A round that was begun. done: all that it chose is open again. letters: it replays dead letters, one by one."""

    number: int
    reasons: list[str]
    done: bool
    letters: bool
    at: datetime
    by: str


@dataclass(frozen=True)
class Reopened:
    """That one person was opened again, and what they had been refused for."""

    number: int
    was: str
    at: datetime
    by: str

    def as_json(self) -> dict[str, Any]:
        return {"round": self.number, "was": self.was, "at": utc_text(self.at), "by": self.by}


@dataclass(frozen=True)
class Retried:
    """A campaign's retries so far. recipients: how often somebody was opened; last: how many in the last round."""

    number: int
    at: datetime
    by: str
    done: bool
    last: int
    recipients: int

    def as_json(self) -> dict[str, Any]:
        return {
            "round": self.number,
            "at": utc_text(self.at),
            "by": self.by,
            "done": self.done,
            "reopened_in_round": self.last,
            "reopened": self.recipients,
        }


def round_id(campaign_id: str, number: int) -> str:
    return _id(RETRY_ROUND, campaign_id, number)


def opened_id(campaign_id: str, number: int, batch_no: int, part: int, outcome: Outcome) -> str:
    """part: which slice of the batch; a large one is opened in several transactions."""
    return _id(RETRY, campaign_id, number, batch_no, part, int(outcome))


def _id(*parts: object) -> str:
    return blake2b("\x00".join(map(str, parts)).encode(), digest_size=16).hexdigest()


def round_row(
    campaign_id: str, number: int, reasons: Iterable[str], by: str, at: datetime, *, done: bool, letters: bool = False
) -> Decision:
    said = {"round": number, "reasons": sorted(reasons), "done": done, "letters": letters}
    return Decision(round_id(campaign_id, number), campaign_id, RETRY_ROUND, at, by, reason=orjson.dumps(said).decode())


def opened_reason(number: int, outcome: Outcome) -> str:
    return orjson.dumps({"round": number, "reason": outcome.reason}).decode()


def get_round(reader: Reader, campaign_id: str, number: int) -> Optional[Round]:
    row = reader.get(Decision, round_id(campaign_id, number))
    if row is None:
        return None
    said = orjson.loads(row.reason or "{}")
    return Round(number, said["reasons"], said["done"], said["letters"], row.at, row.by)


def rounds_of(reader: Reader, campaign_id: str) -> list[Round]:
    """The campaign's rounds, the first first."""
    found: list[Round] = []
    for number in count(1):
        row = get_round(reader, campaign_id, number)
        if row is None:
            return found
        found.append(row)
    raise AssertionError  # pragma: no cover


def reopened_of(reader: Reader, campaign_id: str, batch_no: int, ordinal: int) -> list[Reopened]:
    """The rounds in which one recipient was opened again, oldest first."""
    found = []
    for row in _retries(reader, campaign_id):
        if row.batch_no == batch_no and ordinal in unpack(row.ordinals or b""):
            said = orjson.loads(row.reason or "{}")
            found.append(Reopened(said["round"], said["reason"], row.at, row.by))
    return sorted(found, key=lambda one: one.number)


def retried(reader: Reader, campaign_id: str) -> Optional[Retried]:
    """What retries there were; None without any. Reads all decisions of the campaign if there were some."""
    rounds = rounds_of(reader, campaign_id)
    if not rounds:
        return None
    opened: Counter[int] = Counter()
    for row in _retries(reader, campaign_id):
        opened[orjson.loads(row.reason or "{}")["round"]] += int.from_bytes(row.ordinals or b"", "little").bit_count()
    # A round in which nobody could be opened (all were under way, say) is nothing to tell of.
    told = [one for one in rounds if opened[one.number] or not one.done]
    if not told:
        return None
    last = told[-1]
    return Retried(last.number, last.at, last.by, last.done, opened[last.number], opened.total())


def _retries(reader: Reader, campaign_id: str) -> list[Decision]:
    rows = reader.scan(Decision, campaign_id, index="decisions_by_campaign")
    return [row for row in rows if row.kind == RETRY]
