"""Events as providers post and publish them: what is read, what is left out, and that letters' own ids come back."""

import json
from datetime import UTC, datetime, timedelta
from email.parser import BytesHeaderParser
from pathlib import Path
from typing import Any

import pytest

from schemas.ids import attempt_id, message_id
from schemas.letters import Letter, Letters
from sendonce.control.event_payloads import (
    SENDGRID_KINDS,
    SES_KINDS,
    Event,
    Malformed,
    NotOurs,
    events_in,
)
from sendonce.senders.base import Request

CASES = Path(__file__).parents[1] / "cases"
AT = datetime(2026, 1, 15, 9, 0, tzinfo=UTC)
ATTEMPT = attempt_id(1_768_467_600_000, b"0123456789")
MESSAGE = message_id(b"k" * 32, "spring", "1")
IDS = {"campaign_id": "spring", "batch_no": "42", "attempt_id": ATTEMPT, "message_id": MESSAGE}
OPAQUE = {"ses:configuration-set": ["bulk"]}


def sendgrid(**fields: object) -> dict[str, object]:
    """As https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event lists the fields."""
    event = {
        "email": "u1@one.example",
        "timestamp": 1768467600,
        "smtp-id": "<14c5d75ce93.dfd.64b469@ismtpd-555>",
        "event": "delivered",
        "category": "bulk",
        "sg_event_id": "ZGVsaXZlcmVkLTAtMTA==",
        "sg_message_id": "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
        "response": "250 OK",
        **IDS,
    }
    return {name: value for name, value in {**event, **fields}.items() if value is not None}


def ses(kind: str = "Delivery", about: dict[str, object] | None = None, **mail: object) -> dict[str, Any]:
    """As https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html lists the fields."""
    name = "failure" if kind == "Rendering Failure" else kind[0].lower() + kind[1:]
    return {
        "eventType": kind,
        name: {"timestamp": "2026-01-15T09:00:00.000Z"} if about is None else about,
        "mail": {
            "timestamp": "2026-01-15T08:59:58.012Z",
            "source": "Shop <news@shop.example>",
            "messageId": "0100018f-e9aedb9a-02f9-000000",
            "destination": ["u1@one.example"],
            "headersTruncated": False,
            "headers": [{"name": "To", "value": "u1@one.example"}, {"name": "X-Sendonce-Message", "value": MESSAGE}],
            "tags": {**OPAQUE, **{tag: [value] for tag, value in IDS.items()}},
            **mail,
        },
    }


def sns(event: dict[str, Any]) -> dict[str, str]:
    return {
        "Type": "Notification",
        "MessageId": "22b80b92-fdea-4c2c-8f9d-bdfb0c7bf324",
        "TopicArn": "arn:aws:sns:eu-west-1:123456789012:mail",
        "Message": json.dumps(event),
        "Timestamp": "2026-01-15T09:00:01.000Z",
    }


def one(value: Any, provider: str | None = None) -> Any:
    (found,) = events_in(value, provider)
    return found


def test_a_sendgrid_event_keeps_ids_kind_and_time() -> None:
    assert one(sendgrid()) == Event(
        "ZGVsaXZlcmVkLTAtMTA==",
        "sendgrid",
        "delivered",
        AT,
        ATTEMPT,
        MESSAGE,
        "spring",
        42,
        "14c5d75ce93.dfd.64b469.filter0001.16648.5515E0B88.0",
        whole=True,
    )


def test_a_ses_event_keeps_ids_kind_and_time() -> None:
    expected = Event(
        "ses:0100018f-e9aedb9a-02f9-000000:Delivery:20260115T090000.000000",
        "ses",
        "Delivery",
        AT,
        ATTEMPT,
        MESSAGE,
        "spring",
        42,
        "0100018f-e9aedb9a-02f9-000000",
    )
    assert one(ses()) == expected
    assert one(sns(ses())) == expected


@pytest.mark.parametrize("kind", sorted(SENDGRID_KINDS))
def test_every_kind_that_sendgrid_tells_of_a_letter_is_read(kind: str) -> None:
    assert one(sendgrid(event=kind)).kind == kind


@pytest.mark.parametrize("kind", [*sorted(SES_KINDS - {"RenderingFailure"}), "Rendering Failure"])
def test_every_kind_that_ses_tells_of_a_letter_is_read(kind: str) -> None:
    found = one(ses(kind))
    assert (found.kind, found.whole) == (kind.replace(" ", ""), False)


def test_an_event_without_a_time_of_its_own_has_that_of_its_letter() -> None:
    """`Send`, `Reject` and `Rendering Failure` have none."""
    assert one(ses("Send", {})).at == AT - timedelta(seconds=1, microseconds=988_000)


def test_a_letter_that_came_to_ses_by_smtp_is_known_by_its_headers() -> None:
    headers = [
        {"name": "X-Sendonce-Attempt", "value": ATTEMPT},
        {"name": "Message-ID", "value": f"<{MESSAGE}@s.example>"},
    ]
    found = one(ses(headers=headers, tags=OPAQUE))
    assert (found.attempt_id, found.message_id, found.campaign_id, found.batch_no) == (ATTEMPT, MESSAGE, None, None)


def test_the_letter_of_one_of_several_calls_proves_itself_alone() -> None:
    assert one(sendgrid(part="1")).whole is False


