"""The bytes of Resend's batch calls: pure, whole, and nothing in them that Resend would refuse or change."""

import hashlib

import orjson
import pytest

from schemas.letters import Letter
from schemas.outcomes import Outcome
from sendonce.senders.base import Unsendable
from tests.senders.resend_account import sender_for
from tests.senders.sendgrid_letters import ATTEMPT, packed, request_of, whole

NOWHERE = "http://127.0.0.1:9"


def body_of(*letters: Letter, **fields: str) -> list[dict[str, object]]:
    with sender_for(NOWHERE) as sender:
        found: list[dict[str, object]] = orjson.loads(sender.prepare(request_of(letters, **fields)).body)
    return found


def unsendable(letter: Letter, **fields: str) -> Unsendable:
    with sender_for(NOWHERE) as sender, pytest.raises(Unsendable) as caught:
        sender.prepare(request_of([packed(1), letter], **fields))
    return caught.value


def test_a_letter_as_resend_has_it() -> None:
    assert body_of(packed(7)) == [
        {
            "from": "Shop <news@shop.example>",
            "reply_to": "help@shop.example",
            "to": ["u7@one.example"],
            "subject": "Hello Ann 7",
            "text": "Dear Ann 7, your code is c-7.\n",
            "html": "<p>Dear Ann 7, <b>c-7</b></p>\n",
            "headers": {
                "List-Unsubscribe": "<https://shop.example/u/7>",
                "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
            },
            "tags": [
                {"name": "campaign_id", "value": "spring"},
                {"name": "batch_no", "value": "42"},
                {"name": "attempt_id", "value": ATTEMPT},
                {"name": "message_id", "value": f"{7:052d}"},
            ],
        }
    ]


def test_the_same_request_gives_the_same_bytes_whatever_the_account_or_the_time() -> None:
    letters = [packed(1), whole(2), packed(3)]
    with sender_for(NOWHERE) as one, sender_for(NOWHERE, key="re_other", now_s=lambda: 0.0, recipients=3) as other:
        first, second = one.prepare(request_of(letters)), other.prepare(request_of(letters))
    assert first.body == second.body
    assert first.payload_hash == second.payload_hash == hashlib.sha256(first.body).hexdigest()
    assert hashlib.sha256(first.body).hexdigest() == "83d1dc2c80f81770bb7748f94181b0f67cc586fb622eab82688c9482db76c6f1"


def test_packed_and_whole_letters_share_a_call_in_their_order() -> None:
    assert [email["to"] for email in body_of(whole(2), packed(0), whole(1))] == [
        ["u2@one.example"],
        ["u0@one.example"],
        ["u1@one.example"],
    ]


def test_a_household_is_mailed_twice_in_one_call() -> None:
    """Each letter is an email of its own, so an address may stand twice."""
    assert len(body_of(packed(0, "ann@one.example"), packed(1, "Ann@one.example"))) == 2


def test_a_letter_without_text_says_so() -> None:
    """Left out, Resend would make a text of the HTML: a letter that nobody rendered."""
    (email,) = body_of(Letter(0, "a" * 52, "a@one.example", "", subject="Hi", html="<p>Hi</p>"))
    assert email["text"] == ""


def test_a_letter_without_html_has_none() -> None:
    (email,) = body_of(Letter(0, "a" * 52, "a@one.example", "", subject="Hi", text="Hi"))
    assert "html" not in email
    assert "headers" not in email


def test_no_reply_to_is_no_field() -> None:
    assert "reply_to" not in body_of(packed(0), reply_to="")[0]


def test_a_link_that_is_not_https_is_no_one_click_header() -> None:
    assert "headers" not in body_of(packed(0, unsubscribe_url="http://127.0.0.1/u/0"))[0]


def test_a_name_that_no_tag_may_have_is_left_out() -> None:
    with sender_for(NOWHERE) as sender:
        request = request_of([packed(0)])
        body = orjson.loads(sender.prepare(type(request)("stream.otp.2026-11-30", *_rest(request))).body)
    assert [tag["name"] for tag in body[0]["tags"]] == ["batch_no", "attempt_id", "message_id"]


def _rest(request: object) -> tuple[object, ...]:
    return tuple(vars(request).values())[1:]


@pytest.mark.parametrize(
    ("letter", "outcome"),
    [
        (packed(5, "jürgen@one.example"), Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED),
        (whole(5, subject="Hi\r\nBcc: x@evil.example"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (whole(5, subject="Hi\x00"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(5, values=["Ann\n", "c"]), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(5, unsubscribe_url="https://shop.example/u>\r\nX: y"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (whole(5, text="half \ud800"), Outcome.RENDER_BAD_VARIABLE),
        (whole(5, text="x" * 40_000_001), Outcome.RENDER_TOO_LARGE),
    ],
)
def test_what_cannot_be_carried_is_named(letter: Letter, outcome: Outcome) -> None:
    fault = unsendable(letter)
    assert (fault.ordinal, fault.outcome) == (5, outcome)
    assert "@" not in fault.detail.replace("before the @", "")
    assert "evil" not in fault.detail


@pytest.mark.parametrize("field", ["from_address", "reply_to"])
@pytest.mark.parametrize("address", ["no address", "a@b.example, c@d.example", "Shop\r\nBcc: x <a@shop.example>"])
def test_an_address_of_the_settings_that_no_header_takes(field: str, address: str) -> None:
    fault = unsendable(packed(5), **{field: address})
    assert fault.outcome == Outcome.RENDER_HEADER_CONTROL_CHAR
    assert "example" not in fault.detail
