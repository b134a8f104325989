"""What only the SQLite store promises: files, locks, forks, disks, plans; and the contract of every store."""

import gc
import resource
import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.outcomes import Outcome
from schemas.tables import COMMIT_TIME, TABLES, Batch, Campaign, Meta, OutboundMessage, Recipient, Suppression
from sendonce.stores import sqlite_connections
from sendonce.stores.base import ANY_SHARD, AlreadyExists, Reader, Store, StoreRefused, StoreUnavailable, Tx
from sendonce.stores.opening import init_store, open_store
from sendonce.stores.sqlite import SQLiteStore
from sendonce.stores.sqlite_time import SinceBoot
from tests.stores import workers
from tests.stores.contract import StoreContract, everything, get_batch, in_thread, put
from tests.stores.made import NOON, batch, campaign, message, recipient
from tests.stores.processes import in_child, started, told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "store.db"
    init_store(f"sqlite:///{found}").close()
    return found


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = open_store(url)
    yield opened
    opened.close()


class TestContract(StoreContract):
    @pytest.fixture
    def url(self, path: Path) -> str:
        return f"sqlite:///{path}"


class Clock:
    def __init__(self) -> None:
        self.time = NOON

    def __call__(self) -> datetime:
        return self.time


# Store time.


def test_store_time_is_the_clock_as_long_as_that_goes_forward(url: str) -> None:
    clock = Clock()
    store = open_store(url, clock=clock)
    for _ in range(3):
        clock.time += timedelta(seconds=10)
        assert store.transact(lambda tx: tx.now(), tag="test") == clock.time
        assert store.read(lambda reader: reader.now()) == clock.time


def test_store_time_stands_still_while_the_clock_is_set_back_also_for_the_next_process(url: str) -> None:
    clock = Clock()
    store = open_store(url, clock=clock)
    put(store, batch(0, claimed_at=COMMIT_TIME))
    clock.time -= timedelta(hours=1)
    assert store.read(lambda reader: reader.now()) == NOON
    next_process = open_store(url, clock=clock)
    assert next_process.read(lambda reader: reader.now()) == NOON
    put(next_process, batch(1, claimed_at=COMMIT_TIME))
    later = get_batch(next_process, 1).claimed_at
    assert later is not None
    assert NOON < later < NOON + timedelta(milliseconds=1)


def test_a_time_that_a_read_has_shown_is_not_undercut_by_a_later_commit(url: str) -> None:
    clock = Clock()
    store = open_store(url, clock=clock)
    shown = store.read(lambda reader: reader.now())
    clock.time -= timedelta(hours=1)
    assert store.transact(lambda tx: tx.now(), tag="test") > shown


def test_time_does_not_move_within_a_transaction(url: str) -> None:
    clock = Clock()

    def look_twice(reader: Reader) -> tuple[datetime, datetime]:
        first = reader.now()
        clock.time += timedelta(seconds=1)
        return first, reader.now()

    first, second = open_store(url, clock=clock).read(look_twice)
    assert first == second


def test_store_time_goes_on_after_a_clock_was_an_hour_ahead(url: str) -> None:
    """One process with a wrong clock must not make every lease and limit stand still for an hour."""
    ahead, right = Clock(), Clock()
    ahead.time += timedelta(hours=1)

    def write(tx: Tx) -> datetime:
        tx.put(Meta("looked", b"yes"))
        return tx.now()

    wrong = open_store(url, clock=ahead).transact(write, tag="test")
    store = open_store(url, clock=right)
    first = store.transact(write, tag="test")
    right.time += timedelta(seconds=30)
    second = store.transact(write, tag="test")
    assert first > wrong
    assert (second - first).total_seconds() == pytest.approx(30, abs=0.001)


# Pace: what limits count by.


class Boot:
    """The machine's time since boot, which only the test moves."""

    def __init__(self, boot: str = "one", micros: int = 5_000_000) -> None:
        self.at = SinceBoot(boot, micros)

    def __call__(self) -> SinceBoot:
        return self.at

    def pass_s(self, seconds: float) -> None:
        self.at = SinceBoot(self.at.boot, self.at.micros + int(seconds * 1e6))