def test_feedback_without_tags_is_not_ours() -> None:
    """SES publishes tags with events, not with an identity's feedback notifications."""
    plain = ses("Bounce", tags=None)
    plain["notificationType"] = plain.pop("eventType")
    assert one(plain) == NotOurs("no_ids")


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (sendgrid(event="account_status_change"), "unknown_kind"),
        (sendgrid(attempt_id=None), "no_ids"),
        (sendgrid(attempt_id="u1@one.example"), "no_ids"),
        (ses("Mystery"), "unknown_kind"),
        ({"Type": "SubscriptionConfirmation", "Message": "You have chosen", "SubscribeURL": "https://sns"}, "no_event"),
        ({"Type": "Notification", "Message": "Successfully validated SNS topic."}, "no_event"),
    ],
)
def test_what_tells_nothing_of_a_letter_of_ours_is_left_out(value: Any, why: str) -> None:
    assert one(value) == NotOurs(why)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (None, "not_an_event"),
        (5, "not_an_event"),
        ({}, "not_an_event"),
        ([[]], "not_an_event"),
        ({"event": 5}, "not_an_event"),
        ({"mail": {}}, "not_an_event"),
        ({"Type": "Notification"}, "not_an_event"),
        ({"Type": "Notification", "Message": '{"eventType": "Se'}, "not_json"),
        (sendgrid(sg_event_id=None), "no_event_id"),
        (sendgrid(sg_event_id="u1@one.example"), "no_event_id"),
        (sendgrid(timestamp=None), "bad_timestamp"),
        (sendgrid(timestamp=True), "bad_timestamp"),
        (sendgrid(timestamp="nan"), "bad_timestamp"),
        (sendgrid(timestamp=1e300), "bad_timestamp"),
        (ses(messageId=7), "no_event_id"),
        (ses(about={"timestamp": "yesterday"}), "bad_timestamp"),
        (ses(about={"timestamp": "2026-01-15T09:00:00"}), "bad_timestamp"),
    ],
)
def test_what_cannot_be_understood_has_a_reason_and_no_value(value: Any, reason: str) -> None:
    assert one(value) == Malformed(reason)


def test_whose_events_they_must_be_can_be_said() -> None:
    assert one(sendgrid(), "ses") == Malformed("not_of_ses")
    assert one(sns(ses()), "sendgrid") == Malformed("not_of_sendgrid")


def test_ids_that_could_be_an_address_are_not_kept() -> None:
    found = one(sendgrid(message_id="u1@one.example", campaign_id="u1@one.example", sg_message_id="u1@one.example"))
    assert (found.message_id, found.campaign_id, found.provider_ref) == (None, None, None)


def test_the_recorded_shapes_of_payloads() -> None:
    def kinds(name: str) -> list[str]:
        found = events_in(json.loads((CASES / "payload-shape" / name).read_text()))
        return [getattr(entry, "why", "") or getattr(entry, "reason", "") for entry in found]

    assert kinds("single.json") == ["no_ids"]
    assert kinds("empty.json") == []
    assert kinds("junk.json") == ["not_an_event", "not_an_event"]
    assert kinds("unknown.json") == ["unknown_kind"]
    assert kinds("category.json") == ["no_ids", "no_ids", "no_ids"]


@pytest.mark.parametrize("category", ["a", ["a"]])
def test_a_time_as_text_and_both_forms_of_category_are_read(category: object) -> None:
    assert one(sendgrid(timestamp="1768467600", category=category)).at == AT


def request_of(*letters: Letter) -> Request:
    return Request("spring", 42, ATTEMPT, Letters("Shop <news@shop.example>", "", [], list(letters), []), letters)


LETTER = Letter(0, MESSAGE, "u1@one.example", "https://shop.example/u/1", subject="Hello", text="Dear Ann\n")
OTHER = Letter(1, MESSAGE, "u2@one.example", "https://shop.example/u/2", subject="Hello", text="Dear Bob\n")


@pytest.mark.needs("sendgrid", "httpcore")
def test_what_a_sendgrid_letter_carries_comes_back_as_it_is_read() -> None:
    from sendonce.config import SendGridSettings
    from sendonce.senders.sendgrid_body import Bodies

    settings = SendGridSettings.model_validate({"name": "mail", "adapter": "sendgrid", "api_key": "env:K"})

    def carried(*letters: Letter) -> Event:
        call = Bodies(request_of(*letters), settings).calls()[0]
        args = json.loads(call.body)["personalizations"][0]["custom_args"]
        found = one({"event": "processed", "sg_event_id": "e", "timestamp": 1768467600, **args})
        assert isinstance(found, Event)
        return found

    alone = carried(LETTER)
    assert (alone.attempt_id, alone.message_id, alone.campaign_id, alone.batch_no) == (ATTEMPT, MESSAGE, "spring", 42)
    assert alone.whole
    assert not carried(LETTER, OTHER).whole


@pytest.mark.needs("botocore", "httpcore")
def test_what_a_ses_letter_carries_comes_back_as_it_is_read() -> None:
    from sendonce.config import SesSettings
    from sendonce.senders.ses_body import Bodies

    settings = SesSettings.model_validate({"name": "mail", "adapter": "ses", "region": "eu-west-1"})
    (call,) = Bodies(request_of(LETTER), settings).calls()
    tags = {tag["Name"]: [tag["Value"]] for tag in json.loads(call.body)["EmailTags"]}
    found = one(ses(tags=tags, headers=[]))
    assert (found.attempt_id, found.message_id, found.campaign_id, found.batch_no) == (ATTEMPT, MESSAGE, "spring", 42)


@pytest.mark.needs("aiosmtplib")
def test_what_a_letter_by_smtp_carries_comes_back_as_it_is_read() -> None:
    from sendonce.senders.smtp_letters import wire_letters

    (wire,) = wire_letters(request_of(LETTER))
    headers = BytesHeaderParser().parsebytes(wire.data)
    listed = [{"name": name, "value": str(value)} for name, value in headers.items()]
    found = one(ses(tags=OPAQUE, headers=listed))
    assert (found.attempt_id, found.message_id) == (ATTEMPT, MESSAGE)
