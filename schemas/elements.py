"""What travels between the steps of the graph. Frozen dataclasses of plain types: each has a row coder.

References travel, recipients do not: only `RenderedBatch` holds people's data, and only from render to send.
"""

from dataclasses import dataclass
from typing import Optional

PRIORITIES = ("critical", "high", "bulk")


@dataclass(frozen=True)
class Tick:
    """Time to look for work. `number` counts a job's ticks; `at_ms` is Unix milliseconds when it was made."""

    number: int
    at_ms: int


@dataclass(frozen=True)
class TriggerMessage:
    """A trigger as it was received: body bytes and the publisher's attributes as JSON text.

    published_at_us: Unix microseconds when it was published; None where that is not known, as of a line in a file.
    """

    body: bytes
    attributes: str
    message_id: str
    published_at_us: Optional[int] = None


@dataclass(frozen=True)
class Reference:
    """Leave to work on one batch. An older `plan_no` than the batch's own is dropped wherever it still is."""

    campaign_id: str
    batch_no: int
    plan_no: int
    priority: str


@dataclass(frozen=True)
class RenderedBatch:
    """A batch with its letters: `letters.dump` bytes, or None over 1 MB (send renders it again).

    rendered_at_us: store time in microseconds at which suppressions were read; the claim reads newer ones.
    """

    campaign_id: str
    batch_no: int
    plan_no: int
    priority: str
    rendered_at_us: int
    letters: Optional[bytes]


@dataclass(frozen=True)
class DeadLetter:
    """What could not be processed: a typed value, never a log line. No addresses, no variables in `detail`.

    stage: trigger, plan, render, send. `body` is the raw input, for triggers only.
    """

    stage: str
    reason: str
    detail: str
    campaign_id: Optional[str] = None
    batch_no: Optional[int] = None
    ordinal: Optional[int] = None
    message_id: Optional[str] = None
    body: Optional[bytes] = None