def written_pace(store: Store) -> datetime:
    def write(tx: Tx) -> datetime:
        tx.put(Meta("looked", b"yes"))
        return tx.pace()

    return store.transact(write, tag="test")


def test_pace_goes_by_what_really_passed_however_the_clock_is_set(url: str) -> None:
    clock, boot = Clock(), Boot()
    store = open_store(url, clock=clock, boot_clock=boot)
    first = written_pace(store)
    for set_by_s in (3600, -7200, 86_400, 0):
        clock.time += timedelta(seconds=set_by_s + 10)
        boot.pass_s(10)
        assert store.read(lambda reader: reader.pace()) - first == timedelta(seconds=10)
        first = written_pace(store)


def test_processes_with_clocks_hours_apart_share_one_pace(url: str) -> None:
    boot = Boot()
    clocks = [Clock(), Clock(), Clock()]
    clocks[1].time += timedelta(hours=1)
    clocks[2].time -= timedelta(hours=1)
    stores = [open_store(url, clock=clock, boot_clock=boot) for clock in clocks]
    began = written_pace(stores[0])
    for turn in range(30):
        boot.pass_s(1)
        for clock in clocks:
            clock.time += timedelta(seconds=1)
        passed = written_pace(stores[turn % 3]) - began
        assert passed == timedelta(seconds=turn + 1)


def test_over_a_reboot_pace_goes_with_store_time(url: str) -> None:
    clock = Clock()
    before = written_pace(open_store(url, clock=clock, boot_clock=Boot("one", 10**12)))
    clock.time += timedelta(minutes=3)
    after = written_pace(open_store(url, clock=clock, boot_clock=Boot("two", 10)))
    assert after - before == timedelta(minutes=3)


def test_without_a_clock_since_boot_pace_is_store_time(url: str) -> None:
    clock = Clock()
    store = open_store(url, clock=clock)
    began = written_pace(store)
    clock.time += timedelta(hours=2)
    assert written_pace(store) - began == timedelta(hours=2)


def test_pace_never_goes_back_and_each_commit_is_later(url: str) -> None:
    boot = Boot()
    store = open_store(url, clock=Clock(), boot_clock=boot)
    first, second = written_pace(store), written_pace(store)
    boot.at = SinceBoot("one", 0)
    assert first < second < written_pace(store)


def test_pace_and_store_time_agree_on_this_machine(store: Store) -> None:
    """The real clocks: both go on by the same, give or take what the machine's clock is corrected by."""

    def look(tx: Tx) -> tuple[datetime, datetime]:
        tx.put(Meta("looked", b"yes"))
        return tx.now(), tx.pace()

    first_now, first_pace = store.transact(look, tag="test")
    second_now, second_pace = store.transact(look, tag="test")
    assert abs((second_now - first_now) - (second_pace - first_pace)) < timedelta(seconds=5)


def test_the_clock_may_be_in_any_time_zone(url: str) -> None:
    store = open_store(url, clock=lambda: datetime.now().astimezone())
    assert abs(store.read(lambda reader: reader.now()) - datetime.now(UTC)) < timedelta(minutes=1)
    assert store.read(lambda reader: reader.now()).tzinfo is UTC


# Transactions.


def test_reads_do_not_see_the_writes_of_their_own_transaction_as_in_spanner(store: Store) -> None:
    put(store, batch(0))

    def work(tx: Tx) -> int:
        tx.put(batch(0, token=5))
        found = tx.get(Batch, batch(0).shard, "spring", 0)
        assert found is not None
        return found.token

    assert store.transact(work, tag="test") == 0


def test_a_store_call_inside_a_transaction_is_an_error_and_does_no_harm(store: Store) -> None:
    def work(tx: Tx) -> None:
        tx.put(batch(0))
        store.read(lambda reader: None)

    with pytest.raises(RuntimeError, match="inside a transaction"):
        store.transact(work, tag="test")
    assert everything(store, Batch) == []


def test_a_transaction_left_by_a_signal_is_cleared_away(store: SQLiteStore) -> None:
    with store._connections.mine() as held:
        held.connection().execute("BEGIN IMMEDIATE")
    put(store, batch(0))
    assert everything(store, Batch) == [batch(0)]


