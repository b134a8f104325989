"""Notices in the store: written with what they tell of, claimed by one, and never lost."""

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.elements import DeadLetter
from schemas.ids import SHARDS, message_id
from schemas.outcomes import Outcome
from schemas.tables import Batch, DeadLetterRow, Notice
from sendonce.config import Config, apply_config
from sendonce.control import notices
from sendonce.control.dead_letters import write_dead_letters
from sendonce.control.finals import sends_final
from sendonce.control.notices import (
    CLAIMED,
    DEAD_LETTERS,
    KEPT,
    LATE,
    OUTCOMES,
    claim_notices,
    drop_old_notices,
    forget_notices,
    hand_back_notices,
    late_notices,
    waiting_notices,
)
from sendonce.delivery import batches
from sendonce.delivery.rows import names_of, write_rows
from sendonce.moments import utc_text
from sendonce.stores.base import Store, Tx
from sendonce.stores.opening import store_key
from tests.control.made import Clock, seal

TOPICS = {"outcomes_topic": "projects/shop-test/topics/told", "dead_letters_topic": "projects/shop-test/topics/dead"}


@pytest.fixture
def topics(store: Store) -> None:
    apply_config(store, Config.model_validate(TOPICS), "test")


def stream(store: Store, recipients: int) -> None:
    """A send of so many, in a store with topics."""
    seal(store, "stream", [recipients])
    apply_config(store, Config.model_validate(TOPICS), "test")


def in_store(store: Store) -> list[Notice]:
    return store.read(lambda reader: reader.scan(Notice))


def end(store: Store, campaign_id: str, outcomes: dict[int, Outcome], key: str | None = "order-1") -> None:
    """Recipients of a send become final, in the transaction in which every step of the protocol does it."""
    store_own = store_key(store)

    def work(tx: Tx) -> None:
        (found,) = [row for row in tx.scan(Batch) if row.campaign_id == campaign_id]
        before = replace(found, idempotency_key=key)
        after = batches.apply(before, outcomes)
        write_rows(tx, "rows", before, after, names_of(tx, store_own, before), None, tx.now())
        tx.put(after)

    store.transact(work, tag="test")


def test_each_recipient_of_a_send_is_told_with_nothing_of_a_person(store: Store) -> None:
    stream(store, 3)
    end(store, "stream", {0: Outcome.ACCEPTED, 2: Outcome.PROVIDER_INVALID_ADDRESS})

    key = store_key(store)
    bodies = {row.notice_id: json.loads(row.body) for row in in_store(store)}
    at = utc_text(in_store(store)[0].created_at)
    assert at.startswith("2026-01-15T09:00:00")
    first, last = message_id(key, "stream", "1"), message_id(key, "stream", "3")
    assert bodies == {
        first: {
            "v": 1,
            "message_id": first,
            "idempotency_key": "order-1",
            "outcome": "accepted",
            "reason": "",
            "at": at,
        },
        last: {
            "v": 1,
            "message_id": last,
            "idempotency_key": "order-1",
            "outcome": "refused",
            "reason": "provider.invalid_address",
            "at": at,
        },
    }
    assert {row.attributes for row in in_store(store)} == {
        '{"type":"outcome","outcome":"accepted"}',
        '{"type":"outcome","outcome":"refused"}',
    }
    assert "@" not in "".join(row.body + row.attributes for row in in_store(store))


def test_every_outcome_that_is_final_can_be_told(store: Store) -> None:
    final = [outcome for outcome in Outcome if outcome.final]
    stream(store, len(final))
    end(store, "stream", dict(enumerate(final)))
    told = {(body["outcome"], body["reason"]) for row in in_store(store) if (body := json.loads(row.body))}
    assert told == {(outcome.kind, outcome.reason) for outcome in final}


def test_what_is_not_final_and_what_was_final_before_are_not_told(store: Store) -> None:
    stream(store, 3)
    end(store, "stream", {0: Outcome.ACCEPTED})
    forget_notices(store, in_store(store))
    end(store, "stream", {0: Outcome.ACCEPTED, 1: Outcome.IN_DOUBT})
    assert in_store(store) == []


def test_campaigns_are_not_told(store: Store) -> None:
    stream(store, 2)
    end(store, "stream", {0: Outcome.ACCEPTED}, key=None)
    assert in_store(store) == []


def test_without_a_topic_nothing_is_written(store: Store) -> None:
    seal(store, "stream", [2])
    end(store, "stream", {0: Outcome.ACCEPTED})
    write_dead_letters(store, [DeadLetter("trigger", "invalid", "no", body=b"x")])
    assert in_store(store) == []


def test_a_transaction_that_fails_tells_nothing(store: Store) -> None:
    stream(store, 1)

    def work(tx: Tx) -> None:
        (batch,) = tx.scan(Batch)
        sends_final(tx, replace(batch, idempotency_key="k"), {0: Outcome.ACCEPTED}, {0: "m"}, tx.now())
        raise KeyError("it fails")

    with pytest.raises(KeyError):
        store.transact(work, tag="test")
    assert in_store(store) == []


