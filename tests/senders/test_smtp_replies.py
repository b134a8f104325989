"""Replies read off the wire, and what each proves in each phase."""

import hypothesis.strategies as st
import pytest
from hypothesis import example, given

from schemas.outcomes import Outcome
from sendonce.senders.base import Verdict

pytest.importorskip("aiosmtplib", reason="aiosmtplib is not installed")

from sendonce.senders.smtp_replies import Judgement, Phase, broke, enhanced_of, judge, name_of
from sendonce.senders.smtp_wire import REPLY_MAX_BYTES, Broken, SmtpReply, stuffed, take_reply

CODES = st.integers(200, 599)
LINES = st.text(st.characters(codec="utf-8", exclude_characters="\r\n"), max_size=30)


# -- reading --------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(CODES, st.lists(LINES, min_size=1, max_size=4)), max_size=4), st.data())
def test_replies_come_out_as_they_went_in_however_they_are_cut(
    sent: list[tuple[int, list[str]]], data: st.DataObject
) -> None:
    wire = b"".join(
        "".join(f"{code}{' ' if n == len(lines) - 1 else '-'}{line}\r\n" for n, line in enumerate(lines)).encode()
        for code, lines in sent
    )
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=5)))
    received, found = bytearray(), []
    for start, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        received += wire[start:end]
        while (reply := take_reply(received)) is not None:
            found.append((reply.code, reply.text.split("\n")))
    assert found == sent
    assert not received


@pytest.mark.parametrize("wire", [b"250\r\n", b"250 ok\n", b"250-a\r\n250\r\n"])
def test_short_and_careless_replies_are_replies(wire: bytes) -> None:
    reply = take_reply(bytearray(wire))
    assert reply is not None
    assert reply.code == 250


@pytest.mark.parametrize(
    "wire",
    [
        b"hello\r\n", b"2500 ok\r\n", b"25 ok\r\n", b" 25 ok\r\n", b"+25 ok\r\n", b"100 ok\r\n", b"650 ok\r\n",
        b"250_ok\r\n", b"250-a\r\n550 b\r\n", b"\r\n", b"250 a\rb\r\n", b"250-" + b"x" * REPLY_MAX_BYTES,
        b"HTTP/1.1 400 Bad Request\r\n",
    ],
)  # fmt: skip
def test_what_is_no_reply_proves_nothing(wire: bytes) -> None:
    with pytest.raises(Broken) as caught:
        take_reply(bytearray(wire))
    assert caught.value.reason == "garbled"


@pytest.mark.parametrize("wire", [b"", b"2", b"250", b"250 ok", b"250 ok\r", b"250-ok\r\n", b"250-ok\r\n250 "])
def test_a_reply_that_has_not_ended_is_none(wire: bytes) -> None:
    received = bytearray(wire)
    assert take_reply(received) is None
    assert received == wire


# -- dots and line ends ---------------------------------------------------------------------------------------------

BODIES = st.lists(st.sampled_from(["\n", ".", "..", "a", "\n.\n", "QUIT\n", "é"]), max_size=12).map(
    lambda parts: ("".join(parts) + "\n").encode()
)


@given(BODIES)
@example(b".\n")
@example(b"a\n.\nQUIT\n")
def test_no_body_ends_itself_and_every_body_comes_back(body: bytes) -> None:
    wire = stuffed(body)
    assert not wire.startswith(b".\r\n")
    assert b"\r\n.\r\n" not in wire
    assert wire.count(b"\n") == wire.count(b"\r\n") == wire.count(b"\r")
    assert b"".join(line.removeprefix(b".") + b"\n" for line in wire.split(b"\r\n")[:-1]) == body


# -- judging --------------------------------------------------------------------------------------------------------


def judged(phase: Phase, said: str) -> Judgement:
    code, _, text = said.partition(" ")
    return judge(phase, SmtpReply(int(code), text))


@given(st.sampled_from([phase for phase in Phase if phase is not Phase.DOT]), CODES, LINES)
def test_before_the_dot_nothing_is_ever_accepted_or_in_doubt(phase: Phase, code: int, text: str) -> None:
    assert judge(phase, SmtpReply(code, text)).verdict in (Verdict.NOT_SENT, Verdict.REFUSED)


