"""What publishers import: it makes what a job takes, refuses what a job would refuse, and drags nothing in."""

import json
import logging
import re
import subprocess
import sys
import textwrap
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from google.api_core import exceptions as google

from sendonce import client
from sendonce.client import BODY_BYTES_MAX, InvalidTrigger, NotPublished, Publisher, control_body, send_body
from sendonce.control.triggers import BadTrigger, Trigger, read_trigger
from sendonce.listen import Outcomes, OutcomeWaiter

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "schemas" / "trigger.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA, format_checker=jsonschema.FormatChecker())
TOPIC = "projects/shop-test/topics/triggers"
ANN = {"recipient_id": "4711", "email": "ann@shop.example", "variables": {"code": "SECRET-123"}}


def is_valid(body: bytes) -> bool:
    """By the schema."""
    return VALIDATOR.is_valid(json.loads(body))


def is_taken(body: bytes) -> bool:
    """By a job, which has some rules besides that no schema can say."""
    try:
        read_trigger(body)
    except BadTrigger:
        return False
    return True


# -- the client and the schema say the same ----------------------------------------------------------------------------

# Near the borders, and beyond them; with what people mistype.
names = st.one_of(
    st.sampled_from(["otp", "a" * 100, "a" * 101, "", "-x", "x.y_z-1", "otp\n", "é", "a b"]), st.text(max_size=5)
)
texts = st.one_of(st.sampled_from(["", "fr", "Europe/Paris", "x" * 65]), st.text(max_size=6))
long_texts = st.sampled_from(["", "k", "ké", "k\n", "x" * 200, "x" * 201, "😀" * 200, "😀" * 201])
emails = st.sampled_from(["", "ab", "a@b", "x" * 320, "x" * 321, "ann@shop.example"])
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)),
    max_leaves=5,
)
anything = st.one_of(st.none(), st.integers(), st.booleans(), st.lists(st.integers(), max_size=2))
variables = st.one_of(st.dictionaries(st.text(max_size=3), json_values, max_size=3), anything)
recipient_fields = {
    "recipient_id": st.one_of(long_texts, anything),
    "email": st.one_of(emails, anything),
    "locale": st.one_of(texts, anything),
    "timezone": st.one_of(texts, anything),
    "variables": variables,
    "name": texts,
}
good = st.fixed_dictionaries({"recipient_id": st.just("1"), "email": st.just("a@b.example")})
wild = st.fixed_dictionaries({}, optional=recipient_fields)
recipients = st.one_of(
    st.lists(st.one_of(good, wild), max_size=3),
    st.sampled_from([[{"recipient_id": str(n), "email": "a@b.example"} for n in range(most)] for most in (100, 101)]),
    st.just([{"recipient_id": "1", "email": f"{name}@b.example"} for name in "ab"]),
)


@given(
    kind=st.one_of(st.sampled_from(["start", "pause", "resume", "cancel"]), st.sampled_from(["", "stop", "START"])),
    campaign_id=st.one_of(names, anything),
    seq=st.one_of(st.none(), st.integers(), st.sampled_from([0, -1, 2**53 - 1, 2**53, True]), st.floats(), texts),
)
def test_a_control_trigger_is_made_exactly_where_a_job_takes_it(kind: str, campaign_id: Any, seq: Any) -> None:
    plain = {"v": 1, "type": kind, "campaign_id": campaign_id}
    if seq is not None:
        plain["seq"] = seq
    assert made(lambda: control_body(kind, campaign_id, seq)) == (plain if is_taken(as_json(plain)) else None)


@given(
    template=st.one_of(names, anything),
    recipients=recipients,
    key=st.one_of(long_texts, anything),
    priority=st.sampled_from(["critical", "high", "bulk", "", None]),
    sender=st.one_of(st.none(), names),
)
def test_a_send_that_is_made_is_valid_and_one_that_is_refused_would_be_a_dead_letter(
    template: Any, recipients: Any, key: Any, priority: Any, sender: Any
) -> None:
    plain = {
        "v": 1,
        "type": "send",
        "idempotency_key": key,
        "template": template,
        "priority": priority,
        "recipients": recipients,
    }
    if sender is not None:
        plain["sender"] = sender
    found = made(lambda: send_body(template, recipients, idempotency_key=key, priority=priority, sender=sender))
    if found is None:
        assert not is_taken(as_json(plain))
    else:
        assert found == plain


