"""Bodies of calls to SES: the same bytes every time, as botocore itself would serialise them, within SES's limits."""

import csv
import hashlib
import json
import tracemalloc
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore.serialize import create_serializer
from botocore.validate import ParamValidator

from schemas.letters import FormLetter, Letter, slot_key
from schemas.outcomes import Outcome
from sendonce.senders.base import Unsendable
from sendonce.senders.ses_body import BULK, RECIPIENTS_MAX, SINGLE, TEMPLATED_MAX_BYTES, Bodies, Call
from tests.providers.ses_letters import SentLetter, letters_of
from tests.senders.ses_letters import FORM, PREFIX, S0, packed, request_of, settings, whole

CASES = Path(__file__).resolve().parents[1] / "cases"


def calls_of(*letters: Letter, configured: Any = None, **fields: Any) -> list[Call]:
    return Bodies(request_of(letters, **fields), configured or settings()).calls()


def letter_of(*letters: Letter, **fields: Any) -> SentLetter:
    (call,) = calls_of(*letters, **fields)
    (sent,) = letters_of(json.loads(call.body))
    return sent


def refusal_of(letter: Letter, **fields: Any) -> Unsendable:
    with pytest.raises(Unsendable) as caught:
        calls_of(packed(0), letter, **fields)
    return caught.value


GOLDEN_BULK = {
    "FromEmailAddress": "Shop <news@shop.example>",
    "ConfigurationOverrides": {"Tracking": {"OpenTrackingEnabled": "DISABLED", "ClickTrackingEnabled": "DISABLED"}},
    "ConfigurationSetName": "bulk",
    "ReplyToAddresses": ["help@shop.example"],
    "DefaultContent": {
        "Template": {
            "TemplateContent": {
                "Subject": "Hello {{skx70000}}",
                "Text": "Dear {{skx70000}}, your code is {{skx70001}}.\n",
                "Html": "<p>Dear {{skx70000}}, <b>{{skx70001}}</b></p>\n",
            },
            "TemplateData": "{}",
        }
    },
    "BulkEmailEntries": [
        {
            "Destination": {"ToAddresses": ["u7@one.example"]},
            "ReplacementTags": [
                {"Name": "attempt_id", "Value": "01KF0E44M00000000000000000"},
                {"Name": "batch_no", "Value": "42"},
                {"Name": "campaign_id", "Value": "spring"},
                {"Name": "message_id", "Value": f"{7:052d}"},
            ],
            "ReplacementHeaders": [
                {"Name": "X-Sendonce-Message", "Value": f"{7:052d}"},
                {"Name": "List-Unsubscribe", "Value": "<https://shop.example/u/7>"},
                {"Name": "List-Unsubscribe-Post", "Value": "List-Unsubscribe=One-Click"},
            ],
            "ReplacementEmailContent": {
                "ReplacementTemplate": {"ReplacementTemplateData": '{"skx70000":"Ann 7","skx70001":"c-7"}'}
            },
        }
    ],
}


def test_a_form_letter() -> None:
    (call,) = calls_of(packed(7), configured=settings(configuration_set="bulk"))
    assert call.path == BULK
    assert json.loads(call.body) == GOLDEN_BULK


def test_a_letter_that_goes_alone() -> None:
    (call,) = calls_of(whole(7, text="{{ name }}\n"), reply_to="")
    assert call.path == SINGLE
    assert json.loads(call.body) == {
        "FromEmailAddress": "Shop <news@shop.example>",
        "ConfigurationOverrides": GOLDEN_BULK["ConfigurationOverrides"],
        "Destination": {"ToAddresses": ["u7@one.example"]},
        "Content": {
            "Simple": {
                "Subject": {"Data": "Hello 7", "Charset": "UTF-8"},
                "Body": {
                    "Text": {"Data": "{{ name }}\n", "Charset": "UTF-8"},
                    "Html": {"Data": "<p>Dear 7</p>\n", "Charset": "UTF-8"},
                },
                "Headers": GOLDEN_BULK["BulkEmailEntries"][0]["ReplacementHeaders"],  # type: ignore[index]
            }
        },
        "EmailTags": GOLDEN_BULK["BulkEmailEntries"][0]["ReplacementTags"],  # type: ignore[index]
    }


@pytest.mark.parametrize("letters", [[packed(n) for n in range(50)], [whole(1, subject="Été"), whole(2, html="")]])
def test_botocore_finds_nothing_to_mend_and_says_the_same(letters: list[Letter]) -> None:
    model = botocore.session.Session().get_service_model("sesv2")
    for call in calls_of(*letters, configured=settings(configuration_set="bulk", click_tracking=True)):
        operation = model.operation_model("SendBulkEmail" if call.path == BULK else "SendEmail")
        body = json.loads(call.body)
        report = ParamValidator().validate(body, operation.input_shape)
        assert not report.has_errors(), report.generate_report()
        made = create_serializer("rest-json").serialize_to_request(body, operation)
        assert (made["method"], made["url_path"]) == ("POST", call.path)
        assert json.loads(made["body"]) == body
        assert made["headers"]["Content-Type"] == "application/json"


