"""The process that a live job starts for its bulk lane: whatever happens to either, nothing is lost."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.emulated import Emulator
from tests.pipelines.shop import Shop, people

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")

from pipelines import live
from pipelines.lane_process import LaneProcess
from pipelines.live_graph import GIVES_WAY
from schemas.tables import Job
from sendonce.config import ConfigFault, lanes_in
from sendonce.control.faults import JobFault
from sendonce.stores.base import StoreRefused
from tests.pipelines.pubsub import PATIENCE_S, SENDONCE_RUN, Topic, jobs, process, trigger, until
from transforms.worker import WorkerSpec

PROJECT = "shop-test"
# A lease that ends soon: what a killed process had begun is gone on with then.
TIMES = {"lease_s": 3, "request_timeout_s": 1, "margin_s": 0.5, "permit_ttl_s": 1, "window_s": 2, "visibility_s": 3}


@pytest.fixture
def topic(pubsub: Emulator) -> Topic:
    if not live._several_cpus():
        pytest.skip("this machine has one CPU, so a live job keeps all lanes in its own process")
    return Topic()


def lane_pid(shop: Shop) -> int:
    """The bulk lane's process, as the job says of itself."""
    found: list[int] = []

    def known() -> bool:
        found[:] = [pid for job in jobs(shop.store) if (pid := facts(job).get("lane_processes", {}).get("bulk"))]
        return bool(found)

    until(known, "the bulk lane's process")
    return found[0]


def facts(job: Job) -> dict:
    return json.loads(job.detail)


def ended(pid: int) -> bool:
    """Whether a process is gone; one that nobody has waited for is gone, too."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def a_letter_went(shop: Shop) -> None:
    until(lambda: any(batch.state == "done" for batch in shop.batches("spring")), "the first batch")


def of_bulk(heard: list[Exception]) -> LaneProcess:
    """The bulk lane's process, not started."""
    spec = WorkerSpec("sqlite:////nowhere/store.db", "job", ("bulk",), can_wait=False, live=True)
    return LaneProcess(spec, PROJECT, threading.Event(), heard.append)


def instead(monkeypatch: pytest.MonkeyPatch, code: str) -> LaneProcess:
    """One that is started and runs some other code."""
    lanes = of_bulk([])
    monkeypatch.setattr(lanes, "_command", lambda: [sys.executable, "-c", code])
    lanes.start()
    return lanes


def slow(shop: Shop, recipients: int) -> None:
    """A campaign that takes some seconds."""
    shop.configure(limits=[{"rate": "100/s", "burst": 20}], times=TIMES)
    shop.campaign("spring", people(recipients), state="ready")


def test_one_that_dies_is_started_again_and_goes_on(shop: Shop, topic: Topic) -> None:
    slow(shop, 600)
    topic.publish(trigger("start", "spring"))
    job = process(shop.folder, topic)
    a_letter_went(shop)
    os.kill(lane_pid(shop), signal.SIGKILL)
    until(lambda: shop.state("spring")[0] == "completed", "the campaign's end")
    job.send_signal(signal.SIGTERM)
    said, words = job.communicate(timeout=30)
    assert job.returncode == 0, words
    assert "the process of bulk lanes was ended by SIGKILL; it is started again" in words
    assert json.loads(said)["restarts"] == 1
    # A request that was in flight when it died may have been taken; the outbox lane then asks again with the same key.
    assert len({letter["Message-ID"] for letter in shop.letters()}) == 600
    assert topic.private_topics(shop.store) == []


def priorities(pid: int) -> list[int]:
    """How much each thread of a process gives way."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):
            found.append(int((task / "stat").read_text().rpartition(")")[2].split()[16]))
    return found


def test_what_renders_bulk_gives_way_and_what_writes_does_not(shop: Shop, topic: Topic) -> None:
    """Whoever holds the store's lock must not wait for a CPU while a code waits for the lock."""
    slow(shop, 600)
    topic.publish(trigger("start", "spring"))
    job = process(shop.folder, topic)
    a_letter_went(shop)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert set(priorities(job.pid)) == {own}
    of_bulk = priorities(lane_pid(shop))
    gives_way = sum(one == own + GIVES_WAY for one in of_bulk)
    assert set(of_bulk) == {own, own + GIVES_WAY}
    assert gives_way >= 1
    assert len(of_bulk) - gives_way > lanes_in(shop.store)["bulk"].parallel  # those that deliver, and more
    job.send_signal(signal.SIGTERM)
    assert job.wait(30) == 1  # the campaign is not over


def test_a_job_for_bulk_alone_gives_way_in_its_own_process(shop: Shop, topic: Topic) -> None:
    slow(shop, 600)
    topic.publish(trigger("start", "spring"))
    job = process(shop.folder, topic, module=(*SENDONCE_RUN, "--lanes", "bulk"))
    a_letter_went(shop)
    own = os.getpriority(os.PRIO_PROCESS, 0)
    assert set(priorities(job.pid)) == {own, own + GIVES_WAY}
    job.send_signal(signal.SIGTERM)
    assert job.wait(30) == 1  # the campaign is not over


def test_it_ends_with_a_job_that_dies_and_leaves_nothing_in_doubt(shop: Shop, topic: Topic) -> None:
    slow(shop, 5000)
    topic.publish(trigger("start", "spring"))
    job = process(shop.folder, topic)
    a_letter_went(shop)
    lanes = lane_pid(shop)
    job.kill()
    job.communicate()  # ends when both have let go of their output
    until(lambda: ended(lanes), "the end of the bulk lane's process")
    assert {batch.state for batch in shop.batches("spring")} == {"done", "pending"}


