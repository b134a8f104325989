"""How a sender is doing, for people and machines: what `delivery.health` wrote down about it, in words."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Optional

import orjson

from schemas.tables import Setting, Switch
from sendonce.control.stops import MENDS, mend_of, senders_of
from sendonce.moments import utc_text_or_none
from sendonce.stores.base import Reader

WELL: Final = "well"
_STATES: Final = {"open": "breaker_open", "probing": "breaker_open"}


@dataclass(frozen=True)
class SenderHealth:
    """state: `well`, `failing` (still sending), `throttled`, `breaker_open`, `halted`.

    reason: the adapter's word. since: when this began. until: when `throttled` ends by itself. failures: in a row.
    next_probe: when one request tries an open breaker; probing: one is out, and the next goes only if its owner dies;
    probe_due: that time has come. fallbacks: by which letters go instead once the breaker is open.
    mend: what a person can do; empty when there is nothing to do.
    """

    sender: str
    state: str
    reason: str = ""
    since: Optional[datetime] = None
    until: Optional[datetime] = None
    failures: int = 0
    next_probe: Optional[datetime] = None
    probing: bool = False
    mend: str = ""
    probe_due: bool = False
    fallbacks: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "sender": self.sender,
            "state": self.state,
            "reason": self.reason or None,
            "since": utc_text_or_none(self.since),
            "until": utc_text_or_none(self.until),
            "failures": self.failures,
            "next_probe": utc_text_or_none(self.next_probe),
            "probing": self.probing,
            "probe_due": self.probe_due,
            "mend": self.mend,
        }


def sender_health(reader: Reader, sender: str, now: datetime) -> SenderHealth:
    """A sender's health at store time `now`. What a person stopped by hand is no matter of health."""
    row = reader.get(Switch, f"sender:{sender}")
    if row is None or row.kind == "stopped" or (row.kind == "throttled" and row.until_at and row.until_at <= now):
        return SenderHealth(sender, WELL)
    state = _STATES.get(row.kind, row.kind)
    lasts = row.until_at is not None and row.until_at > now
    return SenderHealth(
        sender=sender,
        state=state,
        reason=row.reason,
        since=row.since,
        until=row.until_at if state == "throttled" else None,
        failures=int(orjson.loads(row.detail).get("failures", 0)),
        next_probe=row.until_at if state == "breaker_open" else None,
        probing=row.kind == "probing" and lasts,
        mend=mend_of(row.reason) if state == "halted" else MENDS.get(row.reason, ""),
        probe_due=state == "breaker_open" and not lasts,
        fallbacks=_fallbacks(reader, sender),
    )


def _fallbacks(reader: Reader, sender: str) -> tuple[str, ...]:
    """The second senders of the lanes whose own this is."""
    lanes = [orjson.loads(row.value) for row in reader.scan(Setting, "lane")]
    found = {str(lane["fallback"]) for lane in lanes if lane["sender"] == sender and lane.get("fallback") is not None}
    return tuple(sorted(found))


def unwell_senders(reader: Reader, lanes: tuple[str, ...]) -> list[SenderHealth]:
    """The senders of these lanes, their fallbacks too, that are not well, each once."""
    names = dict.fromkeys(name for lane in lanes for name in senders_of(reader, lane) if name)
    now = reader.now()
    found = [sender_health(reader, name, now) for name in names]
    return [health for health in found if health.state != WELL]