@given(st.sampled_from([Phase.CONNECT, Phase.EHLO, Phase.STARTTLS, Phase.AUTH]), CODES, LINES)
def test_before_mail_nobody_is_refused(phase: Phase, code: int, text: str) -> None:
    judgement = judge(phase, SmtpReply(code, text))
    assert (judgement.verdict, judgement.stops, judgement.broken) == (Verdict.NOT_SENT, True, True)


@given(CODES, LINES)
def test_after_the_dot_only_a_clear_no_is_no(code: int, text: str) -> None:
    verdict = judge(Phase.DOT, SmtpReply(code, text)).verdict
    assert (verdict is Verdict.ACCEPTED) == (200 <= code < 300)
    if 300 <= code < 400:
        assert verdict is Verdict.UNKNOWN


@given(st.sampled_from(Phase), CODES, LINES)
def test_details_are_of_codes_alone(phase: Phase, code: int, text: str) -> None:
    """Servers quote addresses in their words."""
    detail = judge(phase, SmtpReply(code, f"5.1.1 <canary@mailbox.example> {text}")).detail
    assert "canary" not in detail
    assert len(detail) < 40


@pytest.mark.parametrize("phase", Phase)
def test_a_break_is_a_doubt_only_after_the_dot(phase: Phase) -> None:
    judgement = broke(phase, "closed")
    assert judgement.verdict is (Verdict.UNKNOWN if phase is Phase.DOT else Verdict.NOT_SENT)
    assert (judgement.stops, judgement.broken, judgement.halts) == (True, True, False)


@pytest.mark.parametrize(
    ("phase", "said", "outcome"),
    [
        (Phase.RCPT, "550 5.1.1 no such user", Outcome.PROVIDER_UNKNOWN_MAILBOX),
        (Phase.RCPT, "550 no such user", Outcome.PROVIDER_UNKNOWN_MAILBOX),
        (Phase.RCPT, "550 5.2.1 disabled", Outcome.PROVIDER_UNKNOWN_MAILBOX),
        (Phase.RCPT, "553 not allowed", Outcome.PROVIDER_INVALID_ADDRESS),
        (Phase.RCPT, "501 5.1.3 bad address", Outcome.PROVIDER_INVALID_ADDRESS),
        (Phase.RCPT, "552 5.2.2 full", Outcome.PROVIDER_MAILBOX_FULL),
        (Phase.RCPT, "552 full", Outcome.PROVIDER_MAILBOX_FULL),
        (Phase.RCPT, "554 5.7.1 relay denied", Outcome.PROVIDER_POLICY),
        (Phase.RCPT, "550 5.4.1 denied", Outcome.PROVIDER_REFUSED),
        (Phase.DATA, "554 5.5.1 no", Outcome.PROVIDER_REFUSED),
        (Phase.DOT, "552 5.3.4 too big", Outcome.PROVIDER_TOO_LARGE),
        (Phase.DOT, "552 too big", Outcome.PROVIDER_TOO_LARGE),
        (Phase.DOT, "554 5.6.0 content", Outcome.PROVIDER_CONTENT),
        (Phase.DOT, "554 spam", Outcome.PROVIDER_CONTENT),
        (Phase.DOT, "550 5.7.1 spam", Outcome.PROVIDER_POLICY),
        (Phase.DOT, "550 5.1.1 after all", Outcome.PROVIDER_UNKNOWN_MAILBOX),
        (Phase.MAIL, "552 5.3.4 too big", Outcome.PROVIDER_TOO_LARGE),
        (Phase.MAIL, "553 5.6.7 not ASCII", Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED),
        (Phase.BODY, "552 too big", Outcome.PROVIDER_TOO_LARGE),
    ],
)
def test_refusals_of_one_letter(phase: Phase, said: str, outcome: Outcome) -> None:
    judgement = judged(phase, said)
    assert (judgement.verdict, judgement.outcome) == (Verdict.REFUSED, outcome)
    assert (judgement.stops, judgement.halts, judgement.throttled) == (False, False, False)


