"""Reading and taking sends: each recipient is on record, each key is taken once, and what is wrong is said clearly."""

import itertools
import json
import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.ids import key_hash, message_id, own_recipient_id, send_batch_no
from schemas.outcomes import Outcome
from schemas.tables import Campaign, DeadLetterRow, IdempotencyKey, OutboundMessage
from sendonce.control import streams
from sendonce.control.campaigns import begin_cancel, pause
from sendonce.control.early_cancels import keep_early_cancel
from sendonce.control.pushed_templates import push_template
from sendonce.control.streams import KEYS_KEPT, purge_keys
from sendonce.control.triggers import BadTrigger, read_or_bad, read_trigger
from sendonce.stores.base import Store
from sendonce.stores.opening import store_key
from tests.control.made import Clock, seal
from tests.control.sending import (
    STREAM_ID,
    batch_of,
    batches,
    body,
    only_batch,
    people,
    ready,
    reasons,
    rows,
    stream,
    take,
    take_one,
    template,
    to,
    whole,
)

CASES = Path(__file__).parent.parent / "cases"


@pytest.fixture(autouse=True)
def _ready(store: Store) -> None:
    ready(store)


# What is taken.


def test_a_send_is_one_batch_of_the_stream_of_its_template_and_day(store: Store, clock: Clock) -> None:
    taken = take_one(store, body("order-1", [to(1), to(2)]))

    assert (taken.ended, taken.campaign_id, taken.detail, taken.lane) == ("applied", STREAM_ID, "", "critical")
    row = stream(store)
    assert (row.kind, row.state, row.priority, row.template) == ("stream", "running", "critical", "otp")
    assert (row.from_address, row.started_at) == ("Shop <codes@shop.example>", row.created_at)
    batch = only_batch(store)
    assert (batch.state, batch.size, batch.n_open, batch.idempotency_key) == ("pending", 2, 2, "order-1")
    assert batch.template_hash == template().template_hash
    assert batch.expires_at == batch.due_at + timedelta(minutes=10)
    assert batch.batch_no == send_batch_no(key_hash("order-1"), 0) < 2**53
    first, second = people(store, batch)
    assert (own_recipient_id(first.recipient_id), first.email) == ("u1", "u1@one.example")
    assert (first.locale, first.timezone, json.loads(first.template_variables)) == (
        "en",
        "Europe/Paris",
        {"code": "424242"},
    )
    assert own_recipient_id(second.recipient_id) == "u2"
    (key,) = rows(store, IdempotencyKey)
    assert (key.campaign_id, key.batch_no) == (STREAM_ID, batch.batch_no)


def test_several_sends_to_one_recipient_have_message_ids_of_their_own(store: Store) -> None:
    take(store, body("a"), body("b"))
    found = [person for batch in batches(store) for person in people(store, batch)]
    assert [own_recipient_id(person.recipient_id) for person in found] == ["u1", "u1"]
    key = store_key(store)
    assert len({message_id(key, STREAM_ID, person.recipient_id) for person in found}) == 2


def test_priorities_and_days_have_streams_of_their_own(store: Store, clock: Clock) -> None:
    take(store, body("a"), body("b", priority="high"))
    clock.at = datetime(2026, 1, 15, 23, 59, 59, 999_000, tzinfo=UTC)
    take(store, body("c"))
    clock.at = datetime(2026, 1, 16, tzinfo=UTC)
    take(store, body("d"))
    found = {batch_of(store, key).campaign_id for key in "abcd"}
    assert found == {STREAM_ID, "stream.otp.high.2026-01-15", "stream.otp.critical.2026-01-16"}


def test_the_row_that_every_claim_reads_is_written_once(store: Store) -> None:
    take(store, body("a"))
    before = stream(store)
    take(store, body("b"), body("c", [to(1, email="no")]), body("a"))
    assert stream(store) == before


