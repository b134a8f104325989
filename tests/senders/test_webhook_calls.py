"""The webhook adapter before a fake receiver: which calls it makes, and what it says became of each letter."""

import logging
import threading
import time
from pathlib import Path

import pytest

from schemas.ids import attempt_id
from schemas.outcomes import Outcome
from sendonce.failpoints import armed
from sendonce.senders.base import Verdict
from sendonce.senders.webhook import Webhook
from tests.providers.certificates import self_signed, serving, trusting
from tests.providers.http import Fate
from tests.providers.keyed import Answered
from tests.providers.webhook import SECRET, FakeReceiver
from tests.senders.sendgrid_letters import ATTEMPT, NOW_S, outcomes, packed, request_of, verdicts, whole
from tests.senders.webhook_account import Scene, account, scene, settings

PEOPLE = [packed(number) for number in range(20)]


def attempt(number: int) -> str:
    return attempt_id(NOW_S * 1000 + number, bytes(10))


def test_a_request_is_one_signed_call_under_the_attempts_key() -> None:
    with scene() as there:
        prepared = there.sender.prepare(request_of(PEOPLE))
        reply = there.sender.send(prepared, 10)
    (got,) = there.fake.attempts
    assert (reply.verdict, reply.reason, dict(reply.exceptions)) == (Verdict.ACCEPTED, "", {})
    assert (got.key, got.sha256, got.verdict) == (ATTEMPT, prepared.payload_hash, "200")
    assert got.headers["content-type"] == "application/json"
    assert reply.provider_ref == "order-0"
    assert there.accepted() == [letter.to for letter in PEOPLE]


def test_letters_arrive_as_they_were_rendered() -> None:
    with account() as (sender, provider):
        sender.send(sender.prepare(request_of([packed(3), whole(4)])), 10)
    assert [letter[1:4] for letter in provider.letters()] == [
        ("Hello Ann 3", "Dear Ann 3, your code is c-3.\n", "<p>Dear Ann 3, <b>c-3</b></p>\n"),
        ("Hello 4", "Dear 4\n", "<p>Dear 4</p>\n"),
    ]


def test_the_path_is_kept_as_it_is_written() -> None:
    for path in ("/letters/", "/", "/a/b"):
        with FakeReceiver(now_s=lambda: NOW_S) as fake:
            fake.path = path
            sender = Webhook(settings(url=fake.url + path, allow_private=True), SECRET, now_s=lambda: NOW_S)
            assert sender.send(sender.prepare(request_of(PEOPLE)), 10).verdict is Verdict.ACCEPTED
            sender.close()


def test_over_tls_and_only_to_whom_a_certificate_vouches_for(tmp_path: Path) -> None:
    pem = self_signed(tmp_path)
    with FakeReceiver(tls=serving(pem), now_s=lambda: NOW_S) as fake:
        known = settings(url=f"{fake.url}/letters", allow_private=True)
        for trusted, verdict in ((trusting(pem), Verdict.ACCEPTED), (None, Verdict.NOT_SENT)):
            sender = Webhook(known, SECRET, now_s=lambda: NOW_S, ssl_context=trusted)
            reply = sender.send(sender.prepare(request_of(PEOPLE, attempt=attempt(trusted is None))), 10)
            sender.close()
            assert reply.verdict is verdict
    assert reply.reason == "tls_untrusted"
    assert len(fake.letters()) == 20


# -- refused --------------------------------------------------------------------------------------------------------


def test_whoever_the_receiver_names_is_refused_alone() -> None:
    with scene() as there:
        there.fake.misbehave("refuse_recipient", "u7@one.example")
        reply = there.send(PEOPLE)
    assert outcomes(reply, PEOPLE) == {7: Outcome.PROVIDER_INVALID_ADDRESS}
    assert len(there.fake.attempts) == 1
    assert len(there.accepted()) == 19


def test_a_receiver_that_names_nobody_gets_smaller_requests_until_only_the_bad_are_refused() -> None:
    bad = {0, 41, 42, 99}
    with scene() as there:
        there.fake.answers = "whole"
        for number in bad:
            there.fake.misbehave("refuse_recipient", f"u{number}@one.example")
        left, refused, tries = list(range(100)), {}, 0
        while left:
            tries += 1
            assert tries < 200
            letters = [packed(ordinal) for ordinal in left[: there.sender.capabilities.recipients]]
            reply = there.send(letters, attempt=attempt(tries))
            refused |= outcomes(reply, letters)
            found = verdicts(reply, letters)
            left = [o for o, verdict in found.items() if verdict is Verdict.NOT_SENT] + left[len(letters) :]
    assert refused == dict.fromkeys(bad, Outcome.PROVIDER_REFUSED)
    assert sorted(there.accepted()) == sorted(f"u{number}@one.example" for number in range(100) if number not in bad)


def test_a_request_that_is_too_large_for_the_receiver_goes_in_parts_that_fit() -> None:
    letters = [whole(number, text="x" * 1000) for number in range(100)]
    with scene() as there:
        there.fake.largest = 60_000
        left, tries = letters, 0
        while left:
            tries += 1
            part = left[: there.sender.capabilities.recipients]
            reply = there.send(part, attempt=attempt(tries))
            left = left[len(part) :] if reply.verdict is Verdict.ACCEPTED else left
    assert len(there.accepted()) == 100
    assert sum(got.verdict == "413" for got in there.fake.attempts) == 1
    assert tries < 8


