"""Sends through a real Pub/Sub (Google's emulator) and the streaming graph."""

from typing import Any

import pytest

from sendonce.control.pushed_templates import push_template
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
