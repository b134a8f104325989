"""Whole runs whose batches are delivered side by side: nothing is lost, raised or reordered that should not be."""

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from schemas.elements import RenderedBatch
from schemas.outcomes import Outcome
from sendonce.delivery.deliver import Deliverer, Delivery
from sendonce.senders.base import Prepared, Reply, Verdict
from sendonce.senders.outbox import Outbox
from sendonce.stores.base import StoreRefused, StoreUnavailable
from tests.pipelines.shop import Shop, people
from transforms import worker as workers

WAIT_S = 30.0


@contextmanager
def around_send(monkeypatch: pytest.MonkeyPatch, before: Any) -> Iterator[None]:
    """Call `before(prepared)` before each letter file is written; what it returns, if anything, is the reply."""
    real = Outbox.send

    def send(self: Outbox, prepared: Prepared, timeout_s: float) -> Reply:
        reply = before(prepared)
        return reply if reply is not None else real(self, prepared, timeout_s)

    monkeypatch.setattr(Outbox, "send", send)
    yield
    monkeypatch.undo()


def test_as_many_batches_as_the_lane_says_are_sent_at_once(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits until another is there too: with one at a time this would never end."""
    shop.configure(parallel=3)
    shop.campaign("spring", people(60), batch_size=10)
    together = threading.Barrier(3)

    def wait_for_others(prepared: Prepared) -> None:
        together.wait(WAIT_S)

    with around_send(monkeypatch, wait_for_others):
        assert shop.run().ended == "done"
    assert len(shop.letters()) == 60


def test_never_more_than_the_lane_says_and_letters_held_are_let_go(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.configure(parallel=2)
    shop.campaign("spring", people(80), batch_size=4)
    lock, now, most, held = threading.Lock(), [0], [0], [0]
    real = Deliverer.deliver

    def counted(self: Deliverer, element: RenderedBatch) -> Delivery:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            held[0] = max(held[0], *(len(worker.hand) for worker in workers._workers.values()))
        try:
            return real(self, element)
        finally:
            with lock:
                now[0] -= 1

    monkeypatch.setattr(Deliverer, "deliver", counted)
    assert shop.run().ended == "done"
    assert most[0] <= 2
    assert held[0] <= 3
    assert {len(worker.hand) for worker in workers._workers.values()} == {0}


def test_batches_are_claimed_in_the_order_of_their_plan(shop: Shop) -> None:
    shop.configure(parallel=1)
    shop.campaign("spring", people(40), batch_size=4)
    assert shop.run().ended == "done"
    claimed = [batch.claimed_at for batch in sorted(shop.batches("spring"), key=lambda batch: batch.batch_no)]
    assert len(set(claimed)) == 10


def test_dead_letters_of_every_batch_arrive(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the last batches come when the bundle ends."""
    shop.configure(parallel=4)
    shop.campaign("spring", people(40), batch_size=4)

    def refuse_first(prepared: Prepared) -> Reply:
        first = prepared.request.ordinals[0]
        refused = (Verdict.REFUSED, int(Outcome.PROVIDER_INVALID_ADDRESS), "")
        return Reply(Verdict.ACCEPTED, exceptions={first: refused})

    with around_send(monkeypatch, refuse_first):
        assert shop.run().ended == "done"
    dead = shop.dead_letters()
    assert sorted(row.batch_no for row in dead if row.batch_no is not None) == list(range(10))
    assert {(row.stage, row.reason, row.ordinal) for row in dead} == {("send", "provider.invalid_address", 0)}
    assert Counter(shop.outcomes("spring").values()) == {"accepted": 30, "provider.invalid_address": 10}


def test_a_fault_of_the_store_reaches_the_caller_when_nothing_is_under_way(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by thinking of a caller that closes the store at once: nobody may still be writing to it."""
    shop.configure(parallel=3)
    shop.campaign("spring", people(60), batch_size=5)
    under_way = Counter[str]()
    lock, real = threading.Lock(), Deliverer.deliver

    def fail_third(self: Deliverer, element: RenderedBatch) -> Delivery:
        with lock:
            under_way["now"] += 1
            under_way["all"] += 1
            fails = under_way["all"] == 3
        try:
            if fails:
                raise StoreRefused("store: the disk is full")
            return real(self, element)
        finally:
            with lock:
                under_way["now"] -= 1

    monkeypatch.setattr(Deliverer, "deliver", fail_third)
    with pytest.raises(StoreRefused, match="the disk is full"):
        shop.run()
    assert under_way["now"] == 0
    monkeypatch.undo()
    for batch in shop.batches("spring"):
        assert batch.state in ("done", "pending", "queued")


def test_a_store_that_is_away_once_costs_a_round_and_loses_nobody(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The failed round's references were kept alive for ever by the process that had dropped them: the run hung."""
    shop.configure(parallel=3, times={"visibility_s": 6.0})
    shop.campaign("spring", people(60), batch_size=5)
    lock, seen, real = threading.Lock(), [0], Deliverer.deliver

    def away_once(self: Deliverer, element: RenderedBatch) -> Delivery:
        with lock:
            seen[0] += 1
            away = seen[0] == 4
        if away:
            raise StoreUnavailable("store: locked; try again")
        return real(self, element)

    monkeypatch.setattr(Deliverer, "deliver", away_once)
    assert shop.run().ended == "done"
    assert Counter(letter["To"] for letter in shop.letters()).most_common(1)[0][1] == 1
    assert len(shop.letters()) == 60


def test_a_stop_ends_with_the_requests_in_flight(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    shop.configure(parallel=3)
    shop.campaign("spring", people(200), batch_size=5)
    stop, lock, sent = threading.Event(), threading.Lock(), [0]

    def stop_at_third(prepared: Prepared) -> None:
        with lock:
            sent[0] += 1
            if sent[0] == 3:
                stop.set()

    with around_send(monkeypatch, stop_at_third):
        report = shop.run(stop=stop)
    assert report.ended == "stopped"
    assert {batch.state for batch in shop.batches("spring")} == {"done", "pending"}
    # One request a batch; after the stop only those that had their intent already go out.
    assert 3 <= sent[0] <= 5
    assert shop.run().ended == "done"
    assert len(shop.letters()) == 200


def test_waiting_for_a_slow_rate_lets_go_one_at_a_time_and_ends_in_one_round(shop: Shop) -> None:
    """Batches that wait for permits stand in line; threads that all asked again would overtake each other."""
    shop.configure(parallel=4, limits=[{"rate": "40/s", "burst": 10}])
    shop.campaign("spring", people(60), batch_size=10)
    report = shop.run()
    assert (report.ended, report.rounds) == ("done", 1)
    assert len(shop.letters()) == 60
