"""What keeps a lane or a sender from sending now, why, and what a person can do about it."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Optional

import orjson

from schemas.tables import Campaign, Setting, Switch
from sendonce.control.faults import ControlFault
from sendonce.moments import utc_text, utc_text_or_none
from sendonce.stores.base import Reader, Store, Tx

# By the reason that an adapter gives when it needs a person, or when a provider cannot be reached or does not answer.
MENDS: Final = {
    "disk_full": "free some space on the disk of the sender's folder",
    "disk_quota": "raise the disk quota of the sender's folder, or free some space",
    "no_permission": "let this user write to the sender's folder",
    "read_only": "choose a folder on a disk that can be written",
    "credentials": "give the sender a key that is in force (or user and password), and see that it may send mail",
    "credits": "the account's credits are used up: raise its plan, or wait until they are renewed",
    "forbidden": "let the key send mail, verify the from address, and see whether the provider has blocked the account",
    "http_404": "check the sender's base_url",
    "http_405": "check the sender's base_url",
    "http_451": "choose the base_url of the region that the account belongs to",
    "refused_all": "the provider refused every call and did not say why: send one test letter, look at the account",
    "refused_from": "verify the from address with the provider, or choose another",
    "refused_reply_to": "mend the reply_to address of the template",
    "refused_command": "the mail server does not understand what every server should: look at what stands in between",
    "tls_not_offered": "the mail server offers no STARTTLS: choose another port, or tls: implicit",
    "auth_not_offered": "the mail server lets nobody log in: choose its port for submission (587, 465), or set no user",
    "smtp_421": "the mail server has no room for more just now: lower the sender's rate or its parallel connections",
    "smtp_554": "the mail server refuses this machine: ask its operator, and look for its address on block lists",
    "refused_asm": "choose an unsubscribe group that the account has (asm_group)",
    "refused_ip_pool_name": "choose an IP pool that the account has (ip_pool)",
    "monthly_quota": "the account's monthly quota is used up: raise its plan, or wait until it is renewed",
    "security_error": "the provider sees a danger in the request: ask its support",
    "signature_refused": "the receiver refuses the sender's signature: give both the same secret, and set their clocks",
    "no_receiver": "nobody takes letters at the sender's url: check it",
    "receiver_gone": "the receiver says that it is gone for good (410): give the sender another url",
    "redirect": "the receiver sends on to another address, which is not followed: make that one the sender's url",
    "private_address": "the sender's url stands in a private network, where no webhook may go: choose a public one",
    "dns": "the host of the sender's base_url, or its host, has no address: check its spelling, and this machine's "
    "resolver",
    "connect": "nobody answers at the sender's base_url or host: check it, the network and the firewall",
    "tls": "no secure connection to the sender's base_url or host: check its name and port, and what stands in between",
    "tls_expired": "the certificate at the sender's base_url or host is out of date: check this machine's clock, "
    "or wait",
    "tls_host": "the certificate at the sender's base_url or host is another host's: check that host",
    "tls_untrusted": "nobody trusted vouches for the certificate at the sender's base_url or host: check that host; "
    "an authority of your own goes into SSL_CERT_FILE",
    "timeout": "the provider takes requests and does not answer in time: look at its status page",
    "slow_answer": "the provider takes longer to answer than the lane's request_timeout_s: see whether it is well; its "
    "answers are waited for",
    "closed": "the provider ends connections without an answer: look at its status page, and what stands in between",
    "garbled": "what answers at the sender's base_url or host is no mail provider: check it, and what is in between",
    "http_500": "the provider has a fault: look at its status page",
    "http_502": "the provider has a fault: look at its status page",
    "http_503": "the provider has a fault: look at its status page",
    "http_504": "the provider has a fault: look at its status page",
    "account_suspended": "the provider has shut the account down: see its messages to you",
    "sending_paused": "sending is paused for the account: see why, and let it send again",
    "configuration_set": "choose a configuration set that the account has in this region (configuration_set)",
    "configuration_set_paused": "sending is paused for the configuration set: see why, and let it send again",
    "sending_pool": "give the configuration set an IP pool that the account has",
    "not_verified": "verify the from address with the provider in this region; while the account is in its sandbox, "
    "only verified recipients get letters: ask for production access",
    "clock": "this machine's clock is off: set it",
    "no_credentials": "see why this machine's role or profile gives no credentials now",
    "quota": "the account's daily quota is used up: wait, or ask the provider for a higher one",
    "not_a_folder": "remove the file that stands where the sender's folder should be, or choose another path",
    "os_enametoolong": "choose a shorter path for the sender's folder; this disk does not take names so long",
    "os_eloop": "mend the symbolic links on the way to the sender's folder; they go in a circle",
    "os_enoent": "make the sender's folder, or mend the link on its path that leads nowhere",
    "os_efbig": "raise this user's limit on file sizes (`ulimit -f`), or choose a disk that takes larger files",
    "os_emfile": "raise this user's limit on open files (`ulimit -n`)",
    "os_enfile": "raise this machine's limit on open files (`sysctl fs.file-max`)",
    "os_eio": "the disk of the sender's folder fails: look at the system's log, or choose another disk",
    "os_estale": "mount the network disk of the sender's folder again",
}
# What an adapter names by the system's word for it has no mend that always fits.
_MEND_OF_SYSTEM: Final = "look at the sender's folder, its disk and this user's limits; the system's word is {}"
_MEND_ELSE: Final = "look at the sender's settings"


# What a lane with a fallback leaves its own sender for. One that asks to slow down can send; one that a person has
# stopped is meant to stand still.
MOVES: Final = frozenset(("breaker_open", "sender_halted"))

# A person's stop stands in a row of its own: a sender's row is rewritten by what its provider answers.
_BY_PERSON: Final = "stop:"


class UnknownScope(ControlFault):
    """A lane or a sender that the store does not have."""

    reason = "unknown_scope"


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

    @property
    def what(self) -> str:
        """`all`, `lane:NAME` or `sender:NAME`."""
        return self.scope.removeprefix(_BY_PERSON)

    def as_json(self) -> dict[str, Any]:
        return {
            "scope": self.what,
            "kind": self.kind,
            "reason": self.reason,
            "since": utc_text(self.since),
            "until": utc_text_or_none(self.until),
            "mend": self.mend,
        }


def sender_of(reader: Reader, campaign: Campaign) -> str:
    """The sender that a campaign's letters go by: the one of its lane, as the store configures it now."""
    row = reader.get(Setting, "lane", campaign.priority)
    return str(orjson.loads(row.value)["sender"]) if row is not None else campaign.sender


