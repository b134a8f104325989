"""What every adapter must do, whatever its provider. `docs/adapters.md` says how a new one is put through it.

    class TestMine(Conformance):
        @pytest.fixture
        def account(self, tmp_path: Path) -> Iterator[Account]:
            with MyFake() as fake, closing(MySender(...)) as sender:
                yield Account(sender, fake)

The fake provider is a real server (a folder, for what writes files) that keeps what it took. Each test asks two
questions: does the reply say what happened, and did anybody get a letter that the reply denies?
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar, Protocol

import pytest

from schemas.ids import attempt_id
from schemas.letters import FormLetter, Letter, Letters, slot_key
from schemas.outcomes import Outcome
from sendonce.delivery.requests import next_letters
from sendonce.senders.base import Reply, Request, Sender, Unsendable, Verdict, name_in

# Letters hold these, and nothing that an adapter says may.
CANARY_ADDRESS = "canary.person@mailbox.example"
CANARY_VALUE = "canary-code-483920"
PREFIX = "kx7"
S0, S1 = slot_key(PREFIX, 0), slot_key(PREFIX, 1)
FORM = FormLetter(
    PREFIX, 2, f"Hello {S0}", f"Dear {S0},\nyour code is {S1}.\n", f"<p>Dear {S0},</p>\n<p><b>{S1}</b></p>\n"
)
OTHER_FORM = FormLetter("zz9", 1, "News", f"For {slot_key('zz9', 0)}\n", f"<p>{slot_key('zz9', 0)}</p>\n")
# What templates, JSON, SMTP, mail merge and shells have meant something by.
HARD = (
    "{{ name }}", "{% raw %}", "${x}", "%s %(x)s", "%recipient%", "[[x]]", "-name-", "<b>&amp;", '"quoted" \'too\'',
    "back\\slash \\n", "été Привет 漢字 العربية", "🎉👩‍👩‍👧", "nul-free\ttab", " spaces  ", "=?utf-8?q?x?=", "#{x}",
    "*|X|*", "{{{x}}}", "{{#if x}}y{{/if}}", "\u200e\u202e", "a" * 300,
)  # fmt: skip
# Bodies, too: lines that SMTP and mbox look at, and long ones.
HARD_TEXTS = (
    ".\n..\n.leading dot\n", "From the start\n>From\n", "x" * 5000 + "\n", "no end of line", "two\n\n\nlines\n", "\n",
    "tab\there\n", "trailing space \n",
)  # fmt: skip
_attempts = count(1)


@dataclass(frozen=True)
class Sent:
    """A letter as the provider would deliver it. Line ends are LF; message_id as in `Letter`, without its host."""

    to: str
    subject: str
    text: str
    html: str
    message_id: str


class Provider(Protocol):
    """The other end, under the test's control."""

    def letters(self) -> Sequence[Sent]:
        """What it took, in the order of acceptance; a letter that it took twice stands there twice."""

    def misbehave(self, how: str, address: str = "") -> None:
        """From now on. `refuse_connection`: nothing answers. `close_before_reply`: it takes the request and closes
        without an answer. `silence`: it takes it and never answers. `busy`: it asks to slow down, and takes nothing.
        `refuse_account`: the credentials are wrong. `refuse_recipient`: it refuses one address for good. "": it works
        again."""


@dataclass(frozen=True)
class Account:
    """A sender, and the provider that it sends to."""

    sender: Sender
    provider: Provider


def new_attempt() -> str:
    return attempt_id(1_768_467_600_000 + next(_attempts), bytes(10))


def packed(ordinal: int, values: Sequence[str] = (), to: str = "", form: int = 0) -> Letter:
    filled = list(values) or [f"Ann {ordinal}", CANARY_VALUE]
    return Letter(
        ordinal, f"{ordinal:052d}", to or f"u{ordinal}@one.example", f"https://shop.example/u/{ordinal}", form, filled
    )


def whole(ordinal: int, to: str = "", **texts: str) -> Letter:
    found = {"subject": f"Hello {ordinal}", "text": f"Dear {ordinal}\n", "html": f"<p>Dear {ordinal}</p>\n", **texts}
    return Letter(ordinal, f"{ordinal:052d}", to or f"u{ordinal}@one.example", "", **found)  # type: ignore[arg-type]


def request_of(chosen: Sequence[Letter], attempt: str = "", everything: Sequence[Letter] = ()) -> Request:
    letters = Letters(
        "Shop <news@shop.example>", "help@shop.example", [FORM, OTHER_FORM], list(everything or chosen), []
    )
    return Request("spring", 42, attempt or new_attempt(), letters, chosen)


def verdicts(reply: Reply, chosen: Sequence[Letter]) -> dict[int, Verdict]:
    return {letter.ordinal: reply.exceptions.get(letter.ordinal, (reply.verdict, 0, ""))[0] for letter in chosen}


