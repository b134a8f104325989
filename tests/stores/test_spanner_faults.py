"""The Spanner store when things go wrong: aborts, lost calls and answers, outages, limits, refusals.

On the emulator; what it cannot do is put in at the seam of Google's client.
"""

import json
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from schemas.ids import shard_of
from schemas.outcomes import Outcome
from schemas.tables import Attempt, Batch, Meta, OutboundMessage, Recipient
from sendonce.delivery.protocol import owning, queueing
from sendonce.delivery.terms import Ask, Move, Rendered, Report, Terms
from sendonce.stores.base import AlreadyExists, Store, StoreError, StoreRefused, StoreUnavailable, Tx
from sendonce.stores.opening import init_store, open_store
from sendonce.times import BULK
from tests.cli.conftest import Call, folder, sendonce  # noqa: F401  (fixtures)
from tests.control.made import seal
from tests.emulated import Emulator
from tests.providers.proxy import AFTER, BEFORE, Proxy
from tests.stores import workers
from tests.stores.commits import BYTES_MAX, MUTATIONS_MAX, failing, watched
from tests.stores.made import batch, message, recipient
from tests.stores.processes import started, told

pytest.importorskip("google.cloud.spanner", reason="google-cloud-spanner is not installed")
from google.api_core import exceptions
from google.auth.exceptions import DefaultCredentialsError, RefreshError

from sendonce.stores import spanner_opening
from sendonce.stores.spanner import SpannerStore

pytestmark = pytest.mark.emulator("spanner")
CASES = Path(__file__).parents[1] / "cases"
PATIENCE_S = 60.0
_numbers = count(1)


@pytest.fixture(scope="module")
def proxy(spanner: Emulator) -> Iterator[Proxy]:
    """Between every store of this module and the emulator."""
    with Proxy(spanner.address) as between:
        yield between


