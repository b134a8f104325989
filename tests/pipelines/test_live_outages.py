"""A live job whose Pub/Sub or store is silent, away, or forgets everything, while it works."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import Campaign
from sendonce.stores.base import Store
from sendonce.stores.opening import open_store
from tests.cli.conftest import Call, folder, sendonce  # noqa: F401  (fixtures)
from tests.emulated import Emulator, emulator
from tests.evidence import read_outbox

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from tests.pipelines.pubsub import Topic, jobs, trigger, until

pytestmark = pytest.mark.emulator("pubsub", "spanner")
PEOPLE = 120
OUTAGE_S = 3.0
SETTINGS = """\
from: Shop <news@shop.example>
unsubscribe: {base_url: "https://shop.example/u"}
lanes: {bulk: {batch_size: 10, limits: [{rate: 60/s, burst: 60}]}}
"""


@pytest.fixture
def pubsub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Emulator]:
    """One for each test: some end it."""
    with emulator("pubsub") as running:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", running.address)
        yield running


@pytest.fixture
def store(
    request: pytest.FixtureRequest,
    spanner: Emulator,
    sendonce: Call,  # noqa: F811
    folder: Path,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> Store:
    """A store on Spanner with the campaigns `spring` and `autumn`, which wait for their triggers."""
    url = f"spanner://sendonce-test/outages/store-{abs(hash(request.node.name)) % 10**8}"
    monkeypatch.setenv("SENDONCE_STORE", url)
    (folder / "sendonce.yaml").write_text(SETTINGS)
    rows = [f"r{number},u{number}@one.example,Ann" for number in range(PEOPLE)]
    (folder / "people.csv").write_text("\n".join(["recipient_id,email,name", *rows]))
    assert sendonce("init").code == 0
    for name in ("spring", "autumn"):
        assert sendonce("load", name, "people.csv", "-t", "newsletter").code == 0
    return open_store(url)


class Job:
    """`sendonce run --subscription` in a process of its own; it is gone when the block ends."""

    def __init__(self, subscription: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "sendonce.cli", "run", "--subscription", subscription, "--json"],
            env=os.environ.copy(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()

    def ends(self, patience_s: float = 60.0) -> tuple[int, Any, str]:
        """Exit code, what it said in JSON, and its words."""
        said, words = self._process.communicate(timeout=patience_s)
        return self._process.returncode, json.loads(said) if said else None, words

    def stop(self) -> tuple[int, Any, str]:
        self._process.send_signal(signal.SIGTERM)
        return self.ends(35.0)  # 30 s were promised, beside other work on the machine


def state_of(store: Store, name: str) -> str:
    row = store.read(lambda reader: reader.get(Campaign, name))
    assert row is not None
    return row.state


def at_work(store: Store) -> None:
    until(lambda: any(job.state == "running" for job in jobs(store)), "the job")


def test_a_pubsub_that_forgets_everything_ends_the_job_which_says_how_to_go_on(
    store: Store,
    pubsub: Emulator,
    folder: Path,  # noqa: F811
) -> None:
    """The emulator, started anew, has neither topic nor subscription; what the store knows already is not lost."""
    topic = Topic()
    topic.publish(trigger("start", "spring"))
    with Job(topic.subscription) as job:
        until(lambda: state_of(store, "spring") == "running", "the start")
        pubsub.kill()
        with emulator("pubsub", int(pubsub.address.rpartition(":")[2])):
            code, _, words = job.ends()
            assert code == 1
            assert f"the subscription {topic.subscription} is not there any more" in words
            assert "gcloud pubsub subscriptions create" in words
            assert "Traceback" not in words
            again = Topic()
            with Job(again.subscription) as next_job:
                again.publish(trigger("start", "autumn"), trigger("start", "spring"))
                for name in ("spring", "autumn"):
                    until(lambda name=name: state_of(store, name) == "completed", name)  # type: ignore[misc]
                code, told, words = next_job.stop()
    assert code == 0, words
    assert told["triggers"] == {"applied": 1, "ignored": 1, "bad": 0}
    assert len(read_outbox(folder / ".sendonce" / "outbox")) == 2 * PEOPLE


def test_a_store_that_forgets_everything_ends_the_job_which_says_so(
    sendonce: Call,  # noqa: F811
    folder: Path,  # noqa: F811
    pubsub: Emulator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The emulator, started anew, has no database: nothing can go on from here, and nobody waits for it."""
    topic = Topic()
    with emulator("spanner") as lost:
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", lost.address)
        monkeypatch.setenv("SENDONCE_STORE", "spanner://sendonce-test/outages/lost")
        (folder / "sendonce.yaml").write_text(SETTINGS)
        assert sendonce("init").code == 0
        store = open_store("spanner://sendonce-test/outages/lost")
        with Job(topic.subscription) as job:
            at_work(store)
            lost.kill()
            with emulator("spanner", int(lost.address.rpartition(":")[2])):
                code, _, words = job.ends()
    assert code == 1
    assert "there is no store at spanner://sendonce-test/outages/lost" in words.replace("\n", " ")
    assert "Traceback" not in words


def test_a_silent_pubsub_stops_nothing_that_began_and_loses_no_trigger(
    store: Store,
    pubsub: Emulator,
    folder: Path,  # noqa: F811
) -> None:
    topic = Topic()
    with Job(topic.subscription) as job:
        at_work(store)
        topic.publish(trigger("start", "spring"), trigger("start", "autumn"))
        pubsub.pause()
        try:
            until(lambda: jobs(store)[0].heartbeat_at > jobs(store)[0].started_at, "a heartbeat")
        finally:
            pubsub.go_on()
        for name in ("spring", "autumn"):
            until(lambda name=name: state_of(store, name) == "completed", name)  # type: ignore[misc]
        code, told, words = job.stop()
    assert code == 0, words
    assert told["triggers"]["applied"] == 2
    assert len(read_outbox(folder / ".sendonce" / "outbox")) == 2 * PEOPLE
    assert topic.is_read_up()


def test_a_silent_store_is_waited_for(
    store: Store,
    spanner: Emulator,
    pubsub: Emulator,
    folder: Path,  # noqa: F811
) -> None:
    topic = Topic()
    with Job(topic.subscription) as job:
        at_work(store)
        topic.publish(trigger("start", "spring"))
        until(lambda: bool(read_outbox(folder / ".sendonce" / "outbox")), "the first letters")
        spanner.pause()
        topic.publish(trigger("start", "autumn"))
        time.sleep(OUTAGE_S)
        spanner.go_on()
        for name in ("spring", "autumn"):
            until(lambda name=name: state_of(store, name) == "completed", name)  # type: ignore[misc]
        code, _, words = job.stop()
    assert code == 0, words
    assert len(read_outbox(folder / ".sendonce" / "outbox")) == 2 * PEOPLE


def test_a_stop_is_obeyed_in_time_while_the_store_is_silent(store: Store, spanner: Emulator, pubsub: Emulator) -> None:
    topic = Topic()
    topic.publish(trigger("start", "spring"))
    with Job(topic.subscription) as job:
        until(lambda: state_of(store, "spring") == "running", "the start")
        spanner.pause()
        try:
            code, told, words = job.stop()
        finally:
            spanner.go_on()
    assert code == 1
    assert told["unfinished"] is None, "nobody can say what is open"
    assert "Traceback" not in words