def test_a_request_over_our_own_bound_is_not_sent_at_all() -> None:
    letters = [whole(number, text="x" * 1000) for number in range(100)]
    with scene(max_request_bytes=60_000) as there:
        reply = there.send(letters)
        assert (reply.verdict, reply.reason, there.fake.attempts) == (Verdict.NOT_SENT, "too_large", [])
        fits = there.sender.capabilities.recipients
        assert 30 < fits < 60
        assert there.send(letters[:fits]).verdict is Verdict.ACCEPTED
        assert there.send(letters[fits : 2 * fits], attempt=attempt(1)).verdict is Verdict.ACCEPTED


def test_a_wrong_secret_halts_and_stands_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with scene() as there, caplog.at_level(logging.DEBUG):
        there.fake.secret = "whsec_" + "A" * 32
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "signature_refused", True)
    assert "sender hook is halted (signature_refused)" in caplog.text
    assert SECRET.removeprefix("whsec_") not in caplog.text
    assert "one.example" not in caplog.text


def test_a_redirect_is_not_followed() -> None:
    with FakeReceiver() as elsewhere, scene(Fate(307, {"Location": f"{elsewhere.url}/letters"})) as there:
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.UNKNOWN, "redirect", True)
    assert elsewhere.attempts == []


def test_asking_to_slow_down() -> None:
    with scene() as there:
        there.fake.misbehave("busy")
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.throttled, reply.retry_after_s) == (Verdict.NOT_SENT, True, 1.0)


# -- how far a call came --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "verdict"),
    [
        ("close_before_read", Verdict.UNKNOWN),
        ("reset_before_read", Verdict.UNKNOWN),
        ("close_after_read", Verdict.UNKNOWN),
        ("reset_after_read", Verdict.UNKNOWN),
        ("half_status", Verdict.UNKNOWN),
        ("garbage", Verdict.UNKNOWN),
        ("interim_only", Verdict.UNKNOWN),
        ("broken_body", Verdict.ACCEPTED),
        ("interim", Verdict.ACCEPTED),
        ("close_when_idle", Verdict.ACCEPTED),
        ("twice", Verdict.ACCEPTED),
    ],
)
def test_a_call_is_judged_by_how_far_it_came(fault: str, verdict: Verdict) -> None:
    with scene(Fate(200, fault=fault)) as there:
        assert there.send(PEOPLE).verdict is verdict


@pytest.mark.parametrize("fault", ["status_only", "broken_body", "headers_cut"])
def test_a_bare_2xx_stands_whatever_happens_to_the_rest(fault: str) -> None:
    with scene(Fate(204, fault=fault)) as there:
        there.fake.answers = "bare"
        assert there.send(PEOPLE).verdict is Verdict.ACCEPTED


def test_a_call_that_is_never_answered_ends_in_time() -> None:
    with scene(Fate(fault="stall", accepts=False)) as there:
        assert there.send(PEOPLE, timeout_s=0.3).reason == "timeout"


def test_a_reply_that_trickles_ends_in_time() -> None:
    with scene(Fate(200, fault="trickle")) as there:
        started_s = time.monotonic()
        reply = there.send(PEOPLE, timeout_s=0.5)
    assert (reply.verdict, reply.reason) == (Verdict.UNKNOWN, "timeout")
    assert time.monotonic() - started_s < 3


def test_a_reply_without_end_is_not_read_without_end() -> None:
    """After a megabyte the rest is left unread."""
    with scene() as there:
        there.fake.judged = lambda received: _huge()  # type: ignore[method-assign]
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.reason) == (Verdict.UNKNOWN, "garbled")


def _huge() -> Answered:
    return Answered(200, b'{"results": [' + b" " * 3_000_000 + b"]}", [], {"Content-Type": "application/json"})


def test_results_of_a_thousand_messages_are_read_whole() -> None:
    letters = [packed(number) for number in range(1000)]
    with scene(recipients=1000) as there:
        there.fake.misbehave("refuse_recipient", "u999@one.example")
        reply = there.send(letters)
    assert outcomes(reply, letters) == {999: Outcome.PROVIDER_INVALID_ADDRESS}


def test_nobody_listens() -> None:
    with scene() as there:
        there.fake.misbehave("refuse_connection")
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.reason) == (Verdict.NOT_SENT, "connect")


def test_a_lost_reply_is_had_by_asking_again() -> None:
    with scene(Fate(200, fault="close_after_read")) as there:
        assert there.send(PEOPLE).verdict is Verdict.UNKNOWN
        assert there.send(PEOPLE).verdict is Verdict.ACCEPTED
    assert [got.replayed for got in there.fake.attempts] == [False, True]
    assert len(there.accepted()) == 20


def test_a_dropped_reply_by_failpoint() -> None:
    with scene() as there, armed("S5:drop_reply"):
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.reason) == (Verdict.UNKNOWN, "reply_lost")
    assert len(there.accepted()) == 20


def test_threads_share_the_connections() -> None:
    replies: dict[int, Verdict] = {}

    def send(there: Scene, number: int) -> None:
        replies[number] = there.send([packed(number)], attempt=attempt(number)).verdict

    with scene(parallel=3) as there:
        threads = [threading.Thread(target=send, args=(there, number)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(replies.values()) == {Verdict.ACCEPTED}
    assert len(set(there.accepted())) == len(there.accepted()) == 24
    assert there.fake.connections <= 3
