"""The thread that publishes notices, with a fake in Pub/Sub's place."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import Notice
from sendonce.control import notices
from sendonce.control.notices import DEAD_LETTERS, OUTCOMES
from sendonce.control.topics import Answer
from sendonce.stores.base import Store, StoreUnavailable, Tx
from sendonce.stores.opening import init_store
from transforms import notices as publishing
from transforms.notices import NoticePublisher

TOPICS = {OUTCOMES: "projects/p/topics/told"}
PATIENCE_S = 30.0
ME = "this worker"


class FakePubSub:
    """Takes messages unless `problem` says why not."""

    def __init__(self) -> None:
        self.problem: dict[str, str] = {}
        self.calls: list[tuple[str, int]] = []
        self.told: list[bytes] = []
        self.closed = threading.Event()

    def publish(self, topic: str, messages: list[tuple[bytes, Mapping[str, str]]]) -> Answer:
        self.calls.append((topic, len(messages)))
        if problem := self.problem.get(topic):
            return Answer([False] * len(messages), problem)
        self.told += [data for data, _ in messages]
        return Answer([True] * len(messages), "")

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = init_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "AGAIN_S", (0.01, 0.02))


@pytest.fixture
def publisher(store: Store) -> Iterator[tuple[NoticePublisher, FakePubSub]]:
    fake = FakePubSub()
    made = NoticePublisher(store, fake)
    yield made, fake
    made.leave(ME)


def write(store: Store, count: int, kind: str = OUTCOMES, name: str = "n") -> None:
    def work(tx: Tx) -> None:
        now = tx.now()
        tx.put(*(notices._notice(f"{name}-{number}", kind, now, {"n": number}, {}) for number in range(count)))

    store.transact(work, tag="test")


def left(store: Store) -> int:
    return len(store.read(lambda reader: reader.scan(Notice)))


def until(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, f"never came: {what}"
        time.sleep(0.005)


def test_without_topics_there_is_no_thread(publisher: Any) -> None:
    made, fake = publisher
    made.follow(ME, {})
    made.look()
    made.leave(ME)
    assert made._thread is None
    assert fake.calls == []


def test_it_publishes_what_is_there_and_what_comes(publisher: Any, store: Store) -> None:
    made, fake = publisher
    write(store, 3)
    made.follow(ME, TOPICS)
    made.look()
    until(lambda: len(fake.told) == 3, "the first")
    write(store, 2, name="later")
    made.look()
    until(lambda: len(fake.told) == 5 and not left(store), "the later ones")


def test_a_look_that_nobody_asked_for_finds_what_others_left(
    publisher: Any, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publishing, "LOOK_S", 0.01)
    made, fake = publisher
    made.follow(ME, TOPICS)
    write(store, 1)
    until(lambda: len(fake.told) == 1, "its notice")


def test_a_stop_publishes_what_there_is_and_ends_the_thread(publisher: Any, store: Store) -> None:
    made, fake = publisher
    made.follow(ME, TOPICS)
    write(store, 7)
    made.leave(ME, PATIENCE_S)
    assert (len(fake.told), left(store)) == (7, 0)
    assert fake.closed.is_set()
    assert made._thread is None


def test_workers_of_a_process_share_one_thread_and_the_last_ends_it(publisher: Any, store: Store) -> None:
    made, fake = publisher
    for user in (ME, "another worker"):
        made.follow(user, TOPICS)
    thread = made._thread
    made.leave(ME, PATIENCE_S)
    assert made._thread is thread
    write(store, 2)
    made.leave("another worker", PATIENCE_S)
    assert not thread.is_alive()
    assert (len(fake.told), left(store)) == (2, 0)
    made.follow(ME, TOPICS)
    write(store, 1, name="again")
    made.leave(ME, PATIENCE_S)
    assert len(fake.told) == 3
    assert publishing.publisher_of(store) is publishing.publisher_of(store)


def test_a_topic_that_takes_nothing_is_asked_with_one_and_said_once(
    publisher: Any, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    made, fake = publisher
    fake.problem[TOPICS[OUTCOMES]] = "there is no topic"
    write(store, 50)
    made.follow(ME, TOPICS)
    made.look()
    until(lambda: OUTCOMES in made.problems, "the problem")
    for _ in range(3):
        before = len(fake.calls)

        def asked_again(before: int = before) -> bool:
            made.look()
            return len(fake.calls) > before

        until(asked_again, "another try")
    assert {count for _, count in fake.calls[1:]} == {1}
    assert left(store) == 50
    fake.problem.clear()

    def all_told() -> bool:
        made.look()
        return not left(store)

    until(all_told, "the rest")
    assert len(fake.told) == 50
    assert made.problems == {}
    lines = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert lines == ["outcome notices wait: there is no topic", "outcome notices are published again"]


def test_one_topic_in_trouble_does_not_keep_the_other(publisher: Any, store: Store) -> None:
    made, fake = publisher
    fake.problem["projects/p/topics/told"] = "gone"
    write(store, 300)
    write(store, 3, DEAD_LETTERS, name="d")
    made.follow(ME, {**TOPICS, DEAD_LETTERS: "projects/p/topics/dead"})
    made.look()
    until(lambda: len(fake.told) == 3, "the dead letters")


def test_a_store_that_is_away_for_a_while(publisher: Any, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made, fake = publisher
    away = threading.Event()
    away.set()
    real = store.read

    def read(*args: Any, **more: Any) -> Any:
        if away.is_set():
            raise StoreUnavailable("away")
        return real(*args, **more)

    write(store, 1)
    monkeypatch.setattr(store, "read", read)
    made.follow(ME, TOPICS)
    made.look()
    until(lambda: not made._asked.is_set(), "a look in vain")
    away.clear()

    def told() -> bool:
        made.look()
        return len(fake.told) == 1

    until(told, "its notice")


def test_what_pubsub_took_in_part_waits_in_part(publisher: Any, store: Store) -> None:
    made, fake = publisher

    def half(topic: str, messages: Any) -> Answer:
        fake.calls.append((topic, len(messages)))
        return Answer(
            [number % 2 == 0 for number in range(len(messages))], "it took a part" if len(messages) > 1 else ""
        )

    fake.publish = half
    write(store, 8)
    made.follow(ME, TOPICS)
    made.look()
    until(lambda: bool(fake.calls) and left(store) <= 4, "the half")

    def all_gone() -> bool:
        made.look()
        return not left(store)

    until(all_gone, "the rest")
