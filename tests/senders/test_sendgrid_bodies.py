"""The bodies of Mail Send calls: who stands in which, what they say, and what no call can carry."""

import csv
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.letters import FormLetter, Letter
from schemas.outcomes import Outcome
from sendonce.senders import sendgrid_body
from sendonce.senders.base import Unsendable
from sendonce.senders.sendgrid_body import Bodies
from tests.providers.sendgrid_rules import errors_of
from tests.senders.sendgrid_letters import CASES, FORM, NOW_S, S0, S1, body_of, packed, request_of, settings, whole


def bodies(letters: Sequence[Letter], forms: Sequence[FormLetter] = (FORM,), **fields: Any) -> list[Any]:
    """The bodies of a request's calls. Each keeps SendGrid's published limits."""
    kept = {name: fields.pop(name) for name in ("from_address", "reply_to") if name in fields}
    calls = Bodies(request_of(letters, forms, **kept), settings(**fields)).calls()
    for call in calls:
        assert errors_of(body_of(call.body), len(call.body), now_s=NOW_S) == []
    return [body_of(call.body) for call in calls]


def addresses(body: Any) -> list[str]:
    return [party["email"] for one in body["personalizations"] for party in one["to"]]


def refused(letters: Sequence[Letter], **fields: Any) -> tuple[int, Outcome]:
    with pytest.raises(Unsendable) as caught:
        bodies(letters, **fields)
    assert "@" not in caught.value.detail.replace("before the @", "")
    return caught.value.ordinal, Outcome(caught.value.outcome)


