"""The private topic of a live job: its ticks and wake-ups, which its own graph reads and nobody else sees."""

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta

from google.api_core import exceptions as google
from google.cloud import pubsub_v1

from schemas.elements import Tick

# What no waiting mends: a person must.
FINAL = (google.NotFound, google.PermissionDenied, google.Unauthenticated, google.InvalidArgument)
CALL_S = 5.0
# What Pub/Sub keeps at least (10 minutes), and the shortest life of a subscription that nobody reads (1 day).
KEPT_S = 600
EXPIRES_S = 24 * 3600
# A tick that nobody has read for so long is taken for lost.
LOST_S = 2.0


class PrivateTopic:
    """A topic and its subscription, made and removed by one job.

    A killed job leaves both. The subscription expires after a day without readers; a topic has no expiry and costs
    nothing, and the next job on the store removes it (`remove_topic`).
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.subscription = _subscription(topic)
        self._publisher = pubsub_v1.PublisherClient(batch_settings=pubsub_v1.types.BatchSettings(max_messages=1))

    def make(self) -> None:
        """Make both, where they are not there. Raises what Pub/Sub raises."""
        with suppress(google.AlreadyExists):
            self._publisher.create_topic(name=self.topic, timeout=CALL_S)
        with pubsub_v1.SubscriberClient() as client, suppress(google.AlreadyExists):
            client.create_subscription(
                request={
                    "name": self.subscription,
                    "topic": self.topic,
                    "message_retention_duration": timedelta(seconds=KEPT_S),
                    "expiration_policy": {"ttl": timedelta(seconds=EXPIRES_S)},
                },
                timeout=CALL_S,
            )

    def publish(self, tick: Tick) -> None:
        """Put a tick on it. Raises what Pub/Sub raises."""
        data = f"{tick.number} {tick.at_ms}".encode()
        self._publisher.publish(self.topic, data, retry=None, timeout=CALL_S).result(CALL_S)

    def remove(self) -> None:
        """Remove both; what is away already is no fault."""
        remove_topic(self.topic)


def tick_topic(project: str, job_id: str, lanes: Sequence[str]) -> str:
    """The private topic of some lanes of a job."""
    return f"projects/{project}/topics/sendonce-ticks-{job_id}-{lanes[0]}"


def remove_topic(topic: str) -> None:
    """Remove a private topic and its subscription, which has the same name."""
    with pubsub_v1.SubscriberClient() as client, suppress(google.NotFound):
        client.delete_subscription(subscription=_subscription(topic), retry=None, timeout=CALL_S)
    with suppress(google.NotFound):
        pubsub_v1.PublisherClient().delete_topic(topic=topic, retry=None, timeout=CALL_S)


def _subscription(topic: str) -> str:
    return topic.replace("/topics/", "/subscriptions/")


def tick_of(data: bytes) -> Tick:
    """A tick from the bytes that `publish` made."""
    number, at_ms = data.split()
    return Tick(int(number), int(at_ms))


class Waker:
    """Publishes a tick every `tick_s` seconds, and one at once when somebody asks (`wake`), from its own thread.

    At most one tick is unread: a graph that is busy finds one look waiting for it, not a hundred. `seen` is to be
    called when the graph begins a look; whoever wakes after that gets another one.
    """

    def __init__(self, topic: PrivateTopic, tick_s: float) -> None:
        self._topic = topic
        self._tick_s = tick_s
        self._changed = threading.Condition()
        self._asked = False
        self._unread_since_s: float | None = None
        self._started = False
        self._stopping = False
        self._number = 0
        self._thread = threading.Thread(target=self._run, name="waker", daemon=True)

    def start(self) -> None:
        """Begin to tick; once more changes nothing."""
        if not self._started:
            self._started = True
            self._thread.start()

    def wake(self) -> None:
        """Something may be to be done. Cheap; from any thread."""
        with self._changed:
            self._asked = True
            self._changed.notify_all()

    def seen(self) -> None:
        """A look begins."""
        with self._changed:
            self._unread_since_s = None
            self._changed.notify_all()

    def stop(self) -> None:
        """Publish one last tick, so that a graph that waits for one wakes up and can be stopped; then no more."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._started:
            self._thread.join()

    def _run(self) -> None:
        due_s = time.monotonic()
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._stopping or (self._asked and not self._unread()),
                    max(0.0, due_s - time.monotonic()),
                )
                stopping = self._stopping
                if self._unread() and not stopping:
                    due_s = time.monotonic() + self._tick_s
                    continue
                self._asked = False
                self._unread_since_s = time.monotonic()
            self._number += 1
            # A Pub/Sub that is away ends the graph's own reading too, and then the job makes both anew.
            with suppress(google.GoogleAPICallError, google.RetryError, TimeoutError):
                self._publish(Tick(self._number, time.time_ns() // 1_000_000))
            if stopping:
                return
            due_s = time.monotonic() + self._tick_s

    def _publish(self, tick: Tick) -> None:
        try:
            self._topic.publish(tick)
        except google.NotFound:
            # A subscription whose topic is gone stays, and gives nothing for ever: without it the graph's reading ends.
            self._topic.remove()
            raise

    def _unread(self) -> bool:
        return self._unread_since_s is not None and time.monotonic() - self._unread_since_s < LOST_S