def same(text: str) -> str:
    """Line ends and the end of a text are the transport's: a letter may gain a last line end on its way."""
    return text.replace("\r\n", "\n").rstrip("\n")


FAULTS = ("busy", "refuse_account", "refuse_recipient", "close_before_reply", "silence", "refuse_connection")


def _for(fault: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Marks a test as one of a fault, for `Conformance.faults`."""

    def mark(test: Callable[..., None]) -> Callable[..., None]:
        test.fault = fault  # type: ignore[attr-defined]
        return test

    return mark


class Conformance:
    """Inherit it, and give it the fixture `account`.

    faults: what can happen at the provider; leave out only what cannot. knows_repeats: whether it takes the same
    request once.
    """

    faults: ClassVar[Collection[str]] = FAULTS
    knows_repeats: ClassVar[bool] = False
    # How long a call may take that nothing answers; and what an adapter may be late by.
    patience_s = 1.0
    grace_s = 3.0

    def __init_subclass__(cls, **more: Any) -> None:
        """Tests of what cannot happen are none."""
        super().__init_subclass__(**more)
        for name in dir(cls):
            fault = getattr(getattr(cls, name), "fault", None)
            if fault is not None and fault not in (*cls.faults, *(["repeats"] if cls.knows_repeats else [])):
                setattr(cls, name, None)

    @pytest.fixture
    def account(self) -> Iterator[Account]:
        raise NotImplementedError("the class under test gives this fixture")

    # -- what it says of itself ---------------------------------------------------------------------------------

    def test_it_says_what_it_can_do(self, account: Account) -> None:
        can = account.sender.capabilities
        assert can.recipients >= 1
        assert can.parallel >= 1
        assert can.calls is None or can.calls >= 1
        assert can.idempotency_window_s is None or can.idempotency_window_s > 0
        assert (can.idempotency_window_s is not None) == self.knows_repeats
        assert 1 <= len(account.sender.identity) <= 64
        assert account.sender.identity == account.sender.identity
        assert name_in(account.sender.identity, ["another", account.sender.name]) == account.sender.name
        assert account.sender.name

    # -- prepare ------------------------------------------------------------------------------------------------

    def test_the_same_request_gives_the_same_bytes(self, account: Account) -> None:
        chosen = self._one_call(account, [packed(0), packed(1)])
        one, attempt = account.sender.prepare, new_attempt()
        first, second = one(request_of(chosen, attempt)), one(request_of(chosen, attempt))
        assert (first.body, first.payload_hash) == (second.body, second.payload_hash)
        assert len(first.payload_hash) == 64
        assert int(first.payload_hash, 16) >= 0
        assert account.provider.letters() == []

    def test_other_letters_give_another_hash(self, account: Account) -> None:
        attempt = new_attempt()
        hashes = {
            account.sender.prepare(request_of([letter], attempt)).payload_hash
            for letter in (packed(0), packed(0, ["Bob", "x"]), packed(0, to="other@one.example"), packed(1), whole(0))
        }
        assert len(hashes) == 5

    def test_who_is_not_chosen_is_nowhere_in_a_call(self, account: Account) -> None:
        everything = [packed(0), packed(1, ["Somebody else", CANARY_VALUE], CANARY_ADDRESS)]
        prepared = account.sender.prepare(request_of(everything[:1], everything=everything))
        assert CANARY_ADDRESS.encode() not in prepared.body

    def test_half_a_character_is_named_and_nothing_else_suffers(self, account: Account) -> None:
        for letter in (packed(7, ["\ud800", "x"]), whole(7, text="\ud800\n"), whole(7, subject="\udfff")):
            with pytest.raises(Unsendable) as caught:
                account.sender.prepare(request_of([letter]))
            assert caught.value.ordinal == 7
            assert Outcome(caught.value.outcome).kind == "refused"

    def test_no_value_makes_a_header(self, account: Account) -> None:
        """Either the letter is named, or its subject stays one line."""
        for end in ("\r\n", "\n", "\r"):
            letter = whole(3, subject=f"Hello{end}Bcc: everybody@one.example")
            with suppress(Unsendable):
                account.sender.send(account.sender.prepare(request_of([letter])), 10.0)
        assert all("\n" not in sent.subject and "\r" not in sent.subject for sent in account.provider.letters())
        assert all(sent.to == "u3@one.example" for sent in account.provider.letters())

    # -- letters arrive, each once, as they were rendered -------------------------------------------------------

    def test_packed_letters_arrive_as_they_were_rendered(self, account: Account) -> None:
        self._arrive(account, [packed(n) for n in range(5)])

    def test_whole_letters_arrive_as_they_were_rendered(self, account: Account) -> None:
        self._arrive(account, [whole(n) for n in range(5)])

    def test_letters_of_several_kinds_arrive(self, account: Account) -> None:
        letters = [packed(0), whole(1), packed(2, ["Bob"], form=1), packed(3)]
        self._arrive(account, letters)

    def test_a_letter_of_one_part_arrives(self, account: Account) -> None:
        self._arrive(account, [whole(0, html=""), whole(1, text="")])

    def test_values_that_mean_something_to_somebody_arrive_as_they_are(self, account: Account) -> None:
        self._arrive(account, [packed(n, ["Ann", value]) for n, value in enumerate(HARD)])

    def test_texts_that_mean_something_on_the_way_arrive_as_they_are(self, account: Account) -> None:
        self._arrive(account, [whole(n, text=text, html=f"<pre>{text}</pre>\n") for n, text in enumerate(HARD_TEXTS)])

    def test_subjects_arrive_as_they_are(self, account: Account) -> None:
        self._arrive(account, [whole(n, subject=value.strip()) for n, value in enumerate(HARD) if "\t" not in value])

    def test_a_full_call_arrives(self, account: Account) -> None:
        self._arrive(account, [packed(n) for n in range(account.sender.capabilities.recipients)])

    def test_one_mailbox_that_stands_twice_gets_both(self, account: Account) -> None:
        self._arrive(account, [packed(0, to="same@one.example"), packed(1, ["B", "2"], to="Same@one.example")])

    # -- whatever the provider does, the reply tells no more than was proven ------------------------------------

    @_for("refuse_connection")
    def test_nobody_answers_so_nothing_was_sent(self, account: Account) -> None:
        reply, chosen = self._misbehaving(account, "refuse_connection")
        assert set(verdicts(reply, chosen).values()) == {Verdict.NOT_SENT}
        assert account.provider.letters() == []

    @_for("close_before_reply")
    def test_a_lost_answer_is_a_doubt(self, account: Account) -> None:
        reply, chosen = self._misbehaving(account, "close_before_reply")
        assert Verdict.UNKNOWN in verdicts(reply, chosen).values()
        self._nothing_denied(account, reply, chosen)

    @_for("silence")
    def test_silence_is_a_doubt_and_does_not_last(self, account: Account) -> None:
        began_s = time.monotonic()
        reply, chosen = self._misbehaving(account, "silence", timeout_s=self.patience_s)
        assert time.monotonic() - began_s < self.patience_s + self.grace_s
        assert Verdict.UNKNOWN in verdicts(reply, chosen).values()
        self._nothing_denied(account, reply, chosen)

    @_for("busy")
    def test_who_is_asked_to_slow_down_has_sent_nothing_and_says_so(self, account: Account) -> None:
        reply, chosen = self._misbehaving(account, "busy")
        assert set(verdicts(reply, chosen).values()) == {Verdict.NOT_SENT}
        assert reply.throttled
        assert not reply.halts_sender
        assert account.provider.letters() == []

    @_for("refuse_account")
    def test_wrong_credentials_halt_the_sender_and_refuse_nobody(self, account: Account) -> None:
        reply, chosen = self._misbehaving(account, "refuse_account")
        assert set(verdicts(reply, chosen).values()) == {Verdict.NOT_SENT}
        assert reply.halts_sender
        assert account.provider.letters() == []

    @_for("refuse_recipient")
    def test_one_bad_address_is_refused_alone(self, account: Account) -> None:
        letters = self._one_call(account, [packed(n) for n in range(4)])
        bad = letters[-1]
        reply, chosen = self._misbehaving(account, "refuse_recipient", letters=letters, address=bad.to)
        found = verdicts(reply, chosen)
        assert {ordinal for ordinal, verdict in found.items() if verdict is Verdict.REFUSED} == {bad.ordinal}
        assert all(found[letter.ordinal] is Verdict.ACCEPTED for letter in letters[:-1])
        code = reply.exceptions[bad.ordinal][1] if bad.ordinal in reply.exceptions else reply.outcome
        assert Outcome(code or Outcome.PROVIDER_REFUSED).kind == "refused"
        self._nothing_denied(account, reply, chosen)

    @_for("close_before_reply")
    def test_after_trouble_the_next_call_goes_through(self, account: Account) -> None:
        self._misbehaving(account, "close_before_reply")
        before = len(account.provider.letters())
        account.provider.misbehave("")
        letter = packed(50)
        reply = account.sender.send(account.sender.prepare(request_of([letter])), 10.0)
        assert verdicts(reply, [letter]) == {50: Verdict.ACCEPTED}
        assert [sent.message_id for sent in account.provider.letters()[before:]] == [letter.message_id]

    # -- keys ---------------------------------------------------------------------------------------------------

    @_for("repeats")
    def test_the_same_bytes_again_are_one_letter_where_it_says_so(self, account: Account) -> None:
        letters = self._one_call(account, [packed(n) for n in range(3)])
        prepared = account.sender.prepare(request_of(letters))
        for _ in range(3):
            reply = account.sender.send(prepared, 10.0)
            assert set(verdicts(reply, letters).values()) == {Verdict.ACCEPTED}
        again = account.sender.prepare(request_of(letters, prepared.request.attempt_id))
        account.sender.send(again, 10.0)
        times = Counter(sent.message_id for sent in account.provider.letters())
        assert times == {letter.message_id: 1 for letter in letters}

    # -- threads, secrets, the end ------------------------------------------------------------------------------

    def test_threads_send_side_by_side(self, account: Account) -> None:
        replies: list[Reply] = []

        def send(first: int) -> None:
            for number in range(4):
                letter = packed(first * 4 + number)
                replies.append(account.sender.send(account.sender.prepare(request_of([letter])), 30.0))

        threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [reply.verdict for reply in replies] == [Verdict.ACCEPTED] * 32
        times = Counter(sent.message_id for sent in account.provider.letters())
        assert times == {f"{number:052d}": 1 for number in range(32)}

    def test_nothing_that_it_says_names_a_person(
        self, account: Account, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
    ) -> None:
        caplog.set_level(logging.DEBUG)
        said: list[Any] = []
        for number, how in enumerate(("", *(fault for fault in FAULTS if fault in self.faults))):
            letters = [packed(number, ["Canary", CANARY_VALUE], CANARY_ADDRESS)]
            reply, _ = self._misbehaving(
                account, how, letters=letters, address=CANARY_ADDRESS, timeout_s=self.patience_s
            )
            said += [reply.reason, reply.provider_ref, *(detail for _, _, detail in reply.exceptions.values())]
        printed = capfd.readouterr()
        ours = [record.getMessage() for record in caplog.records if record.name.startswith("sendonce")]
        warned = [record.getMessage() for record in caplog.records if record.levelno >= logging.INFO]
        for text in (*map(str, said), *ours, *warned, printed.out, printed.err):
            assert CANARY_ADDRESS not in text
            assert CANARY_VALUE not in text

    def test_it_closes(self, account: Account) -> None:
        account.sender.send(account.sender.prepare(request_of([packed(0)])), 10.0)
        account.sender.close()

    # -- of use above -------------------------------------------------------------------------------------------

    def _one_call(self, account: Account, letters: Sequence[Letter]) -> list[Letter]:
        return list(letters[: account.sender.capabilities.recipients])

    def _calls(self, account: Account, letters: Sequence[Letter]) -> Iterator[list[Letter]]:
        """As `sendonce.delivery` makes requests: no more than the adapter takes."""
        can, everything, left = account.sender.capabilities, request_of(letters).letters, list(letters)
        while left:
            call = next_letters(everything, [one.ordinal for one in left], can, can.recipients)
            left = [one for one in left if one not in call]
            yield call

    def _arrive(self, account: Account, letters: Sequence[Letter]) -> None:
        texts: Mapping[str, tuple[str, tuple[str, str, str]]] = {}
        for call in self._calls(account, letters):
            request = request_of(call, everything=letters)
            reply = account.sender.send(account.sender.prepare(request), 30.0)
            assert set(verdicts(reply, call).values()) == {Verdict.ACCEPTED}, reply
            texts = {**texts, **{one.message_id: (one.to, request.letters.texts(one)) for one in call}}
        got = account.provider.letters()
        assert Counter(sent.message_id for sent in got) == dict.fromkeys(texts, 1)
        for sent in got:
            to, (subject, text, html) = texts[sent.message_id]
            assert sent.to == to
            assert sent.subject == subject
            assert same(sent.text) == same(text)
            assert same(sent.html) == same(html)

    def _misbehaving(
        self, account: Account, how: str, *, letters: Sequence[Letter] = (), address: str = "", timeout_s: float = 10.0
    ) -> tuple[Reply, list[Letter]]:
        account.provider.misbehave(how, address)
        chosen = list(letters) or self._one_call(account, [packed(n) for n in range(3)])
        return account.sender.send(account.sender.prepare(request_of(chosen)), timeout_s), chosen

    def _nothing_denied(self, account: Account, reply: Reply, chosen: Sequence[Letter]) -> None:
        """Accepted: there once. Refused or not sent: not there. In doubt: at most once."""
        times = Counter(sent.message_id for sent in account.provider.letters())
        for letter in chosen:
            verdict, number = verdicts(reply, chosen)[letter.ordinal], times[letter.message_id]
            if verdict is Verdict.ACCEPTED:
                assert number == 1
            elif verdict is Verdict.UNKNOWN:
                assert number <= 1
            else:
                assert number == 0
