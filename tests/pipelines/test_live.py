"""A live job: triggers from a real Pub/Sub (Google's emulator) through the streaming graph."""

import json
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.emulated import Emulator
from tests.pipelines.shop import Shop, people

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from google.cloud import pubsub_v1

from pipelines import campaign
from pipelines.private_topic import remove_topic
from schemas.tables import Attempt
from sendonce.cli.main import run as cli
from sendonce.config import ConfigFault
from tests.pipelines.pubsub import Topic, jobs, live_job, process, trigger, until

ROOT = Path(__file__).parents[2]
CASES = ROOT / "tests" / "cases"


@pytest.fixture
def topic(pubsub: Emulator) -> Topic:
    return Topic()


def is_(shop: Shop, campaign_id: str, state: str) -> None:
    until(lambda: shop.state(campaign_id)[0] == state, f"{campaign_id} {state}")


def test_triggers_from_before_and_after_its_start_are_followed(shop: Shop, topic: Topic) -> None:
    for name in ("early", "late", "called-off"):
        shop.campaign(name, people(25), state="ready")
    topic.publish(trigger("start", "early"))
    with live_job(shop.url, topic) as ended:
        is_(shop, "early", "completed")
        topic.publish(trigger("cancel", "called-off"))
        is_(shop, "called-off", "cancelled")
        topic.publish(trigger("start", "late"))
        is_(shop, "late", "completed")
        assert [job.state for job in jobs(shop.store)] == ["running"]
    assert (ended[0].applied, ended[0].bad, ended[0].unfinished, ended[0].restarts) == (3, 0, 0, 0)
    assert set(shop.outcomes("called-off").values()) == {"cancelled"}
    assert len(shop.letters()) == 50
    assert [job.state for job in jobs(shop.store)] == ["ended"]
    assert topic.private_topics(shop.store) == []
    assert topic.is_read_up()


def test_what_starts_later_starts_by_itself_and_not_before(shop: Shop, topic: Topic) -> None:
    shop.campaign("later", people(4), state="ready")
    shop.campaign("other", people(1, first=10), state="ready")
    with live_job(shop.url, topic) as ended:
        until(lambda: bool(jobs(shop.store)), "the job")
        far, at = (datetime.now(UTC) + timedelta(seconds=s) for s in (3600, 2))
        topic.publish(trigger("start", "later", seq=1, at=far.isoformat()), trigger("start", "other"))
        is_(shop, "other", "completed")
        is_(shop, "later", "running")
        topic.publish(trigger("start", "later", seq=2, at=at.isoformat()))
        is_(shop, "later", "completed")
    attempts = shop.store.read(lambda reader: reader.scan(Attempt))
    assert all(row.started_at >= at for row in attempts if row.campaign_id == "later")
    assert (ended[0].applied, ended[0].bad, len(shop.letters())) == (3, 0, 5)


def test_pause_and_resume(shop: Shop, topic: Topic) -> None:
    shop.configure(limits=[{"rate": "20/s", "burst": 20}])
    shop.campaign("spring", people(60), batch_size=5, state="running")
    topic.publish(trigger("pause", "spring", seq=2))
    with live_job(shop.url, topic):
        is_(shop, "spring", "paused")
        topic.publish(trigger("start", "spring", seq=1))  # older than the pause
        shop.campaign("other", people(1), state="ready")
        topic.publish(trigger("start", "other"))
        is_(shop, "other", "completed")
        assert shop.state("spring")[0] == "paused"
        topic.publish(trigger("resume", "spring", seq=3))
        is_(shop, "spring", "completed")
    assert len(shop.letters()) == 61


