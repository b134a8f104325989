"""Messages that any reader can read, and that nobody's variables can bend."""

import email
import email.policy
from email.message import EmailMessage

import pytest

from schemas.ids import attempt_id
from sendonce.senders.mime import LINE_MAX, NotAnAddress, NotUnicode, message

ATTEMPT = attempt_id(1_768_467_600_000, bytes(10))
BASE = {
    "from_address": "Shop <news@shop.example>",
    "reply_to": "",
    "to": "ann@one.example",
    "subject": "Hello",
    "text": "Hello Ann",
    "html": "<p>Hello Ann</p>",
    "message_id": "m" * 52,
    "attempt_id": ATTEMPT,
}


def build(**changes: object) -> bytes:
    return message(**{**BASE, **changes})  # type: ignore[arg-type]


def read(raw: bytes) -> EmailMessage:
    parsed = email.message_from_bytes(raw, policy=email.policy.default)
    assert isinstance(parsed, EmailMessage)
    assert parsed.defects == []
    return parsed


def test_text_comes_before_html_and_both_come_back_as_they_were() -> None:
    parsed = read(build(text="Xin chào Nguyễn\n", html="<p>مرحبا</p>\n"))
    assert [part.get_content_type() for part in parsed.iter_parts()] == ["text/plain", "text/html"]
    assert parsed.get_body(("plain",)).get_content() == "Xin chào Nguyễn\n"  # type: ignore[union-attr]
    assert parsed.get_body(("html",)).get_content() == "<p>مرحبا</p>\n"  # type: ignore[union-attr]


@pytest.mark.parametrize(("text", "html", "kind"), [("Hi", "", "text/plain"), ("", "<p>Hi</p>", "text/html")])
def test_one_part_stands_alone(text: str, html: str, kind: str) -> None:
    parsed = read(build(text=text, html=html))
    assert (parsed.get_content_type(), parsed.is_multipart()) == (kind, False)


def test_the_same_letter_and_attempt_give_the_same_bytes() -> None:
    assert build() == build()
    assert read(build())["Date"] == "Thu, 15 Jan 2026 09:00:00 +0000"


def test_message_id_is_the_same_for_every_attempt() -> None:
    """The case stable-message-id."""
    other = build(attempt_id=attempt_id(1_768_467_700_000, b"x" * 10))
    assert read(build())["Message-ID"] == read(other)["Message-ID"] == f"<{'m' * 52}@shop.example>"


@pytest.mark.parametrize(
    "subject",
    [
        "Plain",
        "Tom & Jerry's <3",
        "Ünï çödé ✓",
        "long " * 60,
        "日本語の件名がとても長いのでヘッダーは折り返される必要があります。" * 4,
        "ends with space ",
    ],
)
def test_subjects_come_back_as_they_were(subject: str) -> None:
    raw = build(subject=subject)
    assert read(raw)["Subject"].strip() == subject.strip()
    head = raw.split(b"\n\n", 1)[0]
    assert max(map(len, head.split(b"\n"))) <= LINE_MAX


@pytest.mark.parametrize("field", ["subject", "to", "from_address", "reply_to", "unsubscribe_url"])
@pytest.mark.parametrize("bad", ["Hi\r\nBcc: evil@x.example", "Hi\nX: y", "Hi\rX", "Hi\x00there", "Hi\u2028X: y"])
def test_a_header_with_a_control_character_makes_no_message(field: str, bad: str) -> None:
    """The case crlf-injection."""
    with pytest.raises(ValueError, match="control character"):
        build(**{field: bad})


def test_a_domain_beyond_ascii_goes_out_as_an_a_label() -> None:
    """Campaigns keep the address that they were loaded with, however old."""
    raw = build(from_address="Shop <news@b\u00fccher.example>", reply_to="help@b\u00fccher.example")

    parsed = read(raw)
    assert parsed["From"] == "Shop <news@xn--bcher-kva.example>"
    assert parsed["Reply-To"] == "help@xn--bcher-kva.example"
    assert parsed["Message-ID"].endswith("@xn--bcher-kva.example>")


@pytest.mark.parametrize("address", ["j\u00f6rg@shop.example", "x@y.example, z@y.example", "Shop", "Shop <a@b>"])
@pytest.mark.parametrize(("field", "header"), [("from_address", "From"), ("reply_to", "Reply-To")])
def test_a_bad_address_is_called_that_and_not_a_control_character(field: str, header: str, address: str) -> None:
    with pytest.raises(NotAnAddress, match=f"the header {header} "):
        build(**{field: address})


@pytest.mark.parametrize("field", ["subject", "text", "html"])
def test_half_a_surrogate_pair_is_called_that_and_not_a_control_character(field: str) -> None:
    with pytest.raises(NotUnicode, match="half a surrogate pair"):
        build(**{field: "Hi \ud800"})


@pytest.mark.parametrize("word", ["=?UTF-8?Q?=0A?=", "=?utf-8?b?CkJjYzog?=", "=?UTF-8?Q?Plain_caf=C3=A9?="])
def test_an_encoded_newline_stays_text(word: str) -> None:
    """The case encoded-newline-injection: the serialised bytes are checked, not the input."""
    subject = f"A {word}Bcc: evil@x.example, your order"
    raw = build(subject=subject, from_address=f'"A {word}Bcc: evil@x.example" <news@shop.example>', reply_to="")
    head = raw.split(b"\n\n", 1)[0]
    assert not any(line.lower().startswith(b"bcc:") for line in head.split(b"\n"))
    assert read(raw)["Subject"] == subject


@pytest.mark.parametrize(
    "name",
    ["Doe, Jane", 'Ann "Ace" Lee', "Bob <bob@evil.example>", "Chloë; Café", "x@y.example", "Ünï"],
)
def test_a_display_name_comes_back_as_it_was_with_one_address(name: str) -> None:
    """The case display-name-comma."""
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    parsed = read(build(from_address=f'"{quoted}" <news@shop.example>'))
    (address,) = parsed["From"].addresses
    assert (address.display_name, address.addr_spec) == (name, "news@shop.example")


@pytest.mark.parametrize(
    "text",
    [
        "From here on\n",
        "x\n>From there\n",
        "a\rb\n",
        "\x00\n",
        "é" * 600 + "\n",
        ".\n..\n.hidden\n",
        "a\r\nb\n",
    ],
)
def test_bodies_that_may_not_travel_as_they_are_come_back_all_the_same(text: str) -> None:
    """The cases long-line, dot-line and bare-lf, and the separator lines of an mbox."""
    raw = build(text=text, html="")
    body = raw.split(b"\n\n", 1)[1]
    assert not any(line.startswith((b"From ", b">From ")) for line in body.split(b"\n"))
    assert max(map(len, raw.split(b"\n"))) <= LINE_MAX
    payload = email.message_from_bytes(raw).get_payload(decode=True)
    assert payload == text.encode()


def test_unsubscribe_headers_stand_together_for_https_only() -> None:
    """The case list-unsubscribe; RFC 8058 asks for https."""
    parsed = read(build(unsubscribe_url="https://shop.example/u/abc"))
    assert parsed["List-Unsubscribe"] == "<https://shop.example/u/abc>"
    assert parsed["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    plain = read(build(unsubscribe_url="http://127.0.0.1/u/abc"))
    assert plain["List-Unsubscribe-Post"] is None
    assert read(build())["List-Unsubscribe"] is None


def test_one_blank_line_between_headers_and_body() -> None:
    """The case subject-trailing-newline."""
    raw = build(subject="Hello", html="")
    assert raw.index(b"\n\n") == raw.index(b"\n\nHello Ann")
