"""What is said of a letter by how far its transaction came: every phase, cut and disturbed in every way."""

import csv
import json
import time
from collections import Counter
from pathlib import Path

import pytest

from schemas.outcomes import Outcome
from sendonce.senders.base import Reply, Verdict
from tests.providers.certificates import self_signed, serving, trusting
from tests.providers.smtp import FakeSmtp, Fault
from tests.senders.conformance import packed, request_of, verdicts, whole
from tests.senders.smtp_letters import CASES, PASSWORD, USER, AtSmtp, outcomes, scene, sender_for

pytestmark = pytest.mark.needs("aiosmtplib")

BEFORE_MAIL = ("banner", "ehlo", "auth")
BEFORE_THE_DOT = ("mail", "rcpt", "data")
CUTS = ("close", "reset", "half", "silence", "garbage", "mixed", "unended")
LETTERS = [packed(number) for number in range(3)]
SECRETS = {"user": USER, "password": PASSWORD}
LOGIN = {"users": {USER: PASSWORD}}


def patience_s(act: str) -> float:
    """How long a request may last: silence takes all of it, or the half that is for all but the last answer."""
    return 0.4 if act == "silence" else 3


def claimed(reply: Reply, fake: FakeSmtp) -> dict[int, Verdict]:
    """The verdicts of `LETTERS`, none of which denies a letter that the server took, or claims one that it did not."""
    found = verdicts(reply, LETTERS)
    taken = Counter(fake.recipients())
    for letter in LETTERS:
        most = 0 if found[letter.ordinal] in (Verdict.NOT_SENT, Verdict.REFUSED) else 1
        least = 1 if found[letter.ordinal] is Verdict.ACCEPTED else 0
        assert least <= taken[letter.to] <= most
    return found


@pytest.mark.parametrize(
    ("phase", "act"),
    [(phase, act) for phase in BEFORE_MAIL for act in CUTS]
    + [("connect", "close"), ("connect", "reset"), ("connect", "silence")],
)
def test_without_a_conversation_nothing_was_sent(phase: str, act: str) -> None:
    with scene(Fault(phase, act), server=LOGIN, secrets=SECRETS) as there:
        reply = there.send(LETTERS, timeout_s=patience_s(act))
        assert set(claimed(reply, there.fake).values()) == {Verdict.NOT_SENT}
    # Of two codes in one reply the last counts here, which is a no.
    assert reply.reason in (("smtp_554", "credentials") if act == "mixed" else ("closed", "timeout", "garbled"))
    assert "MAIL" not in there.fake.verbs()


@pytest.mark.parametrize("pipelining", [True, False])
@pytest.mark.parametrize("act", CUTS)
@pytest.mark.parametrize("phase", BEFORE_THE_DOT)
def test_a_cut_before_the_dot_sent_nothing_and_stops(phase: str, act: str, pipelining: bool) -> None:
    """The second letter is cut; the first is accepted, and the third never begun."""
    extensions = ["PIPELINING"] if pipelining else []
    fault = Fault(phase, act, after=1)
    with scene(fault, server={"extensions": extensions}, parallel=1) as there:
        reply = there.send(LETTERS, timeout_s=patience_s(act))
        found = claimed(reply, there.fake)
    assert found == {0: Verdict.ACCEPTED, 1: Verdict.NOT_SENT, 2: Verdict.NOT_SENT}
    assert reply.reason in ("closed", "timeout", "garbled")
    assert there.fake.recipients() == [LETTERS[0].to]
    assert f"RCPT TO:<{LETTERS[2].to}>" not in [command for _, command in there.fake.commands]


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("act", CUTS)
def test_a_cut_after_the_dot_is_a_doubt_and_stops(act: str, takes: bool) -> None:
    with scene(Fault("dot", act, after=1, takes=takes), parallel=1) as there:
        reply = there.send(LETTERS, timeout_s=patience_s(act))
        found = claimed(reply, there.fake)
    assert found == {0: Verdict.ACCEPTED, 1: Verdict.UNKNOWN, 2: Verdict.NOT_SENT}
    assert reply.reason in ("closed", "timeout", "garbled")
    assert not reply.halts_sender


def test_a_cut_after_the_reply_changes_nothing() -> None:
    with scene(Fault("after", "close"), parallel=1) as there:
        reply = there.send(LETTERS)
        assert set(claimed(reply, there.fake).values()) == {Verdict.ACCEPTED}
    assert (reply.reason, there.fake.connections) == ("", 3)


