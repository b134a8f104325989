"""What a webhook's receiver gets: bytes that a repeat repeats, by the published schema, with a published signature."""

import base64
import hashlib
import math

import jsonschema
import orjson
import pytest

from schemas.letters import Letter
from schemas.outcomes import Outcome
from sendonce.config import ConfigFault
from sendonce.senders.base import Unsendable
from sendonce.senders.webhook import make
from sendonce.senders.webhook_signature import BadSecret, key_of, signed
from tests.providers.webhook import SECRET, valid
from tests.senders.sendgrid_letters import ATTEMPT, NOW_S, packed, request_of, whole
from tests.senders.webhook_account import scene, sender_for, settings

NOWHERE = "http://127.0.0.1:9/letters"


def test_a_request_as_its_receiver_reads_it() -> None:
    with sender_for(NOWHERE) as sender:
        said = orjson.loads(sender.prepare(request_of([packed(7), whole(8)])).body)
    valid("request", said)
    assert said["data"]["messages"].pop()["to"] == "u8@one.example"
    assert said == {
        "type": "letters.send",
        "timestamp": "2026-01-15T09:00:00.000Z",
        "data": {
            "campaign_id": "spring",
            "batch_no": 42,
            "attempt_id": ATTEMPT,
            "from": "Shop <news@shop.example>",
            "reply_to": "help@shop.example",
            "messages": [
                {
                    "message_id": f"{7:052d}",
                    "to": "u7@one.example",
                    "subject": "Hello Ann 7",
                    "text": "Dear Ann 7, your code is c-7.\n",
                    "html": "<p>Dear Ann 7, <b>c-7</b></p>\n",
                    "headers": {
                        "List-Unsubscribe": "<https://shop.example/u/7>",
                        "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
                    },
                }
            ],
        },
    }


def test_the_same_request_gives_the_same_bytes_whatever_the_account_or_the_time() -> None:
    letters = [packed(1), whole(2), packed(3)]
    other_secret = "whsec_" + base64.b64encode(bytes(24)).decode()
    with sender_for(NOWHERE) as one, sender_for(NOWHERE, secret=other_secret, now_s=lambda: 0.0) as other:
        first, second = one.prepare(request_of(letters)), other.prepare(request_of(letters))
    assert first.body == second.body
    assert first.payload_hash == second.payload_hash == hashlib.sha256(first.body).hexdigest()
    assert first.payload_hash == "b11e7de73b2f042868e6a2e8236d5f35bc1e3517061150b4f0cc15577e3f659a"


def test_a_repeat_hours_later_has_the_same_key_and_bytes_and_a_signature_of_its_own() -> None:
    """The timestamp stands in a header beside the bytes, so a receiver that refuses old calls still takes a repeat."""
    now = [float(NOW_S)]
    with scene(now_s=lambda: now[0], idempotency_window_s=86_400) as there:
        there.fake.now_s = lambda: now[0]
        there.send([packed(0)])
        now[0] += 5 * 3600
        reply = there.send([packed(0)])
    first, second = there.fake.attempts
    assert (first.key, first.body) == (second.key, second.body) == (ATTEMPT, first.body)
    assert first.headers["webhook-id"] == second.headers["webhook-id"] == ATTEMPT
    assert first.headers["webhook-timestamp"] == str(NOW_S)
    assert second.headers["webhook-timestamp"] == str(NOW_S + 5 * 3600)
    assert first.headers["webhook-signature"] != second.headers["webhook-signature"]
    assert (second.replayed, len(there.fake.letters())) == (True, 1)
    assert not reply.exceptions


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """The vector that the specification's own libraries are tested with."""
    key = key_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    assert signed(key, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}') == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("canary", "does not begin with whsec_"),
        ("whsec_canary!", "is not base64"),
        ("whsec_" + base64.b64encode(b"canary").decode(), "has 6 bytes"),
        ("whsec_" + base64.b64encode(bytes(65)).decode(), "has 65 bytes"),
    ],
)
def test_a_secret_that_is_none_is_told_with_the_sender_and_the_mend(secret: str, said: str) -> None:
    with pytest.raises(BadSecret, match=said):
        key_of(secret)
    with pytest.raises(ConfigFault, match=rf"sender hook: its secret {said}.* make one with: python") as caught:
        make(settings(), {"secret": secret})
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("n_bytes", [24, 64])
def test_the_shortest_and_the_longest_secret(n_bytes: int) -> None:
    assert len(key_of("whsec_" + base64.b64encode(bytes(n_bytes)).decode())) == n_bytes


@pytest.mark.parametrize(
    ("letter", "outcome"),
    [
        (whole(5, subject="Hi\r\nBcc: x@evil.example"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(5, values=["Ann\x85", "c"]), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(5, unsubscribe_url="https://shop.example/u>\r\nX: y"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(5, unsubscribe_url="http://127.0.0.1/ü"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (whole(5, html="half \udfff"), Outcome.RENDER_BAD_VARIABLE),
        (whole(5, text="x" * 10_000), Outcome.RENDER_TOO_LARGE),
    ],
)
def test_what_cannot_be_carried_is_named(letter: Letter, outcome: Outcome) -> None:
    with sender_for(NOWHERE, max_request_bytes=10_000) as sender, pytest.raises(Unsendable) as caught:
        sender.prepare(request_of([packed(1), letter]))
    assert (caught.value.ordinal, caught.value.outcome) == (5, outcome)
    assert "evil" not in caught.value.detail


@pytest.mark.parametrize("field", ["from_address", "reply_to"])
def test_an_address_of_the_settings_that_no_header_takes(field: str) -> None:
    with sender_for(NOWHERE) as sender, pytest.raises(Unsendable) as caught:
        sender.prepare(request_of([packed(5)], **{field: "Shop\r\nBcc: x <a@shop.example>"}))
    assert caught.value.outcome == Outcome.RENDER_HEADER_CONTROL_CHAR


def test_addresses_beyond_ascii_are_the_receivers_to_judge() -> None:
    with sender_for(NOWHERE) as sender:
        said = orjson.loads(sender.prepare(request_of([packed(0, "jürgen@one.example")], reply_to="")).body)
    valid("request", said)
    assert said["data"]["messages"][0]["to"] == "jürgen@one.example"
    assert said["data"]["reply_to"] == ""


def test_a_link_that_is_not_https_has_no_one_click_header() -> None:
    with sender_for(NOWHERE) as sender:
        said = orjson.loads(sender.prepare(request_of([packed(0, unsubscribe_url="http://127.0.0.1/u")])).body)
    assert said["data"]["messages"][0]["headers"] == {"List-Unsubscribe": "<http://127.0.0.1/u>"}


def test_the_schema_refuses_what_is_neither() -> None:
    for said in ({}, {"results": [{"message_id": "a" * 52, "status": "maybe"}]}, {"results": {}}):
        with pytest.raises(jsonschema.ValidationError):
            valid("reply", said)


def test_only_a_receiver_that_keeps_keys_is_asked_again() -> None:
    with sender_for(NOWHERE) as never, sender_for(NOWHERE, idempotency_window_s=0) as none:
        assert never.capabilities.idempotency_window_s is none.capabilities.idempotency_window_s is None
    with sender_for(NOWHERE, idempotency_window_s=3600) as hour:
        assert math.isclose(hour.capabilities.idempotency_window_s or 0, 3600)


def test_another_address_is_another_receiver() -> None:
    with sender_for(NOWHERE) as one, sender_for(f"{NOWHERE}/") as other, sender_for(NOWHERE, name="n" * 64) as long:
        assert one.identity != other.identity
        assert len(long.identity) <= 64
        assert SECRET not in one.identity
