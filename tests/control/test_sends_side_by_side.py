"""The same sends in several threads and processes, on both stores: each key is taken once, whoever comes second."""

import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import Batch, Campaign, IdempotencyKey, Progress, Recipient
from sendonce.control.completion import settle_campaign
from sendonce.control.finals import is_wiped
from sendonce.control.outcomes import outcomes_of
from sendonce.control.streams import purge_keys, take_sends
from sendonce.control.triggers import apply_trigger, read_trigger
from sendonce.delivery.cancellation import cancel
from sendonce.delivery.deliver import Clocks, Deliverer
from sendonce.delivery.letters import compiled_for, element_of, render
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.resolver import Policy
from sendonce.delivery.sweeper import sweep_lane
from sendonce.stores.base import AlreadyExists, Store, Tx
from sendonce.stores.opening import init_store, open_store, store_key
from tests.control import send_workers
from tests.control.sending import body, ready, reasons, rows, take, to
from tests.delivery.test_streams import TERMS
from tests.fakes import FakeSender, ProviderLog
from tests.stores.processes import started, told

ROUNDS = 100


@pytest.fixture(params=["sqlite", pytest.param("spanner", marks=pytest.mark.emulator("spanner"))])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "spanner":
        request.getfixturevalue("spanner")
        url = f"spanner://sendonce-test/sends/s{abs(hash(request.node.name)) % 10**9}"
    else:
        url = f"sqlite:///{tmp_path / 'store.db'}"
    store = init_store(url)
    ready(store)
    yield store
    store.close()


