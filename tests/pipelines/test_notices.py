"""Outcomes of sends and dead letters over Pub/Sub (Google's emulator): told at least once, whatever a job suffers."""

import json
import signal
import subprocess
from concurrent import futures
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from schemas.ids import message_id
from schemas.tables import Notice
from sendonce.control.topics import TopicClient, check_topic
from sendonce.stores.base import Tx
from tests.control import sending
from tests.emulated import Emulator, pubsub_emulator
from tests.pipelines.shop import Shop, people

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from google.api_core import exceptions as google
from google.cloud import pubsub_v1

from sendonce.client import Publisher
from sendonce.listen import MissingOutcomes, Outcomes, OutcomeWaiter
from tests.pipelines.pubsub import PATIENCE_S, PROJECT, Topic, live_job, process, until

pytestmark = pytest.mark.emulator("pubsub")
_numbers = count(1)


@pytest.fixture
def triggers(pubsub: Emulator) -> Topic:
    return Topic()


@pytest.fixture
def told(pubsub: Emulator) -> Topic:
    return Topic()


def configure(shop: Shop, **topics: Any) -> None:
    """Lanes, the outbox, a template for sends, and these topics."""
    outbox = {"adapter": "outbox", "path": str(shop.folder / "outbox")}
    sending.ready(shop.store, config={"senders": {"outbox": outbox}, **topics})


def a_send(shop: Shop, recipients: int, key: str = "order-1") -> set[str]:
    """A send that was taken; the message ids of its recipients."""
    taken = sending.take_one(shop.store, sending.body(key, [sending.to(number) for number in range(recipients)]))
    assert taken.ended == "applied"
    return names_of(shop, key)


def names_of(shop: Shop, key: str) -> set[str]:
    batch = sending.batch_of(shop.store, key)
    people = sending.people(shop.store, batch)
    return {message_id(shop.key, batch.campaign_id, person.recipient_id) for person in people}


def waiting(shop: Shop) -> int:
    return len(shop.store.read(lambda reader: reader.scan(Notice)))


def received(topic: Topic, expected: int, idle_s: float = PATIENCE_S) -> list[Any]:
    """So many outcomes of a topic, and whatever else comes within a moment."""
    found: list[Any] = []
    with Outcomes(topic.subscription, idle_s=idle_s) as outcomes:
        for outcome in outcomes:
            found.append(outcome)
            if len(found) == expected:
                outcomes.idle_s = 0.5
    return found


def test_a_live_job_tells_who_waits_for_the_answer_of_a_send(shop: Shop, triggers: Topic, told: Topic) -> None:
    """From one end to the other: publish, deliver, wait for the outcome. A campaign beside it is told of to nobody."""
    configure(shop, outcomes_topic=told.topic)
    shop.campaign("spring", people(20))
    recipients = [sending.to(1), sending.to(2), {"recipient_id": "u3", "email": "no address"}]
    with (
        live_job(shop.url, triggers) as ended,
        Publisher(triggers.topic) as publisher,
        OutcomeWaiter(told.subscription) as waiter,
    ):
        expected = waiter.expect("login-1", 3)
        nothing = waiter.expect("another", 1)
        for _ in range(2):  # a publisher that is not sure publishes again
            publisher.send("otp", recipients, idempotency_key="login-1", priority="critical").result()
        outcomes = expected.result(PATIENCE_S)
        until(lambda: shop.state("spring")[0] == "completed", "the campaign's end")
        with pytest.raises(MissingOutcomes, match="0 of 1 outcomes have come"):
            nothing.result(0.1)
    assert {outcome.message_id for outcome in outcomes} == names_of(shop, "login-1")
    assert sorted((outcome.outcome, outcome.reason) for outcome in outcomes) == [
        ("accepted", ""),
        ("accepted", ""),
        ("refused", "address.invalid"),
    ]
    assert {outcome.idempotency_key for outcome in outcomes} == {"login-1"}
    assert all(outcome.at.tzinfo for outcome in outcomes)
    assert waiting(shop) == 0
    assert (ended[0].applied, ended[0].ignored) == (1, 1)


def test_dead_letters_of_triggers_are_told_without_their_body(shop: Shop, triggers: Topic, told: Topic) -> None:
    configure(shop, dead_letters_topic=told.topic)
    with live_job(shop.url, triggers), Publisher(triggers.topic) as publisher:
        sent = publisher.start("nobody").result()
        triggers.publish(b'{"email": "SECRET@one.example"')
        messages: list[Any] = []
        until(lambda: len(messages.extend(pulled(told)) or messages) >= 2, "both dead letters")
    bodies = {body["reason"]: body for message in messages if (body := json.loads(message.data))}
    assert set(bodies) == {"unknown_campaign", "not_json"}
    assert bodies["unknown_campaign"]["message_id"] == sent
    assert {row.dead_letter_id for row in shop.dead_letters()} == {body["id"] for body in bodies.values()}
    assert {dict(message.attributes)["stage"] for message in messages} == {"trigger"}
    assert "SECRET" not in "".join(message.data.decode() for message in messages)


