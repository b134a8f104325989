"""Topics and subscriptions on the emulator, for tests of live jobs."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from google.cloud import pubsub_v1

from schemas.tables import Job
from sendonce.stores.base import Store

PROJECT = "projects/shop-test"
# Long enough for any machine; nothing waits for it unless something is broken.
PATIENCE_S = 90.0
_numbers = count(1)


class Topic:
    """A topic with one subscription."""

    def __init__(self) -> None:
        number = f"{os.getpid()}-{next(_numbers)}"
        self.topic, self.subscription = f"{PROJECT}/topics/triggers-{number}", f"{PROJECT}/subscriptions/job-{number}"
        self._publisher = pubsub_v1.PublisherClient()
        self._subscriber = pubsub_v1.SubscriberClient()
        self._publisher.create_topic(name=self.topic)
        self._subscriber.create_subscription(name=self.subscription, topic=self.topic)

    def publish(self, *bodies: bytes, **attributes: str) -> None:
        for sent in [self._publisher.publish(self.topic, body, **attributes) for body in bodies]:
            sent.result(PATIENCE_S)

    def is_read_up(self) -> bool:
        """Whether nothing is left that is not acknowledged: what somebody holds comes back when it is let go."""
        answer = self._subscriber.pull(subscription=self.subscription, max_messages=1, return_immediately=True)
        return not answer.received_messages

    def private_topics(self, store: Store) -> list[str]:
        """Those of this store's jobs that are there."""
        there = {topic.name for topic in self._publisher.list_topics(project=PROJECT)}
        return [name for job in jobs(store) for name in json.loads(job.detail).get("topics", []) if name in there]


def trigger(kind: str, campaign_id: str, **more: Any) -> bytes:
    return json.dumps({"v": 1, "type": kind, "campaign_id": campaign_id, **more}).encode()


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that must come."""
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, f"never came: {what}"
        time.sleep(0.02)


@contextmanager
def live_job(url: str, topic: Topic, **more: Any) -> Iterator[list[Any]]:
    """A live job in this process; the list holds its report when the block has ended."""
    from pipelines.live import run_live

    stop, ended = threading.Event(), list[Any]()

    def work() -> None:
        try:
            ended.append(run_live(url, topic.subscription, stop=stop, **more))
        except Exception as fault:
            ended.append(fault)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield ended
    finally:
        stop.set()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()


SENDONCE_RUN = ("sendonce.cli", "run", "--json")


def process(
    folder: Path,
    topic: Topic,
    *,
    module: Sequence[str] = SENDONCE_RUN,
    flags: Sequence[str] = (),
    **environment: str,
) -> "subprocess.Popen[str]":
    """`sendonce run` on a subscription, or another module with its options, in a process. flags: Python's."""
    return subprocess.Popen(
        [sys.executable, *flags, "-m", *module, "--subscription", topic.subscription],
        cwd=folder,
        env={**os.environ, "SENDONCE_STORE": f"sqlite:///{folder / 'store.db'}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def jobs(store: Store) -> list[Job]:
    return store.read(lambda reader: reader.scan(Job))