@pytest.fixture
def url(spanner: Emulator, proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> str:
    """Made by the straight way, whose connections no test cuts."""
    made = f"spanner://sendonce-test/faults/store-{next(_numbers)}"
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", spanner.address)
    init_store(made).close()
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", proxy.address)
    return made


@pytest.fixture
def store(url: str) -> Store:
    return open_store(url)


def impatient(store: Any, patience_s: float) -> Store:
    """The same store with less patience, so that a test need not wait for it."""
    return SpannerStore(store.url, store._database, patience_s=patience_s, one_writer=True)


def counter(store: Store) -> int:
    row = store.read(lambda reader: reader.get(Meta, "counter"))
    return 0 if row is None else int(row.value)


def add_one(tx: Tx) -> int:
    found = tx.get(Meta, "counter")
    number = 1 if found is None else int(found.value) + 1
    tx.put(Meta("counter", str(number).encode()))
    return number


# -- aborts ---------------------------------------------------------------------------------------------------------


def test_threads_of_several_processes_lose_no_update(store: Store, url: str) -> None:
    """The case emulator-concurrency, and worse: eight threads here and four in each of two other processes.

    Threads that asked the emulator again every 5 ms aborted each other up to 28 times for each commit.
    """
    add_one_runs: list[int] = []

    def add(tx: Tx) -> int:
        add_one_runs.append(1)
        return add_one(tx)

    numbers: list[int] = []
    threads = [
        threading.Thread(target=lambda: numbers.append(store.transact(add, tag="count")), daemon=True) for _ in range(8)
    ]
    with ExitStack() as stack:
        reports = [stack.enter_context(started(workers.count_in_threads, url, 4, 5))[1] for _ in range(2)]
        for report in reports:
            assert told(report) == "ready"
        for report in reports:
            report.send("go")
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        for report in reports:
            numbers += told(report)
    assert counter(store) == 48
    assert sorted(numbers) == list(range(1, 49)), "each result is that of the run that committed"


def test_work_that_spanner_aborts_runs_again_and_its_last_run_counts(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The case callback-rerun, with aborts of Google's client in its reads and in its commits."""
    case = json.loads((CASES / "callback-rerun" / "faults.json").read_text())
    names = case["recipients"]
    store.transact(lambda tx: tx.put(*(batch(int(name)) for name in names)), tag="test")
    runs: list[str] = []
    claimed = []
    for name in names:
        for call in ("commit", "streaming_read"):
            failing(store, monkeypatch, call, *[_aborted()] * case["abort_first_attempts"])

        def claim(tx: Tx, number: int = int(name)) -> tuple[int, int]:
            runs.append(str(number))
            found = tx.get(Batch, *key(number))
            assert found is not None
            tx.put(batch(number, token=found.token + 1))
            return number, len(runs)

        claimed.append(store.transact(claim, tag="claim"))
    assert [name for name, _ in claimed] == [int(name) for name in names]
    assert [run for _, run in claimed] == [3, 6, 9], "the result is that of the run that committed"
    tokens = [row.token for row in store.read(lambda reader: [reader.get(Batch, *key(int(n))) for n in names]) if row]
    assert tokens == [1, 1, 1]


def test_aborts_without_an_end_are_said_and_nothing_was_applied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(store, monkeypatch, "commit", *[_aborted() for _ in range(1000)])
    with pytest.raises(StoreUnavailable, match="too busy") as caught:
        impatient(store, 0.5).transact(add_one, tag="test")
    assert not caught.value.maybe_applied
    monkeypatch.undo()
    assert counter(store) == 0


def key(batch_no: int) -> tuple[int, str, int]:
    return shard_of("spring", batch_no), "spring", batch_no


def _aborted() -> exceptions.Aborted:
    class _Answer:
        def trailing_metadata(self) -> list[tuple[str, bytes]]:
            return []

    return exceptions.Aborted("by the test", errors=[_Answer()])


# -- lost calls and answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_a_commit_whose_call_or_answer_is_lost_is_applied_once(store: Store, proxy: Proxy, when: str) -> None:
    """The connection ends; Google's client asks again, and Spanner knows the transaction."""

    def work(tx: Tx) -> int:
        tx.put(Meta(f"lost-{when}", b"x"))
        return add_one(tx)

    lost = proxy.lost
    proxy.lose(f"lost-{when}".encode(), when)
    assert store.transact(work, tag="test") == 1
    assert proxy.lost == lost + 1
    assert counter(store) == 1


@pytest.mark.parametrize("when", [BEFORE, AFTER])
def test_an_insert_whose_call_or_answer_is_lost_does_not_meet_itself(store: Store, proxy: Proxy, when: str) -> None:
    proxy.lose(f"insert-{when}".encode(), when)
    store.transact(lambda tx: tx.insert(Meta(f"insert-{when}", b"x")), tag="test")
    proxy.lose(f"many-{when}".encode(), when)
    assert store.write_many([Meta(f"many-{when}", b"x"), Meta("other", b"x")]) == 2


@pytest.mark.parametrize(
    ("fault", "applied"),
    [
        (exceptions.ServiceUnavailable("x"), True),
        (exceptions.DeadlineExceeded("x"), True),
        (exceptions.InternalServerError("x"), True),
        (exceptions.Unknown("x"), True),
        (exceptions.Cancelled("x"), True),
        (exceptions.ServiceUnavailable("x"), False),
        (exceptions.DeadlineExceeded("x"), False),
    ],
)
def test_a_commit_without_an_answer_may_be_applied(
    store: Store, monkeypatch: pytest.MonkeyPatch, fault: Exception, applied: bool
) -> None:
    failing(store, monkeypatch, "commit", fault, after=applied)
    with pytest.raises(StoreUnavailable) as caught:
        store.transact(add_one, tag="test")
    assert caught.value.maybe_applied
    assert counter(store) == int(applied)


def test_a_fault_before_the_commit_applied_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    failing(store, monkeypatch, "streaming_read", exceptions.DeadlineExceeded("x"))
    with pytest.raises(StoreUnavailable) as caught:
        store.transact(add_one, tag="test")
    assert not caught.value.maybe_applied
    assert counter(store) == 0


def test_already_exists_of_an_own_retry_is_read_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case alreadyexists-own-retry: the row says whose it is."""
    case = json.loads((CASES / "alreadyexists-own-retry" / "faults.json").read_text())
    assert case["commit"] == ["apply_then_UNAVAILABLE", "ALREADY_EXISTS"]
    failing(store, monkeypatch, "commit", exceptions.ServiceUnavailable("x"), after=True)

    def send_once(owner: str) -> int:
        """A blind insert of a claim, as a worker must do it: whose row is there decides."""
        mine = message(1, attempt_id=owner)
        for _ in range(2):
            try:
                store.transact(lambda tx: tx.insert(mine), tag="claim")
                break
            except StoreUnavailable as fault:
                if not fault.maybe_applied:
                    raise
            except AlreadyExists:
                break
        found = store.read(lambda reader: reader.get(OutboundMessage, mine.message_id))
        return int(found is not None and found.attempt_id == owner)

    assert send_once(case["self"]) == case["expect_sends"]
    assert send_once("W2") == 0


TERMS = Terms(lane="bulk", sender="fake", provider="fake", scopes=("lane:bulk", "sender:fake"), times=BULK)
SEEN = datetime(2026, 1, 15, tzinfo=UTC)


@pytest.mark.parametrize("applied", [True, False])
def test_the_protocol_settles_lost_replies_of_claim_and_advance(
    store: Store, monkeypatch: pytest.MonkeyPatch, applied: bool
) -> None:
    """Each step is called again as it is and finds its own traces: one intent, one attempt, one final message each."""
    seal(store, "spring", [2], state="running")
    (reference,) = store.transact(lambda tx: queueing.plan(tx, TERMS, "spring", [0]), tag="plan")
    ask = Ask("01attempt", [0, 1], "hash", "fake")
    rendered = Rendered(SEEN, {}, {0: "m0", 1: "m1"}, {}, ())

    def step(tag: str, work: Any) -> Any:
        failing(store, monkeypatch, "commit", exceptions.ServiceUnavailable("x"), after=applied)
        with pytest.raises(StoreUnavailable) as caught:
            store.transact(work, tag=tag)
        assert caught.value.maybe_applied
        return store.transact(work, tag=tag)

    turn = step("claim", lambda tx: owning.claim(tx, TERMS, reference, "w1", rendered, ask))
    assert turn.move is Move.GO
    assert (turn.batch.token, turn.batch.attempt_id) == (1, "01attempt")
    report = Report("01attempt", "accepted", dict.fromkeys((0, 1), Outcome.ACCEPTED))
    step("advance", lambda tx: owning.advance(tx, TERMS, turn.batch, "w1", report, rendered, None))
    found = store.read(lambda reader: reader.get(Batch, *key(0)))
    assert found is not None
    assert (found.state, found.token, found.n_accepted) == ("done", 1, 2)
    attempts = store.read(lambda reader: reader.scan(Attempt, *key(0)))
    assert [(row.attempt_id, row.evidence) for row in attempts] == [("01attempt", False)]
    messages = store.read(lambda reader: reader.scan(OutboundMessage, "spring", index="outbound_by_campaign"))
    assert [(row.message_id, row.attempt_id) for row in messages] == [("m0", "01attempt"), ("m1", "01attempt")]


# -- away -------------------------------------------------------------------------------------------------------------


def test_a_short_outage_is_waited_for(store: Store, proxy: Proxy, spanner: Emulator) -> None:
    with proxy.away():
        done: list[int] = []
        threads = [threading.Thread(target=lambda: done.append(store.transact(add_one, tag="test")), daemon=True)]
        threads[0].start()
        threads[0].join(0.3)
        assert done == []
    threads[0].join(PATIENCE_S)
    assert done == [1]
    spanner.pause()
    try:
        thread = threading.Thread(target=lambda: done.append(store.transact(add_one, tag="test")), daemon=True)
        thread.start()
        thread.join(0.3)
        assert done == [1]
    finally:
        spanner.go_on()
    thread.join(PATIENCE_S)
    assert done == [1, 2]


def test_a_read_of_a_store_that_goes_away_in_the_middle_ends(
    store: Store, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's client asked again without a pause and without an end."""
    calls = watched(store, monkeypatch)
    with ExitStack() as stack:

        def look(reader: Any) -> None:
            reader.get(Meta, "key")
            stack.enter_context(proxy.away())
            reader.get(Meta, "environment")

        with pytest.raises(StoreUnavailable, match="could not be reached") as caught:
            impatient(store, 1.0).read(look)
    assert not caught.value.maybe_applied
    assert len(calls.reads) <= 3, "it was not asked again and again"


def test_a_store_that_is_silent_is_not_waited_for_for_ever(store: Store, spanner: Emulator) -> None:
    """Google's client waits for the answer to a query for an hour."""

    def look(reader: Any) -> None:
        reader.get(Meta, "key")
        spanner.pause()
        reader.now()

    try:
        with pytest.raises(StoreUnavailable, match="could not be reached"):
            impatient(store, 1.0).read(look)
    finally:
        spanner.go_on()


def test_a_thread_that_got_no_session_once_writes_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's client refused every later transaction of that thread as nested: a job's heartbeat died of it."""
    assert isinstance(store, SpannerStore)
    sessions = store._database._sessions_manager
    with monkeypatch.context() as patch:
        patch.setattr(
            sessions, "get_session", lambda kind: (_ for _ in ()).throw(exceptions.ServiceUnavailable("away"))
        )
        with pytest.raises(StoreUnavailable):
            store.transact(add_one, tag="test")
    before = counter(store)
    store.transact(add_one, tag="test")
    assert counter(store) == before + 1


def test_who_waits_for_another_writer_of_its_process_does_not_wait_for_ever(store: Store) -> None:
    patient: Any = impatient(store, PATIENCE_S)
    hasty: Any = impatient(store, 0.3)
    hasty._writer = patient._writer
    said: list[StoreUnavailable] = []

    def other() -> None:
        try:
            hasty.transact(add_one, tag="test")
        except StoreUnavailable as fault:
            said.append(fault)

    def work(tx: Tx) -> int:
        if not said:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join(PATIENCE_S)
        return add_one(tx)

    assert patient.transact(work, tag="test") == 1
    assert ["too busy" in str(fault) for fault in said] == [True]
    assert not said[0].maybe_applied


# -- limits of a commit -----------------------------------------------------------------------------------------------


def test_a_batch_of_5000_ends_in_one_commit_below_the_limits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The case mutation-limit, which the emulator does not enforce: the most that one step of the protocol writes."""
    size = 5000
    people = [recipient(0, ordinal, recipient_id=str(ordinal)) for ordinal in range(size)]
    seal(store, "spring", [1], state="running")
    store.write_many([*people, batch(0, size=size, outcomes=bytes(size), n_open=size)])
    calls = watched(store, monkeypatch)
    (reference,) = store.transact(lambda tx: queueing.plan(tx, TERMS, "spring", [0]), tag="plan")
    refused = dict.fromkeys(range(size), Outcome.RENDER_ERROR)
    details = dict.fromkeys(range(size), "the variable share is no number, in body.txt.j2 line 3 " * 3)
    rendered = Rendered(SEEN, refused, {ordinal: f"{ordinal:052}" for ordinal in range(size)}, details, ())
    turn = store.transact(lambda tx: owning.claim(tx, TERMS, reference, "w1", rendered, None), tag="claim")
    assert turn.batch.state == "done"
    assert calls.by_tag == {"plan": 1, "claim": 1}
    assert size * 14 < calls.largest < MUTATIONS_MAX
    assert max(weight for _, _, weight in calls.commits) < BYTES_MAX / 10
    assert store.read(lambda reader: reader.tally(OutboundMessage))[0]["rows"] == size


def test_a_load_of_any_size_goes_in_commits_below_the_limits(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of 10 columns and an index of 4: in one commit they would be more than Spanner takes."""
    number_of_rows = MUTATIONS_MAX // 14 + 1
    calls = watched(store, monkeypatch)
    rows = (recipient(number // 1000, number % 1000, recipient_id=str(number)) for number in range(number_of_rows))
    assert store.write_many(rows) == number_of_rows
    assert sum(mutations for _, mutations, _ in calls.commits) > MUTATIONS_MAX
    assert calls.largest < MUTATIONS_MAX / 2
    assert set(calls.by_tag) == {"write_many"}


def test_large_rows_go_in_commits_below_the_limit_of_bytes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spanner takes 100 MiB in a commit; Google's client and the emulator take messages of that size, too."""
    calls = watched(store, monkeypatch)
    long = '{"text": "' + "ö" * 2_000_000 + '"}'
    rows = [recipient(0, number, recipient_id=str(number), template_variables=long) for number in range(12)]
    assert store.write_many(rows) == 12
    assert max(weight for _, _, weight in calls.commits) < BYTES_MAX / 4
    found = store.read(lambda reader: reader.scan(Recipient, *key(0), limit=3))
    assert [len(row.template_variables) for row in found] == [len(long)] * 3


# -- every call says what it is for -----------------------------------------------------------------------------------


def test_every_transaction_and_every_request_is_tagged(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = watched(store, monkeypatch)
    store.transact(lambda tx: tx.put(batch(0, token=len(tx.scan(Batch, *key(0))))), tag="claim")
    store.read(lambda reader: (reader.now(), reader.get(Meta, "key"), reader.tally(Batch, *key(0)[:2])))
    index = "snapshot_by_recipient"
    store.read(lambda reader: reader.scan(Recipient, "spring", "1", index=index))
    assert calls.by_tag == {"claim": 1}
    assert [(request, transaction) for request, transaction, _ in calls.reads] == [
        ("scan:campaign_batches", "claim"),
        ("now", ""),
        ("get:meta", ""),
        ("tally:campaign_batches", ""),
        ("scan:snapshot_by_recipient", ""),
    ]
    assert all(len(tag) <= 50 for read in calls.reads for tag in read[:2])  # Spanner's limit


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (exceptions.PermissionDenied("projects/p: Caller is missing IAM permission"), StoreRefused, "roles/spanner."),
        (exceptions.Unauthenticated("expired"), StoreRefused, "gcloud auth application-default login"),
        (RefreshError("invalid_grant: expired"), StoreRefused, "gcloud auth application-default login"),
        (exceptions.NotFound("Database not found: projects/p/instances/i"), StoreRefused, "sendonce init"),
        (exceptions.ResourceExhausted("quota"), StoreUnavailable, "too busy"),
        (exceptions.FailedPrecondition("odd"), StoreRefused, "FailedPrecondition"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_refusal_names_the_store_and_the_mend(
    store: Store, monkeypatch: pytest.MonkeyPatch, fault: Exception, kind: type[StoreError], said: str
) -> None:
    failing(store, monkeypatch, "streaming_read", fault)
    with pytest.raises(kind) as caught:
        store.read(lambda reader: reader.get(Meta, "key"))
    assert store.url in str(caught.value)
    assert said in str(caught.value)


def test_who_may_not_make_tables_is_told_by_whom_they_are_made(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any, **__: Any) -> None:
        raise exceptions.PermissionDenied("Caller is missing IAM permission spanner.databases.updateDdl")

    monkeypatch.setattr("google.cloud.spanner_v1.database.Database.snapshot", denied)
    with pytest.raises(StoreRefused, match=r"roles/spanner\.databaseAdmin .* init --print-ddl"):
        init_store(url)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("spanner://sendonce-other/faults/store-1", "run `sendonce init`"),
        ("spanner://sendonce-test/nowhere/store-1", "run `sendonce init`"),
        ("spanner://sendonce-test/faults/nothing", "run `sendonce init`"),
        ("spanner://sendonce-test/faults", "spanner://PROJECT/INSTANCE/DATABASE"),
    ],
)
def test_a_command_on_a_store_that_is_not_there_says_so_in_one_line(
    url: str,
    wrong: str,
    said: str,
    sendonce: Call,  # noqa: F811
) -> None:
    answer = sendonce("status", "spring", "--store", wrong)
    assert answer.code == 2
    assert wrong in answer.err.replace("\n", "")
    assert said in answer.err.replace("\n", " ")
    assert "Traceback" not in answer.err


def test_commands_refuse_a_newer_schema_and_another_environment(url: str, store: Store, sendonce: Call) -> None:  # noqa: F811
    answer = sendonce("init", "--environment", "production", "--store", url)
    assert answer.code == 1
    assert "made for environment test, not production" in answer.err.replace("\n", " ")
    store.transact(lambda tx: tx.put(Meta("schema_version", b"99")), tag="test")
    for command in (("status", "spring"), ("migrate",)):
        answer = sendonce(*command, "--store", url)
        assert answer.code == 1
        assert "upgrade sendonce" in answer.err.replace("\n", " ")


def test_only_the_emulator_has_sessions_of_one_transaction_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere Google's client shares one session among all threads, which costs no call to make or to check."""
    names = [f"GOOGLE_CLOUD_SPANNER_MULTIPLEXED_SESSIONS{kind}" for kind in ("", "_FOR_RW")]
    for name in names:
        monkeypatch.setenv(name, "x")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setattr("google.cloud.spanner.Client", lambda **named: named)
    monkeypatch.delenv("SPANNER_EMULATOR_HOST", raising=False)
    assert spanner_opening._client("spanner://sendonce-test/faults/none")["credentials"] is None
    assert [os.environ.get(name) for name in names] == [None, None]
    monkeypatch.setenv("SPANNER_EMULATOR_HOST", "127.0.0.1:1")
    spanner_opening._client("spanner://sendonce-test/faults/none")
    assert [os.environ.get(name) for name in names] == ["false", "false"]


def test_credentials_that_are_missing_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: Any, **__: Any) -> None:
        raise DefaultCredentialsError("none")

    monkeypatch.delenv("SPANNER_EMULATOR_HOST", raising=False)
    monkeypatch.setattr("google.auth.default", none)
    with pytest.raises(StoreRefused, match="gcloud auth application-default login"):
        open_store("spanner://sendonce-test/faults/none")