@pytest.mark.parametrize("act", ["close", "reset", "silence"])
def test_a_cut_in_the_middle_of_the_body_sent_nothing(act: str) -> None:
    """The dot had not left: more of the body still waited than any buffer on the way holds."""
    large = whole(0, html="", text="a line of a long letter\n" * 1_000_000)
    with scene(Fault("body", act, body_bytes=100_000)) as there:
        reply = there.send([large], timeout_s=3)
    assert (reply.verdict, there.fake.taken) == (Verdict.NOT_SENT, [])
    assert reply.reason in ("closed", "timeout")


@pytest.mark.parametrize("act", ["close", "reset"])
def test_a_small_body_that_was_cut_is_no_more_than_a_doubt(act: str) -> None:
    """Its dot had left before the cut was to be seen: nobody can tell."""
    with scene(Fault("body", act, body_bytes=10, delay_s=0.05)) as there:
        reply = there.send([packed(0)])
    assert reply.verdict in (Verdict.UNKNOWN, Verdict.NOT_SENT)
    assert there.fake.taken == []


@pytest.mark.parametrize("said", ["552 5.3.4 too large", "451 4.3.0 no"])
def test_a_server_that_refuses_within_the_body_gets_no_dot(said: str) -> None:
    large = whole(0, html="", text="a line of a long letter\n" * 1_000_000)
    with scene(Fault("body", "leave", said, body_bytes=100_000)) as there:
        reply = there.send([large], timeout_s=5)
    refused = Verdict.REFUSED if said.startswith("5") else Verdict.NOT_SENT
    # The reply may be lost with the connection, if that is reset before it is read.
    assert reply.verdict in (refused, Verdict.NOT_SENT)
    assert there.fake.taken == []


@pytest.mark.parametrize(
    ("phase", "act"),
    [(phase, act) for phase in ("starttls", "handshake") for act in ("close", "reset", "silence")]
    + [("starttls", "garbage")],
)
def test_a_cut_at_starttls_sent_nothing(tmp_path: Path, phase: str, act: str) -> None:
    pem = self_signed(tmp_path)
    with scene(
        Fault(phase, act), server={"tls": serving(pem)}, tls="required", ssl_context=trusting(pem), secrets=None
    ) as there:
        reply = there.send(LETTERS, timeout_s=patience_s(act))
        assert set(claimed(reply, there.fake).values()) == {Verdict.NOT_SENT}
    assert "MAIL" not in there.fake.verbs()


@pytest.mark.parametrize("phase", ["banner", "ehlo", "auth", "mail", "rcpt", "data", "dot"])
@pytest.mark.parametrize("act", ["slow", "lines"])
def test_slow_replies_and_those_of_many_lines_are_read_to_their_end(phase: str, act: str) -> None:
    with scene(Fault(phase, act), server=LOGIN, secrets=SECRETS, parallel=1) as there:
        reply = there.send(LETTERS)
        assert set(claimed(reply, there.fake).values()) == {Verdict.ACCEPTED}


@pytest.mark.parametrize("phase", ["mail", "rcpt", "data", "dot"])
def test_a_reply_too_many_is_never_taken_for_the_next_ones(phase: str) -> None:
    """Else the second letter's recipient would be told the first one's fate."""
    with scene(Fault(phase, "twice", times=1), parallel=1) as there:
        reply = there.send(LETTERS)
        found = claimed(reply, there.fake)
    # Where the second one comes late, what follows does not fit, and the connection ends before anything is sent. The
    # second 354 may come when the dot has left: then it is no answer to that.
    late = {Verdict.UNKNOWN} if phase == "data" else set()
    assert set(found.values()) <= {Verdict.ACCEPTED, Verdict.NOT_SENT} | late
    assert phase != "dot" or found[0] is Verdict.ACCEPTED


@pytest.mark.parametrize("phase", ["banner", "ehlo", "auth", "mail", "rcpt", "data"])
def test_421_before_the_dot_sent_nothing_and_slows_down(phase: str) -> None:
    with scene(Fault(phase, "leave", "421 4.3.2 closing"), server=LOGIN, secrets=SECRETS) as there:
        reply = there.send(LETTERS)
        assert set(claimed(reply, there.fake).values()) == {Verdict.NOT_SENT}
    assert (reply.reason, reply.throttled, reply.halts_sender) == ("smtp_421", True, False)
    assert there.fake.connections == 1