def test_the_same_send_again_is_ignored_however_it_is_written(store: Store) -> None:
    value = json.loads(body("a", [to(1, locale="en")]))
    take(store, json.dumps(value).encode())
    before = whole(store)
    backwards = dict(reversed(value.items()))
    backwards["recipients"] = [dict(reversed(person.items())) for person in value["recipients"]]
    for again in (json.dumps(value, indent=3), json.dumps(backwards), json.dumps(value).replace("one", "\\u006fne")):
        taken = take_one(store, again.encode())
        assert (taken.ended, taken.campaign_id) == ("ignored", STREAM_ID)
    assert whole(store) == before


@pytest.mark.parametrize(
    "change",
    [
        {"recipients": [to(1, variables={"code": "424243"})]},
        {"recipients": [to(1, variables={"code": 424242})]},
        {"recipients": [to(1), to(2)]},
        {"priority": "high"},
        {"expires_at": "2026-01-15T10:00:00Z"},
    ],
)
def test_the_same_key_with_another_body_is_a_conflict_and_changes_nothing(store: Store, change: dict) -> None:  # type: ignore[type-arg]
    take(store, body("a"))
    before = whole(store)
    taken = take_one(store, body("a", **change))
    assert (taken.ended, taken.reason, taken.campaign_id) == ("bad", "idempotency_conflict", STREAM_ID)
    assert "424243" not in taken.detail
    assert whole(store) == before


def test_a_key_is_taken_once_also_within_one_call_and_after_midnight(store: Store, clock: Clock) -> None:
    taken = take(store, body("a"), body("a"), body("a", [to(2)]), body("b"))
    assert [one.ended for one in taken] == ["applied", "ignored", "bad", "applied"]
    clock.at += timedelta(days=1)
    assert take_one(store, body("a")).ended == "ignored"
    assert len(batches(store)) == 2


def test_two_keys_that_hash_to_one_batch_number_get_two(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "send_batch_no", lambda key, place: place)
    take(store, body("a"), body("b"))
    take(store, body("c"))
    assert sorted(batch.batch_no for batch in batches(store)) == [0, 1, 2]
    assert [one.ended for one in take(store, body("b"), body("c"), body("a"))] == ["ignored"] * 3
    assert {batch.idempotency_key for batch in batches(store)} == {"a", "b", "c"}


def test_a_loaded_campaign_may_not_have_a_streams_name(store: Store) -> None:
    seal(store, STREAM_ID, [1], state="running", priority="critical")  # as an earlier release would have let it
    ready(store)
    taken = take_one(store, body("a"))
    assert (taken.ended, taken.reason) == ("bad", "not_a_stream")


# Templates.


def test_a_send_is_pinned_to_what_was_pushed_last(store: Store) -> None:
    take(store, body("a"))
    newer = template(subject_j2="Your new code")
    push_template(store, newer, "ann")
    take(store, body("b"))
    push_template(store, template(), "ann")  # back to the first
    take(store, body("c"))
    hashes = {batch.idempotency_key: batch.template_hash for batch in batches(store)}
    assert hashes == {"a": template().template_hash, "b": newer.template_hash, "c": template().template_hash}


def test_a_template_that_nobody_pushed_is_named_with_the_mend(store: Store) -> None:
    taken = take_one(store, body("a", template="reset"))
    assert (taken.ended, taken.reason) == ("bad", "unknown_template")
    assert "`sendonce templates push reset`" in taken.detail
    assert rows(store, IdempotencyKey) == []
    push_template(store, template("reset"), "ann")
    assert take_one(store, body("a", template="reset")).ended == "applied"


def test_a_draft_that_a_load_or_a_test_letter_left_in_the_store_is_nobodys_send(store: Store) -> None:
    """The newest content of a name would have been everybody's code mail from the first test letter of a draft on."""
    from sendonce.rendering.catalogue import to_row

    draft = template(subject_j2="DRAFT")
    store.transact(lambda tx: tx.put(to_row(draft, tx.now(), "ann")), tag="test")
    take(store, body("a"))
    assert only_batch(store).template_hash == template().template_hash


def test_without_an_address_to_send_from_the_send_is_refused(store: Store) -> None:
    ready(store, config={"from": ""})
    taken = take_one(store, body("a"))
    assert (taken.reason, rows(store, Campaign)) == ("no_from", [])
    push_template(store, template(**{"template_yaml": "from: otp@shop.example\nlocales: [en]\n"}), "ann")
    assert take_one(store, body("a")).ended == "applied"