def test_an_interrupted_transaction_applies_nothing_and_frees_the_lock(store: Store, url: str) -> None:
    def work(tx: Tx) -> None:
        tx.put(batch(0))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.transact(work, tag="test")
    put(SQLiteStore(url, patience_s=0), batch(1))
    assert everything(store, Batch) == [batch(1)]


def test_members_of_an_enumeration_are_stored_as_their_values(store: Store) -> None:
    put(store, message(1, outcome=Outcome.ACCEPTED))
    assert everything(store, OutboundMessage)[0].outcome == 2


def test_values_of_another_library_are_refused_by_name(store: Store) -> None:
    numpy = pytest.importorskip("numpy")
    with pytest.raises(StoreRefused, match=r"campaign_batches\.size holds int, not int64"):
        put(store, batch(0, size=numpy.int64(3)))


def test_commits_are_synced_to_the_disk(store: SQLiteStore) -> None:
    with store._connections.mine() as held:
        modes = [held.connection().execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous")]
    assert modes == ["wal", 2]


def test_deleted_text_does_not_stay_in_the_file(store: Store, path: Path) -> None:
    store.write_many(recipient(0, ordinal, email="erased-person@one.example") for ordinal in range(200))
    store.write_many(recipient(1, ordinal, email="kept-person@one.example") for ordinal in range(200))
    store.delete_many(Recipient, recipient(0, 0).shard, "spring", 0)
    store.close()
    assert not Path(f"{path}-wal").exists()
    assert b"kept-person" in path.read_bytes()
    assert b"erased-person" not in path.read_bytes()


def test_the_journal_is_folded_into_the_file_while_work_goes_on(store: Store, path: Path) -> None:
    for number in range(30):  # of 8 MB each
        store.write_many(recipient(0, ordinal, template_variables=f"{number:04000d}") for ordinal in range(1_000))
    assert Path(f"{path}-wal").stat().st_size < 160_000_000


# Locks.


def test_a_lock_that_stays_is_named_with_its_file_and_holder(url: str, path: Path) -> None:
    store = SQLiteStore(url, patience_s=0.05)
    with started(workers.hold_lock, url) as (_, report):
        pid = told(report)
        with pytest.raises(StoreUnavailable) as locked:
            store.transact(lambda tx: None, tag="claim")
        assert everything(store, OutboundMessage) == []
        report.send("go on")
        assert told(report) == "committed"
    assert not locked.value.maybe_applied
    message_text = str(locked.value)
    assert str(path) in message_text
    assert "claim waited 0.05 s" in message_text
    if Path("/proc/locks").exists():
        assert f"process {pid} (" in message_text
    put(store, message(2))
    assert len(everything(store, OutboundMessage)) == 2


def test_a_lock_held_by_another_thread_is_waited_for(store: Store) -> None:
    held, release = threading.Event(), threading.Event()

    def work(tx: Tx) -> None:
        held.set()
        assert release.wait(20)
        tx.put(batch(0, token=1))

    holder = threading.Thread(target=lambda: store.transact(work, tag="hold"))
    holder.start()
    assert held.wait(20)
    threading.Timer(0.05, release.set).start()
    token = store.transact(lambda tx: [row.token for row in tx.scan(Batch)], tag="test")
    holder.join()
    assert token == [1]


def test_a_file_locked_as_a_whole_is_waited_for_when_opening(path: Path, url: str, monkeypatch: Any) -> None:
    monkeypatch.setattr("sendonce.stores.sqlite_opening._PATIENCE_S", 0.05)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match="waited"):
        open_store(url)
    other.close()
    open_store(url)


# Threads and forks.


def test_each_thread_has_its_connection_and_leaves_none_behind(store: SQLiteStore) -> None:
    put(store, batch(0))
    for _ in range(5):
        in_thread(lambda: everything(store, Batch))
    gc.collect()
    assert len(store._connections._held) == 1


def test_a_forked_child_and_its_parent_go_on_with_connections_of_their_own(store: SQLiteStore) -> None:
    put(store, message(0))
    assert in_child(lambda: put(store, message(1))) == ""
    put(store, message(2))
    assert in_child(lambda: put(store, message(3))) == ""
    assert len(everything(store, OutboundMessage)) == 4


