"""The SMTP adapter before a fake server: connections, pace, TLS, logging in, what is written and what is kept."""

import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from schemas.outcomes import Outcome
from sendonce.failpoints import armed
from sendonce.senders.base import Verdict
from tests.providers import smtp
from tests.providers.certificates import self_signed, serving, trusting
from tests.providers.http import wait_until
from tests.providers.smtp import EXTENSIONS, FakeSmtp, Fault
from tests.senders.conformance import packed, request_of, verdicts, whole
from tests.senders.smtp_letters import PASSWORD, USER, outcomes, scene, sender_for

pytestmark = pytest.mark.needs("aiosmtplib")
SECRETS = {"user": USER, "password": PASSWORD}
LOGIN = {"users": {USER: PASSWORD}}


# -- connections ----------------------------------------------------------------------------------------------------


def test_connections_are_kept_between_requests_and_left_with_a_word() -> None:
    with scene(parallel=3) as there:
        for first in range(0, 30, 3):
            assert there.send([packed(first + n) for n in range(3)]).verdict is Verdict.ACCEPTED
        assert there.fake.connections == 1
        there.sender.close()
        wait_until(lambda: there.fake.verbs()[-1] == "QUIT")


def test_a_request_goes_side_by_side_over_no_more_connections_than_may_be() -> None:
    letters = [packed(number) for number in range(20)]
    with scene(Fault("dot", "late", delay_s=0.2), parallel=3) as there:
        began_s = time.monotonic()
        assert there.send(letters).verdict is Verdict.ACCEPTED
        took_s = time.monotonic() - began_s
    assert sorted(there.fake.recipients()) == sorted(letter.to for letter in letters)
    assert there.fake.most_at_once == 3
    assert took_s < 20 * 0.2


