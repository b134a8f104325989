"""The Resend adapter before a fake Resend: which calls it makes, and what it says became of each letter."""

import logging
import random
import threading
from dataclasses import replace

import pytest

from schemas.ids import attempt_id
from schemas.outcomes import Outcome
from sendonce.failpoints import armed
from sendonce.senders.base import Verdict
from tests.providers.http import Fate
from tests.providers.resend import KEY, FakeResend, error
from tests.senders.resend_account import Scene, account, scene, sender_for, settings
from tests.senders.sendgrid_letters import ATTEMPT, NOW_S, outcomes, packed, request_of, verdicts, whole

PEOPLE = [packed(number) for number in range(20)]


def test_a_request_is_one_call_under_the_attempts_key() -> None:
    with scene() as there:
        prepared = there.sender.prepare(request_of(PEOPLE))
        reply = there.sender.send(prepared, 10)
    (attempt,) = there.fake.attempts
    assert (reply.verdict, reply.reason, dict(reply.exceptions)) == (Verdict.ACCEPTED, "", {})
    assert (attempt.key, attempt.sha256) == (ATTEMPT, prepared.payload_hash)
    assert attempt.headers["x-batch-validation"] == "permissive"
    assert reply.provider_ref is not None
    assert len(reply.provider_ref.split()) == 6
    assert there.accepted() == [letter.to for letter in PEOPLE]


def test_letters_arrive_as_they_were_rendered() -> None:
    with account() as (sender, provider):
        sender.send(sender.prepare(request_of([packed(3), whole(4)])), 10)
    assert provider.letters() == [
        (
            "u3@one.example",
            "Hello Ann 3",
            "Dear Ann 3, your code is c-3.\n",
            "<p>Dear Ann 3, <b>c-3</b></p>\n",
            f"{3:052d}",
        ),
        ("u4@one.example", "Hello 4", "Dear 4\n", "<p>Dear 4</p>\n", f"{4:052d}"),
    ]


def test_connections_are_kept_between_requests() -> None:
    with scene() as there:
        for number in range(5):
            there.send([packed(number)], attempt=attempt_id(NOW_S * 1000 + number, bytes(10)))
    assert there.fake.connections == 1
    assert len(there.accepted()) == 5


# -- refused --------------------------------------------------------------------------------------------------------


def test_a_bad_address_is_refused_alone_in_the_same_call() -> None:
    with scene() as there:
        there.fake.misbehave("refuse_recipient", "u7@one.example")
        reply = there.send(PEOPLE)
    assert len(there.fake.attempts) == 1
    assert outcomes(reply, PEOPLE) == {7: Outcome.PROVIDER_INVALID_ADDRESS}
    assert len(there.accepted()) == 19
    assert there.sender.capabilities.recipients == 100


def deliver(there: Scene, ordinals: list[int]) -> dict[int, int]:
    """As an owner does: requests of as many as the sender carries now, until nobody is open; who was refused."""
    left, refused, tries = list(ordinals), {}, 0
    while left:
        tries += 1
        assert tries < 200
        letters = [packed(ordinal) for ordinal in left[: there.sender.capabilities.recipients]]
        reply = there.send(letters, attempt=attempt_id(NOW_S * 1000 + tries, bytes(10)))
        assert not reply.halts_sender
        refused |= outcomes(reply, letters)
        unsent = [ordinal for ordinal, verdict in verdicts(reply, letters).items() if verdict is Verdict.NOT_SENT]
        left = unsent + left[len(letters) :]
    return refused


