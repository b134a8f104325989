"""Which addresses are taken, how they go out, and that the fast path is email-validator's own answer."""

import csv
import json
import unicodedata
from pathlib import Path

import pytest
from email_validator import SPECIAL_USE_DOMAIN_NAMES, EmailNotValidError, validate_email
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sendonce.addresses import (
    Address,
    BadAddress,
    checked_by_the_library,
    fits_a_header,
    needs_smtputf8,
    normalise,
    sender_address,
)

CASES = Path(__file__).parent / "cases"


def rows(slug: str) -> dict[str, str]:
    with open(CASES / slug / "recipients.csv", encoding="utf-8", newline="") as handle:
        return {row["recipient_id"]: row["email"] for row in csv.DictReader(handle)}


@pytest.mark.parametrize(("name", "raw"), rows("unusual-valid").items())
def test_unusual_addresses_are_taken_and_malformed_ones_are_not(name: str, raw: str) -> None:
    if name.startswith("ok"):
        assert normalise(raw).wire == raw
    else:
        with pytest.raises(BadAddress):
            normalise(raw)


def test_a_domain_goes_out_as_its_a_label_and_two_spellings_are_one_mailbox() -> None:
    found = {number: normalise(raw) for number, raw in rows("idn-domain").items()}

    assert [found[number].wire for number in "1234"] == [
        "info@xn--bcher-kva.example",
        "info@xn--bcher-kva.example",
        "info@xn--r8jz45g.example",
        "info@one.example",
    ]
    assert found["1"].key_form == found["2"].key_form
    assert not any("=?" in address.wire for address in found.values())


def test_what_cannot_be_seen_is_trimmed_outside_and_refused_inside() -> None:
    found = rows("invisible-chars")

    trimmed = [normalise(found[number]).wire for number in "1234"]

    assert trimmed == ["zoe@one.example", "max@two.example", "ivy@three.example", "pat@four.example"]
    for number in "56":
        with pytest.raises(BadAddress, match="cannot be seen"):
            normalise(found[number])


@pytest.mark.parametrize("hidden", ["\u115f", "\u3164", "\ufe0f", "\u034f", "\U000e0101", "\u200c", "\u202e", "\ue000"])
def test_letters_and_marks_that_show_nothing_are_refused_too(hidden: str) -> None:
    with pytest.raises(BadAddress):
        normalise(f"an{hidden}n@one.example")
    with pytest.raises(BadAddress):
        normalise(f"ann@on{hidden}e.example")


def test_letter_case_makes_no_second_mailbox_and_stays_as_given_before_the_at_sign() -> None:
    found = [normalise(raw) for raw in rows("dup-email-case").values()]

    assert [address.key_form for address in found] == ["ann@one.example"] * 3 + ["bob@one.example"]
    assert found[0].wire == "Ann@one.example"


def test_a_mailbox_name_that_servers_must_know_keeps_its_letter_case_on_the_wire() -> None:
    assert normalise("INFO@one.example") == Address("INFO@one.example", "info@one.example")


def test_a_name_outside_ascii_stays_and_says_what_it_needs() -> None:
    composed, decomposed = "jörg@one.example", unicodedata.normalize("NFD", "jörg@one.example")

    assert normalise(composed) == normalise(decomposed) == Address(composed, composed)
    assert needs_smtputf8(normalise(composed).wire)
    assert not needs_smtputf8(normalise("info@bücher.example").wire)


def test_line_breaks_never_get_into_an_envelope() -> None:
    lines = (CASES / "crlf-injection" / "recipients.ndjson").read_text(encoding="utf-8").splitlines()
    raw = json.loads(lines[4])["email"]

    with pytest.raises(BadAddress):
        normalise(raw)