def test_many_requests_at_once_share_the_connections() -> None:
    found: list[Verdict] = []

    def send(first: int) -> None:
        found.append(there.send([packed(first + n) for n in range(6)], timeout_s=30).verdict)

    with scene(Fault("dot", "late", delay_s=0.005), parallel=2) as there:
        threads = [threading.Thread(target=send, args=(number * 10,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert there.fake.most_at_once <= 2
    assert found == [Verdict.ACCEPTED] * 8
    assert set(Counter(there.fake.recipients()).values()) == {1}
    assert len(there.fake.taken) == 48


def test_a_connection_brings_so_many_letters_and_no_more() -> None:
    with scene(parallel=1, letters_per_connection=4) as there:
        assert there.send([packed(number) for number in range(10)]).verdict is Verdict.ACCEPTED
        assert there.fake.most_at_once == 1
    assert Counter(letter.connection for letter in there.fake.taken) == {1: 4, 2: 4, 3: 2}
    assert there.fake.verbs().count("QUIT") == 3


def test_a_server_that_takes_one_connection_only_is_not_asked_for_more_each_time() -> None:
    def one_only(phase: str, argument: str) -> Fault | None:
        busy = phase == "banner" and there.fake.connections > 1
        return Fault("banner", "leave", "421 4.7.0 too many connections") if busy else None

    with scene(Fault("dot", "late", delay_s=0.01), parallel=4) as there:
        there.fake.rule = one_only
        for first in (0, 20, 40):
            reply = there.send([packed(first + n) for n in range(20)])
            assert (reply.verdict, reply.throttled) == (Verdict.ACCEPTED, False)
    assert there.fake.connections <= 4


def test_an_idle_connection_is_left_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendonce.senders.smtp_pool.IDLE_S", 0.05)
    with scene() as there:
        there.send([packed(0)])
        wait_until(lambda: there.fake.verbs()[-1] == "QUIT")
        assert there.send([packed(1)]).verdict is Verdict.ACCEPTED
    assert there.fake.connections == 2


def test_closing_waits_for_the_call_that_is_under_way() -> None:
    found: list[Verdict] = []
    with scene(Fault("dot", "late", delay_s=0.3)) as there:
        thread = threading.Thread(target=lambda: found.append(there.send([packed(0)]).verdict))
        thread.start()
        wait_until(lambda: "DATA" in there.fake.verbs())
        there.sender.close()
        thread.join()
        there.sender.close()
    assert found == [Verdict.ACCEPTED]
    assert not [one for one in threading.enumerate() if one.name == "sender-mail"]


def test_a_sender_that_sent_nothing_has_no_thread() -> None:
    with scene() as there:
        there.sender.prepare(request_of([packed(0)]))
        assert not [one for one in threading.enumerate() if one.name == "sender-mail"]


# -- pace -----------------------------------------------------------------------------------------------------------


def test_a_request_is_as_large_as_a_seconds_worth_and_spread_over_it() -> None:
    """Permits come for a whole request; a server that counts each second must not see it at once."""
    with scene(parallel=4, limits=[{"rate": "12/s"}]) as there:
        assert there.sender.capabilities.recipients == 12
        letters = [packed(number) for number in range(6)]
        assert there.send(letters).verdict is Verdict.ACCEPTED
    times = sorted(letter.at for letter in there.fake.taken)
    assert (times[-1] - times[0]).total_seconds() >= 0.9 * 5 / 12 - 0.02


@pytest.mark.parametrize(
    ("limits", "most"),
    [([], 20), ([{"rate": "500/s"}], 20), ([{"rate": "15/min"}], 1), ([{"cap": "5/s"}, {"rate": "14/s"}], 14)],
)
def test_an_intent_covers_20_letters_or_what_goes_in_a_second(limits: list[dict[str, str]], most: int) -> None:
    with sender_for(9, limits=limits) as sender:
        assert sender.capabilities.recipients == most


# -- what is written ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extensions", "behind_mail"), [(["PIPELINING"], b"RCPT TO:<u0@one.example>\r\nDATA\r\n"), (["8BITMIME"], b"")]
)
def test_a_letter_is_asked_for_in_one_piece_where_pipelining_is_offered(
    extensions: list[str], behind_mail: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers come late and all at once; they still belong to the commands in order."""
    seen: list[bytes] = []
    usual = smtp._Session._on_mail

    def look(session: smtp._Session, argument: str) -> None:
        seen.append(session.buffer)
        usual(session, argument)

    monkeypatch.setattr(smtp._Session, "_on_mail", look)
    with scene(Fault("mail", "late", delay_s=0.1), server={"extensions": extensions}) as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED
    assert seen == [behind_mail]


def test_the_envelope_says_what_the_server_has_to_know() -> None:
    with scene(envelope_from="bounces@shop.example") as there:
        there.send([packed(0), whole(1, text="h\u00e9\n"), whole(2, to="j\u00f6rg@one.example")])
    first, second, third = sorted(there.fake.taken, key=lambda letter: letter.data.index(b"Message-ID"))[:3]
    by_recipient = {letter.to: letter for letter in (first, second, third)}
    options = {to: letter.mail_options for to, letter in by_recipient.items()}
    sizes = {to: f"SIZE={len(_stuffed(letter.data))}" for to, letter in by_recipient.items()}
    assert options == {
        "u0@one.example": (sizes["u0@one.example"],),
        "u1@one.example": (sizes["u1@one.example"], "BODY=8BITMIME"),
        "j\u00f6rg@one.example": (sizes["j\u00f6rg@one.example"], "BODY=8BITMIME", "SMTPUTF8"),
    }
    assert {letter.mail_from for letter in there.fake.taken} == {"bounces@shop.example"}


def _stuffed(data: bytes) -> bytes:
    return data.replace(b"\r\n.", b"\r\n..")


def test_without_size_utf8_and_8bit_nothing_is_said_of_them() -> None:
    with scene(server={"extensions": []}) as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED
    assert there.fake.taken[0].mail_options == ()
    assert there.fake.taken[0].mail_from == "news@shop.example"


def test_a_server_that_knows_no_ehlo_is_greeted_with_helo() -> None:
    with scene(server={"knows_ehlo": False}) as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED
    assert there.fake.verbs()[:3] == ["EHLO", "HELO", "MAIL"]


def test_a_letter_that_is_larger_than_the_server_says_is_refused_before_it_is_begun() -> None:
    with scene(server={"extensions": ["SIZE 5000", "PIPELINING"]}) as there:
        letters = [whole(0, text="a line\n" * 2000), packed(1)]
        reply = there.send(letters)
    assert outcomes(reply, letters) == {0: Outcome.PROVIDER_TOO_LARGE}
    assert there.fake.recipients() == [letters[1].to]


@pytest.mark.parametrize("size", ["SIZE", "SIZE 0", "SIZE lots"])
def test_a_size_that_says_nothing_bounds_nothing(size: str) -> None:
    with scene(server={"extensions": [size]}) as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED


def test_refusals_of_the_sending_address_halt_and_refuse_nobody() -> None:
    with scene(Fault("mail", "reply", "550 5.7.60 you may not send as that")) as there:
        reply = there.send([packed(0), packed(1)])
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "refused_from", True)
    assert there.fake.verbs().count("MAIL") == 1


# -- TLS and logging in ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tls", "secure"), [("required", True), ("if_offered", True), ("never", False)])
def test_starttls_is_taken_where_it_may_be(tmp_path: Path, tls: str, secure: bool) -> None:
    pem = self_signed(tmp_path)
    with scene(server={"tls": serving(pem), **LOGIN}, tls=tls, ssl_context=trusting(pem), secrets=SECRETS) as there:
        large = whole(1, text="a line of a letter\n" * 100_000)
        assert there.send([packed(0), large]).verdict is Verdict.ACCEPTED
    assert [(letter.tls, letter.user) for letter in there.fake.taken] == [(secure, USER)] * 2
    assert there.fake.verbs().count("EHLO") == 1 + secure


def test_tls_from_the_first_byte(tmp_path: Path) -> None:
    pem = self_signed(tmp_path)
    server = {"tls": serving(pem), "implicit": True}
    with scene(server=server, tls="implicit", ssl_context=trusting(pem)) as there:
        assert there.send([packed(0), packed(1)]).verdict is Verdict.ACCEPTED
    assert [letter.tls for letter in there.fake.taken] == [True, True]


def test_without_starttls_nothing_goes_where_it_is_required() -> None:
    with scene(tls="required", server=LOGIN, secrets=SECRETS) as there:
        reply = there.send([packed(0)])
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "tls_not_offered", True)
    assert "AUTH" not in there.fake.verbs()


def test_if_it_is_not_offered_and_need_not_be_letters_go_without() -> None:
    with scene(tls="if_offered") as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED


@pytest.mark.parametrize("implicit", [True, False])
@pytest.mark.parametrize(
    ("address", "days", "trusted", "reason"),
    [
        ("127.0.0.1", (-1, 1), False, "tls_untrusted"),
        ("127.0.0.1", (-9, -2), True, "tls_expired"),
        ("127.0.0.9", (-1, 1), True, "tls_host"),
    ],
)
def test_a_certificate_that_is_not_good_keeps_letters_and_password_here(
    tmp_path: Path, implicit: bool, address: str, days: tuple[int, int], trusted: bool, reason: str
) -> None:
    pem = self_signed(tmp_path, address, days=days)
    other = tmp_path / "other"
    other.mkdir()
    context = trusting(pem if trusted else self_signed(other))
    server = {"tls": serving(pem), "implicit": implicit, **LOGIN}
    tls = "implicit" if implicit else "required"
    with scene(server=server, tls=tls, ssl_context=context, secrets=SECRETS) as there:
        reply = there.send([packed(0)])
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, reason, False)
    assert {"AUTH", "MAIL"}.isdisjoint(there.fake.verbs())


@pytest.mark.parametrize("auth", ["PLAIN", "LOGIN", "CRAM-MD5 LOGIN PLAIN"])
def test_it_logs_in_by_what_is_offered(auth: str) -> None:
    with scene(server={**LOGIN, "auth": auth}, secrets=SECRETS) as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED
    assert there.fake.verbs().count("AUTH") == 1


def test_a_wrong_password_is_tried_once_and_told_to_nobody(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    wrong = {"user": USER, "password": "wrong-horse"}
    with scene(server={**LOGIN, "auth": "PLAIN LOGIN"}, secrets=wrong) as there:
        reply = there.send([packed(0)])
        assert "wrong-horse" not in repr(there.sender) + repr(vars(there.sender))
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "credentials", True)
    assert there.fake.verbs().count("AUTH") == 1
    assert "sender mail is halted (credentials)" in caplog.text
    assert "wrong-horse" not in caplog.text + repr(reply)
    assert "one.example" not in caplog.text + repr(reply)


def test_a_method_that_is_not_known_after_all_is_not_the_last_one() -> None:
    no = Fault("auth", "reply", "504 5.5.4 not today", times=1)
    with scene(no, server=LOGIN, secrets=SECRETS) as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED


def test_a_server_that_lets_nobody_log_in_halts_who_has_to() -> None:
    with scene(secrets=SECRETS) as there:
        reply = there.send([packed(0)])
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "auth_not_offered", True)


# -- nobody is there ------------------------------------------------------------------------------------------------


def test_nobody_listens() -> None:
    with FakeSmtp() as fake:
        port = fake.port
    with sender_for(port) as sender:
        reply = sender.send(sender.prepare(request_of([packed(0)])), 5.0)
    assert (reply.verdict, reply.reason) == (Verdict.NOT_SENT, "connect")


def test_a_host_that_has_no_address() -> None:
    with sender_for(25, host="no-such-host.invalid") as sender:
        reply = sender.send(sender.prepare(request_of([packed(0)])), 10.0)
    assert (reply.verdict, reply.reason) in ((Verdict.NOT_SENT, "dns"), (Verdict.NOT_SENT, "timeout"))


def test_all_connections_are_taken_for_too_long() -> None:
    with scene(Fault("dot", "silence"), parallel=1) as there:
        thread = threading.Thread(target=there.send, args=([packed(0)], 1.0))
        thread.start()
        wait_until(lambda: "DATA" in there.fake.verbs())
        reply = there.send([packed(1)], timeout_s=0.2)
        thread.join()
    assert (reply.verdict, reply.reason) == (Verdict.NOT_SENT, "pool")


# -- names and failpoints -------------------------------------------------------------------------------------------


def test_the_reply_names_letters_as_the_server_does() -> None:
    with scene(parallel=1) as there:
        reply = there.send([packed(number) for number in range(3)])
    assert reply.provider_ref == "000000A 000001A 000002A"


def test_a_reply_that_is_dropped_is_a_doubt() -> None:
    with scene(parallel=1) as there, armed("S5:drop_reply:2"):
        letters = [packed(number) for number in range(3)]
        reply = there.send(letters)
    assert verdicts(reply, letters) == {0: Verdict.ACCEPTED, 1: Verdict.UNKNOWN, 2: Verdict.NOT_SENT}
    assert reply.reason == "reply_lost"


def test_a_failure_of_our_own_leaves_no_half_used_connection() -> None:
    with scene(parallel=1) as there:
        with armed("S4:raise:1"), pytest.raises(Exception, match="S4"):
            there.send([packed(0)])
        assert there.send([packed(1)]).verdict is Verdict.ACCEPTED
    assert there.fake.connections == 2


def test_addresses_that_need_smtputf8_are_refused_alone_where_it_is_not_offered() -> None:
    letters = [packed(0, to="j\u00f6rg@one.example"), packed(1, to="anna@one.example")]
    without = [extension for extension in EXTENSIONS if extension != "SMTPUTF8"]
    with scene(server={"extensions": without}) as there:
        reply = there.send(letters)
    assert outcomes(reply, letters) == {0: Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED}
    assert there.fake.recipients() == ["anna@one.example"]
    with scene() as there:
        assert there.send(letters).verdict is Verdict.ACCEPTED
    assert sorted(there.fake.recipients()) == ["anna@one.example", "j\u00f6rg@one.example"]
    assert all("xn--" not in command and "=?" not in command for _, command in there.fake.commands)