def test_a_fork_waits_for_the_transactions_of_other_threads(store: SQLiteStore) -> None:
    stop = threading.Event()
    errors: list[BaseException] = []

    def write() -> None:
        number = 100
        try:
            while not stop.is_set():
                put(store, message(number))
                number += 1
        except BaseException as fault:
            errors.append(fault)

    threads = [threading.Thread(target=write) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        problems = [in_child(lambda number=number: put(store, message(number))) for number in range(10)]
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert (problems, errors) == ([""] * 10, [])
    assert {message(number) for number in range(10)} <= set(everything(store, OutboundMessage))


def test_a_child_forked_inside_a_transaction_is_refused_and_the_parent_is_not_harmed(
    store: SQLiteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_connections, "_FORK_WAIT_S", 0.05)

    def work(tx: Tx) -> str:
        tx.insert(message(1))
        return in_child(lambda: in_thread(lambda: put(store, message(2))))

    assert store.transact(work, tag="test").startswith("StoreRefused: ")
    put(store, message(3))
    assert everything(store, OutboundMessage) == [message(1), message(3)]


# Disks and files.


def test_a_full_disk_is_named_and_nothing_is_applied(store: SQLiteStore, path: Path) -> None:
    put(store, message(0))
    with store._connections.mine() as held:
        pages = held.connection().execute("PRAGMA page_count").fetchone()[0]
        held.connection().execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreRefused, match="no room") as refused:
        store.transact(lambda tx: tx.insert(*(message(number) for number in range(1, 2_000))), tag="test")
    assert str(path) in str(refused.value)
    assert everything(store, OutboundMessage) == [message(0)]
    with store._connections.mine() as held:
        held.connection().execute("PRAGMA max_page_count = 1000000")
    put(store, message(1))


