"""What every store must do. A store's test module subclasses `StoreContract` and gives the fixture `url`.

`url` is the URL of a new store. Other processes open it too, so it must be open to them.
"""

import csv
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import fields, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.tables import (
    COMMIT_TIME,
    TABLES,
    Batch,
    Campaign,
    DeadLetterRow,
    Decision,
    DeliveryEvent,
    Job,
    Limit,
    Meta,
    OutboundMessage,
    Permit,
    Recipient,
    Setting,
    Suppression,
)
from sendonce.stores.base import ANY_SHARD, AlreadyExists, Reader, Store, StoreRefused, StoreUnavailable, Tx
from sendonce.stores.opening import open_store, store_environment, store_key
from tests.stores import workers
from tests.stores.faulty import Aborting, LosingReplies
from tests.stores.made import NOON, batch, campaign, decision, message, recipient, row_of, suppression
from tests.stores.model import QUERIES, TRANSACTIONS, Model, Write
from tests.stores.processes import started, told

CASES = Path(__file__).parents[1] / "cases"


class StoreContract:
    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    @pytest.fixture
    def store(self, url: str) -> Iterator[Store]:
        opened = open_store(url)
        yield opened
        opened.close()

    # Rows come back as they were written.

    @pytest.mark.parametrize("kind", TABLES, ids=lambda kind: kind.__name__)
    @pytest.mark.parametrize("nulls", [False, True], ids=["full", "nulls"])
    def test_a_row_of_any_table_comes_back_equal(self, store: Store, kind: type, nulls: bool) -> None:
        rows = [row_of(kind, number, nulls=nulls) for number in range(3)]
        store.transact(lambda tx: tx.insert(*rows), tag="test")
        for row in rows:
            found = store.read(lambda reader, row=row: reader.get(kind, *key_of(row)))
            assert found == row
            assert {field.name: type(getattr(found, field.name)) for field in fields(found)} == {
                field.name: type(getattr(row, field.name)) for field in fields(row)
            }

    def test_times_come_back_in_utc(self, store: Store) -> None:
        put(store, row_of(Job, 1))
        job = store.read(lambda reader: reader.get(Job, row_of(Job, 1).job_id))
        assert job is not None
        assert job.started_at.utcoffset() == timedelta(0)

    @pytest.mark.parametrize(
        "moment",
        [
            datetime.min.replace(tzinfo=NOON.tzinfo),
            datetime.max.replace(tzinfo=NOON.tzinfo),
            NOON.replace(year=1969, microsecond=1),
        ],
        ids=str,
    )
    def test_the_first_and_the_last_moment_come_back_exactly(self, store: Store, moment: datetime) -> None:
        put(store, batch(0, due_at=moment))
        assert get_batch(store, 0).due_at == moment

    def test_the_bounds_of_whole_numbers_come_back(self, store: Store) -> None:
        put(store, batch(0, token=2**63 - 1, plan_no=-(2**63)))
        assert (get_batch(store, 0).token, get_batch(store, 0).plan_no) == (2**63 - 1, -(2**63))

    def test_what_is_not_there_is_none(self, store: Store) -> None:
        assert store.read(lambda reader: reader.get(Batch, 0, "nobody", 0)) is None

    @pytest.mark.parametrize("key", [(), (1,), (1, "spring"), (1, "spring", None), (1, "spring", 2, 3)], ids=str)
    def test_a_key_has_a_value_for_each_of_its_columns(self, store: Store, key: tuple[Any, ...]) -> None:
        with pytest.raises(TypeError):
            store.read(lambda reader: reader.get(Batch, *key))

    # Many rows by their keys.

    def test_many_keys_give_the_rows_that_are_there_each_once(self, store: Store) -> None:
        put(store, *(suppression(f"{number:032x}", name) for number in range(1500) for name in ("*", "spring")))
        keys = [(f"{number:032x}", "*") for number in range(0, 3000, 2)]
        found = store.read(lambda reader: reader.get_many(Suppression, [*keys, *keys[:7]]))
        assert sorted((row.address_key, row.list_name) for row in found) == sorted(keys[:750])
        assert all(row == suppression(row.address_key, "*") for row in found)

    def test_no_keys_give_no_rows(self, store: Store) -> None:
        put(store, suppression("a", "*"))
        assert store.read(lambda reader: reader.get_many(Suppression, [])) == []

    def test_a_transaction_reads_many_as_they_were_before_it(self, store: Store) -> None:
        def work(tx: Tx) -> list[Suppression]:
            tx.put(suppression("a", "*"))
            return tx.get_many(Suppression, [("a", "*")])

        assert store.transact(work, tag="test") == []

    @pytest.mark.parametrize("key", [(), ("a",), ("a", None), ("a", "*", 1)], ids=str)
    def test_each_of_many_keys_has_a_value_for_each_column(self, store: Store, key: tuple[Any, ...]) -> None:
        with pytest.raises(TypeError):
            store.read(lambda reader: reader.get_many(Suppression, [("a", "*"), key]))

    # Scans.

    def test_a_scan_gives_the_rows_under_a_prefix_in_key_order(self, store: Store) -> None:
        written = [recipient(batch_no, ordinal) for batch_no in (1, 2) for ordinal in (10, 2, 0, 1)]
        put(store, *written, recipient(1, 0, "autumn", shard=written[0].shard))
        found = store.read(lambda reader: reader.scan(Recipient, written[0].shard, "spring", 1))
        assert [(row.batch_no, row.ordinal) for row in found] == [(1, 0), (1, 1), (1, 2), (1, 10)]

    def test_text_keys_are_in_the_order_of_code_points(self, store: Store) -> None:
        names = ["", "A", "Z", "a", "a\x00", "a ", "aa", "é", "￿", "\U00010000", "😀"]
        put(store, *(Setting("lane", name, "{}", NOON, "x") for name in reversed(names)))
        assert [row.name for row in store.read(lambda reader: reader.scan(Setting, "lane"))] == names

    def test_an_empty_prefix_is_the_whole_table(self, store: Store) -> None:
        put(store, *(message(number) for number in range(3)))
        assert len(store.read(lambda reader: reader.scan(OutboundMessage))) == 3

    @pytest.mark.parametrize(
        ("bounds", "expected"),
        [
            ({"upto": 3}, [0, 1, 2, 3]),
            ({"after": 3}, [4, 5]),
            ({"after": 1, "upto": 3}, [2, 3]),
            ({"after": 3, "upto": 3}, []),
            ({"limit": 2}, [0, 1]),
            ({"limit": 0}, []),
            ({"limit": 99}, [0, 1, 2, 3, 4, 5]),
            ({"newest_first": True}, [5, 4, 3, 2, 1, 0]),
            ({"newest_first": True, "limit": 2, "upto": 4}, [4, 3]),
            ({"upto": 0}, [0]),
        ],
        ids=str,
    )
    def test_bounds_limit_and_direction(self, store: Store, bounds: dict[str, Any], expected: list[int]) -> None:
        put(store, *(recipient(1, ordinal) for ordinal in range(6)))
        shard = recipient(1, 0).shard
        found = store.read(lambda reader: reader.scan(Recipient, shard, "spring", 1, **bounds))
        assert [row.ordinal for row in found] == expected

    def test_bounds_on_a_time_are_exact_to_the_microsecond(self, store: Store) -> None:
        tick = timedelta(microseconds=1)
        times = [NOON - tick, NOON, NOON + tick]
        put(store, *(Permit("lane:bulk", moment, "a", 1, NOON) for moment in times))
        upto = store.read(lambda reader: reader.scan(Permit, "lane:bulk", upto=NOON))
        after = store.read(lambda reader: reader.scan(Permit, "lane:bulk", after=NOON))
        assert [row.granted_at for row in upto] == times[:2]
        assert [row.granted_at for row in after] == times[2:]

    def test_any_shard_looks_in_every_shard_and_orders_by_it_first(self, store: Store) -> None:
        numbers = range(200)
        put(store, *map(batch, numbers), batch(0, "autumn"))
        expected = sorted((batch(number).shard, number) for number in numbers)
        assert {shard for shard, _ in expected} > {0, 63}
        found = store.read(lambda reader: reader.scan(Batch, ANY_SHARD, "spring"))
        assert [(row.shard, row.batch_no) for row in found] == expected
        newest = store.read(lambda reader: reader.scan(Batch, ANY_SHARD, "spring", newest_first=True, limit=7))
        assert [(row.shard, row.batch_no) for row in newest] == expected[::-1][:7]

    def test_an_index_orders_by_its_columns_and_then_by_the_key(self, store: Store) -> None:
        late, early = NOON + timedelta(seconds=1), NOON
        put(store, batch(5, shard=1, due_at=early), batch(1, shard=1, due_at=late), batch(3, shard=1, due_at=early))
        found = store.read(lambda reader: reader.scan(Batch, 1, "spring", "pending", index="batches_open"))
        assert [row.batch_no for row in found] == [3, 5, 1]

    def test_due_work_is_found_by_state_and_time_over_all_shards(self, store: Store) -> None:
        put(
            store,
            *(batch(number, due_at=NOON + timedelta(seconds=number)) for number in range(6)),
            batch(6, state="sending", open_state="sending"),
            batch(7, state="done", open_state=None),
        )
        upto = NOON + timedelta(seconds=3)
        found = store.read(
            lambda reader: reader.scan(Batch, ANY_SHARD, "spring", "pending", index="batches_open", upto=upto, limit=9)
        )
        assert {row.batch_no for row in found} == {0, 1, 2, 3}

    def test_a_null_filtered_index_leaves_out_rows_with_a_null(self, store: Store) -> None:
        put(store, row_of(DeliveryEvent, 1, nulls=True), row_of(DeliveryEvent, 2))
        found = store.read(lambda reader: reader.scan(DeliveryEvent, index="events_by_message"))
        assert found == [row_of(DeliveryEvent, 2)]

    def test_an_index_without_that_filter_has_rows_with_nulls_first(self, store: Store) -> None:
        with_campaign = replace(row_of(DeadLetterRow, 2), campaign_id="spring")
        put(store, with_campaign, row_of(DeadLetterRow, 1, nulls=True))
        everything = store.read(lambda reader: reader.scan(DeadLetterRow, index="dead_letters_by_campaign"))
        without = store.read(lambda reader: reader.scan(DeadLetterRow, None, index="dead_letters_by_campaign"))
        assert everything == [row_of(DeadLetterRow, 1, nulls=True), with_campaign]
        assert without == everything[:1]

    def test_a_recipient_is_found_by_campaign_and_id(self, store: Store) -> None:
        put(store, recipient(1, 0), recipient(2, 1), recipient(3, 0, "autumn", recipient_id="r-2-1"))
        found = store.read(lambda reader: reader.scan(Recipient, "spring", "r-2-1", index="snapshot_by_recipient"))
        assert found == [recipient(2, 1)]

    def test_an_index_follows_a_changed_row(self, store: Store) -> None:
        put(store, campaign(state="running"))
        put(store, campaign(state="paused"))
        by_state = [
            store.read(lambda reader, state=state: reader.scan(Campaign, state, index="campaigns_by_state"))
            for state in ("running", "paused")
        ]
        assert by_state == [[], [campaign(state="paused")]]

    def test_wrong_scans_are_errors_of_the_caller(self, store: Store) -> None:
        def scan(*prefix: Any, **how: Any) -> None:
            with pytest.raises(TypeError):
                store.read(lambda reader: reader.scan(Batch, *prefix, **how))

        scan(0, "spring", 1, 2)
        scan(0, "spring", 1, upto=2)
        scan(0, index="no_such_index")
        scan(0, ANY_SHARD)
        with pytest.raises(TypeError):
            store.read(lambda reader: reader.scan(Campaign, ANY_SHARD))
        with pytest.raises(TypeError):
            store.read(lambda reader: reader.scan(dict))

    # Tallies.

    def test_a_tally_groups_and_sums(self, store: Store) -> None:
        put(
            store,
            *(batch(number, n_open=number, n_accepted=1, lease_s=0.5) for number in range(4)),
            *(batch(number, state="done", open_state=None, n_accepted=3) for number in range(4, 6)),
            batch(9, "autumn"),
        )
        sums = ("n_open", "n_accepted", "lease_s")
        found = store.read(lambda reader: reader.tally(Batch, ANY_SHARD, "spring", by=("state",), sums=sums))
        assert sorted(found, key=lambda group: group["state"]) == [
            {"state": "done", "rows": 2, "n_open": 6, "n_accepted": 6, "lease_s": 0},
            {"state": "pending", "rows": 4, "n_open": 6, "n_accepted": 4, "lease_s": 2.0},
        ]

    def test_a_tally_by_an_index_counts_only_what_stands_in_it(self, store: Store) -> None:
        done = {"state": "done", "open_state": None}
        put(store, batch(0, n_open=3), batch(1, n_open=2), batch(2, **done), batch(3, campaign_id="summer"))
        found = store.read(
            lambda reader: reader.tally(
                Batch, ANY_SHARD, "spring", by=("state",), sums=("n_open",), index="batches_open"
            )
        )
        assert found == [{"state": "pending", "rows": 2, "n_open": 5}]

    def test_a_tally_without_groups_is_one_group_also_of_nothing(self, store: Store) -> None:
        assert store.read(lambda reader: reader.tally(Batch, sums=("n_open",))) == [{"rows": 0, "n_open": 0}]
        put(store, batch(0), batch(1))
        assert store.read(lambda reader: reader.tally(Batch, sums=("n_open",))) == [{"rows": 2, "n_open": 6}]

    def test_a_tally_groups_by_times_booleans_and_nulls(self, store: Store) -> None:
        put(store, batch(0, visible_at=NOON), batch(1, visible_at=NOON), batch(2))
        found = store.read(lambda reader: reader.tally(Batch, ANY_SHARD, "spring", by=("visible_at",)))
        assert {group["visible_at"]: group["rows"] for group in found} == {NOON: 2, None: 1}

    def test_a_tally_of_an_unknown_column_is_an_error_of_the_caller(self, store: Store) -> None:
        with pytest.raises(TypeError):
            store.read(lambda reader: reader.tally(Batch, by=("colour",)))

    # Writes: all or nothing.

    def test_an_insert_over_an_existing_row_applies_nothing(self, store: Store) -> None:
        put(store, message(1))

        def work(tx: Tx) -> None:
            tx.put(campaign())
            tx.insert(message(0), message(1, outcome=3), message(2))

        with pytest.raises(AlreadyExists, match="outbound_messages"):
            store.transact(work, tag="test")
        assert everything(store, OutboundMessage) == [message(1)]
        assert everything(store, Campaign) == []

    def test_a_key_given_twice_in_one_insert_exists_already(self, store: Store) -> None:
        with pytest.raises(AlreadyExists):
            store.transact(lambda tx: tx.insert(message(1), message(1)), tag="test")
        assert everything(store, OutboundMessage) == []

    def test_work_that_swallows_the_error_commits_nothing_all_the_same(self, store: Store) -> None:
        put(store, message(1))

        def work(tx: Tx) -> None:
            tx.put(campaign())
            with suppress(AlreadyExists):
                tx.insert(message(1))

        with pytest.raises(AlreadyExists):
            store.transact(work, tag="test")
        assert everything(store, Campaign) == []

    @pytest.mark.parametrize("how", ["insert", "put"])
    def test_a_taken_unique_key_exists_already_and_its_row_stays(self, store: Store, how: str) -> None:
        put(store, recipient(1, 0, recipient_id="r"))
        with pytest.raises(AlreadyExists):
            store.transact(lambda tx: getattr(tx, how)(recipient(2, 0, recipient_id="r")), tag="test")
        assert everything(store, Recipient) == [recipient(1, 0, recipient_id="r")]

    def test_a_put_replaces_the_row_whole(self, store: Store) -> None:
        put(store, batch(0, worker_id="w", token=4))
        put(store, batch(0, state="done", open_state=None))
        assert everything(store, Batch) == [batch(0, state="done", open_state=None)]

    def test_a_delete_goes_by_the_key_and_a_missing_row_is_no_error(self, store: Store) -> None:
        put(store, batch(0), batch(1))
        store.transact(lambda tx: tx.delete(batch(0, state="another", token=7), batch(5)), tag="test")
        assert everything(store, Batch) == [batch(1)]

    def test_the_writes_of_a_transaction_apply_in_their_order(self, store: Store) -> None:
        put(store, message(1))

        def work(tx: Tx) -> None:
            tx.delete(message(1))
            tx.insert(message(1, outcome=3))
            tx.put(message(2, outcome=4))
            tx.put(message(2, outcome=5))
            tx.insert(message(3))
            tx.delete(message(3))

        store.transact(work, tag="test")
        assert everything(store, OutboundMessage) == [message(1, outcome=3), message(2, outcome=5)]

    def test_rows_of_several_tables_go_in_one_call(self, store: Store) -> None:
        store.transact(lambda tx: tx.insert(batch(0), message(0), batch(1), message(1)), tag="test")
        assert (len(everything(store, Batch)), len(everything(store, OutboundMessage))) == (2, 2)

    def test_work_that_fails_applies_nothing_and_the_store_goes_on(self, store: Store) -> None:
        def work(tx: Tx) -> None:
            tx.put(batch(0))
            raise KeyError("of the caller")

        with pytest.raises(KeyError, match="of the caller"):
            store.transact(work, tag="test")
        assert everything(store, Batch) == []
        put(store, batch(1))
        assert everything(store, Batch) == [batch(1)]

    def test_the_result_is_that_of_the_work(self, store: Store) -> None:
        assert store.transact(lambda tx: "written", tag="test") == "written"
        assert store.read(lambda reader: "read") == "read"

    def test_nothing_to_write_is_no_error(self, store: Store) -> None:
        def work(tx: Tx) -> None:
            tx.insert()
            tx.put()
            tx.delete()

        store.transact(work, tag="test")
        assert store.write_many([]) == 0

    # Case callback-rerun: a transaction may be aborted and its work run again.

    def test_work_that_is_run_again_applies_once(self, store: Store) -> None:
        aborting = Aborting(store, aborts=2)
        put(store, *(batch(number) for number in range(3)))
        runs: list[int] = []

        def claim(tx: Tx) -> int:
            runs.append(1)
            found = tx.scan(Batch, ANY_SHARD, "spring", "pending", index="batches_open", limit=1)[0]
            tx.put(replace(found, state="sending", open_state="sending", token=found.token + 1))
            return found.batch_no

        claimed = [aborting.transact(claim, tag="claim") for _ in range(3)]
        assert sorted(claimed) == [0, 1, 2]
        assert len(runs) == 9
        assert [row.token for row in everything(store, Batch)] == [1, 1, 1]

    # Case alreadyexists-own-retry: the reply to a commit is lost; the row, read back, says whose it is.

    def test_after_a_lost_reply_the_row_says_whose_it_is(self, store: Store) -> None:
        losing = LosingReplies(store)
        with pytest.raises(StoreUnavailable) as lost:
            losing.transact(lambda tx: tx.insert(message(1, attempt_id="w1")), tag="test")
        assert lost.value.maybe_applied
        with pytest.raises(AlreadyExists):
            losing.transact(lambda tx: tx.insert(message(1, attempt_id="w1")), tag="test")
        assert everything(store, OutboundMessage) == [message(1, attempt_id="w1")]

    # Case one-dup-kills-bundle: one existing key, ten rows.

    def test_rows_that_are_missing_are_stored_and_the_one_there_is_left_as_it_is(self, store: Store) -> None:
        with (CASES / "one-dup-kills-bundle" / "recipients.csv").open(newline="") as file:
            rows = [recipient(0, int(row["recipient_id"]), email=row["email"]) for row in csv.DictReader(file)]
        there = replace(rows[4], email="kept@one.example")
        put(store, there)

        def add_missing(tx: Tx) -> None:
            tx.insert(*(row for row in rows if tx.get(Recipient, *key_of(row)) is None))

        with pytest.raises(AlreadyExists):
            store.transact(lambda tx: tx.insert(*rows), tag="all")
        store.transact(add_missing, tag="missing")
        assert everything(store, Recipient) == [*rows[:4], there, *rows[5:]]

    # Case string-limits: the same limits in every store, and no value in a message.

    def test_the_rows_of_the_case_are_taken_or_refused_one_by_one(self, store: Store) -> None:
        with (CASES / "string-limits" / "recipients.csv").open(newline="", encoding="utf-8") as file:
            ids_in_file = [row["recipient_id"] for row in csv.DictReader(file)]
        ids_in_file += ["with\x00nul", "\ud83d"]
        verdicts = []
        for ordinal, recipient_id in enumerate(ids_in_file):
            try:
                put(store, recipient(0, ordinal, recipient_id=recipient_id))
                verdicts.append("stored")
            except StoreRefused:
                verdicts.append("refused")
        assert verdicts == ["stored", "refused", "stored", "stored", "refused"]
        assert [row.recipient_id for row in everything(store, Recipient)] == ["😀" * 20, "3", "with\x00nul"]

    @pytest.mark.parametrize(
        ("row", "column"),
        [
            (batch(0, timezone="😀" * 65), "campaign_batches.timezone"),
            (batch(0, outcomes=b"s" * 65537), "campaign_batches.outcomes"),
            (batch(0, worker_id="secret\udc80"), "campaign_batches.worker_id"),
            (batch(0, worker_id="\ud83dsecret"), "campaign_batches.worker_id"),
            (batch(0, state=None), "campaign_batches.state"),
            (batch(0, state=b"secret"), "campaign_batches.state"),
            (batch(0, outcomes="secret"), "campaign_batches.outcomes"),
            (batch(0, size="secret"), "campaign_batches.size"),
            (batch(0, size=1.0), "campaign_batches.size"),
            (batch(0, size=True), "campaign_batches.size"),
            (batch(0, token=2**63), "campaign_batches.token"),
            (batch(0, token=-(2**63) - 1), "campaign_batches.token"),
            (batch(0, lease_s=float("nan")), "campaign_batches.lease_s"),
            (batch(0, lease_s=float("inf")), "campaign_batches.lease_s"),
            (batch(0, lease_s="secret"), "campaign_batches.lease_s"),
            (batch(0, due_at=NOON.replace(tzinfo=None)), "campaign_batches.due_at"),
            (batch(0, due_at=NOON.isoformat()), "campaign_batches.due_at"),
            (batch(0, due_at=COMMIT_TIME), "campaign_batches.due_at"),
            (recipient(0, 0, recipient_id="s" * 257), "campaign_recipients_snapshot.recipient_id"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_a_value_that_does_not_fit_is_refused_by_column_not_by_value(
        self, store: Store, row: Any, column: str
    ) -> None:
        def put_two(tx: Tx) -> None:
            tx.put(campaign())
            tx.put(row)

        for work in (lambda: store.transact(put_two, tag="test"), lambda: store.write_many([campaign("c"), row])):
            with pytest.raises(StoreRefused) as refused:
                work()
            assert str(refused.value).startswith(column + " ")
            assert "secret" not in str(refused.value)
            assert refused.value.__cause__ is None
            assert refused.value.__suppress_context__ or refused.value.__context__ is None
        assert everything(store, type(row)) == []
        assert everything(store, Campaign) == []

    def test_the_longest_values_fit(self, store: Store) -> None:
        longest = batch(0, timezone="😀" * 64, worker_id="ü" * 256, outcomes=b"\xff" * 65536)
        put(store, longest)
        assert everything(store, Batch) == [longest]

    def test_a_value_to_look_for_is_checked_like_a_stored_one(self, store: Store) -> None:
        with pytest.raises(StoreRefused, match=r"^campaigns\.campaign_id "):
            store.read(lambda reader: reader.get(Campaign, "\udc80"))
        with pytest.raises(StoreRefused, match=r"^campaign_batches\.shard "):
            store.read(lambda reader: reader.scan(Batch, "0"))

    # Times.

    def test_the_commit_time_is_that_of_the_transaction(self, store: Store) -> None:
        before = store.transact(lambda tx: (tx.put(batch(0, claimed_at=COMMIT_TIME)), tx.now())[1], tag="test")
        claimed_at = get_batch(store, 0).claimed_at
        assert claimed_at is not None
        assert before <= claimed_at <= store.read(lambda reader: reader.now())

    def test_the_commit_time_in_write_many(self, store: Store) -> None:
        before = store.read(lambda reader: reader.now())
        store.write_many([batch(0, claimed_at=COMMIT_TIME), batch(1, claimed_at=NOON), batch(2)])
        claimed_at = get_batch(store, 0).claimed_at
        assert claimed_at is not None
        assert before <= claimed_at <= store.read(lambda reader: reader.now())
        assert get_batch(store, 1).claimed_at == NOON
        assert get_batch(store, 2).claimed_at is None

    def test_later_transactions_have_later_times(self, store: Store) -> None:
        for number in range(20):
            put(store, Suppression(f"{number:032d}", "*", 16, COMMIT_TIME, "x", "test"))
        found = store.read(lambda reader: reader.scan(Suppression, index="suppressions_by_time"))
        times = [row.created_at for row in found]
        assert [row.address_key for row in found] == [f"{number:032d}" for number in range(20)]
        assert len(set(times)) == 20

    # Many rows.

    def test_any_number_of_rows_is_put_in_chunks(self, store: Store) -> None:
        rows = [message(number) for number in range(4_501)]
        assert store.write_many(iter(rows)) == 4_501
        assert store.write_many(rows[:10]) == 10
        assert everything(store, OutboundMessage) == rows

    def test_many_rows_of_several_tables(self, store: Store) -> None:
        store.write_many(row for number in range(10) for row in (batch(number), message(number), batch(number, size=4)))
        assert {row.size for row in everything(store, Batch)} == {4}
        assert len(everything(store, OutboundMessage)) == 10

    def test_large_values_go_in_chunks_too(self, store: Store) -> None:
        large = "ü" * 2_000_000
        rows = [recipient(0, ordinal, template_variables=f'"{large}"') for ordinal in range(6)]
        assert store.write_many(rows) == 6
        assert everything(store, Recipient) == rows

    def test_a_source_that_fails_leaves_whole_chunks_and_a_store_that_works(self, store: Store) -> None:
        def rows() -> Iterator[OutboundMessage]:
            for number in range(4_501):
                yield message(number)
            raise KeyError("of the source")

        with pytest.raises(KeyError):
            store.write_many(rows())
        found = everything(store, OutboundMessage)
        assert 0 < len(found) < 4_501
        assert found == [message(number) for number in range(len(found))]
        put(store, batch(0))

    def test_delete_many_takes_what_is_under_the_prefix(self, store: Store) -> None:
        store.write_many(recipient(number % 70, number) for number in range(4_501))
        store.write_many(recipient(number, 0, "autumn") for number in range(70))
        assert store.delete_many(Recipient, ANY_SHARD, "spring") in (4_501, -1)
        assert {row.campaign_id for row in everything(store, Recipient)} == {"autumn"}
        assert store.delete_many(Recipient) in (70, -1)
        assert store.delete_many(Recipient) in (0, -1)
        assert everything(store, Recipient) == []

    # Several at once.

    def test_a_read_sees_one_moment_also_while_others_commit(self, store: Store) -> None:
        put(store, batch(0), batch(1))

        def look_twice(reader: Reader) -> tuple[list[Batch], list[Batch]]:
            first = reader.scan(Batch, ANY_SHARD, "spring")
            in_thread(lambda: put(store, batch(0, token=9), batch(2)))
            return first, reader.scan(Batch, ANY_SHARD, "spring")

        first, second = store.read(look_twice)
        assert first == second
        assert len(everything(store, Batch)) == 3

    def test_a_read_waits_for_no_writer(self, store: Store) -> None:
        put(store, batch(0))

        def work(tx: Tx) -> list[Batch]:
            tx.put(batch(0, token=9))
            return in_thread(lambda: everything(store, Batch))

        assert store.transact(work, tag="test") == [batch(0)]

    def test_threads_that_read_and_then_write_lose_no_update(self, store: Store) -> None:
        put(store, Limit("lane:bulk", "rate", "rate", burst=0))

        def count() -> None:
            def add_one(tx: Tx) -> None:
                limit = tx.get(Limit, "lane:bulk", "rate")
                assert limit is not None
                tx.put(replace(limit, burst=limit.burst + 1))

            for _ in range(25):
                store.transact(add_one, tag="count")

        threads = [threading.Thread(target=count) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [limit.burst for limit in everything(store, Limit)] == [200]

    # Case sqlite-locked: two processes that read and then write, 200 rounds each.

    def test_two_processes_claim_everything_once_and_without_an_error(self, store: Store, url: str) -> None:
        store.write_many(batch(number) for number in range(400))
        with (
            started(workers.claim_rounds, url, "w1", 200) as (_, first),
            started(workers.claim_rounds, url, "w2", 200) as (_, second),
        ):
            for report in (first, second):
                assert told(report) == "ready"
            for report in (first, second):
                report.send("go")
            claimed = {"w1": told(first), "w2": told(second)}
        assert sorted(claimed["w1"] + claimed["w2"]) == list(range(400))
        rows = everything(store, Batch)
        assert {row.token for row in rows} == {1}
        for worker, numbers in claimed.items():
            assert {row.batch_no for row in rows if row.worker_id == worker} == set(numbers)

    def test_a_killed_transaction_leaves_nothing_and_no_lock(self, store: Store, url: str) -> None:
        with started(workers.hold_lock, url) as (process, report):
            told(report)
            process.kill()
            process.join()
        assert everything(store, OutboundMessage) == []
        put(store, message(1))

    def test_kills_at_any_moment_leave_whole_transactions(self, store: Store, url: str) -> None:
        written: dict[int, int] = {}
        for _ in range(4):
            wanted = len(written) + 5
            with started(workers.write_for_ever, url, len(written), 50) as (process, report):
                assert told(report) == "ready"
                while len(rows_of_batches(store)) < wanted:
                    assert process.is_alive()
                process.kill()
                process.join()
            written = rows_of_batches(store)
            assert set(written.values()) == {50}
            assert sorted(written) == list(range(len(written)))

    # Any program gives the same as on dictionaries.

    @settings(
        max_examples=40,
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    @given(steps=st.lists(st.tuples(TRANSACTIONS, st.lists(QUERIES, min_size=1, max_size=5)), min_size=1, max_size=6))
    def test_any_program_gives_the_same_as_on_dictionaries(self, store: Store, steps: list[Any]) -> None:
        for kind in (Batch, Recipient, Permit, DeadLetterRow):
            store.delete_many(kind)
        model = Model()
        for writes, queries in steps:
            outcomes = []
            for transact in (model.transact, lambda writes: transact_writes(store, writes)):
                try:
                    transact(writes)
                    outcomes.append("committed")
                except AlreadyExists:
                    outcomes.append("exists already")
            assert outcomes[0] == outcomes[1]
            for query in queries:
                assert store.read(query) == query(model)

    # Facts about the store.

    def test_a_store_has_a_secret_key_and_an_environment(self, store: Store) -> None:
        assert len(store_key(store)) == 32
        assert store_environment(store) == "test"
        assert {row.name for row in everything(store, Meta)} >= {"schema_version", "key", "environment"}

    def test_decisions_of_a_campaign_are_in_the_order_of_time(self, store: Store) -> None:
        put(store, *(decision(number) for number in (2, 0, 1)))
        found = store.read(
            lambda reader: reader.scan(Decision, "spring", index="decisions_by_campaign", newest_first=True)
        )
        assert [row.decision_id for row in found] == ["d2", "d1", "d0"]


def key_of(row: Any) -> list[Any]:
    return [getattr(row, name) for name in TABLES[type(row)].key]


def put(store: Store, *rows: Any) -> None:
    store.transact(lambda tx: tx.put(*rows), tag="test")


def transact_writes(store: Store, writes: list[Write]) -> None:
    def work(tx: Tx) -> None:
        for write in writes:
            getattr(tx, write.how)(*write.rows)

    store.transact(work, tag="test")


def get_batch(store: Store, batch_no: int) -> Batch:
    found = store.read(lambda reader: reader.get(Batch, *key_of(batch(batch_no))))
    assert found is not None
    return found


def everything(store: Store, kind: type[Any]) -> list[Any]:
    return store.read(lambda reader: reader.scan(kind))


def rows_of_batches(store: Store) -> dict[int, int]:
    found = store.read(lambda reader: reader.tally(OutboundMessage, by=("batch_no",)))
    return {group["batch_no"]: group["rows"] for group in found}


def in_thread(work: Any) -> Any:
    """Run `work` in another thread and give back what it gave or raised. Fails if it waits for us."""
    found: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as fault:
            failed.append(fault)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(20)
    assert not thread.is_alive(), "it waits for a transaction of this thread"
    if failed:
        raise failed[0]
    return found[0]