@given(expires_at=st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), None])))
def test_an_end_is_written_as_the_schema_wants_it(expires_at: datetime) -> None:
    def make() -> bytes:
        return send_body("otp", [ANN], idempotency_key="k", priority="high", expires_at=expires_at)

    if expires_at.tzinfo is None:
        with pytest.raises(InvalidTrigger, match=r"^expires_at: must be a datetime with a time zone$"):
            make()
    elif 2 < expires_at.year < 9998:
        body = json.loads(make())
        assert is_taken(as_json(body))
        assert datetime.fromisoformat(body["expires_at"]) == expires_at


@given(
    kind=st.sampled_from(["start", "pause", "resume", "cancel"]),
    at=st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), None])),
)
def test_a_time_is_for_a_start_alone_and_written_as_a_job_reads_it(kind: str, at: datetime) -> None:
    def make() -> bytes:
        return control_body(kind, "spring", 7, at)

    if kind != "start" or at.tzinfo is None:
        with pytest.raises(InvalidTrigger, match=r"^at: (is for a start alone|must be a datetime with a time zone)$"):
            make()
    elif 2 < at.year < 9998:
        read = read_trigger(make())
        assert is_valid(make())
        assert isinstance(read, Trigger)
        assert (read.seq, read.at) == (7, at)


def as_json(value: Any) -> bytes:
    """The body of somebody who checks nothing."""
    return json.dumps(value).encode()


def made(make: Any) -> Any:
    """What the client makes of it, or None where it refuses."""
    try:
        body = make()
    except InvalidTrigger:
        return None
    assert is_valid(body)
    return json.loads(body)


def test_the_largest_body_is_the_largest_that_is_taken() -> None:
    def make(size: int) -> bytes:
        person = {**ANN, "variables": {"x": "y" * size}}
        return send_body("otp", [person], idempotency_key="k", priority="high")

    room = BODY_BYTES_MAX - len(make(0))
    assert len(make(room)) == BODY_BYTES_MAX
    with pytest.raises(InvalidTrigger, match=rf"has {BODY_BYTES_MAX + 1} bytes; at most {BODY_BYTES_MAX} are taken"):
        make(room + 1)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"email": ["SECRET"]}, "recipients.0.email"),
        ({"recipient_id": ""}, "recipients.0.recipient_id"),
        ({"SECRET-name": "x"}, "recipients.0"),
        ({"locale": 5}, "recipients.0.locale"),
        ({"variables": ["SECRET"]}, "recipients.0.variables"),
        ({"variables": {"SECRET": float("nan")}}, "recipients.variables"),
        ({"variables": {"SECRET": {1, 2}}}, "recipients.variables"),
        ({"variables": {("SECRET",): 1}}, "recipients.variables"),
        ({"variables": {"x": {1: "SECRET", "1": "b"}}}, "recipients.variables"),
        ({"email": "SECRET\ud800@x.example"}, "the trigger"),
    ],
)
def test_a_refusal_says_where_and_holds_no_value(change: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidTrigger) as refused:
        send_body("otp", [{**ANN, **change}], idempotency_key="SECRET-key", priority="high")
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")
    assert "SECRET" not in f"{refused.value!r} {refused.value}"
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_a_field_that_is_not_known_is_told_by_its_place() -> None:
    """Its name may be a person's; which one it is has to be told all the same."""
    recipient = {"recipient_id": "1", "SECRET@one.example": "x", "email": "a@one.example"}
    with pytest.raises(InvalidTrigger, match=r"^recipients.0: field 2 is not known \(counted from 1\); known are "):
        send_body("otp", [recipient], idempotency_key="k", priority="high")


def test_a_single_recipient_that_is_no_list_is_refused() -> None:
    with pytest.raises(InvalidTrigger, match="recipients: must be a list of 1 to 100"):
        send_body("otp", ANN, idempotency_key="k", priority="high")  # type: ignore[arg-type]


# -- publishing --------------------------------------------------------------------------------------------------------


