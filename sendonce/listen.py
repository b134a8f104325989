"""For those who wait for the answer: what became of the recipients of a `send`, from the outcomes topic.

    from sendonce.listen import Outcomes

    with Outcomes("projects/shop/subscriptions/outcomes") as outcomes:
        for outcome in outcomes:
            ledger.write(outcome.message_id, outcome.outcome)

It needs `google-cloud-pubsub` and nothing else, like `sendonce.client`. Outcomes come at least once and in no order:
let handling be idempotent by `message_id`.
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Optional

from google.api_core import exceptions as google
from google.cloud import pubsub_v1

_CALL_S: Final = 10.0
_PULL_S: Final = 20.0
_AGAIN_S: Final = 1.0
_DEADLINE_S: Final = 60.0
_ACK_EVERY_S: Final = 1.0
# What one reader holds no other gets.
_AT_ONCE: Final = 100


@dataclass(frozen=True)
class Outcome:
    """What became of one recipient of a `send`.

    message_id: names the message, the same whenever it is told again. outcome: accepted (by the provider), refused,
    suppressed, skipped, cancelled or assumed. reason: why, for machines, like `provider.invalid_address`; empty where
    the outcome says it all. at: when it became final, UTC.
    """

    message_id: str
    idempotency_key: str
    outcome: str
    reason: str
    at: datetime


def read_outcome(data: bytes) -> Outcome:
    """The outcome in the body of a message of the outcomes topic. ValueError for what is none. Unknown fields pass."""
    try:
        told = json.loads(data)
        at = datetime.fromisoformat(told["at"])
        made = Outcome(told["message_id"], told["idempotency_key"], told["outcome"], told["reason"], at)
    except (ValueError, KeyError, TypeError):
        raise ValueError("the message holds no outcome") from None
    return made


def _outcome_or_none(data: bytes) -> Optional[Outcome]:
    try:
        return read_outcome(data)
    except ValueError:
        return None


class Outcomes:
    """Outcomes from a subscription of the outcomes topic, in no order, each at least once.

    One counts as handled when the loop comes back for the next. Those that were handled are acknowledged together, once
    a second and when the loop is left; whoever dies gets them again. What was not handled comes again at once. A
    handler that takes longer than a minute may meet its outcome a second time. Any number of processes may read one
    subscription and share its messages.

    subscription: projects/PROJECT/subscriptions/NAME; ValueError for another form. idle_s: end the loop when nothing
    has come for so long; None: go on until closed.
    """

    def __init__(self, subscription: str, *, idle_s: Optional[float] = None) -> None:
        self._source = _Source(subscription)
        self.idle_s = idle_s

    def __iter__(self) -> Iterator[Outcome]:
        """NotFound, PermissionDenied and the like of google.api_core when the subscription may not be read."""
        since_s = time.monotonic()
        while not self._source.closed.is_set():
            left_s = _PULL_S if self.idle_s is None else since_s + self.idle_s - time.monotonic()
            if left_s <= 0:
                return
            if held := self._source.pull(min(left_s, _PULL_S)):
                yield from self._each(held)
                since_s = time.monotonic()

    def _each(self, held: list[Any]) -> Iterator[Outcome]:
        handled: list[Any] = []
        acked_s = extended_s = time.monotonic()
        try:
            while held:
                outcome = _outcome_or_none(held[0].message.data)
                if outcome is not None:  # what is none would come back for ever
                    yield outcome
                handled.append(held.pop(0))
                now_s = time.monotonic()
                if now_s - acked_s > _ACK_EVERY_S:
                    self._source.acknowledge(handled)
                    handled, acked_s = [], now_s
                if now_s - extended_s > _DEADLINE_S / 2:
                    self._source.extend(held, _DEADLINE_S)
                    extended_s = now_s
        finally:
            self._source.acknowledge(handled)
            self._source.extend(held, 0)

    def close(self) -> None:
        """Read no more; also from another thread."""
        self._source.close()

    def __enter__(self) -> "Outcomes":
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


class OutcomeWaiter:
    """Waits for the outcomes of single sends. Its subscription belongs to this process alone: it takes all that comes,
    and forgets what nobody here waits for.

        with OutcomeWaiter("projects/shop/subscriptions/outcomes-web-3") as waiter:
            expected = waiter.expect("login-4711-20261130-0931")     # before the send
            publisher.send("otp", recipients, idempotency_key="login-4711-20261130-0931", priority="critical")
            (outcome,) = expected.result(timeout_s=30)
    """

    def __init__(self, subscription: str) -> None:
        self._source = _Source(subscription)
        self._expected: dict[str, list[Expected]] = {}
        self._fault: Optional[BaseException] = None
        self._changed = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="outcomes", daemon=True)
        self._thread.start()

    def expect(self, idempotency_key: str, recipients: int = 1) -> "Expected":
        """Begin to wait for the outcomes of a send to so many recipients. Say so before it is published.

        A key that was used before has told its outcomes then, and tells none again.
        """
        expected = Expected(idempotency_key, recipients, self._forget)
        with self._changed:
            self._expected.setdefault(idempotency_key, []).append(expected)
            fault = self._fault
        if fault is not None:
            expected.fail(fault)
        return expected

    def _run(self) -> None:
        try:
            while not self._source.closed.is_set():
                held = self._source.pull(_PULL_S)
                for message in held:
                    self._take(_outcome_or_none(message.message.data))
                self._source.acknowledge(held)
            self._end(RuntimeError("the waiter is closed"))
        except Exception as fault:
            self._end(fault)

    def _take(self, outcome: Optional[Outcome]) -> None:
        if outcome is None:
            return
        with self._changed:
            waiting = list(self._expected.get(outcome.idempotency_key, ()))
        for expected in waiting:
            expected.take(outcome)

    def _end(self, fault: BaseException) -> None:
        with self._changed:
            self._fault = fault
            waiting = [expected for several in self._expected.values() for expected in several]
        for expected in waiting:
            expected.fail(fault)

    def _forget(self, expected: "Expected") -> None:
        with self._changed:
            others = [other for other in self._expected.get(expected.key, ()) if other is not expected]
            if others:
                self._expected[expected.key] = others
            else:
                self._expected.pop(expected.key, None)

    def close(self) -> None:
        """Wait no more; who still waits is told."""
        self._source.close()
        self._thread.join(_CALL_S)

    def __enter__(self) -> "OutcomeWaiter":
        return self

    def __exit__(self, *fault: object) -> None:
        self.close()


class _Source:
    """A subscription, pulled call by call: what a call brought, and no more, is in these hands when it is closed."""

    def __init__(self, subscription: str) -> None:
        if not re.fullmatch(r"projects/[^/\s]+/subscriptions/[^/\s]+", subscription):
            raise ValueError("name a subscription, as projects/PROJECT/subscriptions/NAME")
        self._subscription = subscription
        self._client = pubsub_v1.SubscriberClient()
        self.closed = threading.Event()

    def pull(self, wait_s: float) -> list[Any]:
        """What is there, or comes within so long; nothing when closed. Faults that pass are waited out."""
        try:
            answer = self._client.pull(
                subscription=self._subscription, max_messages=_AT_ONCE, retry=None, timeout=wait_s
            )
        except google.DeadlineExceeded:
            return []
        except (google.NotFound, google.PermissionDenied, google.Unauthenticated, google.InvalidArgument):
            if self.closed.is_set():
                return []
            raise
        except (google.GoogleAPICallError, ValueError):  # ValueError: a call on a closed channel
            self.closed.wait(min(_AGAIN_S, wait_s))
            return []
        held = list(answer.received_messages)
        self.extend(held, _DEADLINE_S)
        return held

    def acknowledge(self, held: list[Any]) -> None:
        """They are done. If that cannot be said they come again, which is allowed."""
        if held:
            with suppress(google.GoogleAPICallError, google.RetryError, ValueError):
                self._client.acknowledge(
                    subscription=self._subscription, ack_ids=[message.ack_id for message in held], timeout=_CALL_S
                )

    def extend(self, held: list[Any], seconds: float) -> None:
        """They come again after so long, unless acknowledged before."""
        if held:
            with suppress(google.GoogleAPICallError, google.RetryError, ValueError):
                self._client.modify_ack_deadline(
                    subscription=self._subscription,
                    ack_ids=[message.ack_id for message in held],
                    ack_deadline_seconds=int(seconds),
                    timeout=_CALL_S,
                )

    def close(self) -> None:
        """End a call that waits."""
        self.closed.set()
        self._client.close()


class Expected:
    """The outcomes of one send, as they come."""

    def __init__(self, key: str, recipients: int, forget: Callable[["Expected"], None]) -> None:
        self.key = key
        self._recipients = recipients
        self._forget = forget
        self._found: dict[str, Outcome] = {}
        self._fault: Optional[BaseException] = None
        self._enough = threading.Event()

    def result(self, timeout_s: Optional[float] = None) -> list[Outcome]:
        """Wait until every recipient has an outcome; they are in the order in which they came.

        TimeoutError if some have none by then, which is no failure: one that is in doubt may take a day. Those that
        came are in its `outcomes`. What ended the subscription is raised as it is.
        """
        try:
            if self._enough.wait(timeout_s) and self._fault is None:
                return list(self._found.values())
        finally:
            self._forget(self)
        if self._fault is not None:
            raise self._fault
        raise MissingOutcomes(list(self._found.values()), self._recipients)

    def take(self, outcome: Outcome) -> None:
        """One has come, perhaps not for the first time."""
        self._found.setdefault(outcome.message_id, outcome)
        if len(self._found) >= self._recipients:
            self._enough.set()

    def fail(self, fault: BaseException) -> None:
        """None will come any more."""
        self._fault = fault
        self._enough.set()


class MissingOutcomes(TimeoutError):
    """Not every recipient had an outcome in time. outcomes: those that came."""

    def __init__(self, outcomes: list[Outcome], recipients: int) -> None:
        super().__init__(f"{len(outcomes)} of {recipients} outcomes have come")
        self.outcomes = outcomes