def test_a_dead_letter_is_told_without_its_body(store: Store, topics: None) -> None:
    letter = DeadLetter("trigger", "not_json", "no JSON", "spring", 3, 4, message_id="17", body=b'{"email":"SECRET"}')
    assert write_dead_letters(store, [letter]) == 1
    assert write_dead_letters(store, [letter]) == 0  # a bundle that runs again

    (row,) = in_store(store)
    (dead,) = store.read(lambda reader: reader.scan(DeadLetterRow))
    assert json.loads(row.body) == {
        "v": 1,
        "id": dead.dead_letter_id,
        "stage": "trigger",
        "reason": "not_json",
        "detail": "no JSON",
        "campaign_id": "spring",
        "batch_no": 3,
        "ordinal": 4,
        "message_id": "17",
        "at": utc_text(dead.at),
    }
    assert json.loads(row.attributes) == {"type": "dead_letter", "stage": "trigger", "reason": "not_json"}
    assert "SECRET" not in row.body


# -- claiming ----------------------------------------------------------------------------------------------------------


def made(store: Store, count: int, kind: str = OUTCOMES) -> None:
    def work(tx: Tx) -> None:
        now = tx.now()
        tx.put(*(notices._notice(f"{kind}-{number}", kind, now, {"n": number}, {}) for number in range(count)))

    store.transact(work, tag="test")


def claim(store: Store, most: int = 1000, kind: str = OUTCOMES) -> list[Notice]:
    return [notice for some in claim_notices(store, kind, most) for notice in some]


def test_one_publisher_has_a_notice_until_its_claim_is_over(store: Store, clock: Clock) -> None:
    made(store, 5)
    mine = claim(store)
    assert len(mine) == 5
    assert claim(store) == []
    clock.at += CLAIMED + timedelta(seconds=1)
    assert {notice.notice_id for notice in claim(store)} == {notice.notice_id for notice in mine}


def test_two_that_saw_the_same_do_not_both_get_it(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    made(store, 5)
    seen = in_store(store)
    assert len(notices._claimed(store, seen)) == 5
    assert notices._claimed(store, seen) == []


def test_those_of_another_kind_are_left(store: Store) -> None:
    made(store, 2)
    made(store, 3, DEAD_LETTERS)
    assert {notice.kind for notice in claim(store)} == {OUTCOMES}
    assert len(claim(store, kind=DEAD_LETTERS)) == 3


def test_a_backlog_is_taken_whole_and_shard_by_shard(store: Store) -> None:
    made(store, 700)
    lists = list(claim_notices(store, OUTCOMES, 10))
    assert max(map(len, lists)) == 10
    found = [notice for some in lists for notice in some]
    assert len({notice.notice_id for notice in found}) == len(found) == 700
    assert {notice.shard for notice in found} == set(range(SHARDS))


def test_what_was_published_goes_and_what_was_not_waits_from_when_it_was_written(store: Store, clock: Clock) -> None:
    made(store, 4)
    written = {notice.notice_id: notice for notice in in_store(store)}
    clock.at += timedelta(seconds=5)
    mine = sorted(claim(store), key=lambda notice: notice.notice_id)
    forget_notices(store, mine[:1])
    hand_back_notices(store, mine[1:])
    assert {notice.notice_id: notice for notice in in_store(store)} == {
        name: notice for name, notice in written.items() if name != mine[0].notice_id
    }
    assert len(claim(store)) == 3


def test_a_claim_that_is_over_is_not_handed_back_by_its_old_owner(store: Store, clock: Clock) -> None:
    made(store, 1)
    late = claim(store)
    clock.at += CLAIMED + timedelta(seconds=1)
    (new,) = claim(store)
    hand_back_notices(store, late)
    assert in_store(store) == [new]


def test_an_outcome_that_was_written_anew_meanwhile_is_not_forgotten(store: Store, clock: Clock) -> None:
    """A retry ends somebody again while the first outcome is being published."""
    stream(store, 1)
    end(store, "stream", {0: Outcome.PROVIDER_REFUSED})
    mine = claim(store)

    name = message_id(store_key(store), "stream", "1")

    def again(tx: Tx) -> None:
        (batch,) = tx.scan(Batch)
        sends_final(tx, replace(batch, idempotency_key="k"), {0: Outcome.ACCEPTED}, {0: name}, tx.now())

    clock.at += timedelta(seconds=1)
    store.transact(again, tag="test")
    forget_notices(store, mine)
    (left,) = in_store(store)
    assert json.loads(left.body)["outcome"] == "accepted"
    assert len(claim(store)) == 1


# -- waiting -----------------------------------------------------------------------------------------------------------


def test_what_waits_is_counted_with_the_age_of_the_oldest(store: Store, clock: Clock) -> None:
    since = clock.at
    made(store, 3)
    clock.at += timedelta(minutes=1)
    made(store, 2, DEAD_LETTERS)
    found = {some.kind: (some.count, some.since) for some in store.read(waiting_notices)}
    assert found == {OUTCOMES: (3, since), DEAD_LETTERS: (2, clock.at)}
    assert store.read(lambda reader: late_notices(reader, reader.now())) == [OUTCOMES]
    clock.at += LATE
    assert store.read(lambda reader: late_notices(reader, reader.now())) == [OUTCOMES, DEAD_LETTERS]


def test_after_a_week_they_are_given_up(store: Store, clock: Clock) -> None:
    made(store, 3)
    clock.at += KEPT - timedelta(seconds=1)
    made(store, 2, DEAD_LETTERS)
    assert drop_old_notices(store) == 0
    clock.at += timedelta(seconds=1)
    assert drop_old_notices(store) == 3
    assert {notice.kind for notice in in_store(store)} == {DEAD_LETTERS}