def test_a_form_letter_is_one_call_with_the_values_as_substitutions() -> None:
    (body,) = bodies([packed(0), packed(1)])

    assert body["subject"] == f"Hello {S0}"
    assert body["content"] == [{"type": "text/plain", "value": FORM.text}, {"type": "text/html", "value": FORM.html}]
    assert body["from"] == {"email": "news@shop.example", "name": "Shop"}
    assert body["reply_to"] == {"email": "help@shop.example"}
    assert body["personalizations"][1] == {
        "to": [{"email": "u1@one.example"}],
        "substitutions": {S0: "Ann 1", S1: "c-1"},
        "custom_args": {
            "campaign_id": "spring",
            "batch_no": "42",
            "attempt_id": request_of([packed(0)]).attempt_id,
            "message_id": f"{1:052d}",
        },
        "headers": {
            "List-Unsubscribe": "<https://shop.example/u/1>",
            "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        },
    }


@pytest.mark.parametrize(
    "letters",
    [[packed(0), whole(1)], [whole(0), whole(1)], [packed(0), packed(1, "U0@one.example")]],
    ids=["form and whole", "whole ones", "twins"],
)
def test_letters_of_one_of_several_calls_say_so(letters: list[Letter]) -> None:
    """SendGrid takes a call whole or not at all. An event of one of two calls says nothing of the other."""
    args = [one["custom_args"] for body in bodies(letters) for one in body["personalizations"]]
    assert [one.get("part") for one in args] == ["1"] * len(letters)


def test_a_call_that_is_made_again_without_some_says_that_it_is_a_part() -> None:
    made = Bodies(request_of([packed(0), packed(1)]), settings())
    (call,) = made.calls()
    assert "part" not in body_of(call.body)["personalizations"][0]["custom_args"]
    again = made.again(call, [packed(1)])
    assert body_of(again.body)["personalizations"][0]["custom_args"]["part"] == "1"


def test_a_call_that_is_divided_by_its_size_says_that_it_is_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    letters = [packed(number) for number in range(4)]
    (whole_body,) = Bodies(request_of(letters), settings()).calls()
    monkeypatch.setattr(sendgrid_body, "REQUEST_MAX_BYTES", len(whole_body.body) - 1)
    args = [one["custom_args"] for body in bodies(letters) for one in body["personalizations"]]
    assert [one.get("part") for one in args] == ["1"] * 4


def test_the_same_request_gives_the_same_bytes() -> None:
    letters = [packed(0), packed(1, "U0@one.example"), whole(2)]
    first, second = (Bodies(request_of(letters), settings()).calls() for _ in range(2))
    assert [call.body for call in first] == [call.body for call in second]


def test_whole_letters_are_a_call_each() -> None:
    found = bodies([whole(0), whole(1, html="")])

    assert [addresses(body) for body in found] == [["u0@one.example"], ["u1@one.example"]]
    assert [body["subject"] for body in found] == ["Hello 0", "Hello 1"]
    assert [[part["type"] for part in body["content"]] for body in found] == [
        ["text/plain", "text/html"],
        ["text/plain"],
    ]
    assert "substitutions" not in found[0]["personalizations"][0]


def test_a_letter_of_html_alone_has_no_empty_text_part() -> None:
    form = replace(FORM, text="")
    (body,) = bodies([packed(0)], [form])
    assert body["content"] == [{"type": "text/html", "value": FORM.html}]


def test_a_form_letter_without_slots_needs_no_substitutions() -> None:
    letters = [replace(packed(number), values=[]) for number in range(2)]
    (body,) = bodies(letters, [FormLetter("px", 0, "Hello", "Text\n", "")])
    assert ["substitutions" in one for one in body["personalizations"]] == [False, False]


def test_recipients_without_an_https_link_get_no_unsubscribe_headers() -> None:
    letters = [packed(0, unsubscribe_url=""), packed(1, unsubscribe_url="http://127.0.0.1:9/u/1"), packed(2)]
    (body,) = bodies(letters)
    assert ["headers" in one for one in body["personalizations"]] == [False, False, True]


def test_each_recipient_has_the_own_unsubscribe_link() -> None:
    """Case list-unsubscribe: ids with a plus, a slash and an umlaut, percent-encoded in the link."""
    with (CASES / "list-unsubscribe" / "recipients.csv").open(encoding="utf-8") as file:
        people = [row["email"] for row in csv.DictReader(file)]
    links = ["https://shop.example/u/a%2Bb%2F1", "https://shop.example/u/%C3%BC%202"]
    (body,) = bodies([packed(n, people[n], unsubscribe_url=links[n]) for n in range(2)])
    assert [one["headers"]["List-Unsubscribe"] for one in body["personalizations"]] == [f"<{link}>" for link in links]


# -- how many -------------------------------------------------------------------------------------------------------


def test_two_thousand_and_one_recipients_are_calls_of_1000_1000_and_1(tmp_path: Path) -> None:
    """Case 1000-split."""
    subprocess.run([sys.executable, CASES / "1000-split" / "make_recipients.py"], cwd=tmp_path, check=True)
    with (tmp_path / "recipients.csv").open(encoding="utf-8") as file:
        people = [row["email"] for row in csv.DictReader(file)]
    found = bodies([packed(number, address) for number, address in enumerate(people)])
    assert [len(body["personalizations"]) for body in found] == [1000, 1000, 1]
    assert [address for body in found for address in addresses(body)] == people


def test_one_address_never_stands_twice_in_a_call() -> None:
    """Case dup-in-request: a household in two spellings is mailed twice, in calls of their own."""
    with (CASES / "dup-in-request" / "recipients.csv").open(encoding="utf-8") as file:
        people = [row["email"] for row in csv.DictReader(file)]
    found = bodies([packed(number, address) for number, address in enumerate([*people, people[0]])])
    assert [addresses(body) for body in found] == [
        ["home@one.example", "ops@sender.example"],
        ["HOME@one.example"],
        ["home@one.example"],
    ]


def test_every_chosen_letter_is_in_exactly_one_call() -> None:
    letters = [
        packed(number, f"u{number % 7}@one.example") if number % 5 else whole(number, f"u{number % 7}@one.example")
        for number in range(200)
    ]
    found = bodies(letters)
    names = [one["custom_args"]["message_id"] for body in found for one in body["personalizations"]]
    assert sorted(names) == [letter.message_id for letter in letters]


# -- how large ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "goes_packed"),
    [("x" * 9000, True), ("€" * 3400, False), ("x" * 9_999, False), ("é" * 4000, True), ("é" * 4990, False)],
)
def test_substitutions_over_10000_bytes_make_the_letter_whole(value: str, goes_packed: bool) -> None:
    """Case size-10k-bytes: keys and values count, in UTF-8."""
    found = bodies([packed(0), packed(1, values=[value, "code"])])
    if goes_packed:
        assert len(found) == 1
    else:
        assert [len(body["personalizations"]) for body in found] == [1, 1]
        assert found[1]["subject"] == f"Hello {value}"
        assert "substitutions" not in found[1]["personalizations"][0]