@pytest.mark.parametrize(
    "raw", ["=?utf-8?q?=0ABcc=3A?=@one.example", "a=?x?Q?y?=b@one.example", "=?utf-8?b?YQ==?=@bücher.example"]
)
def test_an_encoded_word_is_no_mailbox_name(raw: str) -> None:
    """RFC 2047 section 5 forbids it, and a mail library that decodes it sees another address."""
    with pytest.raises(BadAddress, match="encoded word"):
        normalise(raw)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("", "empty"),
        (" \u200b\t", "empty"),
        ("ann.one.example", "no @-sign"),
        ("@one.example", "nothing before the @-sign"),
        ("ann@", "nothing after the @-sign"),
        ("ann..lee@one.example", "not a mailbox name of at most 64 characters before the @-sign"),
        ("ann@one", "not a domain name after the @-sign"),
        ("ann@one.test", "the domain ends in .test, which is reserved and never reaches anyone (RFC 6761)"),
        ("ann@" + "a" * 63 + "." + "b" * 63 + "." + "c" * 63 + "." + "d" * 58 + ".example", None),
        ("x" * 60 + "@" + ".".join(["d" * 45] * 4) + ".museum.example", "longer than 254 bytes"),
    ],
)
def test_a_refusal_says_what_is_wrong(raw: str, reason: str | None) -> None:
    with pytest.raises(BadAddress) as found:
        normalise(raw)
    if reason is not None:
        assert found.value.reason == reason


@pytest.mark.parametrize("raw", ["secret-canary..x@one.example", "secret-canary@@one.example", "secret-canary"])
def test_a_refusal_holds_nothing_of_the_address(raw: str) -> None:
    with pytest.raises(BadAddress) as found:
        normalise(raw)
    assert "canary" not in str(found.value)
    assert found.value.__cause__ is None


ATEXT = st.text("abXY09!#$%&'*+/=?^_`{|}~.-", max_size=66)
LABEL = st.one_of(
    st.text("abcXYZ019-", max_size=64),
    st.sampled_from(["xn--bcher-kva", "xn--", "ab--c", "a--b", "EXAMPLE", *SPECIAL_USE_DOMAIN_NAMES, "xn--a-ecp"]),
)
ANY_LABEL = st.one_of(
    LABEL, st.text(max_size=8), st.sampled_from(["bücher", "例え", "שלום", "١٢٣", "\uff45x", "a。b", "ß"])
)
ENDING = st.one_of(LABEL, st.sampled_from(["example", "Example", "com", "c0m", "museum"]))


def joined(local: str, labels: list[str], ending: str) -> str:
    return f"{local}@{'.'.join([*labels, ending])}"


PLAIN = st.builds(joined, ATEXT, st.lists(LABEL, min_size=0, max_size=5), ENDING)
ODD = st.builds(joined, st.one_of(ATEXT, st.text(max_size=12)), st.lists(ANY_LABEL, max_size=3), ENDING)


def answer(check: object, raw: str) -> object:
    try:
        return check(raw)  # type: ignore[operator]
    except BadAddress as fault:
        return fault.reason


@settings(max_examples=700)
@given(st.one_of(PLAIN, ODD, st.text(max_size=30), st.emails()))
@example("a" * 64 + "@one.example")
@example("a" * 65 + "@one.example")
@example("a@" + "b" * 63 + ".example")
@example("a@" + "b" * 64 + ".example")
@example("x" * 64 + "@" + ".".join(["d" * 60] * 3) + ".abcdefg")
@example("x" * 64 + "@" + ".".join(["d" * 60] * 3) + ".abcdef")
@example("a@ab--cd.example")
@example("a@one.LOCAL")
@example("a@one.example\n")
def test_the_fast_path_answers_as_email_validator_does(raw: str) -> None:
    assert answer(normalise, raw) == answer(checked_by_the_library, raw)