@pytest.mark.parametrize(
    ("phase", "said", "stops", "throttled"),
    [
        (Phase.RCPT, "450 4.2.0 greylisted", False, False),
        (Phase.RCPT, "451 4.7.1 greylisted", False, False),
        (Phase.RCPT, "452 4.2.2 full", False, False),
        (Phase.RCPT, "452 4.5.3 too many", True, True),
        (Phase.RCPT, "452 no room", True, True),
        (Phase.RCPT, "451 4.7.500 server busy", True, True),
        (Phase.MAIL, "451 4.3.0 later", True, False),
        (Phase.MAIL, "452 4.3.1 no room", True, True),
        (Phase.MAIL, "454 Throttling failure: Maximum sending rate exceeded.", True, True),
        (Phase.DATA, "451 later", False, False),
        (Phase.DOT, "454 Throttling failure: Maximum sending rate exceeded.", True, True),
        (Phase.DOT, "451 4.7.1 try later", False, False),
        (Phase.AUTH, "454 4.7.0 temporary", True, True),
        (Phase.CONNECT, "554 5.7.1 blocked", True, False),
        (Phase.CONNECT, "421 4.7.0 too many", True, True),
        (Phase.STARTTLS, "454 4.7.0 no TLS today", True, False),
    ],
)
def test_what_is_for_later(phase: Phase, said: str, stops: bool, throttled: bool) -> None:
    judgement = judged(phase, said)
    assert (judgement.verdict, judgement.stops, judgement.throttled) == (Verdict.NOT_SENT, stops, throttled)
    assert not judgement.halts


@pytest.mark.parametrize(
    ("phase", "said", "reason"),
    [
        (Phase.AUTH, "535 5.7.8 no", "credentials"),
        (Phase.AUTH, "534 5.7.9 too weak", "credentials"),
        (Phase.MAIL, "530 5.7.0 log in", "credentials"),
        (Phase.RCPT, "530 5.7.0 log in", "credentials"),
        (Phase.DOT, "535 no", "credentials"),
        (Phase.MAIL, "550 5.7.1 not you", "refused_from"),
        (Phase.MAIL, "553 5.7.1 not yours", "refused_from"),
        (Phase.MAIL, "555 5.5.4 unknown option", "refused_command"),
        (Phase.RCPT, "550 5.4.5 daily quota", "credits"),
        (Phase.DOT, "550 5.4.5 daily quota", "credits"),
    ],
)
def test_what_needs_a_person(phase: Phase, said: str, reason: str) -> None:
    judgement = judged(phase, said)
    assert (judgement.verdict, judgement.reason, judgement.halts) == (Verdict.NOT_SENT, reason, True)
    assert judgement.stops


@pytest.mark.parametrize(
    ("code", "text", "enhanced"),
    [
        (550, "5.1.1 no", "5.1.1"), (550, " 5.1.10 no", "5.1.10"), (550, "4.1.1 no", ""), (550, "no 5.1.1", ""),
        (450, "4.7.500 busy", "4.7.500"), (550, "5.1.1.1 no", ""), (550, "5.1 no", ""), (550, "", ""),
    ],
)  # fmt: skip
def test_enhanced_codes_are_of_the_replys_own_class(code: int, text: str, enhanced: str) -> None:
    assert enhanced_of(SmtpReply(code, text)) == enhanced


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("2.0.0 Ok: queued as 4XyZ12k3", "4XyZ12k3"),
        ("OK id=1tGq9x-000000001AB-2cDe", "1tGq9x-000000001AB-2cDe"),
        ("Ok 0100019a-7c1d-000000", "0100019a-7c1d-000000"),
        ("2.0.0 OK 1700000000 d2e1a72fcca58-7 - gsmtp", "1700000000"),
        ("Ok, it will be delivered", ""),
        ("2.0.0 Ok: queued as <u1@one.example>", ""),
        ("accepted", ""),
    ],
)
def test_the_servers_name_of_a_letter(text: str, name: str) -> None:
    assert name_of(SmtpReply(250, text)) == name


@pytest.mark.parametrize(
    ("phase", "said", "of_mailbox"),
    [
        (Phase.RCPT, "450 4.2.0 greylisted", True),
        (Phase.RCPT, "451 4.1.8 no", True),
        (Phase.RCPT, "450 mailbox busy", True),
        (Phase.RCPT, "451 try again", False),
        (Phase.RCPT, "450 4.7.1 later", False),
        (Phase.RCPT, "451 4.3.0 milter", False),
        (Phase.DOT, "450 busy", False),
        (Phase.MAIL, "450 4.1.8 no", False),
    ],
)
def test_what_is_put_off_for_its_own_mailbox(phase: Phase, said: str, of_mailbox: bool) -> None:
    code, _, text = said.partition(" ")
    assert judge(phase, SmtpReply(int(code), text)).of_mailbox is of_mailbox
