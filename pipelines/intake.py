"""The intake of a live job: triggers from a Pub/Sub subscription into the store, each durable before it is acked.

Beam's local runner acknowledges what it reads before any step has seen it, ten messages at a time and only while
nothing runs; a kill would lose triggers, and a busy pipeline would keep them waiting. So a thread of its own reads the
subscription: pull, apply through `control/`, acknowledge, in this order. A message that comes again changes nothing.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from google.api_core import exceptions as google
from google.cloud import pubsub_v1

from pipelines.private_topic import FINAL
from schemas.elements import DeadLetter
from sendonce.control.dead_letters import write_dead_letters
from sendonce.control.triggers import BadTrigger, apply_trigger, read_trigger
from sendonce.failpoints import failpoint
from sendonce.stores.base import Store, StoreError, StoreUnavailable

_log = logging.getLogger(__name__)

MOST_AT_ONCE = 100
# Shorter than the shortest ack deadline (10 s): what is pulled together is acknowledged in time.
ACK_AFTER_S = 2.0
PULL_S = 20.0
CALL_S = 10.0
AGAIN_S = 1.0


class Intake:
    """Reads one subscription until it is told to stop.

    on_change: called after a trigger has changed something in the store, with its lane if it names one. on_bad: called
    after a dead letter was put there. on_fault: called once with what ends the intake: a fault of the subscription that
    a person must mend, or a store that refuses. Anything else is tried again.
    """

    def __init__(
        self,
        store: Store,
        subscription: str,
        on_change: Callable[[str | None], None],
        on_fault: Callable[[Exception], None],
        on_bad: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._subscription = subscription
        self._on_change = on_change
        self._on_fault = on_fault
        self._on_bad = on_bad
        self._client = pubsub_v1.SubscriberClient()
        self._stopping = threading.Event()
        self._pulling = False
        self._thread = threading.Thread(target=self._run, name="intake", daemon=True)
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

    def _run(self) -> None:
        failing = False
        while not self._stopping.is_set():
            try:
                self._take(self._pull())
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
        """Apply each, then acknowledge. What a fault leaves unacknowledged is asked for again at once."""
        waiting, done = deque(received), list[str]()
        since_s = time.monotonic()
        try:
            while waiting:
                failpoint("S0")
                self._apply(waiting[0].message)
                failpoint("S1")
                done.append(waiting.popleft().ack_id)
                if time.monotonic() - since_s > ACK_AFTER_S:
                    self._acknowledge(done)
                    done, since_s = [], time.monotonic()
        finally:
            self._acknowledge(done)
            if waiting:
                self._give_back([message.ack_id for message in waiting])

    def _apply(self, message: Any) -> None:
        try:
            change = apply_trigger(self._store, read_trigger(message.data), "trigger")
        except BadTrigger as fault:
            self._bury(message, fault.reason, fault.detail, fault.campaign_id)
            return
        except StoreError:
            raise
        except Exception as fault:  # whatever it is, it must not come again and again before its neighbours
            self._bury(message, "unforeseen", f"applying it failed: {type(fault).__name__}")
            return
        if change.changed:
            self.applied += 1
            self._on_change(None)
        else:
            self.ignored += 1

    def _bury(self, message: Any, reason: str, detail: str, campaign_id: str | None = None) -> None:
        dead = DeadLetter("trigger", reason, detail, campaign_id, message_id=message.message_id, body=message.data)
        write_dead_letters(self._store, [dead])
        self.bad += 1
        self._on_bad()

    def _give_back(self, ack_ids: list[str]) -> None:
        self._client.modify_ack_deadline(
            subscription=self._subscription, ack_ids=ack_ids, ack_deadline_seconds=0, timeout=CALL_S
        )

    def _acknowledge(self, ack_ids: list[str]) -> None:
        if ack_ids:
            self._client.acknowledge(subscription=self._subscription, ack_ids=ack_ids, timeout=CALL_S)