@pytest.mark.parametrize(
    ("said", "verdict"),
    [
        ("421 4.4.2 timeout exceeded", Verdict.UNKNOWN),
        ("421 closing", Verdict.UNKNOWN),
        ("421 4.7.28 unusual rate", Verdict.NOT_SENT),
    ],
)
@pytest.mark.parametrize("takes", [True, False])
def test_421_after_the_dot_proves_nothing_unless_it_judges_the_letter(said: str, verdict: Verdict, takes: bool) -> None:
    takes = takes and verdict is Verdict.UNKNOWN
    with scene(Fault("dot", "leave", said, takes=takes), parallel=1) as there:
        reply = there.send(LETTERS)
        assert claimed(reply, there.fake) == {0: verdict, 1: Verdict.NOT_SENT, 2: Verdict.NOT_SENT}
    assert reply.throttled == (verdict is Verdict.NOT_SENT)


def test_the_reply_to_the_dot_has_the_rest_of_the_time() -> None:
    with scene(Fault("dot", "late", delay_s=1.5)) as there:
        assert there.send([packed(0)], timeout_s=2.5).verdict is Verdict.ACCEPTED


def test_no_letter_is_begun_when_its_reply_would_come_too_late() -> None:
    """Half of a short time is for letters, the other half for answers."""
    with scene(Fault("dot", "late", delay_s=0.4), parallel=1) as there:
        reply = there.send(LETTERS, timeout_s=1)
        found = claimed(reply, there.fake)
    assert found == {0: Verdict.ACCEPTED, 1: Verdict.ACCEPTED, 2: Verdict.NOT_SENT}
    assert reply.reason == "no_time_left"


def test_an_answer_may_come_long_after_a_request_had_to_leave() -> None:
    """RFC 5321 4.5.3.2.6: ten minutes for the answer to the final dot. Letters are still begun only in time."""
    with scene(Fault("dot", "late", delay_s=2.5), parallel=1) as there:
        request = there.sender.prepare(request_of(LETTERS))
        reply = there.sender.send_and_wait(request, 2.0, 600.0)
        found = claimed(reply, there.fake)
    assert found == {0: Verdict.ACCEPTED, 1: Verdict.NOT_SENT, 2: Verdict.NOT_SENT}
    assert reply.reason == "no_time_left"


def test_an_answer_is_waited_for_no_longer_than_it_was_given() -> None:
    with scene(Fault("dot", "silence", takes=True), parallel=1) as there:
        began = time.monotonic()
        reply = there.sender.send_and_wait(there.sender.prepare(request_of(LETTERS[:1])), 0.2, 0.6)
        assert time.monotonic() - began >= 0.6
    assert (reply.verdict, reply.reason) == (Verdict.UNKNOWN, "timeout")


@pytest.mark.parametrize("variant", json.loads((CASES / "data-timeout" / "variants.json").read_text()))
def test_a_lost_reply_is_a_doubt_and_a_lost_body_is_not(variant: dict[str, object]) -> None:
    """Case data-timeout."""
    phase = {"after-dot": "dot", "DATA": "data", "mid-body": "body"}[str(variant["at"])]
    act = "silence" if variant["action"] == "sleep" else "close"
    text = "a line\n" * (3_000_000 if phase == "body" else 1)
    letter = whole(0, html="", text=text)
    with scene(Fault(phase, act, takes=bool(variant["store"]), body_bytes=10_000)) as there:
        reply = there.send([letter], timeout_s=1.5)
    assert reply.verdict is (Verdict.NOT_SENT if variant["retry"] else Verdict.UNKNOWN)
    assert len(there.fake.taken) == int(bool(variant["store"]))


def test_a_session_that_ends_after_some_letters_fails_nobody() -> None:
    """Case 421-mid-batch: ten letters, each once, by three connections."""
    with (CASES / "421-mid-batch" / "recipients.csv").open() as file:
        people = [row["email"] for row in csv.DictReader(file)]
    left = [packed(number, to=to) for number, to in enumerate(people)]
    faults = [
        Fault("mail", "leave", "421 4.3.2 closing", after=3, times=1),
        Fault("after", "close", after=6, times=1),
    ]
    replies = []
    with scene(*faults, parallel=1) as there:
        while left:
            replies.append(there.send(left))
            assert Verdict.REFUSED not in verdicts(replies[-1], left).values()
            left = [o for o in left if verdicts(replies[-1], left)[o.ordinal] is Verdict.NOT_SENT]
    assert there.fake.recipients() == people
    assert there.fake.connections == 3
    assert [reply.throttled for reply in replies] == [True, False]