@pytest.mark.parametrize("seed", range(6))
def test_calls_refused_as_one_get_smaller_until_only_the_bad_are_refused(seed: int) -> None:
    """Each call is an attempt of its own, so a kill at any moment repeats at most one under its own key."""
    chance = random.Random(seed)
    bad = set(chance.sample(range(100), chance.randint(1, 5)))
    with scene() as there:
        there.fake.strict = True
        for number in bad:
            there.fake.misbehave("refuse_recipient", f"u{number}@one.example")
        refused = deliver(there, list(range(100)))
    assert refused == dict.fromkeys(bad, Outcome.PROVIDER_INVALID_ADDRESS)
    assert sorted(there.accepted()) == sorted(f"u{number}@one.example" for number in range(100) if number not in bad)
    assert all(attempt.letters == 0 for attempt in there.fake.attempts if attempt.verdict == "422")


def test_requests_grow_again_as_they_are_taken() -> None:
    with scene(Fate(422)) as there:
        assert there.send([packed(number) for number in range(100)]).verdict is Verdict.NOT_SENT
        sizes = [there.sender.capabilities.recipients]
        for turn in range(3):
            letters = [packed(number) for number in range(sizes[-1])]
            there.send(letters, attempt=attempt_id(NOW_S * 1000 + turn + 1, bytes(10)))
            sizes.append(there.sender.capabilities.recipients)
    assert sizes == [25, 50, 100, 100]


def test_what_is_too_large_goes_in_requests_that_fit() -> None:
    with scene(Fate(413)) as there:
        reply = there.send([packed(number) for number in range(100)])
        assert (reply.verdict, reply.reason) == (Verdict.NOT_SENT, "http_413")
        for turn in range(6):
            letters = [packed(number) for number in range(there.sender.capabilities.recipients)]
            there.send(letters, attempt=attempt_id(NOW_S * 1000 + turn + 1, bytes(10)))
    assert 25 < there.sender.capabilities.recipients < 50


def test_a_single_letter_that_is_too_large_is_refused() -> None:
    with scene(Fate(413)) as there:
        reply = there.send([packed(0)])
    assert (reply.verdict, reply.outcome) == (Verdict.REFUSED, Outcome.PROVIDER_TOO_LARGE)


def test_eight_letters_refused_alone_in_a_row_blame_the_account() -> None:
    with scene(*[Fate(422)] * 8) as there:
        replies = [there.send([packed(number)]) for number in range(8)]
    assert [reply.verdict for reply in replies] == [Verdict.REFUSED] * 7 + [Verdict.NOT_SENT]
    assert (replies[-1].reason, replies[-1].halts_sender) == ("refused_all", True)


def test_seven_refused_and_one_taken_blame_nobody() -> None:
    with scene(*[Fate(422)] * 7, Fate(200), *[Fate(422)] * 7) as there:
        replies = [
            there.send([packed(number)], attempt=attempt_id(NOW_S * 1000 + number, bytes(10))) for number in range(15)
        ]
    assert not any(reply.halts_sender for reply in replies)


def test_a_domain_that_is_not_verified_halts(caplog: pytest.LogCaptureFixture) -> None:
    with scene() as there, caplog.at_level(logging.DEBUG):
        reply = there.send(PEOPLE, from_address="Shop <news@other.example>")
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "refused_from", True)
    assert there.accepted() == []
    assert "sender mail is halted (refused_from)" in caplog.text


def test_a_wrong_key_halts_and_stands_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    with scene(key="re_wrong_canary") as there, caplog.at_level(logging.DEBUG):
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "credentials", True)
    assert "canary" not in caplog.text
    assert "one.example" not in caplog.text


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
        ("status_only", Verdict.UNKNOWN),
        ("headers_cut", Verdict.UNKNOWN),
        ("broken_chunks", Verdict.UNKNOWN),
        ("interim", Verdict.ACCEPTED),
        ("close_when_idle", Verdict.ACCEPTED),
        ("twice", Verdict.ACCEPTED),
    ],
)
def test_a_call_is_judged_by_how_far_it_came(fault: str, verdict: Verdict) -> None:
    """A status alone is not enough here: the body says who was not taken."""
    with scene(Fate(200, fault=fault)) as there:
        reply = there.send(PEOPLE)
    assert reply.verdict is verdict


