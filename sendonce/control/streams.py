"""Taking sends: each becomes one batch of its stream, in the transaction that takes its idempotency key.

A stream is the campaign of one template, one priority and one UTC day. Its row is made by its first send and is not
written again before its end, for every claim reads it. A send is pinned to the template as it was pushed last, and is
one batch whose number comes from its key. Taking the same send again, however often and wherever, finds its key.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from itertools import count
from typing import Any, Final, Optional, Protocol

import orjson

from schemas.elements import DeadLetter, Reference
from schemas.ids import (
    SHARDS,
    body_hash,
    message_id,
    send_batch_no,
    shard_of,
)
from schemas.outcomes import KINDS, Outcome
from schemas.tables import Batch, Campaign, Decision, IdempotencyKey, Progress, Recipient
from sendonce.config.placeholders import address_problem
from sendonce.control.campaigns import CANCELLED, COMPLETED, RUNNING, Change, decision_id
from sendonce.control.dead_letters import put_dead_letters
from sendonce.control.early_cancels import take_early_cancel
from sendonce.control.finals import sends_final
from sendonce.control.guards import NO_GUARD, PLACEHOLDER, sender_obstacle, writes_to_people
from sendonce.control.pushed_templates import Pushed, from_in, pushed_template
from sendonce.control.send_rows import batch_row, message_rows, note_of, people_rows
from sendonce.control.sends import Send
from sendonce.control.stops import senders_of
from sendonce.control.stream_names import STREAM, stream_id
from sendonce.control.trigger_faults import BadTrigger
from sendonce.stores.base import ANY_SHARD, Reader, Store, Tx

# A code that comes late is worse than none.
CRITICAL_EXPIRES: Final = timedelta(minutes=10)
# The longest that a send may be open: shorter than its key is kept, so that a repetition always meets the key.
EXPIRES_MAX: Final = timedelta(days=7)
KEYS_KEPT: Final = timedelta(days=8)
KEYS_PURGED_AT_ONCE: Final = 500
_EXPIRES: Final = {"critical": CRITICAL_EXPIRES, "high": EXPIRES_MAX}
# What `Change` says of a send that came again: its stream may have any state.
_TAKEN: Final = "taken"


class Queue(Protocol):
    """What a job plans by itself: sends that it stores, without a look."""

    def queue(self, lane: str, batch: Batch, now: datetime) -> Batch:
        """The batch of a send that is due and may go, as it is to be stored: pending, or planned. now: store time.

        Called inside a transaction, perhaps more than once for a send.
        """

    def planned(self, references: Sequence[Reference]) -> None:
        """Sends that it planned are in the store."""


class _Pending:
    """Leaves planning to the planner."""

    def queue(self, lane: str, batch: Batch, now: datetime) -> Batch:
        return batch

    def planned(self, references: Sequence[Reference]) -> None:
        pass


PENDING: Final[Queue] = _Pending()


def take_sends(tx: Tx, key: bytes, sends: Sequence[Send], by: str, queue: Queue = PENDING) -> list[Change | BadTrigger]:
    """Take sends with different idempotency keys; what became of each, in order. key: the store's own.

    queue: may plan a send at once; then its `Change` has the reference.

    A send that cannot be taken leaves nothing behind, and its neighbours alone. `changed` is false for one that was
    taken before. Reasons of a BadTrigger: `idempotency_conflict`, `unknown_template`, `bad_template`, `no_from`,
    `wrong_sender`, `no_lane`, `no_guard`, `placeholder`, `expires_too_late`, `not_a_stream`.
    """
    return _Taking(tx, key, by, queue).take(sends)


def purge_keys(store: Store) -> int:
    """Forget up to `KEYS_PURGED_AT_ONCE` idempotency keys that were kept for `KEYS_KEPT`; returns how many."""

    def old(reader: Reader) -> list[IdempotencyKey]:
        until = reader.now() - KEYS_KEPT
        return reader.scan(IdempotencyKey, ANY_SHARD, index="keys_by_time", upto=until, limit=KEYS_PURGED_AT_ONCE)

    found = store.read(old)
    if found:
        store.transact(lambda tx: tx.delete(*found), tag="purge_keys")
    return len(found)


@dataclass(frozen=True)
class _Ready:
    """A send that can be taken, and into which stream."""

    send: Send
    pushed: Pushed
    expires_at: datetime
    stream: Campaign


class _Taking:
    """One transaction that takes sends. What they share is read once."""

    def __init__(self, tx: Tx, key: bytes, by: str, queue: Queue) -> None:
        self._tx = tx
        self._key = key
        self._by = by
        self._queue = queue
        self._now = tx.now()
        self._streams: dict[tuple[str, str], Campaign] = {}
        self._made: list[Campaign] = []
        self._pushed: dict[str, Pushed | BadTrigger] = {}
        self._senders: dict[str, str | BadTrigger] = {}
        self._to_people: dict[str, bool] = {}
        self._from: Optional[str] = None
        self._given: set[tuple[str, int]] = set()
        self._over: dict[str, Progress] = {}

    def take(self, sends: Sequence[Send]) -> list[Change | BadTrigger]:
        taken = {row.key_hash: row for row in self._tx.get_many(IdempotencyKey, [(send.key_hash,) for send in sends])}
        found: list[_Ready | Change | BadTrigger] = []
        for send in sends:
            row = taken.get(send.key_hash)
            try:
                found.append(self._ready(send) if row is None else self._again(send, row))
            except BadTrigger as fault:
                found.append(fault)
        self._look_at_numbers([one for one in found if isinstance(one, _Ready)])
        written = [self._write(one) if isinstance(one, _Ready) else one for one in found]
        self._tx.put(*self._over.values())
        return written

    def _again(self, send: Send, taken: IdempotencyKey) -> Change:
        if taken.body_hash != body_hash(self._key, send.body):
            raise BadTrigger(
                "idempotency_conflict",
                "its idempotency key was taken with another body; what is to be sent besides needs a key of its own",
                taken.campaign_id,
            )
        return Change(taken.campaign_id, _TAKEN, _TAKEN, False, "its idempotency key was taken before")

    def _ready(self, send: Send) -> _Ready:
        pushed = self._template(send.template)
        self._check_sender(send)
        self._check_from(send, pushed)
        expires_at = self._expires_at(send)
        return _Ready(send, pushed, expires_at, self._stream(send, pushed))

    def _write(self, ready: _Ready) -> Change:
        send, pushed, expires_at, stream = ready.send, ready.pushed, ready.expires_at, ready.stream
        batch_no = self._batch_no(stream.campaign_id, send.key_hash)
        batch = batch_row(send, stream, batch_no, pushed, expires_at, self._now)
        people = people_rows(send, batch, pushed, self._key)
        if batch.open_state is not None and stream.state == RUNNING:
            batch = self._queue.queue(send.priority, batch, self._now)
        if stream in self._made:
            self._made.remove(stream)
            self._tx.insert(stream)
        self._tx.insert(
            IdempotencyKey(
                key_hash=send.key_hash,
                body_hash=body_hash(self._key, send.body),
                campaign_id=stream.campaign_id,
                batch_no=batch_no,
                created_at=self._now,
                shard=int(send.key_hash[:8], 16) % SHARDS,
            )
        )
        self._tx.insert(batch)
        self._tx.insert(*people)
        self._write_finals(send, batch, people)
        if stream.state == CANCELLED:
            self._count_late(batch)
        planned = Reference(stream.campaign_id, batch_no, batch.plan_no, send.priority) if batch.plan_no else None
        return Change(stream.campaign_id, stream.state, stream.state, True, note_of(send, batch), planned=planned)

    def _template(self, name: str) -> Pushed:
        if name not in self._pushed:
            try:
                self._pushed[name] = self._usable(name, pushed_template(self._tx, name))
            except BadTrigger as fault:
                self._pushed[name] = fault
        found = self._pushed[name]
        if isinstance(found, BadTrigger):
            raise found
        return found

    def _usable(self, name: str, pushed: Pushed) -> Pushed:
        if pushed.from_address or self._default_from():
            return pushed
        raise BadTrigger(
            "no_from",
            f"no address to send from: set `from` in template.yaml of {name} and push it, or in sendonce.yaml and run "
            "`sendonce config apply`",
        )

    def _default_from(self) -> str:
        if self._from is None:
            self._from = from_in(self._tx)
        return self._from

    def _check_sender(self, send: Send) -> None:
        """A lane has one sender, and letters by a real one must be allowed to leave this store."""
        lane = send.priority
        if lane not in self._senders:
            self._senders[lane] = self._lane_sender(lane)
        sender = self._senders[lane]
        if isinstance(sender, BadTrigger):
            raise sender
        if send.sender is not None and send.sender != sender:
            raise BadTrigger(
                "wrong_sender",
                f"the lane {lane} sends by {sender}, and the send names another sender; leave `sender` out, name "
                f"{sender}, or give the lane another one in sendonce.yaml and run `sendonce config apply`",
            )

    def _lane_sender(self, lane: str) -> str | BadTrigger:
        senders = senders_of(self._tx, lane)
        if not senders[0]:
            return BadTrigger("no_lane", f"the store holds no lane {lane}; run `sendonce config apply`")
        for name in senders:
            if problem := sender_obstacle(self._tx, name):
                return BadTrigger(NO_GUARD, problem)
        return senders[0]

    def _check_from(self, send: Send, pushed: Pushed) -> None:
        """Nobody could answer, and few would get, what comes from an address that is for examples."""
        problem = address_problem(pushed.from_address or self._default_from()) or address_problem(pushed.reply_to)
        if not problem:
            return
        lane = send.priority
        if lane not in self._to_people:
            self._to_people[lane] = writes_to_people(self._tx, lane)
        if self._to_people[lane]:
            raise BadTrigger(
                PLACEHOLDER,
                f"from or reply_to of its letters {problem}; set from and reply_to in template.yaml of {send.template} "
                "and push it, or from in sendonce.yaml and run `sendonce config apply`",
            )

    def _expires_at(self, send: Send) -> datetime:
        if send.expires_at is None:
            since = self._now if send.published_at is None else min(send.published_at, self._now)
            return since + _EXPIRES[send.priority]
        if send.expires_at > self._now + EXPIRES_MAX:
            raise BadTrigger(
                "expires_too_late",
                f"expires_at: may be at most {EXPIRES_MAX.days} days ahead; keys are not kept longer",
            )
        return send.expires_at

    def _stream(self, send: Send, pushed: Pushed) -> Campaign:
        name = (send.template, send.priority)
        if name not in self._streams:
            today = self._now.date()
            found = self._found(send, pushed, today)
            if found.state == COMPLETED:  # its day was over by the clock of whoever ended it
                found = self._found(send, pushed, today + timedelta(days=1))
            self._streams[name] = found
        return self._streams[name]

    def _found(self, send: Send, pushed: Pushed, day: date) -> Campaign:
        campaign_id = stream_id(send.template, send.priority, day)
        found = self._tx.get(Campaign, campaign_id)
        if found is None:
            found = self._new_stream(campaign_id, send, pushed, day)
            self._made.append(found)
        if found.kind != STREAM:
            raise BadTrigger(
                "not_a_stream", f"{campaign_id} is a campaign that was loaded; its id is that of a stream", campaign_id
            )
        return found

    def _new_stream(self, campaign_id: str, send: Send, pushed: Pushed, day: date) -> Campaign:
        called_off = take_early_cancel(self._tx, campaign_id)
        if called_off:
            name = decision_id("cancel", campaign_id)
            self._tx.put(Decision(name, campaign_id, "cancel", self._now, "trigger"))
        return Campaign(
            campaign_id=campaign_id,
            kind=STREAM,
            state=CANCELLED if called_off else RUNNING,
            priority=send.priority,
            sender="",
            from_address=self._default_from() or pushed.from_address,
            template=send.template,
            template_hash=pushed.template_hash,
            options=orjson.dumps({"day": day.isoformat(), "reply_to": pushed.reply_to}).decode(),
            snapshot_hash="",
            recipients=0,
            batches=0,
            created_at=self._now,
            created_by=self._by,
            changed_at=self._now,
            changed_by=self._by,
            started_at=None if called_off else self._now,
            finished_at=self._now if called_off else None,
        )

    def _look_at_numbers(self, ready: Sequence[_Ready]) -> None:
        """Which of the numbers that these sends would like to have belong to others: one look for all."""
        wanted = [(one.stream.campaign_id, send_batch_no(one.send.key_hash, 0)) for one in ready]
        there = self._tx.get_many(Batch, [(shard_of(*place), *place) for place in wanted])
        self._given = {(batch.campaign_id, batch.batch_no) for batch in there}

    def _batch_no(self, campaign_id: str, key: str) -> int:
        """The first number of the key's own that no other send of the stream has."""
        for place in count():
            number = send_batch_no(key, place)
            wanted = (campaign_id, number)
            if wanted in self._given:
                continue
            if place and self._tx.get(Batch, shard_of(*wanted), *wanted) is not None:
                continue
            self._given.add(wanted)
            return number
        raise AssertionError("numbers do not end")

    def _write_finals(self, send: Send, batch: Batch, people: Sequence[Recipient]) -> None:
        """Rows for those who are final from the start; a dead letter for each who has no address."""
        finals = {place: Outcome(code) for place, code in enumerate(batch.outcomes) if code != Outcome.OPEN}
        if not finals:
            return
        names = {place: message_id(self._key, batch.campaign_id, people[place].recipient_id) for place in finals}
        self._tx.insert(*message_rows(send, batch, names, self._now))
        put_dead_letters(
            self._tx,
            [
                DeadLetter(
                    stage="trigger",
                    reason=outcome.reason,
                    detail=send.recipients[place].detail,
                    campaign_id=batch.campaign_id,
                    batch_no=batch.batch_no,
                    ordinal=place,
                    message_id=names[place],
                )
                for place, outcome in finals.items()
                if outcome == Outcome.ADDRESS_INVALID
            ],
        )
        sends_final(self._tx, batch, finals, names, self._now)

    def _count_late(self, batch: Batch) -> None:
        """Nobody sums up what is over: what still comes into a cancelled stream is added to its last sums."""
        name = batch.campaign_id
        last = self._over.get(name) or self._tx.get(Progress, name) or _no_progress(name, self._now)
        kinds = {f"n_{kind}": getattr(last, f"n_{kind}") + getattr(batch, f"n_{kind}") for kind in KINDS}
        self._over[name] = replace(
            last, at=self._now, total=last.total + batch.size, batches_done=last.batches_done + 1, **kinds
        )


def _no_progress(campaign_id: str, now: datetime) -> Progress:
    counts: dict[str, Any] = {f"n_{kind}": 0 for kind in KINDS}
    states = ("pending", "queued", "sending", "in_doubt", "held", "done")
    batches: dict[str, Any] = {f"batches_{state}": 0 for state in states}
    return Progress(campaign_id=campaign_id, at=now, total=0, active_s=0.0, **counts, **batches)
