"""The simulator's store keeps the contract of every store."""

from datetime import datetime, timedelta

import pytest

from sendonce.stores.base import Store
from sendonce.stores.sqlite import utc_now
from tests.simulator.memory_store import MemoryStore
from tests.stores.contract import StoreContract


class TestMemoryStore(StoreContract):
    @pytest.fixture
    def store(self) -> Store:  # type: ignore[override]
        return MemoryStore(utc_now)

    # No other process can open it.
    test_two_processes_claim_everything_once_and_without_an_error = None  # type: ignore[assignment]
    test_a_killed_transaction_leaves_nothing_and_no_lock = None  # type: ignore[assignment]
    test_kills_at_any_moment_leave_whole_transactions = None  # type: ignore[assignment]


def test_store_time_stands_while_the_clock_is_set_back() -> None:
    clock = [utc_now()]
    store = MemoryStore(lambda: clock[0])
    first = store.transact(lambda tx: tx.now(), tag="test")
    clock[0] -= timedelta(hours=1)
    assert store.read(lambda reader: reader.now()) == first
    assert store.transact(lambda tx: tx.now(), tag="test") > first


def test_a_transaction_is_not_entered_twice_by_one_thread() -> None:
    store = MemoryStore(utc_now)

    def now() -> datetime:
        return store.read(lambda reader: reader.now())

    with pytest.raises(RuntimeError, match="inside a transaction"):
        store.transact(lambda tx: now(), tag="test")
    assert now()