def pulled(topic: Topic) -> list[Any]:
    """What is there now, acknowledged."""
    answer = topic._subscriber.pull(subscription=topic.subscription, max_messages=100, return_immediately=True)
    if answer.received_messages:
        ids = [message.ack_id for message in answer.received_messages]
        topic._subscriber.acknowledge(subscription=topic.subscription, ack_ids=ids)
    return [message.message for message in answer.received_messages]


def test_a_bounded_run_has_told_all_when_it_ends(shop: Shop, told: Topic) -> None:
    configure(shop, outcomes_topic=told.topic)
    names = a_send(shop, 50)
    assert shop.run().ended == "done"
    assert waiting(shop) == 0
    assert {outcome.message_id for outcome in received(told, 50)} == names


def test_a_kill_between_publishing_and_deleting_tells_twice_and_not_never(
    shop: Shop, triggers: Topic, told: Topic
) -> None:
    configure(shop, outcomes_topic=told.topic)
    names = a_send(shop, 5)
    killed = process(shop.folder, triggers, SENDONCE_FAILPOINT="N1:kill9")
    assert killed.wait(60) == -signal.SIGKILL
    killed.communicate()
    left = waiting(shop)
    assert left > 0
    first = received(told, left)  # those that were published and not deleted

    def let_go(tx: Tx) -> None:  # as time does, half a minute later
        tx.put(*(replace(notice, visible_at=notice.created_at) for notice in tx.scan(Notice)))

    shop.store.transact(let_go, tag="test")
    shop.run()
    again = received(told, left)
    assert {outcome.message_id for outcome in first} == {outcome.message_id for outcome in again} == names
    assert waiting(shop) == 0


def test_two_jobs_tell_all_and_each_only_once(shop: Shop, told: Topic) -> None:
    lanes = {"critical": {"limits": [{"rate": "100/s", "burst": 100}]}}
    configure(shop, outcomes_topic=told.topic, lanes=lanes)
    names = {name for number in range(10) for name in a_send(shop, 30, f"key-{number}")}
    with live_job(shop.url, Topic()), live_job(shop.url, Topic()):
        outcomes = received(told, len(names))
    assert {outcome.message_id for outcome in outcomes} == names
    assert len(outcomes) == len(names)
    assert waiting(shop) == 0


def test_a_topic_that_is_not_there_keeps_the_notices_and_nothing_else(
    shop: Shop, triggers: Topic, told: Topic, caplog: pytest.LogCaptureFixture
) -> None:
    missing = f"{PROJECT}/topics/not-yet-{next(_numbers)}"
    configure(shop, outcomes_topic=missing, dead_letters_topic=told.topic)
    names = a_send(shop, 3)
    with live_job(shop.url, triggers) as ended:
        until(lambda: waiting(shop) == 3, "the notices")
        until(lambda: "notices wait" in caplog.text, "the line in the log")
        triggers.publish(b"no JSON")
        until(lambda: bool(pulled(told)), "the dead letter, on the topic that is there")
        shop.campaign("spring", people(5))
        until(lambda: shop.state("spring")[0] == "completed", "a campaign")
        pubsub_v1.PublisherClient().create_topic(name=missing)
        read = f"{PROJECT}/subscriptions/{missing.rpartition('/')[2]}"
        pubsub_v1.SubscriberClient().create_subscription(name=read, topic=missing)
        told.subscription = read
        assert {outcome.message_id for outcome in received(told, 3)} == names
    assert ended[0].restarts == 0
    warnings = [record.getMessage() for record in caplog.records if record.name == "transforms.notices"]
    assert warnings == [
        f"outcome notices wait: there is no topic {missing}; "
        f"`gcloud pubsub topics create {missing.rpartition('/')[2]} --project shop-test` makes it",
        "outcome notices are published again",
    ]


def made_again(*topics: Topic) -> None:
    """An emulator forgets its topics when it ends."""
    publisher, subscriber = pubsub_v1.PublisherClient(), pubsub_v1.SubscriberClient()
    for topic in topics:
        publisher.create_topic(name=topic.topic)
        subscriber.create_subscription(name=topic.subscription, topic=topic.topic)