def test_a_write_that_fails_on_the_way_to_the_disk_is_named_and_nothing_is_applied(url: str, path: Path) -> None:
    rows = [message(number) for number in range(2_000)]

    def fill() -> None:
        # A child: the limit binds a whole process. Python ignores SIGXFSZ, so the write itself fails, as with a quota.
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
        store = open_store(url)
        put(store, campaign())
        with pytest.raises(StoreRefused, match="no room") as refused:
            store.transact(lambda tx: tx.insert(*rows), tag="test")
        assert str(path) in str(refused.value)
        assert everything(store, OutboundMessage) == []
        put(store, campaign("autumn"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

    assert in_child(fill) == ""
    store = open_store(url)
    assert [row.campaign_id for row in everything(store, Campaign)] == ["autumn", "spring"]
    assert everything(store, OutboundMessage) == []


def test_a_damaged_file_is_named(store: SQLiteStore, path: Path, url: str) -> None:
    store.write_many(message(number) for number in range(5_000))
    store.close()
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xaa" * (path.stat().st_size - 4096 * 3))
    with pytest.raises(StoreRefused, match=r"damaged.*restore it from a backup"):
        everything(open_store(url), OutboundMessage)


def test_a_table_that_is_gone_is_named(store: SQLiteStore, path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("DROP TABLE outbound_messages")
    other.close()
    with pytest.raises(StoreRefused, match="no such table: outbound_messages"):
        everything(store, OutboundMessage)


@pytest.mark.parametrize("replaced", [False, True], ids=["removed", "replaced"])
def test_a_file_that_is_taken_away_in_use_is_noticed_before_anything_is_lost(
    store: SQLiteStore, path: Path, url: str, replaced: bool
) -> None:
    put(store, message(0))
    for file in path.parent.glob("store.db*"):
        file.rename(file.with_name(f"old-{file.name}"))
    if replaced:
        init_store(url)
    with pytest.raises(StoreRefused, match="removed or replaced"):
        put(store, message(1))


def test_a_newer_release_that_migrates_a_store_in_use_stops_its_older_users(store: SQLiteStore, path: Path) -> None:
    put(store, message(0))
    with sqlite3.connect(path) as newer:
        newer.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (b"99",))
    newer.close()
    for use in (lambda: put(store, message(1)), lambda: everything(store, OutboundMessage)):
        with pytest.raises(StoreRefused, match=r"schema version 99.*upgrade sendonce"):
            use()


# Plans: every scan of the protocol seeks in a key or an index, and sorts nothing.


def plans_of(store: SQLiteStore, work: Callable[[Reader], Any]) -> list[str]:
    """What EXPLAIN QUERY PLAN says about each statement that `work` ran on table rows."""
    statements: list[str] = []
    with store._connections.mine() as held:
        held.connection().set_trace_callback(statements.append)
    store.read(work)
    with store._connections.mine() as held:
        connection = held.connection()
        connection.set_trace_callback(None)
        ours = [text for text in statements if text.startswith("SELECT") and '"' in text]
        return [row[3] for text in ours for row in connection.execute(f"EXPLAIN QUERY PLAN {text}")]


SUMS = ("n_open", "n_in_doubt", "n_accepted")
SHAPES: dict[str, tuple[Callable[[Reader], Any], list[str]]] = {
    "due batches": (
        lambda reader: reader.scan(
            Batch, ANY_SHARD, "spring", "pending", index="batches_open", upto=reader.now(), limit=7
        ),
        ["SEARCH campaign_batches USING INDEX batches_open (shard=? AND campaign_id=? AND open_state=? AND due_at<?"],
    ),
    "open batches": (
        lambda reader: reader.scan(Batch, ANY_SHARD, "spring", index="batches_open"),
        ["SEARCH campaign_batches USING INDEX batches_open (shard=? AND campaign_id=?"],
    ),
    "newest open batches": (
        lambda reader: reader.scan(
            Batch, ANY_SHARD, "spring", "sending", index="batches_open", newest_first=True, limit=1
        ),
        ["SEARCH campaign_batches USING INDEX batches_open (shard=? AND campaign_id=? AND open_state=?"],
    ),
    "one batch": (
        lambda reader: reader.get(Batch, 1, "spring", 1),
        ["SEARCH campaign_batches USING PRIMARY KEY (shard=? AND campaign_id=? AND batch_no=?"],
    ),
    "recipients of a batch": (
        lambda reader: reader.scan(Recipient, 3, "spring", 7),
        ["SEARCH campaign_recipients_snapshot USING PRIMARY KEY (shard=? AND campaign_id=? AND batch_no=?"],
    ),
    "some recipients of a batch": (
        lambda reader: reader.scan(Recipient, 3, "spring", 7, after=10, upto=20),
        [
            "SEARCH campaign_recipients_snapshot USING PRIMARY KEY "
            "(shard=? AND campaign_id=? AND batch_no=? AND ordinal>? AND ordinal<?"
        ],
    ),
    "a recipient by id": (
        lambda reader: reader.scan(Recipient, "spring", "r", index="snapshot_by_recipient"),
        ["SEARCH campaign_recipients_snapshot USING INDEX snapshot_by_recipient (campaign_id=? AND recipient_id=?"],
    ),
    "running campaigns": (
        lambda reader: reader.scan(Campaign, "running", index="campaigns_by_state"),
        ["SEARCH campaigns USING INDEX campaigns_by_state (state=?"],
    ),
    "messages of a campaign": (
        lambda reader: reader.scan(OutboundMessage, "spring", index="outbound_by_campaign"),
        ["SEARCH outbound_messages USING INDEX outbound_by_campaign (campaign_id=?"],
    ),
    "progress": (
        lambda reader: reader.tally(Batch, ANY_SHARD, "spring", by=("state",), sums=SUMS),
        [
            "SEARCH campaign_batches USING PRIMARY KEY (shard=? AND campaign_id=?",
            "USE TEMP B-TREE FOR GROUP BY",
        ],
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_scan_seeks_where_it_should(store: SQLiteStore, shape: str) -> None:
    work, plan = SHAPES[shape]
    put(store, batch(0), recipient(0, 0), campaign(), message(0))
    found = plans_of(store, work)
    assert len(found) == len(plan)
    for step, expected in zip(found, plan, strict=True):
        assert step.startswith(expected)


def test_statistics_change_no_plan(store: SQLiteStore, path: Path) -> None:
    """SQLite plans by statistics once somebody has run ANALYZE, maybe while the store was nearly empty."""
    put(store, batch(0), recipient(0, 0), campaign(), message(0))
    fresh = {shape: plans_of(store, work) for shape, (work, _) in SHAPES.items()}
    store.close()
    with sqlite3.connect(path) as other:
        other.execute("ANALYZE")
    other.close()
    assert {shape: plans_of(store, work) for shape, (work, _) in SHAPES.items()} == fresh


def test_deleting_a_campaigns_recipients_reads_no_others(store: SQLiteStore) -> None:
    statements: list[str] = []
    with store._connections.mine() as held:
        held.connection().set_trace_callback(statements.append)
    store.write_many([recipient(0, 0), recipient(0, 0, "autumn")])
    store.delete_many(Recipient, ANY_SHARD, "spring")
    with store._connections.mine() as held:
        plans = [
            row[3]
            for text in statements
            if text.startswith(('SELECT "shard"', "DELETE"))
            for row in held.connection().execute(f"EXPLAIN QUERY PLAN {text}")
        ]
    assert len(plans) == 2
    assert all(plan.startswith("SEARCH campaign_recipients_snapshot USING PRIMARY KEY") for plan in plans)


def test_the_lock_is_free_while_the_next_chunk_is_made(store: Store) -> None:
    """So a claim waits for one chunk and not for the load; the source may also ask the store itself."""
    seen = []

    def rows() -> Iterator[OutboundMessage]:
        for number in range(6_000):
            if number % 2_000 == 1_000:
                in_thread(lambda token=number: put(store, batch(0, token=token)))
                seen.append((get_batch(store, 0).token, len(everything(store, OutboundMessage))))
            yield message(number)

    store.write_many(rows())
    assert seen == [(1_000, 0), (3_000, 2_000), (5_000, 4_000)]


def test_large_rows_are_written_as_they_come_and_do_not_pile_up_in_memory(store: Store) -> None:
    stored = []

    def rows() -> Iterator[Any]:
        for ordinal in range(10):
            stored.append(len(everything(store, Recipient)))
            yield recipient(0, ordinal, template_variables="x" * 2_500_000)

    store.write_many(rows())
    assert stored == [0, 0, 0, 0, 4, 4, 4, 4, 8, 8]


def test_the_journal_of_a_killed_process_is_read_by_the_next(url: str, path: Path) -> None:
    journal = Path(f"{path}-wal")
    with started(workers.write_for_ever, url, 0, 20) as (process, report):
        told(report)
        while not journal.exists() or journal.stat().st_size < 100_000:
            assert process.is_alive()
        process.kill()
        process.join()
    assert journal.exists()
    store = open_store(url)
    rows = len(everything(store, OutboundMessage))
    assert rows > 0
    assert rows % 20 == 0
    store.close()
    assert not journal.exists()


@pytest.mark.parametrize("count", [1, 4, 5, 19, 20, 126, 499, 500, 501, 1626])
def test_any_number_of_rows_is_written_and_written_over(store: Store, count: int) -> None:
    """Rows go in statements of 500, 100, 20, 5 and 1; none is left out at a seam, none comes twice."""
    rows = [Suppression(f"a{number}", "*", 16, NOON, "test", "test") for number in range(count)]
    store.transact(lambda tx: tx.insert(*rows), tag="test")
    assert sorted(row.address_key for row in store.read(lambda reader: reader.scan(Suppression))) == sorted(
        row.address_key for row in rows
    )
    changed = [replace(row, note="again") for row in rows]
    store.transact(lambda tx: tx.put(*changed), tag="test")
    found = store.read(lambda reader: reader.scan(Suppression))
    assert len(found) == count
    assert {row.note for row in found} == {"again"}
    with pytest.raises(AlreadyExists):
        store.transact(lambda tx: tx.insert(*rows), tag="test")


def test_every_table_fits_the_widest_statement() -> None:
    """SQLite takes 32,766 parameters a statement (https://www.sqlite.org/limits.html, 9)."""
    assert max(len(table.columns) for table in TABLES.values()) * 500 <= 32_766