# Recipients.


def test_a_bad_address_refuses_that_recipient_alone_and_leaves_a_dead_letter(store: Store) -> None:
    take(store, body("a", [to(1), to(2, email="u2 at one.example"), to(3)]))
    batch = only_batch(store)
    assert reasons(batch) == ["open", "address.invalid", "open"]
    assert (batch.state, batch.n_open, batch.n_refused) == ("pending", 2, 1)
    (message,) = rows(store, OutboundMessage)
    (letter,) = rows(store, DeadLetterRow)
    assert (message.outcome, message.ordinal) == (Outcome.ADDRESS_INVALID, 1)
    assert (letter.stage, letter.reason, letter.ordinal) == ("trigger", "address.invalid", 1)
    assert letter.message_id == message.message_id
    assert letter.body is None
    refused = people(store, batch)[1]
    assert (own_recipient_id(refused.recipient_id), refused.email, refused.template_variables) == ("u2", "", "{}")


@pytest.mark.parametrize(
    "email", ["", " ", "x", "@", "a@b@c.example", "é" * 400 + "@one.example", "ann@one.example\r\nBcc: x"]
)
def test_no_address_however_odd_refuses_more_than_its_recipient(store: Store, email: str) -> None:
    """The schema wanted three characters: one empty field in a hundred would have stopped the other ninety-nine."""
    assert take_one(store, body("a", [to(1), to(2, email=email)])).ended == "applied"
    assert reasons(only_batch(store)) == ["open", "address.invalid"]


def test_an_odd_zone_or_locale_of_any_length_gets_the_default(store: Store) -> None:
    taken = take_one(store, body("a", [to(1, locale="x" * 500, timezone="y" * 500)]))
    assert taken.warnings == {"unknown_locale": 1, "unknown_timezone": 1}


def test_a_send_without_one_good_address_is_final_at_once(store: Store) -> None:
    take(store, body("a", [to(1, email="none"), to(2, email="@@@")]))
    batch = only_batch(store)
    assert (batch.state, batch.open_state, batch.n_refused) == ("done", None, 2)
    assert batch.finished_at is not None
    assert len(rows(store, DeadLetterRow)) == 2


def test_a_mailbox_gets_one_letter_of_a_send_whatever_its_spelling(store: Store) -> None:
    twice = [to(1, email="Home@One.example"), to(2, email=" home@one.EXAMPLE "), to(3)]
    take(store, body("a", twice))
    batch = only_batch(store)
    assert reasons(batch) == ["open", "skipped.duplicate", "open"]
    assert people(store, batch)[1].email == ""
    assert rows(store, DeadLetterRow) == []


def test_case_dup_in_request_counts_one_letter_for_the_household(store: Store) -> None:
    lines = (CASES / "dup-in-request" / "recipients.csv").read_text().splitlines()[1:]
    household = [to(line.split(",")[0], email=line.split(",")[1]) for line in lines]
    take(store, body("a", household))
    assert reasons(only_batch(store)) == ["open", "skipped.duplicate", "open"]


def test_the_same_recipient_twice_makes_the_whole_send_invalid(store: Store) -> None:
    taken = take_one(store, body("a", [to(1), to(2), to(1, email="other@one.example")]))
    assert (taken.reason, taken.detail) == ("invalid", "recipients.2.recipient_id: is that of recipients.0, too")
    assert rows(store, Campaign) == []


def test_an_unknown_zone_or_locale_gets_the_templates_default_and_is_counted(store: Store) -> None:
    odd = [to(1, locale="klingon!", timezone="Mars/Base"), to(2, locale="pt-br", timezone="america/new_york")]
    taken = take_one(store, body("a", odd))
    assert taken.warnings == {"unknown_locale": 1, "unknown_timezone": 1}
    assert taken.detail == "1 with unknown locale, 1 with unknown timezone"
    found = [(person.locale, person.timezone) for person in people(store, only_batch(store))]
    assert found == [("en", "Europe/Paris"), ("pt-BR", "America/New_York")]


