"""The intake of a live job: triggers from a Pub/Sub subscription into the store, each durable before it is acked.

Beam's local runner acknowledges what it reads before any step has seen it, ten messages at a time and only while
nothing runs; a kill would lose triggers, and a busy pipeline would keep them waiting. So a thread of its own reads the
subscription: pull, apply through `control/`, acknowledge, in this order. A message that comes again changes nothing.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from google.api_core import exceptions as google
from google.cloud import pubsub_v1

from pipelines.private_topic import FINAL
from schemas.elements import DeadLetter
from sendonce.control.dead_letters import write_dead_letters
from sendonce.control.streams import PENDING, Queue
from sendonce.control.triggers import apply_triggers, read_or_bad
from sendonce.failpoints import failpoint
from sendonce.stores.base import Store, StoreUnavailable
from sendonce.stores.turns import urgent

_log = logging.getLogger(__name__)

MOST_AT_ONCE = 200
# A part of what was pulled together: applied well within the shortest ack deadline (10 s), and then acknowledged.
APPLIED_AT_ONCE = 100
PULL_S = 20.0
CALL_S = 10.0
AGAIN_S = 1.0
# Bad triggers are told of at most so often: a publisher that is wrong once is wrong very often.
SAID_AGAIN_S = 10.0


class ToldOfBad:
    """Tells who looks at a job of triggers that cannot be followed: the first at once, the others counted, now and
    then. clock: seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._said_s = float("-inf")
        self._unsaid: list[str] = []
        self._times = 0

    def note(self, reasons: list[str]) -> None:
        self._unsaid += reasons
        self._times += len(reasons)

    def say(self, *, last: bool = False) -> None:
        """What was not told yet, if it is time. last: whether or not it is."""
        if not self._unsaid or (self._clock() - self._said_s < SAID_AGAIN_S and not last):
            return
        count, reasons = len(self._unsaid), ", ".join(dict.fromkeys(self._unsaid))
        who = "a trigger" if count == 1 else f"{count} triggers"
        self._unsaid, self._said_s = [], self._clock()
        _log.warning("%s cannot be followed (%s), %d in all: `sendonce dead-letters list`", who, reasons, self._times)


class Intake:
    """Reads one subscription until it is told to stop.

    on_change: called after a trigger has changed something in the store, with its lane if it names one. on_bad: called
    after a dead letter was put there. queue: may plan a send where it is stored; `on_change` is not told of such a one.
    on_fault: called once with what ends the intake: a fault of the subscription that a person must mend, or a store
    that refuses. Anything else is tried again.
    """

    def __init__(
        self,
        store: Store,
        subscription: str,
        on_change: Callable[[str | None], None],
        on_fault: Callable[[Exception], None],
        on_bad: Callable[[], None] = lambda: None,
        queue: Queue = PENDING,
    ) -> None:
        self._store = store
        self._subscription = subscription
        self._on_change = on_change
        self._on_fault = on_fault
        self._on_bad = on_bad
        self._queue = queue
        self._client = pubsub_v1.SubscriberClient()
        self._stopping = threading.Event()
        self._pulling = False
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
        self._told = ToldOfBad(time.monotonic)
        self.applied = self.ignored = self.bad = 0

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def stop(self, patience_s: float) -> None:
        """Read no more; what was pulled is applied and acknowledged first, or comes again at its ack deadline."""
        self._stopping.set()
        until_s = time.monotonic() + patience_s
        while self._thread.is_alive() and not self._pulling and time.monotonic() < until_s:
            self._thread.join(0.05)
        self._client.close()  # ends a pull that waits
        self._thread.join(max(0.0, until_s - time.monotonic()))
        self._told.say(last=True)

    def _run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                pulled = self._pull()
                self._told.say()
                with urgent():  # a code is waited for
                    self._take(pulled)
                if failing:
                    _log.warning("triggers come again from %s", self._subscription)
                failing = False
            except FINAL as fault:
                if not self._stopping.is_set():
                    self._on_fault(fault)
                return
            except (google.GoogleAPICallError, google.RetryError, StoreUnavailable) as fault:
                if not failing and not self._stopping.is_set():
                    _log.warning("no triggers from %s for now: %s", self._subscription, type(fault).__name__)
                failing = True
                self._stopping.wait(AGAIN_S)
            except Exception as fault:
                if not self._stopping.is_set():
                    self._on_fault(fault)
                return

    def _pull(self) -> list[Any]:
        self._pulling = True
        try:
            answer = self._client.pull(
                subscription=self._subscription, max_messages=MOST_AT_ONCE, retry=None, timeout=PULL_S
            )
        except google.DeadlineExceeded:
            return []
        finally:
            self._pulling = False
        return list(answer.received_messages)

    def _take(self, received: list[Any]) -> None:
        """Apply them in their order, a part at a time, and acknowledge each part when it is in the store.

        What a fault leaves unacknowledged is asked for again at once.
        """
        waiting = list(received)
        try:
            while waiting:
                part = waiting[:APPLIED_AT_ONCE]
                failpoint("S0")
                lanes = self._apply([message.message for message in part])
                failpoint("S1")
                for lane in lanes:
                    self._on_change(lane)
                self._acknowledge([message.ack_id for message in part])
                waiting = waiting[APPLIED_AT_ONCE:]
        finally:
            if waiting:
                self._give_back([message.ack_id for message in waiting])

    def _apply(self, messages: list[Any]) -> set[str | None]:
        """Put messages into the store; the lanes in which something is to be planned, None for one that is not known
        here."""
        triggers = [read_or_bad(message.data, _published_at(message)) for message in messages]
        dead, lanes = list[DeadLetter](), set[str | None]()
        found = apply_triggers(self._store, triggers, "trigger", self._queue)
        for message, taken in zip(messages, found, strict=True):
            if taken.ended == "bad":
                letter = DeadLetter("trigger", taken.reason, taken.detail, taken.campaign_id, body=message.data)
                dead.append(replace(letter, message_id=message.message_id))
            elif taken.ended == "applied":
                self.applied += 1
                if taken.planned is None:
                    lanes.add(taken.lane)
            else:
                self.ignored += 1
        if dead:
            write_dead_letters(self._store, dead)
            self.bad += len(dead)
            self._told.note([letter.reason for letter in dead])
            self._told.say()
            self._on_bad()
        return lanes

    def _give_back(self, ack_ids: list[str]) -> None:
        self._client.modify_ack_deadline(
            subscription=self._subscription, ack_ids=ack_ids, ack_deadline_seconds=0, timeout=CALL_S
        )

    def _acknowledge(self, ack_ids: list[str]) -> None:
        if ack_ids:
            self._client.acknowledge(subscription=self._subscription, ack_ids=ack_ids, timeout=CALL_S)


def _published_at(message: Any) -> datetime | None:
    """When Pub/Sub took a message, or None."""
    at: datetime | None = message.publish_time
    return at.astimezone(UTC) if at else None