def test_the_same_request_gives_the_same_bytes_and_another_attempt_gives_others() -> None:
    letters = [packed(0), packed(1), whole(2)]
    first, second = calls_of(*letters), calls_of(*letters)
    assert [call.body for call in first] == [call.body for call in second]
    other = calls_of(*letters, attempt="01KF0E44M00000000000000001")
    assert all(one.body != another.body for one, another in zip(first, other, strict=True))
    golden = hashlib.sha256(b"".join(call.body for call in first)).hexdigest()
    assert golden == "e511201b8243a7546efc70d5fc4d88ba693295c5734b2b1ec05fd9a19ac26125"


def test_a_message_is_named_the_same_in_every_attempt() -> None:
    """Case stable-message-id, as far as SES lets one: `Message-ID` is its own."""
    first, again, other = (
        letter_of(packed(1)),
        letter_of(packed(1), attempt="01KF0E44M00000000000000001"),
        letter_of(packed(2)),
    )
    for of in (lambda sent: sent.headers["X-Sendonce-Message"], lambda sent: sent.tags["message_id"]):
        assert of(first) == of(again) != of(other)
    assert first.tags["attempt_id"] != again.tags["attempt_id"]


@pytest.mark.parametrize("make", [packed, whole])
def test_a_part_that_is_empty_is_no_part(make: Any) -> None:
    """Case content-order-empty."""
    form = FormLetter(PREFIX, 2, "S", f"{S0} {slot_key(PREFIX, 1)}\n", "")
    letter = packed(0) if make is packed else whole(0, html="")
    (call,) = calls_of(letter, forms=[form])
    assert b'"Html"' not in call.body
    assert b'"Text"' in call.body


def test_fifty_recipients_a_call_forms_apart_and_each_letter_once() -> None:
    """Case 1000-split, with the limit that SES has."""
    other = FormLetter("zz9", 1, "News", "For -zz9-0000-\n", "")
    letters = (
        [packed(n) for n in range(120)] + [packed(n, form=1, values=["x"]) for n in range(120, 130)] + [whole(130)]
    )
    calls = calls_of(*letters, forms=(FORM, other))
    assert [len(call.letters) for call in calls] == [50, 50, 20, 10, 1]
    assert [letter.ordinal for call in calls for letter in call.letters] == list(range(131))
    assert max(len(json.loads(call.body).get("BulkEmailEntries", [])) for call in calls) == RECIPIENTS_MAX


def test_a_call_stays_under_a_megabyte_and_a_larger_letter_goes_alone() -> None:
    letters = [packed(n, values=["Ann", "x" * 90_000]) for n in range(25)]
    calls = calls_of(*letters)
    assert all(len(call.body) <= TEMPLATED_MAX_BYTES for call in calls)
    assert [len(call.letters) for call in calls] == [11, 11, 3]
    large = FormLetter(PREFIX, 2, "S", f"{S0}{'x' * TEMPLATED_MAX_BYTES}\n", "")
    assert [call.path for call in calls_of(packed(0), packed(1), forms=[large])] == [SINGLE, SINGLE]


def test_a_part_of_a_call_is_made_of_the_same_entries() -> None:
    bodies = Bodies(request_of([packed(n) for n in range(4)]), settings())
    (call,) = bodies.calls()
    half = bodies.again(call.letters[2:])
    assert json.loads(half.body) == {
        **json.loads(call.body),
        "BulkEmailEntries": json.loads(call.body)["BulkEmailEntries"][2:],
    }


def test_values_with_template_language_go_whole_and_arrive() -> None:
    values = ["{{ name }}", "{{#each x}}"]
    packed_one, alone = calls_of(packed(0), packed(1, values=values))
    assert (packed_one.path, alone.path) == (BULK, SINGLE)
    (sent,) = letters_of(json.loads(alone.body))
    assert (sent.subject, sent.text, sent.html) == FORM.fill(values)


def test_tracking_is_switched_off_unless_it_is_set() -> None:
    def overrides(**fields: Any) -> Any:
        (call,) = calls_of(packed(0), configured=settings(**fields))
        return json.loads(call.body).get("ConfigurationOverrides")

    assert overrides(click_tracking=True) == {"Tracking": {"OpenTrackingEnabled": "DISABLED"}}
    assert overrides(click_tracking=True, open_tracking=True) is None


