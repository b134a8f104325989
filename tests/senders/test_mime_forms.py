"""A compiled form letter gives byte for byte what plain assembly gives for the same texts."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from schemas.ids import attempt_id
from schemas.letters import FormLetter, slot_key
from sendonce.senders.mime import NotAnAddress, NotUnicode, message
from sendonce.senders.mime_forms import MimeForm, compiled

ATTEMPT = attempt_id(1_768_467_600_000, bytes(10))
PREFIX = "kx7"
SLOTS = 3
KEYS = [slot_key(PREFIX, number) for number in range(SLOTS)]
# What decides over encodings: separators, line ends, control characters, long lines, characters beyond ASCII.
PIECES = st.one_of(
    st.sampled_from(
        [
            "From ",
            ">From ",
            "From",
            "\n",
            "\r\n",
            "\r",
            "\x00",
            ".",
            ".\n",
            "é",
            "漢字",
            "a" * 500,
            "é" * 300,
            " ",
            "=?",
        ]
    ),
    st.text(max_size=20),
    st.sampled_from(["\ud800", "\x85", "\u2028"]),
)
TEXTS = st.lists(st.one_of(PIECES, st.sampled_from(KEYS)), max_size=8).map("".join)
VALUES = st.lists(st.lists(PIECES, max_size=4).map("".join), min_size=SLOTS, max_size=SLOTS)
FIELDS = st.fixed_dictionaries(
    {
        "from_address": st.sampled_from(["Shop <news@shop.example>", '"Tom & Jé" <news@shop.example>', "a@b", ""]),
        "reply_to": st.sampled_from(["", "help@shop.example", "x, y"]),
        "to": st.sampled_from(["ann@one.example", "j\u00f6rg@one.example", "a\nb@one.example", "\udfff@one.example"]),
        "unsubscribe_url": st.sampled_from(["", "https://shop.example/u/1", "http://127.0.0.1/u/1", "https://x/\r"]),
        "extra": st.sampled_from([(), (("X-Attempt", ATTEMPT),), (("X-Attempt", "a\nb"),)]),
    }
)


def outcome(make: Any) -> Any:
    try:
        return make()
    except ValueError as fault:
        return type(fault), str(fault)


@given(TEXTS, TEXTS, TEXTS, VALUES, FIELDS)
@example(KEYS[0], f"From {KEYS[1]}", "", ["a", "b", "c"], {"to": "ann@one.example"})
@example("Hi", f"{KEYS[0]}{KEYS[1]} there", "<p>", [">Fro", "m ", ""], {"to": "ann@one.example"})
@example("Hi", f"{KEYS[0]}x{KEYS[0]}", "", ["a" * 499, "", ""], {"to": "ann@one.example"})
@example("Hi", f"{KEYS[0]}x{KEYS[0]}", "", ["a" * 498 + "\n", "", ""], {"to": "ann@one.example"})
@example("Hi", KEYS[0], KEYS[1], ["", "", ""], {"to": "ann@one.example"})
@example("Hi", KEYS[0], KEYS[1], ["text alone", "", ""], {"to": "ann@one.example"})
@example("", "", "", ["", "", "\ud800"], {"to": "ann@one.example"})
@example("", KEYS[0], "", ["a", "\ud800", ""], {"to": "ann@one.example"})
def test_a_filled_form_is_the_plain_message(
    subject: str, text: str, html: str, values: list[str], fields: dict[str, Any]
) -> None:
    form = FormLetter(PREFIX, SLOTS, subject, text, html)
    filled_subject, filled_text, filled_html = form.fill(values)
    known = {"from_address": "Shop <news@shop.example>", "reply_to": "", **fields}
    letter = {"message_id": "m" * 52, "attempt_id": ATTEMPT, **known}

    wanted = outcome(lambda: message(subject=filled_subject, text=filled_text, html=filled_html, **letter))
    addresses = letter.pop("from_address"), letter.pop("reply_to")
    found = outcome(lambda: MimeForm(form, *addresses).fill(values, **letter))
    if isinstance(wanted, bytes) or isinstance(found, bytes):
        assert found == wanted
    else:  # of two faults in one letter either may be named, but both say that it cannot be written
        assert issubclass(found[0], ValueError)


@pytest.mark.parametrize(
    ("changes", "fault"), [({"from_address": "a@b"}, NotAnAddress), ({"reply_to": "x, y"}, NotAnAddress)]
)
def test_settings_at_fault_are_called_that(changes: dict[str, str], fault: type[ValueError]) -> None:
    known = {"from_address": "Shop <news@shop.example>", "reply_to": "", **changes}
    with pytest.raises(fault):
        MimeForm(FormLetter(PREFIX, 0, "Hi", "Hi", ""), **known)


def test_half_a_pair_in_what_all_share() -> None:
    with pytest.raises(NotUnicode):
        MimeForm(FormLetter(PREFIX, 0, "Hi", "\ud800", ""), "Shop <news@shop.example>", "")


def test_a_form_is_compiled_once_for_equal_letters() -> None:
    one, same = (FormLetter(PREFIX, 1, "Hi", f"Dear {KEYS[0]}\n", "") for _ in range(2))
    assert compiled(one, "news@shop.example", "") is compiled(same, "news@shop.example", "")