@settings(max_examples=250)
@given(st.one_of(PLAIN, ODD, st.emails()))
def test_what_is_taken_is_taken_by_email_validator_and_stays_the_same(raw: str) -> None:
    try:
        address = normalise(raw)
    except BadAddress:
        return
    known = validate_email(address.wire, check_deliverability=False, strict=True)
    assert address.wire.casefold() == f"{known.local_part}@{known.ascii_domain}".casefold()
    assert normalise(address.wire) == address
    assert address.wire.rpartition("@")[2].isascii()


@settings(max_examples=150)
@given(PLAIN)
def test_what_is_refused_is_refused_by_email_validator(raw: str) -> None:
    """But for encoded words: there we are stricter."""
    try:
        normalise(raw)
    except BadAddress as fault:
        if "encoded word" not in fault.reason:
            with pytest.raises(EmailNotValidError):
                validate_email(raw, check_deliverability=False, strict=True)


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        ("Shop <news@shop.example>", "Shop <news@shop.example>"),
        ("news@b\u00fccher.example", "news@xn--bcher-kva.example"),
        ("Zo\u00eb  Lee <News@B\u00dcCHER.example>", "Zo\u00eb Lee <News@xn--bcher-kva.example>"),
        ("Shop\u00a0Plus <news@shop.example>", "Shop\u00a0Plus <news@shop.example>"),
        ("\U0001f469\u200d\U0001f680 Shop <news@shop.example>", "\U0001f469\u200d\U0001f680 Shop <news@shop.example>"),
        ('"Doe, Jane" <jane@shop.example>', '"Doe, Jane" <jane@shop.example>'),
        ('"Bob <bob@evil.example>" <news@shop.example>', '"Bob <bob@evil.example>" <news@shop.example>'),
        ('"Ann \\"Ace\\" Lee" <news@shop.example>', '"Ann \\"Ace\\" Lee" <news@shop.example>'),
        ("Shop (EU) <news@shop.example>", '"Shop (EU)" <news@shop.example>'),
        ("<news@shop.example>", "news@shop.example"),
    ],
)
def test_a_letter_is_from_one_address_written_as_every_server_takes_it(raw: str, written: str) -> None:
    assert sender_address(raw) == written
    assert sender_address(written) == written


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ("x@y.example, z@y.example", "more than one address"),
        ("Bob <bob@evil.example> <news@shop.example>", "more than one address"),
        ("Doe, Jane <jane@shop.example>", "needs quotes"),
        ("undisclosed: news@shop.example;", "more than one address"),
        ("j\u00f6rg@shop.example", "beyond ASCII before the @-sign"),
        ("Shop <news@shop.example>\r\nBcc: a@b.example", "line break"),
        ("Shop\u2028x <news@shop.example>", "line break"),
        ("Shop\ud800 <news@shop.example>", "half a character"),
        ("Shop <news>", "no @-sign"),
        ("Shop", "no @-sign"),
    ],
)
def test_what_is_not_one_address_cannot_send(raw: str, reason: str) -> None:
    with pytest.raises(BadAddress, match=reason):
        sender_address(raw)


@pytest.mark.parametrize(
    ("text", "fits"), [("a\u00a0b\u200dc", True), ("a\tb", False), ("a\x85", False), ("\udfff", False)]
)
def test_a_header_takes_what_joins_and_nothing_that_breaks(text: str, fits: bool) -> None:
    assert fits_a_header(text) is fits


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ("Ann Smith <ann@one.example>", "give only what stands between < and >"),
        ('"Smith, Ann" <ann@one.example>', "give only what stands between < and >"),
        ("<ann@one.example>", "give only what stands between < and >"),
        ("ann@one.example, bob@one.example", "give each a row of its own"),
        ("ann@one.example;bob@one.example;", "give each a row of its own"),
    ],
)
def test_a_mailbox_that_is_no_bare_address_is_told_how_to_become_one(raw: str, said: str) -> None:
    with pytest.raises(BadAddress) as refused:
        normalise(raw)

    assert said in refused.value.reason
    assert "one.example" not in refused.value.reason
