"""What keeps a lane or a sender from sending now, why, and what a person can do about it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import orjson

from schemas.tables import Campaign, Setting, Switch
from sendonce.stores.base import Reader

# By the reason that an adapter gives when it needs a person.
MENDS: Final = {
    "disk_full": "free some space on the disk of the sender's folder",
    "disk_quota": "raise the disk quota of the sender's folder, or free some space",
    "no_permission": "let this user write to the sender's folder",
    "read_only": "choose a folder on a disk that can be written",
    "credentials": "give the sender a key that is in force, and see that it may send mail",
    "credits": "the account's credits are used up: raise its plan, or wait until they are renewed",
    "forbidden": "let the key send mail, verify the from address, and see whether the provider has blocked the account",
    "http_404": "check the sender's base_url",
    "http_405": "check the sender's base_url",
    "http_451": "choose the base_url of the region that the account belongs to",
    "refused_all": "the provider refused every call and did not say why: send one test letter, look at the account",
    "refused_from": "verify the from address with the provider, or choose another",
    "refused_reply_to": "mend the reply_to address of the template",
    "refused_asm": "choose an unsubscribe group that the account has (asm_group)",
    "refused_ip_pool_name": "choose an IP pool that the account has (ip_pool)",
    "not_a_folder": "remove the file that stands where the sender's folder should be, or choose another path",
}


@dataclass(frozen=True)
class Stop:
    """kind: `sender_halted` (a person must mend it), `stopped` (by a person), `throttled`, `breaker_open`.

    until: when it ends by itself; None if it does not. mend: what to do, empty when there is nothing to do.
    """

    scope: str
    kind: str
    reason: str
    since: datetime
    until: datetime | None
    mend: str

    def as_json(self) -> dict[str, Any]:
        return {
            "scope": self.scope,
            "kind": self.kind,
            "reason": self.reason,
            "since": self.since.isoformat().replace("+00:00", "Z"),
            "until": None if self.until is None else self.until.isoformat().replace("+00:00", "Z"),
            "mend": self.mend,
        }


def sender_of(reader: Reader, campaign: Campaign) -> str:
    """The sender that a campaign's letters go by: the one of its lane, as the store configures it now."""
    row = reader.get(Setting, "lane", campaign.priority)
    return str(orjson.loads(row.value)["sender"]) if row is not None else campaign.sender


def stops_of(reader: Reader, lane: str, sender: str, now: datetime) -> list[Stop]:
    """What stands in the way of a lane and its sender at store time `now`; what has no end by itself comes first."""
    scopes = ("all", f"lane:{lane}", f"sender:{sender}")
    found = [
        _stop(switch)
        for switch in reader.scan(Switch)
        if switch.scope in scopes and switch.kind != "failing" and (switch.until_at is None or switch.until_at > now)
    ]
    return sorted(found, key=lambda stop: (stop.until is not None, stop.since))


def _stop(switch: Switch) -> Stop:
    kind = {"halted": "sender_halted", "open": "breaker_open", "probing": "breaker_open"}.get(switch.kind, switch.kind)
    mend = MENDS.get(switch.reason, "look at the sender's settings") if kind == "sender_halted" else ""
    return Stop(switch.scope, kind, switch.reason, switch.since, switch.until_at, mend)