def test_a_poison_message_hurts_nobody(shop: Shop, topic: Topic, caplog: pytest.LogCaptureFixture) -> None:
    """The case poison-message."""
    for name in ("a", "c", "d"):
        shop.campaign(name, people(3), state="ready")
    topic.publish(trigger("start", "a"), b"\xff\xfe\x00\x01", trigger("start", "c"), trigger("start", "d"))
    with live_job(shop.url, topic) as ended:
        for name in ("a", "c", "d"):
            is_(shop, name, "completed")
        until(lambda: bool(shop.dead_letters()), "the dead letter")
    assert [(row.reason, row.body) for row in shop.dead_letters()] == [("not_utf8", b"\xff\xfe\x00\x01")]
    assert (ended[0].applied, ended[0].bad) == (3, 1)
    assert "a trigger cannot be followed (not_utf8), 1 in all: `sendonce dead-letters list`" in caplog.messages
    assert topic.is_read_up()
    assert len(shop.letters()) == 9


def test_attributes_that_look_like_times_mean_nothing(shop: Shop, topic: Topic) -> None:
    """The case bad-timestamp-attr."""
    lines = (CASES / "bad-timestamp-attr" / "messages.jsonl").read_text().splitlines()
    for message in map(json.loads, lines):
        name = message["data"]["campaign_id"]
        shop.campaign(name, people(1), state="ready")
        topic.publish(trigger("start", name), **message["attributes"])
    with live_job(shop.url, topic) as ended:
        for name in ("c-1", "c-2", "c-3"):
            is_(shop, name, "completed")
    assert (ended[0].applied, ended[0].bad) == (3, 0)


def test_a_job_with_nothing_to_do_ends_when_it_is_told(shop: Shop, topic: Topic) -> None:
    """The case wait-duration: Beam's own waiting knows no end there."""
    job = process(shop.folder, topic)
    until(lambda: bool(jobs(shop.store)), "the job")
    job.send_signal(signal.SIGTERM)
    said, words = job.communicate(timeout=30)
    assert job.returncode == 0, words
    assert json.loads(said)["unfinished"] == 0


def test_duplicates_and_another_order_change_nothing_with_two_jobs(shop: Shop, topic: Topic) -> None:
    names = [f"c{number}" for number in range(6)]
    for name in names:
        shop.campaign(name, people(20), state="ready")
    bodies = [trigger("start", name) for name in names] * 5
    random.Random(7).shuffle(bodies)
    with live_job(shop.url, topic) as one, live_job(shop.url, topic) as two:
        topic.publish(*bodies)
        for name in names:
            is_(shop, name, "completed")
    assert one[0].applied + two[0].applied == 6
    assert len(shop.letters()) == 120
    assert shop.dead_letters() == []
    assert topic.private_topics(shop.store) == []


@pytest.mark.parametrize("point", ["S0", "S1"])
def test_what_a_killed_job_had_pulled_is_not_lost(shop: Shop, topic: Topic, point: str) -> None:
    """S0: pulled and not stored. S1: stored and not acknowledged; then it comes again and changes nothing."""
    shop.campaign("spring", people(5), state="ready")
    topic.publish(trigger("start", "spring"))
    killed = process(shop.folder, topic, SENDONCE_FAILPOINT=f"{point}:kill9")
    assert killed.wait(60) == -signal.SIGKILL
    killed.communicate()
    assert shop.state("spring")[0] == ("ready" if point == "S0" else "running")
    with live_job(shop.url, topic) as ended:
        is_(shop, "spring", "completed")
        if point == "S0":
            assert len(shop.letters()) == 5
    assert ended[0].applied == (1 if point == "S0" else 0)
    assert len(shop.letters()) == 5


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_under_load_leaves_nothing_in_doubt_and_says_how_to_go_on(
    shop: Shop, topic: Topic, number: signal.Signals
) -> None:
    shop.configure(limits=[{"rate": "400/s", "burst": 400}])
    shop.campaign("spring", people(20_000), batch_size=50, state="ready")
    topic.publish(trigger("start", "spring"))
    job = process(shop.folder, topic)
    until(lambda: any(batch.state == "done" for batch in shop.batches("spring")), "the first batch")
    job.send_signal(number)
    said, words = job.communicate(timeout=30)
    assert job.returncode == 1, words
    told = json.loads(said)
    assert told["goes_on"] == f"sendonce run --subscription {topic.subscription}"
    assert 0 < told["unfinished"] < 20_000
    assert told["in_flight"] is False
    assert {batch.state for batch in shop.batches("spring")} == {"done", "pending"}
    assert sum(batch.n_open for batch in shop.batches("spring")) == told["unfinished"]
    assert topic.private_topics(shop.store) == []
    assert [row.state for row in jobs(shop.store)] == ["ended"]