def test_ids_and_variables_stay_as_they_are_to_the_last_digit(store: Store) -> None:
    raw = b'{"code":12345678901234567890123,"tags":["x","\\u00e9"],"n":1.50}'
    whole_body = body("a", [to("007")]).replace(b'{"code": "424242"}', raw)
    take(store, whole_body)
    (person,) = people(store, only_batch(store))
    assert own_recipient_id(person.recipient_id) == "u007"
    assert '"code":12345678901234567890123' in person.template_variables
    assert json.loads(person.template_variables)["tags"] == ["x", "é"]
    assert take_one(store, whole_body).ended == "ignored"


def test_the_longest_ids_fit(store: Store) -> None:
    long = [to(1, recipient_id="é" * 200)]
    assert take_one(store, body("k" * 200, long)).ended == "applied"
    assert own_recipient_id(people(store, only_batch(store))[0].recipient_id) == "é" * 200


def test_a_hundred_recipients_are_taken_and_no_more(store: Store) -> None:
    assert take_one(store, body("a", [to(n) for n in range(100)])).ended == "applied"
    assert take_one(store, body("b", [to(n) for n in range(101)])).reason == "invalid"
    assert take_one(store, body("c", [])).reason == "invalid"


# Ends.


def test_a_send_that_is_past_its_end_is_recorded_at_once_and_keeps_nothing_personal(store: Store) -> None:
    taken = take_one(store, body("a", [to(1), to(2)], expires_at="2026-01-15T09:59:59+01:00"))
    assert (taken.ended, taken.detail) == ("applied", "2 expired")
    batch = only_batch(store)
    assert (batch.state, reasons(batch)) == ("done", ["expired", "expired"])
    assert {(person.email, person.template_variables) for person in people(store, batch)} == {("", "{}")}
    assert len(rows(store, OutboundMessage)) == 2
    assert take_one(store, body("a", [to(1), to(2)], expires_at="2026-01-15T09:59:59+01:00")).ended == "ignored"


def test_the_end_itself_is_too_late(store: Store, clock: Clock) -> None:
    just = store.read(lambda reader: reader.now()) + timedelta(milliseconds=1)
    take(store, body("a", expires_at=just.isoformat()))
    clock.at = just
    take(store, body("b", expires_at=just.isoformat()))
    assert (reasons(batch_of(store, "a")), reasons(batch_of(store, "b"))) == (["open"], ["expired"])


def test_a_code_that_waited_in_the_subscription_expires_ten_minutes_after_it_was_published(
    store: Store, clock: Clock
) -> None:
    """A job that was down for an hour would have sent codes that were an hour old."""
    take(store, body("late"), published_at=clock.at - timedelta(minutes=10, seconds=1))
    take(store, body("near"), published_at=clock.at - timedelta(minutes=9))
    take(store, body("ahead"), published_at=clock.at + timedelta(hours=1))  # somebody's clock is off
    take(store, body("own", expires_at="2026-01-15T10:00:00Z"), published_at=clock.at - timedelta(hours=2))
    assert reasons(batch_of(store, "late")) == ["expired"]
    assert batch_of(store, "near").expires_at == clock.at + timedelta(minutes=1)
    ahead = batch_of(store, "ahead")
    assert ahead.expires_at == ahead.due_at + timedelta(minutes=10)
    assert reasons(batch_of(store, "own")) == ["open"]