def test_while_pubsub_is_away_letters_go_out_and_notices_wait(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with pubsub_emulator() as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        told = Topic()
    configure(shop, outcomes_topic=told.topic)
    names = a_send(shop, 3)
    assert shop.run().ended == "done"
    assert len(shop.letters()) == 3
    assert waiting(shop) == 3
    lines = [record.getMessage() for record in caplog.records if record.name == "transforms.notices"]
    assert lines == [f"outcome notices wait: {unavailable(address, told.topic)}"]
    with pubsub_emulator(int(address.rpartition(":")[2])):
        made_again(told)
        shop.run()
        assert {outcome.message_id for outcome in received(told, 3)} == names
    assert waiting(shop) == 0


def test_a_job_whose_pubsub_goes_and_comes_back_tells_on(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    with pubsub_emulator() as address:
        monkeypatch.setenv("PUBSUB_EMULATOR_HOST", address)
        triggers, told = Topic(), Topic()
        configure(shop, outcomes_topic=told.topic)
        first = a_send(shop, 2, "first")
        job = process(shop.folder, triggers)
        assert {outcome.message_id for outcome in received(told, 2)} == first
    try:
        second = a_send(shop, 3, "second")
        with pubsub_emulator(int(address.rpartition(":")[2])):
            made_again(triggers, told)
            assert {outcome.message_id for outcome in received(told, 3)} == second
            until(lambda: waiting(shop) == 0, "the end of the notices")
            assert job.poll() is None
    finally:
        job.send_signal(signal.SIGTERM)
        try:
            job.communicate(timeout=40)
        except subprocess.TimeoutExpired:
            job.kill()
            raise


def unavailable(address: str, topic: str) -> str:
    return f"{address} did not take messages for {topic} (ServiceUnavailable); is it there, and is the way free?"


# -- the other end -----------------------------------------------------------------------------------------------------


def tell(topic: Topic, *keys: str) -> None:
    topic.publish(
        *(
            json.dumps(
                {
                    "v": 1,
                    "message_id": f"m-{key}",
                    "idempotency_key": key,
                    "outcome": "accepted",
                    "reason": "",
                    "at": "2026-01-15T09:00:00Z",
                }
            ).encode()
            for key in keys
        )
    )


def test_an_outcome_that_was_not_handled_comes_again(told: Topic) -> None:
    tell(told, "a")

    def handle() -> None:
        with Outcomes(told.subscription, idle_s=PATIENCE_S) as outcomes:
            for _ in outcomes:
                raise KeyError("the handler fails")

    for _ in range(2):
        with pytest.raises(KeyError):
            handle()
    assert [outcome.idempotency_key for outcome in received(told, 1)] == ["a"]
    assert told.is_read_up()


def test_what_is_no_outcome_is_passed_over(told: Topic) -> None:
    told.publish(b"no JSON", b"[]", b'{"v": 1, "message_id": "m"}')
    tell(told, "a", "b")
    assert {outcome.idempotency_key for outcome in received(told, 2)} == {"a", "b"}
    assert told.is_read_up()


def test_a_subscription_that_is_not_there(pubsub: Emulator) -> None:
    with Outcomes(f"{PROJECT}/subscriptions/nowhere", idle_s=PATIENCE_S) as outcomes, pytest.raises(google.NotFound):
        list(outcomes)
    with OutcomeWaiter(f"{PROJECT}/subscriptions/nowhere") as waiter, pytest.raises(google.NotFound):
        waiter.expect("a").result(PATIENCE_S)


def test_a_waiter_counts_each_message_once_and_serves_many(told: Topic) -> None:
    with OutcomeWaiter(told.subscription) as waiter, futures.ThreadPoolExecutor(8) as pool:
        waits = {key: waiter.expect(key) for key in map(str, range(8))}
        twice = waiter.expect("twice", 2)
        tell(told, *waits, "twice", "twice")
        found = {key: pool.submit(wait.result, PATIENCE_S) for key, wait in waits.items()}
        assert {key: one.result()[0].message_id for key, one in found.items()} == {key: f"m-{key}" for key in waits}
        with pytest.raises(MissingOutcomes) as missing:
            twice.result(0.2)
        assert len(missing.value.outcomes) == 1
        assert waiter._expected == {}


def test_who_waits_when_the_waiter_is_closed_is_told(told: Topic) -> None:
    waiter = OutcomeWaiter(told.subscription)
    expected = waiter.expect("a")
    waiter.close()
    with pytest.raises(RuntimeError, match="the waiter is closed"):
        expected.result(PATIENCE_S)


# -- the topic ---------------------------------------------------------------------------------------------------------


def test_the_doctor_looks_at_a_topic_without_publishing(told: Topic) -> None:
    assert check_topic(told.topic) == ""
    assert told.is_read_up()
    gone = f"{PROJECT}/topics/not-here"
    problem = check_topic(gone)
    assert problem == f"there is no topic {gone}; `gcloud pubsub topics create not-here --project shop-test` makes it"


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, pubsub: Emulator) -> None:
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    client = TopicClient()
    answer = client.publish(f"{PROJECT}/topics/told", [(b"x", {})] * 3)
    client.close()
    assert answer.taken == [False] * 3
    assert answer.problem == unavailable("127.0.0.1:1", f"{PROJECT}/topics/told")
