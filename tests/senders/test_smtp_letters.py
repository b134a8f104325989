"""What a letter looks like on the wire, and that it comes back as it was."""

import csv
import hashlib
from pathlib import Path

import pytest

from schemas.letters import FormLetter, Letter, slot_key
from schemas.outcomes import Outcome
from sendonce.senders.base import Unsendable, Verdict
from tests.senders.conformance import new_attempt, packed, request_of, whole
from tests.senders.smtp_letters import CASES, read, scene, sender_for, sent_of

pytestmark = pytest.mark.needs("aiosmtplib")
GOLDEN = Path(__file__).with_name("smtp_golden.txt")


def body_of(case: str, name: str) -> str:
    return (CASES / case / name).read_bytes().decode()


def people_of(case: str) -> list[dict[str, str]]:
    with (CASES / case / "recipients.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_prepared_bytes_are_pure_and_as_they_always_were() -> None:
    from schemas.ids import attempt_id

    attempt = attempt_id(1_768_467_600_000, bytes(10))
    letters = [packed(0), packed(1, ["J\u00f6rg", "."]), whole(2, text=".\n..here\n", html="")]
    with sender_for(9) as sender:
        first = sender.prepare(request_of(letters, attempt))
        again = sender.prepare(request_of(letters, attempt))
    assert (first.body, first.payload_hash) == (again.body, again.payload_hash)
    assert first.payload_hash == hashlib.sha256(first.body).hexdigest()
    assert first.body == GOLDEN.read_bytes()


def test_the_form_letters_short_way_gives_what_the_long_way_gives() -> None:
    letters = [packed(n, ["Ann \u00e9" * n, "x" * 400 * n]) for n in range(4)]
    request = request_of(letters)
    long_way = []
    for letter in letters:
        subject, text, html = request.letters.texts(letter)
        long_way.append(
            Letter(letter.ordinal, letter.message_id, letter.to, letter.unsubscribe_url, None, [], subject, text, html)
        )
    with sender_for(9) as sender:
        assert sender.prepare(request).body == sender.prepare(request_of(long_way, request.attempt_id)).body


@pytest.mark.parametrize("extensions", [["8BITMIME", "PIPELINING"], []])
@pytest.mark.parametrize(
    ("case", "name"),
    [
        ("dot-line", "body.txt.j2"),
        ("bare-lf", "body.txt.bin"),
        ("long-line", "body.html.j2"),
        ("long-line", "url.txt.j2"),
    ],
)
def test_bodies_come_back_as_they_were(case: str, name: str, extensions: list[str]) -> None:
    """Cases dot-line, bare-lf, long-line: the server refuses bare line ends, long lines, 8 bits unasked."""
    text = body_of(case, name)
    letters = [whole(0, html="", text=text), whole(1, text="", html=f"<pre>{text}\u00e9</pre>")]
    with scene(server={"extensions": extensions}) as there:
        assert there.send(letters).verdict is Verdict.ACCEPTED
        assert set(there.fake.verbs()) <= {"EHLO", "MAIL", "RCPT", "DATA", "QUIT"}
    taken = {letter.to: letter.data for letter in there.fake.taken}
    for letter in letters:
        data = taken[letter.to]
        payload = read(data).get_payload(decode=True)
        assert isinstance(payload, bytes)
        wanted = (letter.text or letter.html).encode()
        base64 = read(data)["Content-Transfer-Encoding"] == "base64"
        assert payload.rstrip(b"\n\r") == (wanted if base64 else wanted.replace(b"\n", b"\r\n")).rstrip(b"\n\r")


def test_a_server_without_8bitmime_gets_seven_bits_that_say_the_same() -> None:
    letters = [packed(0, ["J\u00f6rg", "\u6f22"]), packed(1)]
    with scene(server={"extensions": ["PIPELINING"]}) as there:
        assert there.send(letters).verdict is Verdict.ACCEPTED
    assert all(letter.data.isascii() for letter in there.fake.taken)
    assert all(b"8bit" not in letter.data for letter in there.fake.taken if letter.to == letters[0].to)
    found = {letter.to: sent_of(letter.to, letter.data) for letter in there.fake.taken}
    request = request_of(letters)
    for letter in letters:
        sent = found[letter.to]
        assert (sent.subject, sent.text.rstrip(), sent.html.rstrip()) == tuple(
            part.rstrip() for part in request.letters.texts(letter)
        )


def test_message_ids_are_the_same_for_every_attempt_and_different_for_every_letter() -> None:
    """Case stable-message-id: who got it twice after all can see that it is one letter."""
    letters = [packed(number, to=row["email"]) for number, row in enumerate(people_of("stable-message-id"))]
    with scene(parallel=1) as there:
        for _ in range(2):
            there.send(letters)
    ids = [str(read(letter.data)["Message-ID"]) for letter in there.fake.taken]
    assert ids[:2] == ids[2:]
    assert len(set(ids)) == 2
    attempts = [str(read(letter.data)["X-Sendonce-Attempt"]) for letter in there.fake.taken]
    assert attempts[0] == attempts[1] != attempts[2]


def test_each_letter_has_its_own_unsubscribe_link_and_both_headers() -> None:
    """Case list-unsubscribe; RFC 8058."""
    letters = [packed(number, to=row["email"]) for number, row in enumerate(people_of("list-unsubscribe"))]
    with scene() as there:
        there.send(letters)
    for letter in there.fake.taken:
        ordinal = next(one.ordinal for one in letters if one.to == letter.to)
        head = letter.data.partition(b"\r\n\r\n")[0]
        assert f"\r\nList-Unsubscribe: <https://shop.example/u/{ordinal}>\r\n".encode() in head
        assert b"\r\nList-Unsubscribe-Post: List-Unsubscribe=One-Click\r\n" in head


@pytest.mark.parametrize(
    "to",
    ["a b@one.example", "a\r\nRCPT TO:<evil@x.example>", "a>@one.example", "a<b@one.example", "a\x00@b", ""],
)
def test_an_address_that_would_break_a_command_is_named_and_goes_nowhere(to: str) -> None:
    letter = Letter(5, "5" * 52, to, "", subject="Hi", text="Hi\n")
    with sender_for(9) as sender, pytest.raises(Unsendable) as caught:
        sender.prepare(request_of([packed(0), letter]))
    assert (caught.value.ordinal, caught.value.outcome) == (5, Outcome.ADDRESS_INVALID)
    assert not to or to not in caught.value.detail


@pytest.mark.parametrize(
    ("letter", "outcome"),
    [
        (whole(3, subject="Hi\r\nBcc: evil@x.example"), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(3, ["a\nb", ""]), Outcome.RENDER_HEADER_CONTROL_CHAR),
        (packed(3, ["\ud800", ""]), Outcome.RENDER_ERROR),
        (whole(3, text="\udfff"), Outcome.RENDER_ERROR),
        (Letter(3, "3" * 52, "a@b.example", "https://x.example/" + "u" * 1000, subject="Hi", text="Hi"),
         Outcome.RENDER_ERROR),
    ],
)  # fmt: skip
def test_letters_that_no_server_can_be_given_are_named(letter: Letter, outcome: Outcome) -> None:
    with sender_for(9) as sender, pytest.raises(Unsendable) as caught:
        sender.prepare(request_of([packed(0), letter, packed(4)]))
    assert (caught.value.ordinal, caught.value.outcome) == (3, outcome)


def test_one_form_letter_is_compiled_once_for_all_its_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    from sendonce.senders import mime_forms

    made: list[FormLetter] = []
    usual = mime_forms.MimeForm.__init__

    def count(self: mime_forms.MimeForm, form: FormLetter, from_address: str, reply_to: str) -> None:
        made.append(form)
        usual(self, form, from_address, reply_to)

    monkeypatch.setattr(mime_forms.MimeForm, "__init__", count)
    mime_forms.compiled.cache_clear()
    with sender_for(9) as sender:
        for first in range(0, 100, 20):
            sender.prepare(request_of([packed(first + n) for n in range(20)], new_attempt()))
    assert len(made) == 1
    assert slot_key(made[0].prefix, 0) in made[0].text