def test_what_is_only_high_may_wait_for_a_week_and_nothing_for_longer(store: Store) -> None:
    take(store, body("a", priority="high"))
    batch = batch_of(store, "a")
    assert batch.expires_at == batch.due_at + timedelta(days=7)
    taken = take_one(store, body("b", expires_at="2026-02-15T09:00:00Z"))
    assert (taken.ended, taken.reason) == ("bad", "expires_too_late")
    assert take_one(store, body("c", expires_at="9999-12-31T23:59:59-12:00")).ended == "bad"
    assert timedelta(days=7) < KEYS_KEPT  # a repetition always meets its key


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("2026-01-15T09:30:00Z", 0),
        ("2026-01-15t10:30:00+01:00", 0),
        ("2026-01-15T09:30:00.25z", 250_000),
        ("2026-01-15T09:30:00.123456789Z", 123_456),
        ("2026-01-15T09:30:00-00:00", 0),
    ],
)
def test_times_are_read_as_rfc_3339_has_them(text: str, micros: int) -> None:
    send = read_trigger(body("a", expires_at=text))
    assert send.expires_at == datetime(2026, 1, 15, 9, 30, 0, micros, tzinfo=UTC)  # type: ignore[union-attr]


def case_past_schedule() -> list[str]:
    lines = (CASES / "past-schedule" / "messages.jsonl").read_text().splitlines()
    return [json.loads(line)["data"]["send_at"] for line in lines]


@pytest.mark.parametrize(
    "text",
    [
        *case_past_schedule()[2:],  # without an offset; at 24:00
        "2026-01-15",
        "2026-01-15 09:00:00Z",
        "2026-01-15T09:00Z",
        "2026-02-30T09:00:00Z",
        "2026-01-15T09:00:60Z",
        "2026-01-15T09:00:00+2500",
        "2026-W03-4T09:00:00Z",
        "٢٠٢٦-01-15T09:00:00Z",
        "0001-01-01T00:00:00+23:59",
        "soon",
    ],
)
def test_a_time_that_is_none_or_nobodys_is_refused(store: Store, text: str) -> None:
    taken = take_one(store, body("a", expires_at=text))
    assert (taken.ended, taken.reason) == ("bad", "invalid")
    assert "expires_at" in taken.detail
    assert rows(store, Campaign) == []


def test_case_past_schedule_takes_what_has_an_offset() -> None:
    first, second, *_ = (read_or_bad(body("a", expires_at=text)) for text in case_past_schedule())
    assert not isinstance(first, BadTrigger)
    assert not isinstance(second, BadTrigger)


# Senders and guards.


def test_naming_the_lanes_sender_is_fine_and_another_one_is_said_clearly(store: Store) -> None:
    assert take_one(store, body("a", sender="outbox")).ended == "applied"
    taken = take_one(store, body("b", sender="ses-main"))
    assert (taken.ended, taken.reason) == ("bad", "wrong_sender")
    assert "the lane critical sends by outbox" in taken.detail
    assert len(batches(store)) == 1


def test_a_real_sender_from_a_test_store_needs_a_guard(store: Store) -> None:
    real = {"sender": "grid"}
    grid = {"adapter": "sendgrid", "api_key": "env:KEY"}
    config = {"senders": {"grid": grid}, "lanes": dict.fromkeys(("critical", "high", "bulk"), real)}
    ready(store, config=config)
    taken = take_one(store, body("a"))
    assert (taken.ended, taken.reason) == ("bad", "no_guard")
    assert "recipients_allowed" in taken.detail
    ready(store, config={**config, "redirect_all_to": "qa@shop.example"})
    assert take_one(store, body("a")).ended == "applied"


# States of the stream.


@pytest.mark.parametrize("state", ["cancelling", "cancelled"])
def test_a_send_into_a_cancelled_stream_is_recorded_as_cancelled(store: Store, state: str) -> None:
    take(store, body("a"))
    begin_cancel(store, STREAM_ID, "ann")
    if state == "cancelled":
        from sendonce.delivery.cancellation import cancel

        cancel(store, STREAM_ID, "ann")
    taken = take_one(store, body("b", [to(1), to(2)]))
    assert (taken.ended, taken.detail) == ("applied", "2 cancelled")
    batch = batch_of(store, "b")
    assert (batch.state, reasons(batch)) == ("done", ["cancelled", "cancelled"])
    assert {person.email for person in people(store, batch)} == {""}
    assert stream(store).state == state


def test_a_send_into_a_paused_stream_waits(store: Store) -> None:
    take(store, body("a"))
    pause(store, STREAM_ID, "ann")
    take(store, body("b"))
    assert (stream(store).state, reasons(batch_of(store, "b"))) == ("paused", ["open"])


