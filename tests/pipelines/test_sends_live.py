"""Sends through a real Pub/Sub (Google's emulator) and the streaming graph."""

import time
from typing import Any

import pytest

from schemas.tables import Batch
from sendonce.control.pushed_templates import push_template
from sendonce.stores.sqlite import SQLiteStore
from tests.control.sending import body, template, to
from tests.emulated import Emulator
from tests.pipelines.shop import Shop

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from tests.pipelines.pubsub import Topic, live_job, until
from tests.pipelines.test_sends import batch, configure, reasons


@pytest.fixture
def topic(pubsub: Emulator) -> Topic:
    return Topic()


def final(shop: Shop, key: str) -> Any:
    def look() -> bool:
        try:
            return batch(shop, key).open_state is None
        except ValueError:
            return False

    return look


def test_sends_published_many_times_and_in_any_order_are_one_letter_each(shop: Shop, topic: Topic) -> None:
    configure(shop)
    push_template(shop.store, template(), "test")
    bodies = [body(f"k{n}", [to(n)]) for n in range(20)]
    topic.publish(*bodies[::2], body("k0", [to(99)]), b"junk")
    with live_job(shop.url, topic) as ended:
        until(final(shop, "k0"), "k0")
        topic.publish(*bodies[::-1])
        for number in range(20):
            until(final(shop, f"k{number}"), f"k{number}")
    assert (ended[0].applied, ended[0].bad, ended[0].unfinished) == (20, 2, 0)
    assert ended[0].ignored >= 10  # Pub/Sub may deliver more often than was published
    assert [reasons(shop, f"k{n}") for n in range(20)] == [["accepted"]] * 20
    assert len(shop.letters()) == 20
    assert topic.is_read_up()


@pytest.fixture
def transactions(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tags of what this process writes."""
    transact, tags = SQLiteStore.transact, list[str]()

    def noted(self: Any, work: Any, *, tag: str) -> Any:
        tags.append(tag)
        return transact(self, work, tag=tag)

    monkeypatch.setattr(SQLiteStore, "transact", noted)
    return tags


def test_a_code_that_meets_an_idle_lane_is_planned_where_it_is_stored(
    shop: Shop, topic: Topic, transactions: list[str]
) -> None:
    """Each transaction waits for the store's lock: what a code waited for beside a newsletter was mostly that."""
    configure(shop)
    push_template(shop.store, template(), "test")
    with live_job(shop.url, topic) as ended:
        topic.publish(body("first"))  # the first one of a job may come before the graph has looked
        until(final(shop, "first"), "first")
        time.sleep(0.5)
        transactions.clear()
        for number in range(5):
            topic.publish(body(f"k{number}", [to(number)]))
            until(final(shop, f"k{number}"), f"k{number}")
        assert "plan" not in transactions
        assert transactions.count("claim") == transactions.count("advance") == 5
    assert ended[0].unfinished == 0
    assert [batch(shop, f"k{number}").plan_no for number in range(5)] == [1] * 5
    assert len(shop.letters()) == 6


def test_codes_that_come_as_the_job_stops_are_handed_back_and_go_with_the_next_job(shop: Shop, topic: Topic) -> None:
    configure(shop)
    push_template(shop.store, template(), "test")
    with live_job(shop.url, topic) as ended:
        topic.publish(body("first"))
        until(final(shop, "first"), "first")
        topic.publish(*[body(f"k{number}", [to(number)]) for number in range(60)])
        until(lambda: bool(shop.store.read(lambda reader: reader.tally(Batch))[0]["rows"] > 20), "some of them")
    report = ended[0]
    left = [row for row in shop.store.read(lambda reader: reader.scan(Batch)) if row.open_state is not None]
    assert report.unfinished == len(left)
    assert {row.state for row in left} <= {"pending"}  # nothing that the stopped job had planned stays hidden
    with live_job(shop.url, topic):
        for number in range(60):
            until(final(shop, f"k{number}"), f"k{number}")
    assert len(shop.letters()) == 61