def senders_of(reader: Reader, lane: str, otherwise: str = "") -> tuple[str, ...]:
    """The senders that a lane may send by, its own first, as the store configures it now.

    otherwise: where the store holds no such lane.
    """
    row = reader.get(Setting, "lane", lane)
    if row is None:
        return (otherwise,)
    setting = orjson.loads(row.value)
    own, fallback = str(setting["sender"]), setting.get("fallback")
    return (own,) if fallback is None else (own, str(fallback))


def sender_now(reader: Reader, lane: str, sender: str, fallback: Optional[str], now: datetime) -> str:
    """By which of its two senders new requests of a lane go at store time `now`: its own, or its fallback while only
    that can send."""
    if fallback is None:
        return sender
    own = {stop.kind for stop in stops_of(reader, lane, sender, now)}
    return fallback if own and own <= MOVES and not stops_of(reader, lane, fallback, now) else sender


def fallback_of(reader: Reader, campaign: Campaign) -> Optional[str]:
    """The second sender of a campaign's lane, as the store configures it now."""
    row = reader.get(Setting, "lane", campaign.priority)
    found: Optional[str] = orjson.loads(row.value).get("fallback") if row is not None else None
    return found


def stops_of(reader: Reader, lane: str, sender: str, now: datetime) -> list[Stop]:
    """What stands in the way of a lane and its sender at store time `now`; what has no end by itself comes first."""
    names = ("all", f"lane:{lane}", f"sender:{sender}")
    scopes = {*names, *(f"{_BY_PERSON}{name}" for name in names)}
    found = [
        _stop(switch)
        for switch in reader.scan(Switch)
        if switch.scope in scopes and switch.kind != "failing" and (switch.until_at is None or switch.until_at > now)
    ]
    return sorted(found, key=lambda stop: (stop.until is not None, stop.since))


def stop_sending(store: Store, scope: str, reason: str, by: str) -> bool:
    """From this commit on no request of a scope (`all`, `lane:NAME`, `sender:NAME`) starts, in any process.

    What is in flight ends. False if a person had stopped it already; the first one's name and reason stay.
    UnknownScope for a lane or sender that the store does not have.
    """

    def work(tx: Tx) -> bool:
        kind, _, name = scope.partition(":")
        if scope != "all" and tx.get(Setting, kind, name) is None:
            known = ", ".join(row.name for row in tx.scan(Setting, kind))
            raise UnknownScope(f"there is no {kind} {name!r} in the store; known: {known or 'none'}")
        row = f"{_BY_PERSON}{scope}"
        if tx.get(Switch, row) is not None:
            return False
        tx.put(Switch(row, "stopped", tx.now(), by, reason))
        return True

    return store.transact(work, tag="stop")


def end_stop(store: Store, scope: str) -> bool:
    """Let a scope send again; False if no person had stopped it. Halts and throttles of its sender are not touched."""

    def work(tx: Tx) -> bool:
        found = tx.get(Switch, f"{_BY_PERSON}{scope}")
        if found is not None:
            tx.delete(found)
        return found is not None

    return store.transact(work, tag="end_stop")


def stops_by_people(store: Store) -> list[Stop]:
    """What people have stopped, in the order of scopes."""
    rows = store.read(lambda reader: reader.scan(Switch))
    return [_stop(row) for row in rows if row.scope.startswith(_BY_PERSON)]


def mend_of(reason: str) -> str:
    """What a person can do about a halted sender, by the adapter's reason. Never empty."""
    if reason.startswith("os_"):
        return MENDS.get(reason, _MEND_OF_SYSTEM.format(reason.removeprefix("os_").upper()))
    return MENDS.get(reason, _MEND_ELSE)


def _stop(switch: Switch) -> Stop:
    kind = {"halted": "sender_halted", "open": "breaker_open", "probing": "breaker_open"}.get(switch.kind, switch.kind)
    mend = mend_of(switch.reason) if kind == "sender_halted" else ""
    if kind == "breaker_open":
        mend = MENDS.get(switch.reason, "")
    if switch.scope.startswith(_BY_PERSON):
        mend = f"`sendonce stop {_option(switch.scope.removeprefix(_BY_PERSON))} --off`"
    return Stop(switch.scope, kind, switch.reason, switch.since, switch.until_at, mend)


def _option(scope: str) -> str:
    kind, _, name = scope.partition(":")
    return f"--{kind} {name}" if name else f"--{kind}"
