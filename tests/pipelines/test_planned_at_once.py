"""Codes that a live job plans where it stores them: neither a busy graph nor a deaf one, nor a stop, hides one."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from schemas.tables import Batch, IdempotencyKey, Progress
from sendonce.control.pushed_templates import push_template
from sendonce.stores.base import StoreUnavailable
from sendonce.stores.sqlite import SQLiteStore
from tests.control.sending import body, template, to
from tests.emulated import Emulator
from tests.pipelines.shop import Shop, people

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from google.cloud import pubsub_v1

from pipelines.live_graph import LiveGraph
from tests.pipelines.pubsub import Topic, live_job, trigger, until
from tests.pipelines.test_sends import configure
from transforms.worker import Worker

# Far less than the 8 seconds that another planner leaves a planned batch alone, far more than a code takes.
SOON_S = 6.0


@pytest.fixture
def topic(pubsub: Emulator) -> Topic:
    return Topic()


@pytest.fixture(autouse=True)
def _codes(shop: Shop) -> None:
    configure(shop, lanes={})
    push_template(shop.store, template(), "test")


def sends(shop: Shop) -> list[Batch]:
    return [row for row in shop.store.read(lambda reader: reader.scan(Batch)) if row.idempotency_key]


def all_are_final(shop: Shop, count: int) -> Callable[[], bool]:
    return lambda: len(sends(shop)) == count and all(row.open_state is None for row in sends(shop))


def warm(shop: Shop, topic: Topic) -> None:
    """The graph has looked, and found nothing left."""
    topic.publish(body("first"))
    until(all_are_final(shop, 1), "the first code")
    time.sleep(0.5)


def waits_s(shop: Shop) -> list[float]:
    """From storing to the outcome, for each send."""
    stored = {
        (key.campaign_id, key.batch_no): key.created_at
        for key in shop.store.read(lambda reader: reader.scan(IdempotencyKey))
    }
    return [
        (row.finished_at - stored[row.campaign_id, row.batch_no]).total_seconds()
        for row in sends(shop)
        if row.finished_at is not None
    ]


def test_codes_do_not_wait_for_a_busy_graph_while_another_job_idles(
    shop: Shop, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    render = Worker.render

    def slowly(self: Worker, reference: Any) -> Any:
        if reference.priority == "high":
            time.sleep(2 * SOON_S)
        return render(self, reference)

    monkeypatch.setattr(Worker, "render", slowly)
    with live_job(shop.url, topic), live_job(shop.url, Topic(), lanes=("critical",)):
        warm(shop, topic)
        topic.publish(body("slow", priority="high"))
        time.sleep(1.5)
        topic.publish(*[body(f"k{number}", [to(number)]) for number in range(20)])
        until(lambda: len([row for row in sends(shop) if row.open_state is None]) >= 21, "the codes")
        assert max(waits_s(shop)) < SOON_S
        until(all_are_final(shop, 22), "the slow one")
    assert len(shop.letters()) == 22


def test_codes_do_not_wait_for_a_graph_that_hears_no_ticks(shop: Shop, topic: Topic) -> None:
    with live_job(shop.url, topic, lanes=("critical",)), live_job(shop.url, topic, lanes=("critical",)):
        warm(shop, topic)
        pubsub_v1.PublisherClient().delete_topic(topic=topic.private_topics(shop.store)[0])
        for number in range(40):
            topic.publish(body(f"k{number}", [to(number)]))
            time.sleep(0.05)
        until(all_are_final(shop, 41), "the codes")
    assert max(waits_s(shop)) < SOON_S
    assert len(shop.letters()) == 41


@pytest.mark.parametrize("lost", ["send", "resume"])
def test_a_hiccup_of_the_store_hides_no_code(
    shop: Shop, topic: Topic, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """The reply to its own commit is lost, or a trigger after it fails: what was pulled comes again."""
    shop.campaign("spring", people(3), state="paused")
    transact, left = SQLiteStore.transact, [1]

    def failing(self: SQLiteStore, work: Any, *, tag: str) -> Any:
        mine = threading.current_thread().name == "intake" and left[0] and tag == lost
        if mine and lost == "resume":
            left[0] = 0
            raise StoreUnavailable("busy")
        result = transact(self, work, tag=tag)
        if mine:
            left[0] = 0
            raise StoreUnavailable("the reply was lost", maybe_applied=True)
        return result

    with live_job(shop.url, topic):
        warm(shop, topic)
        monkeypatch.setattr(SQLiteStore, "transact", failing)
        topic.publish(body("code", [to(7)]), trigger("resume", "spring"))
        until(all_are_final(shop, 2), "the code")
        until(lambda: shop.state("spring")[0] == "completed", "the campaign")
    assert left == [0]
    assert max(waits_s(shop)) < SOON_S
    assert len(shop.letters()) == 5


def test_what_is_handed_over_after_the_stop_goes_back(
    shop: Shop, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is slow to answer its last commit: the stop does not wait for it for ever."""
    planned = LiveGraph.planned

    def late(self: LiveGraph, references: Any) -> None:
        time.sleep(5.0)
        planned(self, references)

    with live_job(shop.url, topic):
        warm(shop, topic)
        monkeypatch.setattr(LiveGraph, "planned", late)
        topic.publish(*[body(f"k{number}", [to(number)]) for number in range(3)])
        until(lambda: len(sends(shop)) == 4, "the codes")
    until(lambda: {row.state for row in sends(shop)} == {"pending", "done"}, "what was planned goes back")


def test_the_sums_are_true_when_a_run_or_a_job_has_ended(shop: Shop, topic: Topic) -> None:
    shop.configure(limits=[{"cap": "20/day"}])
    shop.campaign("spring", people(100))
    shop.run(once=True)

    def sums() -> tuple[int, int]:
        row = shop.store.read(lambda reader: reader.get(Progress, "spring"))
        assert row is not None
        return row.n_accepted, row.n_open

    assert sums() == (20, 80)
    shop.configure(limits=[{"cap": "60/day"}])
    with live_job(shop.url, topic):
        until(lambda: len(shop.letters()) >= 60, "the letters")
    assert sums() == (60, 40)