class FakeClient:
    """Google's publisher, in the hands of a test."""

    def __init__(self, **options: Any) -> None:
        self.sent: list[tuple[str, bytes, dict[str, str], Future[str]]] = []
        self.stopped = False

    def publish(self, topic: str, data: bytes, *, retry: Any, timeout: float, **attributes: str) -> "Future[str]":
        assert retry is not None
        assert timeout > 0
        future: Future[str] = Future()
        self.sent.append((topic, data, attributes, future))
        return future

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeClient:
    fake = FakeClient()
    monkeypatch.setattr(client.pubsub_v1, "PublisherClient", lambda **options: fake)
    return fake


def test_type_and_priority_are_attributes_for_filters(fake: FakeClient) -> None:
    publisher = Publisher(TOPIC)
    publisher.send("otp", [ANN], idempotency_key="k", priority="critical")
    publisher.send("receipt", [ANN], idempotency_key="k2")
    publisher.start("spring", 7)
    publisher.cancel("otp-2026", priority="critical")
    assert [attributes for _, _, attributes, _ in fake.sent] == [
        {"type": "send", "priority": "critical"},
        {"type": "send", "priority": "high"},
        {"type": "start", "priority": "bulk"},
        {"type": "cancel", "priority": "critical"},
    ]
    assert json.loads(fake.sent[2][1]) == {"v": 1, "type": "start", "campaign_id": "spring", "seq": 7}


@pytest.mark.parametrize("kind", ["start", "pause", "resume", "cancel"])
def test_each_control_trigger_has_its_method(fake: FakeClient, kind: str) -> None:
    getattr(Publisher(TOPIC), kind)("spring")
    assert json.loads(fake.sent[0][1]) == {"v": 1, "type": kind, "campaign_id": "spring"}


def test_a_start_may_name_its_time(fake: FakeClient) -> None:
    Publisher(TOPIC).start("spring", 7, at=datetime(2026, 12, 24, 18, tzinfo=timezone(timedelta(hours=1))))
    found = {"v": 1, "type": "start", "campaign_id": "spring", "seq": 7, "at": "2026-12-24T17:00:00Z"}
    assert json.loads(fake.sent[0][1]) == found
    with pytest.raises(InvalidTrigger, match=r"^at: must be a datetime with a time zone$"):
        Publisher(TOPIC).start("spring", at="2026-12-24T17:00:00Z")  # type: ignore[arg-type]


def test_what_is_refused_is_not_published(fake: FakeClient) -> None:
    publisher = Publisher(TOPIC)
    with pytest.raises(InvalidTrigger):
        publisher.start("no such name")
    with pytest.raises(InvalidTrigger, match="priority"):
        publisher.start("spring", priority="urgent")  # type: ignore[arg-type]
    assert fake.sent == []


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (google.NotFound("SECRET"), f"there is no topic {TOPIC}"),
        (google.PermissionDenied("SECRET"), "grant roles/pubsub.publisher on it"),
        (google.RetryError("SECRET", None), f"{TOPIC} did not take the trigger: RetryError"),
        (ValueError("SECRET"), "did not take the trigger: ValueError"),
    ],
)
def test_a_fault_is_told_in_our_words(fake: FakeClient, fault: Exception, words: str) -> None:
    sent = Publisher(TOPIC).start("spring")
    fake.sent[0][3].set_exception(fault)
    assert sent.done()
    with pytest.raises(NotPublished, match=words) as told:
        sent.result()
    assert "SECRET" not in str(told.value)


def test_an_answer_that_does_not_come_in_time(fake: FakeClient) -> None:
    sent = Publisher(TOPIC).start("spring")
    with pytest.raises(NotPublished, match="has not answered yet"):
        sent.result(0)
    fake.sent[0][3].set_result("17")
    assert sent.result() == "17"


def test_leaving_waits_for_all_and_tells_of_those_that_nobody_asked_about(fake: FakeClient) -> None:
    def answer() -> None:
        fake.sent[0][3].set_result("1")
        fake.sent[1][3].set_exception(google.NotFound("x"))
        fake.sent[2][3].set_exception(google.NotFound("x"))
        stopped.append(True)

    stopped: list[bool] = []
    fake.stop = answer  # type: ignore[method-assign]
    publisher = Publisher(TOPIC)
    for _ in range(3):
        publisher.start("spring")
    with pytest.raises(NotPublished, match=f"^2 of the triggers were not taken by {TOPIC}$"):
        publisher.close()
    assert stopped