def test_case_double_start_race_in_threads(store: Store) -> None:
    """Two identical triggers at the same moment: one snapshot, and the loser sees it and does nothing."""
    rounds = ROUNDS if store.url.startswith("sqlite") else 10
    barrier = threading.Barrier(2)
    ended: list[str] = []
    faults: list[BaseException] = []

    def race() -> None:
        try:
            for number in range(rounds):
                barrier.wait(60)
                found = take(store, body(f"key-{number}", [to(n) for n in range(3)]))
                ended.append(found[0].ended)
        except BaseException as fault:
            faults.append(fault)
            barrier.abort()

    threads = [threading.Thread(target=race) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert Counter(ended) == {"applied": rounds, "ignored": rounds}
    found = rows(store, Batch)
    assert Counter(batch.idempotency_key for batch in found) == {f"key-{number}": 1 for number in range(rounds)}
    assert {batch.n_open for batch in found} == {3}
    assert len(rows(store, Campaign)) == 1


def test_the_same_send_in_two_processes_is_taken_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = init_store(url)
    ready(store)
    with (
        started(send_workers.race, url, ROUNDS) as (_, first),
        started(send_workers.race, url, ROUNDS) as (_, second),
    ):
        for report in (first, second):
            assert told(report) == "ready"
        for report in (first, second):
            report.send("go")
        pairs = list(zip(told(first), told(second), strict=True))
    assert {frozenset(pair) for pair in pairs} == {frozenset(("applied", "ignored"))}
    assert len(rows(store, Batch)) == len(rows(store, IdempotencyKey)) == 2 * ROUNDS


def test_a_send_whose_taker_was_killed_is_there_and_taken_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = init_store(url)
    ready(store)
    with started(send_workers.killed_after_taking, url) as (process, _):
        process.join(60)
        assert process.exitcode == -9
    assert take(store, body("key"))[0].ended == "ignored"
    assert [reasons(batch) for batch in rows(store, Batch)] == [["open"]]


def test_whoever_loses_an_insert_takes_its_neighbours_all_the_same(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a store tells of a taken key only at its commit, the whole transaction is lost with it."""
    transact, lost = store.transact, []

    def loses_once(work, *, tag):  # type: ignore[no-untyped-def]
        if tag == "send" and len(lost) < 2:
            lost.append(tag)
            raise AlreadyExists("idempotency_keys has a row with this key already")
        return transact(work, tag=tag)

    monkeypatch.setattr(store, "transact", loses_once)
    assert [one.ended for one in take(store, body("a"), body("b"), body("c"))] == ["applied"] * 3
    assert lost == ["send", "send"]
    assert len(rows(store, Batch)) == 3


def test_one_send_alone_looks_again_too(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    transact, lost = store.transact, []

    def loses(work, *, tag):  # type: ignore[no-untyped-def]
        if tag == "send" and len(lost) < 3:
            lost.append(tag)
            raise AlreadyExists("campaigns has a row with this key already")
        return transact(work, tag=tag)

    monkeypatch.setattr(store, "transact", loses)
    assert apply_trigger(store, read_trigger(body("a")), "trigger").changed
    assert len(lost) == 3


def test_a_send_is_delivered_wiped_and_found_on_both_stores(store: Store) -> None:
    take(store, body("a", [to(1), to(2)]), body("b", [to(1)]))
    key, log = store_key(store), ProviderLog(lambda: datetime.now(UTC))
    clocks = Clocks(time.monotonic, lambda: time.time_ns() // 1_000_000, os.urandom, lambda: 0.5)
    owner = Deliverer(store, FakeSender(log), TERMS, "w1", clocks, lambda reference: None)
    for reference in plan_lane(store, TERMS, 100).references:
        rendered = render(store, key, reference, lambda template: compiled_for(store, template))
        assert rendered is not None
        owner.deliver(element_of(reference, *rendered))

    (campaign,) = rows(store, Campaign)
    found = {batch.idempotency_key: reasons(batch) for batch in rows(store, Batch)}
    assert found == {"a": ["accepted", "accepted"], "b": ["accepted"]}
    assert all(is_wiped(person) for person in rows(store, Recipient))
    assert len(log.accepted) == len(set(log.times_accepted())) == 3
    ended = outcomes_of(store, campaign.campaign_id, "u1")
    assert {one.outcome.idempotency_key for one in ended} == {"a", "b"}
    sweep_lane(store, key, TERMS, Policy("hold", "rows"), lambda: "d")
    (progress,) = rows(store, Progress)
    assert (progress.total, progress.n_accepted, progress.batches_done) == (3, 3, 2)


def test_a_stream_is_cancelled_and_its_keys_purged_on_both_stores(store: Store) -> None:
    take(store, body("a", [to(1), to(2, email="x")]), body("b", priority="high"))
    (stream,) = [row for row in rows(store, Campaign) if row.priority == "critical"]
    assert settle_campaign(store, stream.campaign_id) == "running"
    assert cancel(store, stream.campaign_id, "ann").after == "cancelled"
    take(store, body("c"))
    found = {batch.idempotency_key: reasons(batch) for batch in rows(store, Batch)}
    assert found == {"a": ["cancelled", "address.invalid"], "b": ["open"], "c": ["cancelled"]}
    assert purge_keys(store) == 0


def test_a_send_that_is_being_taken_at_midnight_counts_in_the_days_sums(tmp_path: Path) -> None:
    """Final as soon as it is taken, it was committed after the day's last sums and stood in none."""
    url = f"sqlite:///{tmp_path / 'store.db'}"
    ready(init_store(url))
    evening = datetime(2026, 12, 5, 23, 59, 59, tzinfo=UTC)
    late = open_store(url, clock=lambda: evening)
    settler = open_store(url, clock=lambda: evening + timedelta(seconds=2))
    end = "2026-12-06T05:00:00Z"
    take(late, body("first", [to(1, email="no address")], expires_at=end))
    begun, looked, key = threading.Event(), threading.Event(), store_key(late)

    def slowly(tx: Tx) -> None:
        send = read_trigger(body("second", [to(2, email="none either")], expires_at=end))
        take_sends(tx, key, [send], "test")  # type: ignore[list-item]
        begun.set()
        assert looked.wait(60)

    taking = threading.Thread(target=late.transact, args=(slowly,), kwargs={"tag": "send"})
    taking.start()
    assert begun.wait(60)
    real = settler.transact

    def after_its_look(work: Any, *, tag: str) -> Any:
        looked.set()
        return real(work, tag=tag)

    settler.transact = after_its_look  # type: ignore[method-assign]
    stream = "stream.otp.critical.2026-12-05"
    assert settle_campaign(settler, stream) == "completed"
    taking.join(60)
    row = settler.read(lambda reader: reader.get(Campaign, stream))
    sums = settler.read(lambda reader: reader.get(Progress, stream))
    assert row is not None
    assert sums is not None
    assert (row.recipients, row.batches, sums.total, sums.n_refused) == (2, 2, 2, 2)
