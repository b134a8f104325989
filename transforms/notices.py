"""The thread of a job process that publishes notices: outcomes of sends, and dead letters.

It has its own connection to the store and never keeps a sending thread waiting. What it cannot publish waits in the
store, also for the next job.
"""

import logging
import random
import threading
import time
from collections.abc import Mapping
from typing import Final, Protocol

import orjson

from schemas.tables import Notice
from sendonce.control.notices import claim_notices, drop_old_notices, forget_notices, hand_back_notices, notices_text
from sendonce.control.topics import AT_ONCE, Answer, TopicClient
from sendonce.failpoints import failpoint
from sendonce.stores.base import Store, StoreError

_log = logging.getLogger(__name__)

# For what others have left: a killed process, a command. Whoever writes notices in this process says so (`look`).
LOOK_S: Final = 2.0
# Between two looks, so that many small deliveries share one.
GAP_S: Final = 0.02
AGAIN_S: Final = (1.0, 10.0)
DROP_S: Final = 3600.0
STOP_S: Final = 3.0


class Publishes(Protocol):
    """`TopicClient`, or what a test puts in its place."""

    def publish(self, topic: str, messages: list[tuple[bytes, Mapping[str, str]]]) -> Answer: ...

    def close(self) -> None: ...


class NoticePublisher:
    """Publishes the notices of a store while topics are configured: one thread, for all workers of a process.

    problems: by kind, what keeps its notices waiting, in words, with the mend.
    """

    def __init__(self, store: Store, client: Publishes | None = None) -> None:
        self._store = store
        self._client = client or TopicClient()
        self._topics: dict[str, str] = {}
        self._users: set[object] = set()
        self._changed = threading.Lock()
        self._asked = threading.Event()
        self._stopping = threading.Event()
        self._until_s = float("inf")
        self._thread: threading.Thread | None = None
        self._pause_s: dict[str, float] = {}
        self._paused_until_s: dict[str, float] = {}
        self._dropped_s = float("-inf")
        self.problems: dict[str, str] = {}

    def follow(self, user: object, topics: Mapping[str, str]) -> None:
        """What the store's settings say now, as `user` read them. Without topics there is no thread."""
        with self._changed:
            self._users.add(user)
            self._topics = dict(topics)
            if self._topics and self._thread is None:
                self._stopping, self._until_s = threading.Event(), float("inf")
                self.problems, self._pause_s, self._paused_until_s = {}, {}, {}
                self._thread = threading.Thread(target=self._run, args=(self._stopping,), name="notices", daemon=True)
                self._thread.start()

    def look(self) -> None:
        """Notices may have been written. Cheap; from any thread."""
        if self._thread is not None:
            self._asked.set()

    def leave(self, user: object, patience_s: float = STOP_S) -> None:
        """The user writes no more. After the last one: publish what there is, if Pub/Sub takes it, and end."""
        with self._changed:
            self._users.discard(user)
            thread = self._thread
            if self._users or thread is None:
                return
            self._thread = None
            self._until_s = time.monotonic() + patience_s
            self._stopping.set()
            self._asked.set()
        thread.join(patience_s)

    def _run(self, stopping: threading.Event) -> None:
        while True:
            # Not at the same moment as the other processes.
            self._asked.wait(LOOK_S * random.uniform(0.75, 1.25))
            last = stopping.is_set()
            self._asked.clear()
            try:
                self._round()
            except StoreError as fault:
                # The steps of the job meet it too, and say what is to be done.
                _log.debug("no look for notices: %s", type(fault).__name__)
            except Exception:
                _log.exception("notices wait: an unforeseen fault")
            if last:
                break
            stopping.wait(GAP_S)
        self._client.close()

    def _round(self) -> None:
        for kind, topic in self._topics.items():
            if time.monotonic() >= self._paused_until_s.get(kind, 0.0):
                self._publish_all(kind, topic)
        if time.monotonic() - self._dropped_s > DROP_S:
            self._dropped_s = time.monotonic()
            if dropped := drop_old_notices(self._store):
                _log.warning("%d notices that had waited for a week were given up", dropped)

    def _publish_all(self, kind: str, topic: str) -> None:
        # While the topic takes nothing, one notice is enough to find out whether it does again.
        if kind in self.problems and not self._publish(kind, topic, 1):
            return
        self._publish(kind, topic, AT_ONCE)

    def _publish(self, kind: str, topic: str, most: int) -> bool:
        """Publish what is due, or one if `most` is 1. False when the topic does not take it."""
        for notices in claim_notices(self._store, kind, most):
            if not notices:
                continue
            answer = self._client.publish(topic, [_message(notice) for notice in notices])
            failpoint("N1")
            told = list(zip(notices, answer.taken, strict=True))
            forget_notices(self._store, [notice for notice, taken in told if taken])
            hand_back_notices(self._store, [notice for notice, taken in told if not taken])
            if answer.problem:
                self._wait(kind, answer.problem)
                return False
            self._go_on(kind)
            if most == 1 or time.monotonic() > self._until_s:
                break
        return True

    def _wait(self, kind: str, problem: str) -> None:
        if self.problems.get(kind) != problem:
            _log.warning("%s wait: %s", notices_text(kind), problem)
        first, most = AGAIN_S
        pause_s = min(most, 2 * self._pause_s[kind]) if kind in self._pause_s else first
        self.problems[kind] = problem
        self._pause_s[kind] = pause_s
        self._paused_until_s[kind] = time.monotonic() + pause_s

    def _go_on(self, kind: str) -> None:
        if self.problems.pop(kind, None):
            del self._pause_s[kind]
            _log.warning("%s are published again", notices_text(kind))


def _message(notice: Notice) -> tuple[bytes, Mapping[str, str]]:
    return notice.body.encode(), orjson.loads(notice.attributes)


_publishers: dict[Store, NoticePublisher] = {}
_lock = threading.Lock()


def publisher_of(store: Store) -> NoticePublisher:
    """The process's publisher for a store."""
    with _lock:
        if store not in _publishers:
            _publishers[store] = NoticePublisher(store)
        return _publishers[store]