def test_a_call_that_is_never_answered_ends_in_time() -> None:
    with scene(Fate(fault="stall", accepts=False)) as there:
        assert there.send(PEOPLE, timeout_s=0.3).reason == "timeout"


def test_nobody_listens() -> None:
    with scene() as there:
        there.fake.misbehave("refuse_connection")
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.reason) == (Verdict.NOT_SENT, "connect")


@pytest.mark.parametrize("fault", ["close_after_read", "status_only", "broken_body", "garbage", "half_status"])
def test_a_lost_reply_is_had_by_asking_again(fault: str) -> None:
    with scene(Fate(200, fault=fault)) as there:
        there.fake.misbehave("refuse_recipient", "u7@one.example")
        prepared = there.sender.prepare(request_of(PEOPLE))
        there.sender.send(prepared, 10)
        assert len(there.accepted()) == 19
        reply = there.sender.send(there.sender.prepare(request_of(PEOPLE)), 10)
    assert [attempt.replayed for attempt in there.fake.attempts] == [False, True]
    assert outcomes(reply, PEOPLE) == {7: Outcome.PROVIDER_INVALID_ADDRESS}
    assert len(there.accepted()) == 19


def test_a_dropped_reply_by_failpoint() -> None:
    with scene() as there, armed("S5:drop_reply"):
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.reason) == (Verdict.UNKNOWN, "reply_lost")
    assert len(there.accepted()) == 20


def test_a_key_that_is_in_progress() -> None:
    with scene() as there:
        there.fake.rule = lambda emails: error(409, "concurrent_idempotent_requests", "In progress.")
        assert there.send(PEOPLE).verdict is Verdict.UNKNOWN


def test_a_key_known_by_other_bytes() -> None:
    with scene() as there:
        there.send(PEOPLE)
        reply = there.send(PEOPLE[:3])
    assert (reply.verdict, reply.reason) == (Verdict.NOT_SENT, "payload_changed")
    assert len(there.accepted()) == 20


def test_asking_to_slow_down() -> None:
    with scene() as there:
        there.fake.misbehave("busy")
        reply = there.send(PEOPLE)
    assert (reply.verdict, reply.throttled, reply.retry_after_s) == (Verdict.NOT_SENT, True, 1.0)


# -- the account ----------------------------------------------------------------------------------------------------


def test_the_window_leaves_an_hour_for_clocks() -> None:
    with scene() as there:
        assert there.sender.capabilities.idempotency_window_s == 23 * 3600


def test_another_key_or_place_is_another_account() -> None:
    with (
        sender_for("http://127.0.0.1:9") as one,
        sender_for("http://127.0.0.1:9") as same,
        sender_for("http://127.0.0.1:9", key="re_other") as key,
        sender_for("http://127.0.0.1:10") as place,
        sender_for("http://127.0.0.1:9", name="n" * 64) as long,
    ):
        assert one.identity == same.identity
        assert len({one.identity, key.identity, place.identity}) == 3
        assert len(long.identity) <= 64
        assert KEY not in one.identity


def test_threads_share_the_connections() -> None:
    replies: dict[int, Verdict] = {}

    def send(there: Scene, number: int) -> None:
        attempt = attempt_id(NOW_S * 1000 + number, bytes(10))
        replies[number] = there.send([packed(number)], attempt=attempt).verdict

    with scene(parallel=3) as there:
        threads = [threading.Thread(target=send, args=(there, number)) for number in range(24)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(replies.values()) == {Verdict.ACCEPTED}
    assert len(set(there.accepted())) == len(there.accepted()) == 24
    assert there.fake.connections <= 3


def test_settings_bound_a_request() -> None:
    with FakeResend() as fake, sender_for(fake.url, recipients=10) as sender:
        assert replace(sender.capabilities, idempotency_window_s=None).recipients == 10
    assert settings().recipients == 100