def test_a_streams_id_has_dots_so_its_messages_are_found_by_their_own() -> None:
    sent = letter_of(packed(3), campaign="stream.otp.2026-11-30")
    assert set(sent.tags) == {"attempt_id", "batch_no", "message_id"}


def test_one_click_headers_are_for_https_alone() -> None:
    """Case list-unsubscribe; a link of this machine stays out of the header."""
    assert letter_of(packed(0)).headers["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert set(letter_of(packed(0, unsubscribe_url="http://127.0.0.1/u/0")).headers) == {"X-Sendonce-Message"}
    assert set(letter_of(packed(0, unsubscribe_url="")).headers) == {"X-Sendonce-Message"}


@pytest.mark.parametrize(
    ("address", "written"),
    [
        ("news@shop.example", "news@shop.example"),
        ('"Doe, Jane" <jane@shop.example>', '"Doe, Jane" <jane@shop.example>'),
        ("Café <c@shop.example>", "=?utf-8?b?Q2Fmw6k=?= <c@shop.example>"),
        ("=?utf-8?q?x?= <c@shop.example>", "=?utf-8?b?PT91dGYtOD9xP3g/PQ==?= <c@shop.example>"),
        ("Shop <news@bücher.example>", "Shop <news@xn--bcher-kva.example>"),
    ],
)
def test_names_of_senders_are_ascii_on_the_way(address: str, written: str) -> None:
    """Case display-name-comma among them."""
    sent = letter_of(packed(0), from_address=address, reply_to=address)
    assert (sent.from_address, sent.reply_to) == (written, written)


def test_a_subject_that_looks_like_an_encoded_word_is_shown_as_it_is() -> None:
    """Case encoded-newline-injection."""
    subject = "=?utf-8?q?Hello=0d=0aBcc:_x@one.example?="
    (call,) = calls_of(whole(0, subject=subject))
    data = json.loads(call.body)["Content"]["Simple"]["Subject"]["Data"]
    assert subject not in data
    assert data.isascii()
    assert letter_of(whole(0, subject=subject * 3)).subject == subject * 3


# -- letters that no call can carry ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("letter", "outcome"),
    [
        (packed(5, "dörte@one.example"), Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED),
        (packed(5, "a@one.example, b@one.example"), Outcome.ADDRESS_INVALID),
        (packed(5, "a@one.example\r\nBcc: b@one.example"), Outcome.ADDRESS_INVALID),
        (packed(5, "Ann <a@one.example>"), Outcome.ADDRESS_INVALID),
        (packed(5, unsubscribe_url="https://shop.example/u/a>\r\nX: y"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(5, unsubscribe_url="https://shop.example/" + "u" * 1000), Outcome.RENDER_TOO_LARGE),
        (whole(5, subject="Hello\nBcc: x"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (whole(5, subject="Hello\u2028there"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(5, values=["Ann\r\nBcc: x", "y"]), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (whole(5, text="\ud800"), Outcome.RENDER_BAD_VARIABLE),
        (whole(5, text="x" * 31_000_000), Outcome.RENDER_TOO_LARGE),
    ],
)
def test_a_letter_that_cannot_go_is_named_without_its_person(letter: Letter, outcome: Outcome) -> None:
    """Cases smtputf8-local and crlf-injection among them."""
    fault = refusal_of(letter)
    assert (fault.ordinal, fault.outcome) == (5, outcome)
    assert "one.example" not in fault.detail
    assert "Ann" not in fault.detail


@pytest.mark.parametrize("field", ["from_address", "reply_to"])
@pytest.mark.parametrize("address", ["no address", "a@b.example\nBcc: c@d.example", "a@b.example, c@d.example"])
def test_a_sending_address_that_is_none(field: str, address: str) -> None:
    with pytest.raises(Unsendable) as caught:
        calls_of(packed(3), **{field: address})
    assert (caught.value.ordinal, caught.value.outcome) == (3, Outcome.RENDER_ERROR)


def test_addresses_of_the_cases_go_as_they_are() -> None:
    with (CASES / "unusual-valid" / "recipients.csv").open(encoding="utf-8", newline="") as file:
        addresses = [row["email"] for row in csv.DictReader(file) if row["recipient_id"].startswith("ok")]
    assert len(addresses) >= 3
    for address in filter(str.isascii, addresses):
        assert letter_of(packed(0, address)).to == address


def test_a_request_takes_little_more_memory_than_its_bytes() -> None:
    """A form letter's texts stand once in each call, never once for each recipient."""
    large = FormLetter(PREFIX, 2, "S", f"{S0}{'x' * 200_000}\n", "")
    request = request_of([packed(n) for n in range(400)], forms=[large])
    tracemalloc.start()
    calls = Bodies(request, settings()).calls()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(len(call.body) for call in calls) < 8 * 200_000 + 400 * 1000
    assert most < 8_000_000