def test_a_failpoint_is_the_first_ones(shop: Shop, topic: Topic) -> None:
    """Else a test that kills at a point would kill each new one there, and nothing would ever be sent."""
    shop.configure(times=TIMES)
    shop.campaign("spring", people(30), state="ready")
    topic.publish(trigger("start", "spring"))
    job = process(shop.folder, topic, SENDONCE_FAILPOINT="S3:kill9")
    until(lambda: shop.state("spring")[0] == "completed", "the campaign's end")
    job.send_signal(signal.SIGTERM)
    said, words = job.communicate(timeout=30)
    assert job.returncode == 0, words
    assert json.loads(said)["restarts"] == 1


def test_a_store_that_is_gone_ends_both(shop: Shop, topic: Topic) -> None:
    """A store that is taken away ends both, and the job says so once."""
    shop.campaign("spring", people(30), state="ready")
    job = process(shop.folder, topic)
    lane_pid(shop)
    shop.store.close()
    for file in shop.folder.glob("store.db*"):
        file.unlink()
    said, words = job.communicate(timeout=60)
    assert job.returncode == 1, said
    assert "removed or replaced" in words
    assert "Traceback" not in words


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (["ConfigFault", "no such sender"], ConfigFault, "no such sender"),
        (["StoreRefused", "the disk is full"], StoreRefused, "the disk is full"),
        (["NoStore", "there is no store"], StoreRefused, "there is no store"),
        (["JobFault", "gone"], JobFault, "gone"),
        (
            ["TypeError", "secret"],
            JobFault,
            "the process of bulk lanes failed with TypeError; what it said stands above",
        ),
    ],
)
def test_what_it_reports_comes_out_as_it_was(said: list[str], kind: type, words: str) -> None:
    heard: list[Exception] = []
    lanes = of_bulk(heard)
    lanes._hear("something that a library prints\n")
    lanes._hear(json.dumps({"fault": said}) + "\n")
    assert [(type(fault), str(fault)) for fault in heard] == [(kind, words)]


def test_one_that_does_not_read_holds_up_no_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that stands still, with a pipe full of wake-ups: the stop waits its patience, then ends it."""
    lanes = instead(monkeypatch, "import time; time.sleep(600)")
    until(lambda: lanes.pid is not None, "the process")
    pid = lanes.pid
    assert pid is not None
    full = threading.Event()

    def fill() -> None:
        for _ in range(20_000):  # ten bytes each: more than any pipe holds
            lanes._order("wake-up")
        full.set()

    threading.Thread(target=fill, daemon=True).start()
    until(lanes._writing.locked, "an order")
    assert not full.wait(0.5)
    lanes._stop.set()
    ending = threading.Thread(target=lanes.end, args=(2.0,), daemon=True)
    ending.start()
    ending.join(PATIENCE_S)
    assert not ending.is_alive()
    until(lambda: ended(pid), "its end")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_are_for_the_job_from_the_first_moment(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Whoever stops a service tells each of its processes, and a new one had died of it while Python began."""
    told = json.dumps({"ended": {"handed_back": 0, "all_ended": True}})
    lanes = instead(monkeypatch, f"import sys; sys.stdin.readline(); print(sys.stdin.readline() and {told!r})")
    until(lambda: lanes.pid is not None, "the process")
    assert lanes.pid is not None
    os.kill(lanes.pid, number)
    lanes._stop.set()
    lanes.end(PATIENCE_S)
    assert (lanes.all_ended, lanes.restarts) == (True, 0)


def test_one_that_cannot_be_started_is_started_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without memory for another process has some later: until then bulk waits, and not for ever."""
    monkeypatch.setattr("pipelines.lane_process.AGAIN_S", 0.01)
    start, fails = subprocess.Popen, [OSError(errno.EAGAIN, "Resource temporarily unavailable")]

    def popen(*arguments: Any, **options: Any) -> Any:
        if fails:
            raise fails.pop()
        return start(*arguments, **options)

    monkeypatch.setattr("pipelines.lane_process.subprocess.Popen", popen)
    lanes = instead(monkeypatch, "import sys; sys.stdin.read()")
    until(lambda: lanes.pid is not None, "the process")
    lanes._stop.set()
    lanes.end(1.0)


def test_a_folder_of_the_same_name_where_the_job_runs_is_not_taken_for_ours(shop: Shop, topic: Topic) -> None:
    """Many who use Beam have a folder `pipelines`."""
    (shop.folder / "pipelines").mkdir()
    (shop.folder / "pipelines" / "__init__.py").write_text('raise ImportError("of somebody else")\n')
    shop.campaign("spring", people(5), state="ready")
    topic.publish(trigger("start", "spring"))
    job = process(shop.folder, topic, flags=["-P"])  # as the command `sendonce` looks for modules
    until(lambda: shop.state("spring")[0] == "completed", "the campaign's end")
    job.send_signal(signal.SIGTERM)
    said, words = job.communicate(timeout=30)
    assert job.returncode == 0, words
    assert json.loads(said)["restarts"] == 0


def test_a_store_that_is_away_when_it_starts_is_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    """A process that is started again during an outage reaches no store: the codes of its job go on."""
    heard: list[Exception] = []
    lanes = of_bulk(heard)
    lanes._hear(json.dumps({"fault": ["StoreUnavailable", "store x could not be reached"]}) + "\n")
    assert (heard, lanes._over) == ([], False)
    assert "bulk lanes: store x could not be reached" in caplog.text


def test_what_libraries_print_ends_nothing() -> None:
    heard: list[Exception] = []
    lanes = of_bulk(heard)
    for line in ("something", "5", "null", '"fault"', '["fault"]'):
        lanes._hear(line + "\n")
    assert heard == []
