"""What is told of a lane, a sender or another scope with limits: as people and machines see it."""

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sendonce.control.in_flight import Awaited
from sendonce.control.sender_health import SenderHealth
from sendonce.control.stops import Stop
from sendonce.moments import utc_text_or_none


@dataclass(frozen=True)
class LimitUse:
    """One limit. text: as people wrote it. free: recipients that it passes now; None for a plan that is over.

    most: of how many, the bucket's burst or the cap of the window that ends now. used: what is missing in the bucket,
    or what the cap counts in the window. slow: what the provider's throttling left of a rate, 1 for all of it.
    next_at: when the next permit is due; None when there is one now.
    """

    name: str
    text: str
    kind: str
    free: int | None
    used: int
    most: int | None
    slow: float
    next_at: datetime | None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "limit": self.text,
            "kind": self.kind,
            "most": self.most,
            "used": self.used,
            "free": self.free,
            "slow": round(self.slow, 4),
            "next_permit_at": utc_text_or_none(self.next_at),
        }


@dataclass(frozen=True)
class Waiting:
    """Recipients that wait for one thing.

    reason: `limit`, the kind of a `Stop`, `paused`, `halted`, `scheduled` (their campaign), or what their batch was
    sent away for (`retry`, …). what: the scope that decides; for a limit, its text. until: None when it does not end by
    itself.
    """

    reason: str
    recipients: int
    scope: str = ""
    what: str = ""
    until: datetime | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "reason": self.reason,
            "recipients": self.recipients,
            "scope": self.scope or None,
            "limit": self.what or None,
            "until": utc_text_or_none(self.until),
        }


@dataclass(frozen=True)
class ScopeUse:
    """A lane, a sender, or another scope that has limits.

    sender, fallback: the lane's. sender_now: by which of them its new requests go. per_s: recipients a second handed
    to the provider over the last minute; None where nothing tells. open: recipients without an outcome in campaigns of
    the lane that are not over; of a sender, in those of the lanes that go by it now. waiting: of those, who waits for
    what; the others are due or under way. stops: what keeps it from sending, a lane by the sender that it goes by now.
    awaiting: a lane's requests that take longer than a request may take. health: a sender's.
    """

    scope: str
    sender: str | None
    fallback: str | None
    sender_now: str | None
    limits: list[LimitUse]
    per_s: float | None
    open: int
    waiting: list[Waiting]
    stops: list[Stop]
    awaiting: list[Awaited] = field(default_factory=list)
    health: SenderHealth | None = None

    def as_json(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "sender": self.sender,
            "fallback": self.fallback,
            "sender_now": self.sender_now,
            "limits": [limit.as_json() for limit in self.limits],
            "recipients_per_s": None if self.per_s is None else round(self.per_s, 2),
            "open": self.open,
            "waiting": [waiting.as_json() for waiting in self.waiting],
            "stops": [stop.as_json() for stop in self.stops],
            "awaiting_answers": [one.as_json() for one in self.awaiting],
        }
