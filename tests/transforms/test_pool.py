"""Deliveries side by side: bounded, nothing swallowed, and a stop that waits for what is under way."""

import os
import sys
import threading
import time
from datetime import UTC, datetime

import pytest

from schemas.elements import Reference
from schemas.letters import Letters
from transforms.hand import Hand
from transforms.pool import Pool

WAIT_S = 30.0
START = datetime(2026, 1, 15, 9, 0, tzinfo=UTC)


class Gate:
    """Work that tells when it began and ends when it is let go."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.go = threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.go.wait(WAIT_S)
        return "done"


def test_work_runs_side_by_side_and_gives_its_result() -> None:
    pool, gates = Pool(2, "test"), [Gate(), Gate()]
    ends = [pool.hand(gate) for gate in gates]
    assert all(gate.began.wait(WAIT_S) for gate in gates)
    for gate in gates:
        gate.go.set()
    assert [end.result(WAIT_S) for end in ends] == ["done", "done"]
    pool.close()


def test_nothing_queues_whoever_hands_over_waits_for_a_free_thread() -> None:
    """So that memory stays flat however slow the provider is."""
    pool, busy, late = Pool(1, "test"), Gate(), Gate()
    pool.hand(busy)
    handed = threading.Event()

    def hand_more() -> None:
        pool.hand(late)
        handed.set()

    thread = threading.Thread(target=hand_more, daemon=True)
    thread.start()
    assert busy.began.wait(WAIT_S)
    assert not handed.wait(0.05)
    assert not late.began.is_set()
    busy.go.set()
    assert handed.wait(WAIT_S)
    late.go.set()
    thread.join(WAIT_S)
    pool.close()


def test_what_work_raises_is_in_its_future_and_frees_its_thread() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    pool = Pool(1, "test")
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            pool.hand(fail).result(WAIT_S)
    assert pool.hand(lambda: 1).result(WAIT_S) == 1
    pool.close()


def test_settling_hurries_what_runs_and_waits_for_it() -> None:
    pool = Pool(2, "test")
    saw = threading.Event()

    def hurriable() -> None:
        while not pool.hurrying:
            time.sleep(0.001)
        saw.set()

    pool.hand(hurriable)
    pool.settle()
    assert saw.is_set()
    assert not pool.hurrying
    assert pool.hand(lambda: "again").result(WAIT_S) == "again"
    pool.close()


def test_more_or_fewer_threads_from_now_on() -> None:
    pool, gates = Pool(1, "test"), [Gate() for _ in range(4)]
    first, waiting = pool.queue(gates[0]), pool.queue(gates[1])
    assert gates[0].began.wait(WAIT_S)
    assert pool.room == 0
    pool.fit(3)
    assert pool.room == 4
    more = [pool.hand(gates[2])]
    assert gates[2].began.wait(WAIT_S)
    assert not gates[1].began.is_set()  # it was queued for the thread that was there
    pool.fit(1)
    for gate in gates:
        gate.go.set()
    more.append(pool.hand(gates[3]))
    assert [end.result(WAIT_S) for end in (first, waiting, *more)] == ["done"] * 4
    pool.close()


def test_closing_waits_for_what_was_begun_before_the_pool_was_fitted() -> None:
    pool, gate = Pool(1, "test"), Gate()
    end = pool.queue(gate)
    assert gate.began.wait(WAIT_S)
    pool.fit(2)
    threading.Timer(0.05, gate.go.set).start()
    pool.close()
    assert end.done()


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere threads have no priority of their own")
def test_threads_have_the_priority_of_whoever_made_the_pool() -> None:
    """A thread that renders gives way; one that holds the store's lock must not (decision 0027)."""
    pool, found = Pool(2, "test"), list[int]()
    before = os.getpriority(os.PRIO_PROCESS, 0)

    def low() -> None:
        os.setpriority(os.PRIO_PROCESS, 0, min(19, before + 3))
        found.append(pool.queue(lambda: os.getpriority(os.PRIO_PROCESS, 0)).result(WAIT_S))

    thread = threading.Thread(target=low)
    thread.start()
    thread.join(WAIT_S)
    assert found == [before]
    pool.close()


LETTERS = Letters("shop@shop.example", "", [], [], [])


def test_a_hand_holds_only_so_many_and_drops_the_oldest() -> None:
    hand = Hand(2)
    references = [Reference("spring", number, 1, "bulk") for number in range(3)]
    for reference in references:
        hand.put(reference, LETTERS, START)
    assert [hand.get(reference) is not None for reference in references] == [False, True, True]
    hand.drop(references[1])
    assert hand.get(references[1]) is None
    assert len(hand) == 1
    hand.clear()
    assert len(hand) == 0