def test_a_stream_that_was_called_off_before_its_first_send_takes_none(store: Store) -> None:
    keep_early_cancel(store, STREAM_ID, None)
    assert take_one(store, body("a")).detail == "1 cancelled"
    assert stream(store).state == "cancelled"


# Bodies.


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (body("a").replace(b'"v": 1', b'"v": 2'), "unknown_version"),
        (body("a").replace(b'"v": 1', b'"v": 1.0'), "unknown_version"),
        (body("a").replace(b'"v": 1', b'"v": true'), "unknown_version"),
        (body("a", headers={"subject": "x"}), "invalid"),
        (body("a", idempotency_key=None), "invalid"),
        (body(""), "invalid"),
        (body("k" * 201), "invalid"),
        (body("a\x00b"), "invalid"),
        (body("a", priority="bulk"), "invalid"),
        (body("a", template="../otp"), "invalid"),
        (body("a", [to(1, recipient_id="a\x1fb")]), "invalid"),
        (body("a", [to(1, recipient_id=" ")]), "invalid"),
        (body("a", [to(1, recipient_id=7)]), "invalid"),
        (body("a", [to(1, variables=["code"])]), "invalid"),
        (body("a", [to(1, phone="555")]), "invalid"),
        (body("a").replace(b'"424242"', b"NaN"), "not_json"),
        (body("a").replace(b'"424242"', b"1e999"), "not_json"),
        (body("a").replace(b'"424242"', b"9" * 5000), "not_json"),
        (body("a").replace(b'"424242"', b'"\\ud800"'), "not_json"),
        (body("a").replace(b'"u1",', b'"u1","recipient_id":"u2",'), "not_json"),
        (body("a") + b" trailing", "not_json"),
        (b"[" * 200_000, "not_json"),
        (b"\xff" + body("a"), "not_utf8"),
        (body("a", [to(1, variables={"code": "x" * (1 << 20)})]), "too_large"),
    ],
)
def test_a_body_that_is_wrong_says_where_and_never_what(store: Store, raw: bytes, reason: str) -> None:
    taken = take_one(store, raw)
    assert (taken.ended, taken.reason) == ("bad", reason)
    for value in ("u1@one.example", "424242", "555"):
        assert value not in taken.detail
    assert rows(store, Campaign) == []


def test_case_json_strictness_leaves_everything_bad_and_the_worker_alive(store: Store) -> None:
    """The case's own bodies speak another version; the same faults in a send's body are above."""
    bodies = (CASES / "json-strictness" / "bodies.txt").read_bytes().splitlines()
    found = take(store, *bodies, body("c-ok"), b"[" * 200_000)
    assert [one.ended for one in found] == ["bad"] * len(bodies) + ["applied", "bad"]


def test_case_reserved_headers_knows_no_headers_of_a_publisher(store: Store) -> None:
    headers = json.loads((CASES / "reserved-headers" / "trigger.json").read_text())["headers"]
    taken = take_one(store, body("a", headers=headers))
    assert (taken.ended, taken.reason) == ("bad", "invalid")
    assert "known are" in taken.detail


# Many in one call.


def test_what_is_wrong_with_one_send_touches_no_neighbour(store: Store) -> None:
    mixed = [
        body("a"),
        body("a", [to(9)]),
        body("b", template="nobodys"),
        b"junk",
        body("c", sender="other"),
        json.dumps({"v": 1, "type": "pause", "campaign_id": STREAM_ID}).encode(),
        body("d"),
        json.dumps({"v": 1, "type": "cancel", "campaign_id": "summer"}).encode(),
        body("e", [to(1), to(1)]),
        body("f"),
    ]
    found = take(store, *mixed)
    ended = ["applied", "bad", "bad", "bad", "bad", "applied", "applied", "applied", "bad", "applied"]
    assert [one.ended for one in found] == ended
    assert {batch.idempotency_key for batch in batches(store)} == {"a", "d", "f"}
    assert stream(store).state == "paused"