def test_the_pipeline_started_as_beam_pipelines_are(shop: Shop, topic: Topic) -> None:
    """`python -m pipelines.campaign` without a runner is a live job here."""
    shop.campaign("spring", people(5), state="ready")
    topic.publish(trigger("start", "spring"))
    job = process(shop.folder, topic, module=["pipelines.campaign"], PYTHONPATH=str(ROOT))
    is_(shop, "spring", "completed")
    job.send_signal(signal.SIGTERM)
    said, words = job.communicate(timeout=30)
    assert job.returncode == 0, words
    assert "0 recipients are not finished" in said
    assert len(shop.letters()) == 5


def test_the_private_topic_of_a_job_that_died_long_ago_is_removed(shop: Shop, topic: Topic) -> None:
    killed = process(shop.folder, topic)
    until(lambda: len(topic.private_topics(shop.store)) == 2, "the job's topics")
    killed.kill()
    killed.communicate()
    (dead,) = jobs(shop.store)
    left = topic.private_topics(shop.store)
    with live_job(shop.url, topic):
        until(lambda: len(topic.private_topics(shop.store)) == len(left) + 2, "the job's own topics")
    assert topic.private_topics(shop.store) == left  # it may only be slow
    shop.store.transact(
        lambda tx: tx.put(replace(dead, heartbeat_at=dead.heartbeat_at - timedelta(days=2))), tag="test"
    )
    with live_job(shop.url, topic):
        until(lambda: not {*left} & {*topic.private_topics(shop.store)}, "their removal")
    assert topic.private_topics(shop.store) == []


def only_the_topic(name: str) -> None:
    """As people do it in a console: its subscription stays, without a topic."""
    pubsub_v1.PublisherClient().delete_topic(topic=name)


@pytest.mark.parametrize("remove", [remove_topic, only_the_topic])
def test_a_job_goes_on_when_its_private_topic_is_taken_away(
    shop: Shop, topic: Topic, remove: Callable[[str], None]
) -> None:
    """So does Pub/Sub's emulator, which forgets everything when it is started again."""
    with live_job(shop.url, topic) as ended:
        until(lambda: len(topic.private_topics(shop.store)) == 2, "the private topics")
        remove(topic.private_topics(shop.store)[1])
        shop.campaign("spring", people(5), state="ready")
        topic.publish(trigger("start", "spring"))
        is_(shop, "spring", "completed")
    assert ended[0].restarts >= 1
    assert len(shop.letters()) == 5
    assert topic.private_topics(shop.store) == []


def test_no_credentials_are_said_in_one_line(
    shop: Shop, topic: Topic, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended in a traceback of Google's library."""
    monkeypatch.delenv("PUBSUB_EMULATOR_HOST")
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(shop.folder / "none.json"))
    monkeypatch.setenv("SENDONCE_STORE", shop.url)
    assert cli(["run", "--subscription", topic.subscription]) == 2
    said = capsys.readouterr().err
    assert "no credentials for Pub/Sub" in said
    assert "gcloud auth application-default login" in said
    assert "Live:" not in said
    assert campaign.main(["--subscription", topic.subscription]) == 2


def test_a_subscription_that_is_not_there_is_named(shop: Shop, topic: Topic) -> None:
    topic.subscription += "-gone"
    with live_job(shop.url, topic) as ended:
        until(lambda: bool(ended), "the answer")
    assert isinstance(ended[0], ConfigFault)
    assert f"there is no subscription {topic.subscription}" in str(ended[0])
