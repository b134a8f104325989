"""Retry, replay and the erasing of dead letters on the Spanner emulator: what SQLite's tests prove there holds here."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from schemas.elements import DeadLetter
from schemas.outcomes import Outcome
from schemas.tables import DeadLetterRow
from sendonce.control.dead_letters import (
    DROPPED,
    Wanted,
    list_dead_letters,
    settle,
    sweep_dead_letters,
    write_dead_letters,
)
from sendonce.control.outcomes import recipient_outcome
from sendonce.control.progress import aggregate_progress
from sendonce.control.rounds import reopened_of
from sendonce.control.status import campaign_status
from sendonce.control.worth import BY_DEFAULT
from sendonce.delivery import reopening
from sendonce.delivery.replay import replay
from sendonce.delivery.retrying import plan_retry, retry
from sendonce.stores.base import Store, Tx
from sendonce.stores.opening import init_store
from tests.control.made import batch_row, campaign_row, outcomes, seal
from tests.emulated import Emulator

pytest.importorskip("google.cloud.spanner", reason="google-cloud-spanner is not installed")
FULL, UNKNOWN = Outcome.PROVIDER_MAILBOX_FULL, Outcome.PROVIDER_UNKNOWN_MAILBOX
_numbers = count(1)


@pytest.fixture
def store(spanner: Emulator) -> Store:
    return init_store(f"spanner://sendonce-test/retries/store-{next(_numbers)}")


def refused(store: Store, batches: int) -> None:
    seal(store, "spring", [3] * batches, state="running")
    for batch_no in range(batches):
        outcomes(store, "spring", batch_no, {0: FULL, 1: Outcome.ACCEPTED, 2: UNKNOWN})
    row = replace(campaign_row(store, "spring"), state="completed")
    store.transact(lambda tx: tx.put(row), tag="test")


class Killed(BaseException):
    pass


def test_a_retry_killed_goes_on_and_two_at_once_make_one_round(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopening, "SLICE", 2)
    refused(store, 6)
    letter = DeadLetter("send", FULL.reason, "", "spring", 0, 0, "m")
    write_dead_letters(store, [letter])

    def die(done: int) -> None:
        if done == 2:
            raise Killed

    with pytest.raises(Killed):
        retry(store, plan_retry(store, "spring", BY_DEFAULT), "ann", progress=die)
    plans = [plan_retry(store, "spring", BY_DEFAULT) for _ in range(2)]
    assert {(plan.number, plan.recipients, plan.goes_on) for plan in plans} == {(1, 4, "ann")}
    with ThreadPoolExecutor(2) as pool:
        openings = list(pool.map(lambda plan: retry(store, plan, "bob"), plans))
    assert sum(opening.recipients for opening in openings) == 4
    for batch_no in range(6):
        batch = batch_row(store, "spring", batch_no)
        assert (list(batch.outcomes), batch.state, batch.round) == ([0, 2, UNKNOWN], "pending", 1)
    told = campaign_status(store, "spring").as_json()
    assert (told["state"], told["open"], told["retries"]["reopened"], told["retries"]["done"]) == (
        "running", 6, 6, True,
    )  # fmt: skip
    assert list(list_dead_letters(store)) == []
    found, _ = recipient_outcome(store, "spring", "1")
    assert [
        one.number for one in store.read(lambda reader: reopened_of(reader, "spring", found.batch, found.ordinal))
    ] == [1]
    assert aggregate_progress(store, "spring", store.read(lambda reader: reader.now())) is not None
    assert plan_retry(store, "spring", BY_DEFAULT).recipients == 0


def test_replay_by_letter_once(store: Store) -> None:
    refused(store, 2)
    letters = [
        DeadLetter("send", code.reason, "", "spring", 0, place, "m") for place, code in ((0, FULL), (2, UNKNOWN))
    ]
    body = b'{"v":1,"type":"start","campaign_id":"nobody"}'
    write_dead_letters(store, [*letters, DeadLetter("trigger", "unknown_campaign", "", "nobody", body=body)])
    with ThreadPoolExecutor(2) as pool:
        rows = list(list_dead_letters(store))
        told = list(pool.map(lambda who: replay(store, rows, who, named=False), ("ann", "bob")))
    assert sum(one.done for some in told for one in some) == 1
    assert [list(batch_row(store, "spring", number).outcomes) for number in (0, 1)] == [
        [0, 2, UNKNOWN],
        [FULL, 2, UNKNOWN],
    ]
    assert {row.stage for row in list_dead_letters(store, Wanted(reason=UNKNOWN.reason))} == {"send"}
    assert settle(store, [row.dead_letter_id for row in list_dead_letters(store)], DROPPED, "ann") == 2


def test_bodies_and_rows_are_erased_in_time(store: Store) -> None:
    bodies = [b"%d" % number for number in range(3)]
    write_dead_letters(store, [DeadLetter("trigger", "invalid", "", body=body) for body in bodies])
    assert sweep_dead_letters(store, 2) == 0

    def pass_days(days: int) -> None:
        def work(tx: Tx) -> None:
            rows: list[Any] = tx.scan(DeadLetterRow)
            gone = timedelta(days=days)
            tx.put(
                *(replace(row, at=row.at - gone, expires_at=row.expires_at and row.expires_at - gone) for row in rows)
            )

        store.transact(work, tag="test")

    pass_days(8)
    assert [sweep_dead_letters(store, 2) for _ in range(3)] == [2, 1, 0]
    rows = store.read(lambda reader: reader.scan(DeadLetterRow))
    assert [row.body for row in rows] == [None] * 3
    pass_days(83)
    assert [sweep_dead_letters(store, 2) for _ in range(3)] == [2, 1, 0]
    assert store.read(lambda reader: reader.scan(DeadLetterRow)) == []