def test_sends_that_follow_each_other_share_transactions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    tags: list[str] = []
    transact = store.transact
    monkeypatch.setattr(store, "transact", lambda work, tag: tags.append(tag) or transact(work, tag=tag))
    take(store, *(body(f"k{n}") for n in range(100)))
    assert len(batches(store)) == 100
    assert tags == ["send"] * 4


def test_what_nobody_foresaw_is_that_sends_alone(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    people_rows = streams.people_rows

    def breaks(send, *more):  # type: ignore[no-untyped-def]
        if send.idempotency_key == "b":
            raise ZeroDivisionError("u1@one.example")
        return people_rows(send, *more)

    monkeypatch.setattr(streams, "people_rows", breaks)
    found = take(store, body("a"), body("b"), body("c"))
    assert [(one.ended, one.reason) for one in found] == [("applied", ""), ("bad", "unforeseen"), ("applied", "")]
    assert "ZeroDivisionError" in found[1].detail
    assert "one.example" not in found[1].detail


@given(order=st.randoms(use_true_random=False), copies=st.lists(st.integers(1, 4), min_size=1, max_size=12))
def test_in_any_order_and_however_often_each_key_is_taken_once(
    order: random.Random, copies: list[int], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from sendonce.stores.opening import init_store

    bodies = [body(f"k{n}", [to(m) for m in range(n % 3 + 1)]) for n, times in enumerate(copies) for _ in range(times)]
    order.shuffle(bodies)
    cuts = sorted(order.sample(range(len(bodies) + 1), min(3, len(bodies) + 1)))
    store = init_store(f"sqlite:///{tmp_path_factory.mktemp('any')}/store.db")
    try:
        ready(store)
        found = [
            taken
            for start, end in itertools.pairwise([0, *cuts, len(bodies)])
            for taken in take(store, *bodies[start:end])
        ]
        assert [one.ended for one in found].count("applied") == len(copies)
        assert {one.ended for one in found} <= {"applied", "ignored"}
        (campaign,) = {batch.campaign_id for batch in rows(store, streams.Batch)}
        sizes = {batch.idempotency_key: batch.size for batch in batches(store, campaign)}
        assert sizes == {f"k{n}": n % 3 + 1 for n in range(len(copies))}
    finally:
        store.close()


# Keys.


def test_keys_are_kept_for_eight_days_and_then_purged_a_few_at_a_time(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "KEYS_PURGED_AT_ONCE", 3)
    take(store, *(body(f"k{n}") for n in range(8)))
    clock.at += timedelta(days=8) - timedelta(seconds=1)
    take(store, body("new"))
    assert purge_keys(store) == 0
    clock.at += timedelta(seconds=2)
    assert [purge_keys(store) for _ in range(4)] == [3, 3, 2, 0]
    assert [row.key_hash for row in rows(store, IdempotencyKey)] == [key_hash("new")]


@pytest.mark.parametrize("template_name", ["x" * 64, "x" * 65, "x" * 100, "x" * 101])
def test_a_template_name_of_any_length_is_one_dead_letter(store: Store, template_name: str) -> None:
    """One of 65 characters ended every job of its subscription, again and again."""
    first, bad, last = take(store, body("one"), body("two", template=template_name), body("three"))
    assert (first.ended, last.ended) == ("applied", "applied")
    assert (bad.ended, bad.reason) == ("bad", "unknown_template" if len(template_name) == 64 else "invalid")


def test_a_value_that_a_column_does_not_take_is_that_triggers_fault(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the schema lets through: the job goes on, and so do the neighbours."""
    monkeypatch.setattr("sendonce.control.trigger_rules._validator", lambda shape: jsonschema.Draft202012Validator({}))
    long = json.dumps({"v": 1, "type": "start", "campaign_id": "c" * 300}).encode()
    found = take(store, body("one"), body("two", template="x" * 70), long, body("three"))
    assert [(taken.ended, taken.reason) for taken in found] == [
        ("applied", ""),
        ("bad", "invalid"),
        ("bad", "invalid"),
        ("applied", ""),
    ]
    assert "x" * 70 not in found[1].detail