def test_who_asked_is_not_told_again_and_nothing_is_kept(fake: FakeClient) -> None:
    with Publisher(TOPIC) as publisher:
        sent = publisher.start("spring")
        fake.sent[0][3].set_exception(google.NotFound("x"))
        with pytest.raises(NotPublished):
            sent.result()
        publisher.start("spring")
        fake.sent[1][3].set_result("2")
        assert publisher._unsettled == set()
    assert fake.stopped
    with pytest.raises(NotPublished, match="the publisher is closed"):
        publisher.start("spring")


def test_what_the_caller_raised_is_not_hidden(fake: FakeClient) -> None:
    def answer() -> None:
        fake.sent[0][3].set_exception(google.NotFound("x"))

    fake.stop = answer  # type: ignore[method-assign]

    def work() -> None:
        with Publisher(TOPIC) as publisher:
            publisher.start("spring")
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        work()


def test_the_topic_comes_from_the_environment_or_is_asked_for(fake: FakeClient, monkeypatch: Any) -> None:
    for name in ("", "triggers", "projects/shop/subscriptions/triggers", f"{TOPIC} ", f"{TOPIC}/x"):
        with pytest.raises(ValueError, match=r"projects/PROJECT/topics/NAME, here or in SENDONCE_TOPIC"):
            Publisher(name)
    monkeypatch.setenv("SENDONCE_TOPIC", TOPIC)
    Publisher().start("spring")
    assert fake.sent[0][0] == TOPIC


@pytest.mark.parametrize("reader", [Outcomes, OutcomeWaiter])
@pytest.mark.parametrize("name", ["", "outcomes", TOPIC, "projects/shop/subscriptions/a b"])
def test_a_subscription_is_asked_for_in_its_form_at_once(reader: Any, name: str) -> None:
    with pytest.raises(ValueError, match=r"projects/PROJECT/subscriptions/NAME"):
        reader(name)


def test_nothing_of_a_person_is_logged(fake: FakeClient, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        sent = Publisher(TOPIC).send("otp", [ANN], idempotency_key="k", priority="critical")
        fake.sent[0][3].set_exception(ValueError("ann@shop.example"))
        with pytest.raises(NotPublished):
            sent.result()
    assert "ann@" not in caplog.text
    assert "SECRET" not in caplog.text


# -- what it drags in --------------------------------------------------------------------------------------------------


def needed_by(distribution: str) -> set[str]:
    """A distribution and all that it needs, without extras."""
    found: set[str] = set()
    waiting = [distribution]
    while waiting:
        name = waiting.pop().lower().replace("_", "-")
        if name in found:
            continue
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # for another system or Python
        found.add(name)
        for line in lines:
            if "extra ==" not in line:
                waiting.append(re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0])
    return found


def test_it_needs_pubsub_alone_and_loads_nothing_else_of_ours(tmp_path: Path) -> None:
    """In a process whose path holds a foreign `schemas`, and where no other distribution can be imported."""
    allowed = needed_by("google-cloud-pubsub")
    assert not {"apache-beam", "jsonschema", "orjson", "pydantic"} & allowed
    foreign = tmp_path / "schemas"
    foreign.mkdir()
    (foreign / "__init__.py").write_text("raise SystemExit('the foreign package was imported')\n")
    program = textwrap.dedent("""
        import sys, json
        from importlib import metadata
        allowed = set(json.loads(sys.argv[1]))
        owners = metadata.packages_distributions()

        class Gate:
            def find_spec(self, name, path=None, target=None):
                top = name.partition(".")[0]
                mine = {owner.lower().replace("_", "-") for owner in owners.get(top, [])}
                if top in ("google", "sendonce") or not mine or mine & allowed:
                    return None
                raise ModuleNotFoundError(f"No module named {name!r}", name=top)

        sys.meta_path.insert(0, Gate())
        before = set(sys.modules)
        import sendonce.client, sendonce.listen
        ours = ("sendonce", "schemas", "pipelines", "transforms", "templates", "apache_beam")
        print(json.dumps(sorted(n for n in set(sys.modules) - before if n.partition(".")[0] in ours)))
    """)
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(sorted(allowed))],
        cwd=tmp_path,
        env={"PYTHONPATH": f"{tmp_path}:{ROOT}", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["sendonce", "sendonce.client", "sendonce.listen"]