def test_a_connection_that_went_stale_costs_nobody_a_try() -> None:
    with scene(parallel=1) as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED
        there.fake.drop()
        time.sleep(0.05)
        assert there.send([packed(1)]).verdict is Verdict.ACCEPTED
        there.fake.faults.append(Fault("mail", "close", after=2, times=1))
        assert there.send([packed(2)]).verdict is Verdict.ACCEPTED
        there.fake.faults[:] = [Fault("mail", "leave", "421 4.4.2 idle too long", after=4, times=1)]
        assert there.send([packed(3)]).verdict is Verdict.ACCEPTED
    assert len(there.fake.taken) == 4


@pytest.mark.parametrize("pipelining", [True, False])
def test_a_refused_recipient_does_not_touch_the_neighbours(pipelining: bool) -> None:
    def rule(phase: str, argument: str) -> Fault | None:
        return Fault("rcpt", "reply", "550 5.1.1 unknown") if (phase, argument) == ("rcpt", LETTERS[1].to) else None

    extensions = ["PIPELINING"] if pipelining else []
    with scene(server={"rule": rule, "extensions": extensions}, parallel=1) as there:
        reply = there.send(LETTERS)
        found = claimed(reply, there.fake)
    assert found == {0: Verdict.ACCEPTED, 1: Verdict.REFUSED, 2: Verdict.ACCEPTED}
    assert outcomes(reply, LETTERS) == {1: Outcome.PROVIDER_UNKNOWN_MAILBOX}
    assert reply.exceptions[1][2] == "smtp 550 5.1.1 at rcpt"
    assert there.fake.connections == 1


def test_a_server_that_asks_for_a_body_without_a_recipient_gets_none() -> None:
    """RFC 2920 3.1: pipelined DATA may be answered by 354 though RCPT was refused."""
    with FakeSmtp(Fault("rcpt", "reply", "550 5.1.1 unknown", times=1)) as fake, sender_for(fake.port) as sender:
        from tests.providers import smtp

        real = smtp._Session._on_data

        def eager(session: smtp._Session, argument: str) -> None:
            if session.to is not None:
                real(session, argument)
                return
            session._send("354 go ahead")
            assert session._until_dot() == b""
            session.mail = None
            session._send("554 5.5.1 no valid recipients")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(smtp._Session, "_on_data", eager)
            from tests.senders.conformance import request_of

            reply = sender.send(sender.prepare(request_of(LETTERS)), 10.0)
    assert verdicts(reply, LETTERS) == {0: Verdict.REFUSED, 1: Verdict.ACCEPTED, 2: Verdict.ACCEPTED}
    assert fake.recipients() == [LETTERS[1].to, LETTERS[2].to]
    assert fake.connections == 1


@pytest.mark.parametrize(
    "one", json.loads((CASES / "code-classes" / "replies.json").read_text()), ids=lambda o: o["reply"]
)
def test_codes_mean_what_their_stage_makes_of_them(one: dict[str, str]) -> None:
    """Case code-classes."""
    phase = {"DATA-end": "dot", "connect": "banner"}.get(one["stage"], one["stage"].lower())
    with scene(Fault(phase, "reply", one["reply"], times=1), server=LOGIN, secrets=SECRETS, parallel=1) as there:
        reply = there.send([packed(0)])
    expect = one["expect"]
    if expect == "pause campaign":
        assert (reply.verdict, reply.halts_sender) == (Verdict.NOT_SENT, True)
    elif expect.startswith("permanent"):
        assert (reply.verdict, reply.halts_sender) == (Verdict.REFUSED, False)
        assert (reply.outcome == Outcome.PROVIDER_UNKNOWN_MAILBOX) == ("+suppress" in expect)
    else:
        assert (reply.verdict, reply.halts_sender) == (Verdict.NOT_SENT, False)
    assert there.fake.taken == []


def test_when_everybody_is_refused_by_policy_nobody_is() -> None:
    letters = [packed(number) for number in range(10)]
    with scene(Fault("rcpt", "reply", "554 5.7.1 relay access denied")) as there:
        reply = there.send(letters)
    assert set(verdicts(reply, letters).values()) == {Verdict.NOT_SENT}
    assert (reply.reason, reply.halts_sender) == ("refused_all", True)


def test_the_fake_says_of_itself_what_it_took() -> None:
    with scene() as there:
        there.send(LETTERS)
        assert {sent.message_id for sent in AtSmtp(there.fake).letters()} == {o.message_id for o in LETTERS}