def test_exactly_10000_bytes_still_go() -> None:
    room = 10_000 - len(S0) - len(S1) - 1
    assert len(bodies([packed(0), packed(1, values=["x" * room, "c"])])) == 1
    assert len(bodies([packed(0), packed(1, values=["x" * (room + 1), "c"])])) == 2


def test_a_call_over_30_megabytes_is_made_of_fewer_recipients(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sendgrid_body.REQUEST_MAX_BYTES < 30_000_000
    monkeypatch.setattr(sendgrid_body, "REQUEST_MAX_BYTES", 3000)
    found = bodies([packed(number) for number in range(10)])
    assert len(found) > 1
    assert [address for body in found for address in addresses(body)] == [
        f"u{number}@one.example" for number in range(10)
    ]


def test_a_letter_larger_than_a_call_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sendgrid_body, "REQUEST_MAX_BYTES", 3000)
    assert refused([whole(0), whole(7, text="x" * 3000)]) == (7, Outcome.RENDER_TOO_LARGE)


# -- what is never wrong --------------------------------------------------------------------------------------------


def test_a_value_that_could_hold_a_key_is_never_substituted() -> None:
    found = bodies([packed(0), packed(1, values=[S1, "x"]), packed(2, values=["-kx", "7-0000-"])])
    assert [len(body["personalizations"]) for body in found] == [1, 1, 1]
    assert found[1]["subject"] == f"Hello {S1}"


@pytest.mark.parametrize("value", ["Ann\r\nBcc: eve@one.example", "Ann\nX", "Ann\x00", "Ann\u2028X"])
def test_a_subject_with_a_control_character_is_refused_alone(value: str) -> None:
    assert refused([packed(0), packed(1, values=[value, "x"])]) == (1, Outcome.RENDER_HEADER_CONTROL_CHAR)
    assert len(bodies([packed(0), packed(1, values=["Ann", value])])) == 1


def test_a_local_part_beyond_ascii_is_refused() -> None:
    assert refused([packed(0), packed(1, "zoë@one.example")]) == (1, Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED)


@pytest.mark.parametrize("url", ["https://shop.example/u 1", "https://shop.example/>", "https://shop.example/\r\nX: y"])
def test_an_unsubscribe_link_that_would_break_its_header_is_refused(url: str) -> None:
    assert refused([packed(3, unsubscribe_url=url)]) == (3, Outcome.RENDER_HEADER_CONTROL_CHAR)


@pytest.mark.parametrize("address", ["", "Shop", "Shop <news@shop.example>\r\nBcc: eve@one.example"])
def test_a_from_address_that_is_none_is_refused(address: str) -> None:
    assert refused([packed(3)], from_address=address) == (3, Outcome.RENDER_HEADER_CONTROL_CHAR)


@pytest.mark.parametrize("letter", [packed(1, values=["\ud800", "x"]), whole(1, text="\udfff")])
def test_text_that_is_not_unicode_is_refused(letter: Letter) -> None:
    assert refused([packed(0), letter]) == (1, Outcome.RENDER_BAD_VARIABLE)


# -- settings -------------------------------------------------------------------------------------------------------


def test_nothing_is_left_for_the_account_to_change_in_a_letter() -> None:
    (body,) = bodies([packed(0)])
    assert body["tracking_settings"] == {
        "click_tracking": {"enable": False, "enable_text": False},
        "open_tracking": {"enable": False},
        "subscription_tracking": {"enable": False},
        "ganalytics": {"enable": False},
    }
    assert body["mail_settings"] == {"footer": {"enable": False}, "sandbox_mode": {"enable": False}}
    assert not {"categories", "asm", "ip_pool_name", "send_at", "batch_id", "template_id"} & set(body)


def test_settings_of_the_account_stand_in_every_call() -> None:
    found = bodies(
        [packed(0), whole(1)],
        sandbox=True,
        categories=["spring", "news"],
        asm_group=7,
        ip_pool="news",
        click_tracking=True,
        open_tracking=True,
        send_after_s=900,
        batch_id="b1",
    )
    for body in found:
        assert body["mail_settings"]["sandbox_mode"] == {"enable": True}
        assert (body["categories"], body["asm"], body["ip_pool_name"]) == (["spring", "news"], {"group_id": 7}, "news")
        assert body["tracking_settings"]["click_tracking"]["enable"] is True
        assert body["tracking_settings"]["open_tracking"]["enable"] is True
        assert (body["send_at"], body["batch_id"]) == (NOW_S + 900, "b1")
