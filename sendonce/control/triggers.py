"""Triggers: from a message's bytes to one idempotent call into control, or to one reason why not."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Optional

from schemas.elements import Reference
from sendonce.control.campaigns import CANCELLING, ENDED, Change, begin_cancel, pause, resume, start
from sendonce.control.early_cancels import keep_early_cancel
from sendonce.control.faults import UnknownCampaign, WrongState
from sendonce.control.guards import NotReady
from sendonce.control.schedule import BadStart
from sendonce.control.sends import Send, read_send
from sendonce.control.streams import PENDING, Queue, take_sends
from sendonce.control.strict_json import BadJson, parse
from sendonce.control.trigger_faults import BadTrigger
from sendonce.control.trigger_rules import broken_rules
from sendonce.control.trigger_times import moment_in
from sendonce.stores.base import AlreadyExists, Store, StoreError, ValueRefused
from sendonce.stores.opening import store_key

__all__ = ["BadTrigger", "Send", "Taken", "Trigger", "apply_trigger", "apply_triggers", "read_or_bad", "read_trigger"]

# Pub/Sub takes 10 MB; a trigger names things and holds at most 100 recipients.
BODY_BYTES_MAX: Final = 1 << 20
# Of one transaction: cheap together, and over within some 10 ms, so that critical claims get in between.
SENDS_AT_ONCE: Final = 32
RECIPIENTS_AT_ONCE: Final = 256
# Looks at one send that others take at the same moment.
MOST_TRIES: Final = 5


@dataclass(frozen=True)
class Trigger:
    """A valid control trigger. `seq` None: it carries no order. at: of a start, when (UTC); None: at once."""

    kind: str
    campaign_id: str
    seq: int | None
    at: Optional[datetime] = None


_ACTIONS: Final[dict[str, Callable[..., Change]]] = {
    "pause": pause,
    "resume": resume,
    "cancel": begin_cancel,
}


@dataclass(frozen=True)
class Taken:
    """What became of one trigger. ended: `applied`, `ignored` (it came again, or too late), `bad` (a dead letter).

    reason: of a bad one, for machines. detail: in words, never a value of the body. warnings: of a send, recipients by
    what got a default instead. lane: where a send that was applied has made work; None where no lane is named.
    planned: the send's reference, if it was planned where it was taken.
    """

    ended: str
    reason: str = ""
    detail: str = ""
    campaign_id: Optional[str] = None
    warnings: Mapping[str, int] = field(default_factory=dict)
    lane: Optional[str] = None
    planned: Optional[Reference] = None


def read_trigger(body: bytes, published_at: Optional[datetime] = None) -> Trigger | Send:
    """The trigger in a message body; BadTrigger with a reason: `too_large`, `not_utf8`, `not_json`, `unknown_version`,

    `unknown_type`, `invalid`. JSON is read strictly (RFC 8259): no NaN, no repeated names, no nesting without end.
    published_at: when the message was published, if that is known: a send's default end counts from then.
    """
    if len(body) > BODY_BYTES_MAX:
        raise BadTrigger("too_large", f"the body has {len(body)} bytes; a trigger has at most {BODY_BYTES_MAX}")
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as fault:
        raise BadTrigger("not_utf8", f"the body is not UTF-8 from byte {fault.start} on") from None
    try:
        value, _ = parse(text)
    except BadJson as fault:
        raise BadTrigger("not_json", f"the body is no strict JSON: {fault.reason}") from None
    return _checked(value, published_at)


def _checked(value: Any, published_at: Optional[datetime]) -> Trigger | Send:
    if not isinstance(value, dict):
        raise BadTrigger("invalid", "the body is no JSON object")
    version, kind = value.get("v"), value.get("type")
    # In JSON Schema 1.0 and true compare like 1; a version is the integer 1 and nothing else.
    if type(version) is not int or version != 1:
        raise BadTrigger("unknown_version", "the field v must be 1; this release knows no other version")
    if kind not in ("start", *_ACTIONS, "send"):
        raise BadTrigger("unknown_type", "the field type must be start, pause, resume, cancel or send")
    shape = kind if kind in ("start", "send") else "control"
    if problem := broken_rules(shape, value):
        raise BadTrigger("invalid", problem)
    if kind == "send":
        return read_send(value, published_at)
    if type(value.get("seq", 0)) is not int:
        raise BadTrigger("invalid", "seq: must be a whole number, written without a fraction")
    at = moment_in("at", value["at"]) if "at" in value else None
    return Trigger(kind, value["campaign_id"], value.get("seq"), at)


def read_or_bad(body: bytes, published_at: Optional[datetime] = None) -> Trigger | Send | BadTrigger:
    """`read_trigger`, for those who read many: what cannot be read is given back, also for a reason nobody foresaw."""
    try:
        return read_trigger(body, published_at)
    except BadTrigger as fault:
        return fault
    except Exception as fault:
        return BadTrigger("unforeseen", f"reading it failed: {type(fault).__name__}")


def apply_triggers(
    store: Store, triggers: Iterable[Trigger | Send | BadTrigger], by: str, queue: Queue = PENDING
) -> list[Taken]:
    """Apply triggers in their order; what became of each, in order. Each is in the store when this returns.

    queue: as in `streams.take_sends`. Sends that follow each other share transactions; what is wrong with one touches
    no other. What nobody foresaw is that trigger's own fault (`unforeseen`). StoreError for the store's: some were
    applied then, and the same call again ignores those.
    """
    taken: list[Taken] = []
    for group in _groups(triggers):
        first = group[0]
        if isinstance(first, Send):
            found = _take(store, [send for send in group if isinstance(send, Send)], by, queue)
            taken += found
            if planned := [one.planned for one in found if one.planned is not None]:
                queue.planned(planned)  # at once: what else was pulled may take its time
        else:
            taken.append(_applied(store, first, by))
    return taken


def _groups(triggers: Iterable[Trigger | Send | BadTrigger]) -> Iterator[list[Trigger | Send | BadTrigger]]:
    """Sends that follow each other together, as many as one transaction takes, none of a key twice; others alone."""
    group: list[Trigger | Send | BadTrigger] = []
    keys: set[str] = set()
    recipients = 0
    for trigger in triggers:
        if isinstance(trigger, Send):
            more = recipients + len(trigger.recipients)
            if len(group) < SENDS_AT_ONCE and more <= RECIPIENTS_AT_ONCE and trigger.key_hash not in keys:
                group.append(trigger)
                keys.add(trigger.key_hash)
                recipients = more
                continue
        if group:
            yield group
        group, keys, recipients = [], set(), 0
        if isinstance(trigger, Send):
            group, keys, recipients = [trigger], {trigger.key_hash}, len(trigger.recipients)
        else:
            yield [trigger]
    if group:
        yield group


def _take(store: Store, sends: Sequence[Send], by: str, queue: Queue) -> list[Taken]:
    key = store_key(store)
    found = _together(store, key, sends, by, queue) if len(sends) > 1 else None
    if found is None:
        return [_alone(store, key, send, by, queue) for send in sends]
    return [_taken(one, send) for one, send in zip(found, sends, strict=True)]


def _together(
    store: Store, key: bytes, sends: Sequence[Send], by: str, queue: Queue
) -> list[Change | BadTrigger] | None:
    """Take sends in one transaction. None: one of them must not go with the others, and alone it shows which."""
    try:
        return store.transact(lambda tx: take_sends(tx, key, sends, by, queue), tag="send")
    except AlreadyExists:  # somebody else took one of them, or began their stream, in between
        return None
    except ValueRefused:  # wrong in one of them, not in the store
        return None
    except StoreError:
        raise
    except Exception:  # what nobody foresaw
        return None


def _alone(store: Store, key: bytes, send: Send, by: str, queue: Queue) -> Taken:
    return _own_fault(lambda: _taken(_take_one(store, key, send, by, queue), send))


def _take_one(store: Store, key: bytes, send: Send, by: str, queue: Queue = PENDING) -> Change | BadTrigger:
    """Take a send that others may take at the same moment: the first look may find its stream new, the next its key."""
    for last in (*[False] * (MOST_TRIES - 1), True):
        try:
            (found,) = store.transact(lambda tx: take_sends(tx, key, [send], by, queue), tag="send")
            return found
        except AlreadyExists:
            if last:
                raise
    raise AssertionError("the last try returns or raises")


def _applied(store: Store, trigger: Trigger | Send | BadTrigger, by: str) -> Taken:
    if isinstance(trigger, BadTrigger):
        return _taken(trigger)
    return _own_fault(lambda: _taken(apply_trigger(store, trigger, by)))


def _own_fault(work: Callable[[], Taken]) -> Taken:
    """Take one trigger: whatever it raises is wrong with it, but for what the store raises."""
    try:
        return work()
    except BadTrigger as fault:
        return _taken(fault)
    except ValueRefused as fault:
        return Taken("bad", "invalid", str(fault))
    except StoreError:
        raise
    except Exception as fault:
        # Its own words may hold somebody's data; its kind does not.
        return Taken("bad", "unforeseen", f"applying it failed: {type(fault).__name__}")


def _taken(found: Change | BadTrigger, send: Optional[Send] = None) -> Taken:
    if isinstance(found, BadTrigger):
        return Taken("bad", found.reason, found.detail, found.campaign_id)
    if not found.changed:
        return Taken("ignored", "", found.note, found.campaign_id)
    if send is None:
        return Taken("applied", "", found.note, found.campaign_id)
    return Taken("applied", "", found.note, found.campaign_id, send.warnings, send.priority, found.planned)


def apply_trigger(store: Store, trigger: Trigger | Send, by: str) -> Change:
    """Do what a trigger says, once however often, in whatever order and however late it comes.

    What comes after a campaign has ended, or after its cancel, changes nothing: that is a late message and no fault of
    whoever sent it, though the same call of a person is refused. A cancel before its campaign is kept, with the states
    "none". BadTrigger: `unknown_campaign`, `wrong_state`, and for a start `no_guard`, `no_unsubscribe`,
    `placeholder`, `expired`, `bad_at`; for a send those of `streams.take_sends`.
    """
    if isinstance(trigger, Send):
        found = _take_one(store, store_key(store), trigger, by)
        if isinstance(found, BadTrigger):
            raise found
        return found
    try:
        if trigger.kind == "start":
            return start(store, trigger.campaign_id, by, seq=trigger.seq, at=trigger.at)
        return _ACTIONS[trigger.kind](store, trigger.campaign_id, by, seq=trigger.seq)
    except UnknownCampaign as fault:
        if trigger.kind != "cancel":
            raise BadTrigger("unknown_campaign", str(fault), trigger.campaign_id) from None
        return _keep(store, trigger, by)
    except WrongState as fault:
        if fault.state in ENDED or fault.state == CANCELLING:
            return Change(trigger.campaign_id, fault.state, fault.state, False, f"too late: it is {fault.state}")
        raise BadTrigger("wrong_state", str(fault), trigger.campaign_id) from None
    except (NotReady, BadStart) as fault:
        raise BadTrigger(fault.reason, str(fault), trigger.campaign_id) from None


def _keep(store: Store, cancel: Trigger, by: str) -> Change:
    new = keep_early_cancel(store, cancel.campaign_id, cancel.seq)
    if new is None:
        return apply_trigger(store, cancel, by)
    return Change(cancel.campaign_id, "none", "none", new, "kept: whoever starts the campaign cancels it")
