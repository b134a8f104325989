"""The SES adapter before a fake SES: which calls it makes, and what it says became of each letter."""

import csv
import json
import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from schemas.outcomes import Outcome
from sendonce.failpoints import armed
from sendonce.senders.base import Verdict
from tests.providers.http import AFTER_STATUS, BEFORE_STATUS, Fate, patience_s, wait_until
from tests.providers.ses import KEY_ID, SECRET, error
from tests.senders.ses_letters import Scene, outcomes, packed, request_of, scene, sender_for, verdicts, whole

CASES = Path(__file__).resolve().parents[1] / "cases"
BAD = "bad@@one.example"


def people_of(case: str) -> list[str]:
    with (CASES / case / "recipients.csv").open(encoding="utf-8") as file:
        return [row["email"] for row in csv.DictReader(file)]


def refusing(*bad: str, status: str = "INVALID_PARAMETER", why: str = "Missing final '@domain'") -> Callable[..., Any]:
    return lambda address: (status, why) if address in bad else None


def bad_request_for(*bad: str) -> Callable[[dict[str, Any]], Fate | None]:
    """A provider that refuses a call whole for one of its addresses, and does not say for whose."""

    def rule(body: dict[str, Any]) -> Fate | None:
        refused = any(address in json.dumps(body) for address in bad)
        return error("BadRequestException", "Invalid request") if refused else None

    return rule


# -- accepted -------------------------------------------------------------------------------------------------------


def test_a_form_letter_goes_fifty_a_call_side_by_side(tmp_path: Path) -> None:
    letters = [packed(number) for number in range(400)]
    with scene(tmp_path, delay_s=0.5) as there:
        started_s = time.monotonic()
        reply = there.send(letters, 30)
        took_s = time.monotonic() - started_s
    assert (reply.verdict, reply.reason, dict(reply.exceptions)) == (Verdict.ACCEPTED, "", {})
    assert there.calls() == [50] * 8
    assert there.fake.connections == 8
    assert took_s < 8 * 0.5  # what they take one after the other
    assert Counter(there.fake.taken()) == {letter.message_id: 1 for letter in letters}
    assert {line["operation"] for line in there.fake.requests()} == {"SendBulkEmail"}
    assert reply.provider_ref is not None
    assert len(reply.provider_ref) <= 256


def test_letters_arrive_as_they_were_rendered(tmp_path: Path) -> None:
    letters = [packed(0), packed(1, values=["{{ x }}", "}}"]), packed(2, values=["été", "{"])]
    request = request_of(letters)
    with scene(tmp_path) as there:
        there.sender.send(there.sender.prepare(request), 10)
        sent = {one.to: (one.subject, one.text, one.html) for one in there.fake.letters()}
    assert sent == {letter.to: request.letters.texts(letter) for letter in letters}
    assert sorted(there.calls()) == [1, 2]


def test_what_was_prepared_is_what_goes(tmp_path: Path) -> None:
    with scene(tmp_path) as there:
        prepared = there.sender.prepare(request_of([packed(0), packed(1)]))
        there.sender.send(prepared, 10)
        (line,) = there.fake.requests()
    assert line["sha256"] == prepared.payload_hash
    assert line["attempt_ids"] == [prepared.request.attempt_id]


def test_connections_are_kept_between_requests(tmp_path: Path) -> None:
    with scene(tmp_path) as there:
        for number in range(5):
            assert there.send([packed(number)]).verdict is Verdict.ACCEPTED
    assert there.fake.connections == 1


def test_a_household_is_mailed_twice_in_one_call(tmp_path: Path) -> None:
    """Case dup-in-request: SES has an entry for each, so one address may stand twice."""
    letters = [packed(number, address) for number, address in enumerate(people_of("dup-in-request"))]
    with scene(tmp_path) as there:
        reply = there.send(letters)
    assert reply.verdict is Verdict.ACCEPTED
    assert there.calls() == [len(letters)]
    assert there.fake.taken() == [letter.message_id for letter in letters]


def test_requests_of_many_threads_share_the_connections(tmp_path: Path) -> None:
    replies: list[Verdict] = []

    def send(there: Scene, first: int) -> None:
        letters = [whole(number) for number in range(first, first + 8)]
        replies.append(there.send(letters, 30).verdict)

    with scene(tmp_path, delay_s=0.005, parallel=3) as there:
        threads = [threading.Thread(target=send, args=(there, first)) for first in (0, 100, 200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert replies == [Verdict.ACCEPTED] * 4
    assert set(Counter(there.fake.taken()).values()) == {1}
    assert len(there.fake.taken()) == 32
    assert there.fake.connections <= 3


def test_what_it_says_it_can_do(tmp_path: Path) -> None:
    with scene(tmp_path, parallel=4) as there:
        can = there.sender.capabilities
    assert (can.recipients, can.mixes_forms, can.parallel, can.calls) == (200, True, 4, 20)
    assert can.idempotency_window_s is None


# -- refused --------------------------------------------------------------------------------------------------------


def test_the_status_of_one_entry_refuses_one_recipient_in_the_same_call(tmp_path: Path) -> None:
    """Case one-bad-address-400, where SES says it in the entry."""
    letters = [packed(number, address) for number, address in enumerate(people_of("one-bad-address-400"))]
    letters = [packed(o.ordinal, "gone@one.example") if o.to == BAD else o for o in letters]
    with scene(tmp_path, entries=refusing("gone@one.example")) as there:
        reply = there.send(letters)
    assert there.calls() == [10]
    assert outcomes(reply, letters) == {3: Outcome.PROVIDER_INVALID_ADDRESS}
    assert Counter(verdicts(reply, letters).values()) == {Verdict.ACCEPTED: 9, Verdict.REFUSED: 1}
    assert there.fake.taken() == [letter.message_id for letter in letters if letter.ordinal != 3]
    assert not reply.halts_sender


@pytest.mark.parametrize("place", [0, 1, 24, 25, 49])
def test_a_call_that_is_refused_whole_is_halved(tmp_path: Path, place: int) -> None:
    letters = [packed(number) for number in range(50)]
    with scene(tmp_path, rule=bad_request_for(f"u{place}@one.example")) as there:
        reply = there.send(letters, 30)
    assert len(there.calls()) <= 2 * math.ceil(math.log2(50)) + 1
    assert outcomes(reply, letters) == {place: Outcome.PROVIDER_REFUSED}
    assert Counter(there.fake.taken()) == {o.message_id: 1 for o in letters if o.ordinal != place}
    assert not reply.halts_sender


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("by_entry", [True, False])
def test_whoever_is_bad_the_good_ones_get_one_letter_each(tmp_path: Path, seed: int, by_entry: bool) -> None:
    chance = random.Random(seed)
    n = chance.randint(2, 120)
    bad = set(chance.sample(range(n), chance.randint(0, max(1, n // 8))))
    letters = [(whole if chance.random() < 0.1 else packed)(number, f"p{number}@one.example") for number in range(n)]
    addresses = [letters[number].to for number in bad]
    rules = {"entries": refusing(*addresses)} if by_entry else {"rule": bad_request_for(*(f'"{a}"' for a in addresses))}
    with scene(tmp_path, **rules) as there:
        reply = there.send(letters, 60)
    if reply.halts_sender:  # a few that are all bad look like a bad account
        assert bad == set(range(n)) or not there.fake.taken()
        return
    assert set(outcomes(reply, letters)) == bad
    assert Counter(there.fake.taken()) == {o.message_id: 1 for o in letters if o.ordinal not in bad}
    assert {verdict for o, verdict in verdicts(reply, letters).items() if o not in bad} <= {Verdict.ACCEPTED}


@pytest.mark.parametrize("make", [packed, whole])
def test_when_everything_is_refused_the_account_is_to_blame_and_nobody_is_refused(tmp_path: Path, make: Any) -> None:
    letters = [make(number) for number in range(40)]
    with scene(tmp_path, rule=lambda body: error("BadRequestException", "Invalid"), parallel=2) as there:
        reply = there.send(letters, 60)
    assert len(there.calls()) <= 2 * math.ceil(math.log2(40)) + 2
    assert set(verdicts(reply, letters).values()) == {Verdict.NOT_SENT}
    assert (reply.halts_sender, reply.reason) == (True, "refused_all")


def test_when_every_entry_is_refused_without_blame_nobody_is(tmp_path: Path) -> None:
    letters = [packed(number) for number in range(8)]
    with scene(tmp_path, entries=lambda address: ("INVALID_PARAMETER", "Bad header")) as there:
        reply = there.send(letters)
    assert set(verdicts(reply, letters).values()) == {Verdict.NOT_SENT}
    assert (reply.halts_sender, reply.reason) == (True, "refused_all")


def test_a_letter_that_alone_is_too_large_is_refused(tmp_path: Path) -> None:
    with scene(tmp_path, Fate(413, body=b"<html>413</html>")) as there:
        reply = there.send([whole(5)])
    assert (reply.verdict, reply.outcome, reply.halts_sender) == (Verdict.REFUSED, Outcome.PROVIDER_TOO_LARGE, False)


# -- account, throttling --------------------------------------------------------------------------------------------


def test_throttled_entries_wait_and_the_others_are_done(tmp_path: Path) -> None:
    slow = refusing(
        "u3@one.example", "u4@one.example", status="ACCOUNT_THROTTLED", why="Maximum sending rate exceeded."
    )
    letters = [packed(number) for number in range(5)]
    with scene(tmp_path, entries=slow) as there:
        reply = there.send(letters)
    found = verdicts(reply, letters)
    assert [found[number] for number in range(5)] == [Verdict.ACCEPTED] * 3 + [Verdict.NOT_SENT] * 2
    assert (reply.throttled, reply.halts_sender, reply.reason) == (True, False, "throttled")


def test_a_transient_failure_of_one_entry_stops_nobody_else(tmp_path: Path) -> None:
    letters = [packed(number) for number in range(60)]
    with scene(tmp_path, entries=refusing("u3@one.example", status="TRANSIENT_FAILURE", why=""), parallel=1) as there:
        reply = there.send(letters)
    assert Counter(verdicts(reply, letters).values()) == {Verdict.ACCEPTED: 59, Verdict.NOT_SENT: 1}
    assert dict(reply.exceptions) == {3: (Verdict.NOT_SENT, 0, "")}
    assert reply.reason == "transient_failure"


def test_a_pause_in_the_middle_leaves_the_rest_unsent(tmp_path: Path) -> None:
    letters = [packed(number) for number in range(200)]
    paused = error("SendingPausedException", "paused")
    with scene(tmp_path, Fate(200), paused, parallel=1) as one, sender_for(one.fake.url, parallel=1) as sender:
        four_calls = sender.prepare(request_of(letters))
        reply = sender.send(four_calls, 10)
    found = verdicts(reply, letters)
    assert Counter(found.values()) == {Verdict.ACCEPTED: 50, Verdict.NOT_SENT: 150}
    assert (reply.halts_sender, reply.reason) == (True, "sending_paused")
    assert one.calls() == [50, 50]


def test_a_used_up_quota_waits(tmp_path: Path) -> None:
    with scene(tmp_path, error("ThrottlingException", "Daily message quota exceeded.", 429)) as there:
        reply = there.send([packed(0)])
    assert (reply.verdict, reply.throttled, reply.retry_after_s, reply.halts_sender) == (
        Verdict.NOT_SENT,
        True,
        600.0,
        False,
    )


@pytest.mark.parametrize(
    ("keys", "code"),
    [
        ({KEY_ID: "another/secret"}, "does not match"),
        ({"AKIAOTHER": SECRET}, "security token"),
    ],
)
def test_a_wrong_key_halts_the_sender_and_no_key_is_told(
    tmp_path: Path, keys: dict[str, str], code: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with scene(tmp_path) as there:
        there.fake.keys = keys
        reply = there.send([packed(0)])
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "credentials", True)
    said = caplog.text + repr(reply)
    assert "sender mail is halted (credentials)" in said
    assert code in said
    for secret in (SECRET, KEY_ID, "one.example", "Signature="):
        assert secret not in said
    assert there.fake.taken() == []


@pytest.mark.parametrize("off_s", [-7200.0, -400.0, 400.0, 7200.0])
def test_a_machine_whose_clock_is_off_signs_by_the_providers(tmp_path: Path, off_s: float) -> None:
    with scene(tmp_path, ahead_s=off_s) as there:
        first, second = there.send([packed(0), packed(1)]), there.send([packed(2)])
    assert (first.verdict, second.verdict) == (Verdict.ACCEPTED, Verdict.ACCEPTED)
    assert [line["verdict"] for line in there.fake.requests()] == ["403", "200", "200"]
    assert len(there.fake.taken()) == 3


def test_a_clock_that_nobody_can_tell_halts(tmp_path: Path) -> None:
    refusal = error("InvalidSignatureException", "Signature expired: then is now earlier than now", 403)
    timeless = Fate(403, {**refusal.headers, "Date": "soon"}, refusal.body)
    with scene(tmp_path, timeless) as there:
        reply = there.send([packed(0)])
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "clock", True)
    assert there.calls() == [1]


# -- nobody knows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant", json.loads((CASES / "timeout-ambiguous" / "variants.json").read_text()), ids=lambda v: v["id"]
)
def test_accepted_and_not_said_is_not_sent_again(tmp_path: Path, variant: dict[str, Any]) -> None:
    """Case timeout-ambiguous: no answer, 503, too late, refused connection, reset before the body is read."""
    then, accepts = variant["then"], variant["accept"]
    fates = {
        "close": Fate(200, fault="close_after_read", accepts=accepts),
        503: Fate(503, accepts=accepts),
        "sleep 60 s": Fate(200, fault="stall", accepts=accepts),
        "reset before body": Fate(200, fault="reset_before_read"),
    }
    letters = [packed(number, address) for number, address in enumerate(people_of("timeout-ambiguous"))]
    with scene(tmp_path, *[fates[then]] if then in fates else []) as there:
        if then == "connection refused":
            there.fake.__exit__()
        reply = there.send(letters, timeout_s=0.5)
    expected = Verdict.NOT_SENT if then == "connection refused" else Verdict.UNKNOWN
    assert set(verdicts(reply, letters).values()) == {expected}
    assert len(there.fake.taken()) == (len(letters) if accepts else 0)
    assert len(there.fake.requests()) == (0 if then == "connection refused" else 1)


def test_a_lost_call_puts_its_own_fifty_in_doubt(tmp_path: Path) -> None:
    letters = [packed(number) for number in range(150)]
    with scene(tmp_path, Fate(200), Fate(500, accepts=True), parallel=3) as there:
        reply = there.send(letters, 10)
    found = Counter(verdicts(reply, letters).values())
    assert found[Verdict.UNKNOWN] == 50
    assert found[Verdict.ACCEPTED] in (50, 100)
    assert reply.reason == "http_500"


def test_all_calls_of_a_request_share_its_time(tmp_path: Path) -> None:
    letters = [whole(number) for number in range(5)]
    with scene(tmp_path, delay_s=0.5, parallel=1) as there:
        started_s = time.monotonic()
        reply = there.send(letters, timeout_s=1.3)
        took_s = time.monotonic() - started_s
        wait_until(lambda: len(there.fake.taken()) >= 2)
    found = Counter(verdicts(reply, letters).values())
    assert took_s < 2.4
    assert found[Verdict.UNKNOWN] <= 1
    assert found[Verdict.NOT_SENT] >= 2
    assert found[Verdict.ACCEPTED] <= len(there.fake.taken()) <= found[Verdict.ACCEPTED] + found[Verdict.UNKNOWN]


@pytest.mark.parametrize("status", [200, 429, 403])
@pytest.mark.parametrize("fault", [*BEFORE_STATUS, *AFTER_STATUS])
@pytest.mark.parametrize("make", [packed, whole])
def test_no_fault_of_the_wire_makes_a_false_verdict(tmp_path: Path, fault: str, status: int, make: Any) -> None:
    """Accepted only what the provider took; not sent only what it did not; and never a second call."""
    letters = [make(0)]
    with scene(tmp_path, Fate(status, fault=fault)) as there:
        reply = there.send(letters, timeout_s=patience_s(fault))
    took = bool(there.fake.taken())
    assert (reply.verdict is Verdict.ACCEPTED) <= took
    assert (reply.verdict is Verdict.NOT_SENT) <= (not took)
    assert len(there.fake.requests()) == 1
    has_status_line = fault in AFTER_STATUS
    cut = make is packed and status == 200 and fault in ("status_only", "headers_cut", "broken_chunks")
    assert (reply.verdict is Verdict.UNKNOWN) == (not has_status_line or cut)


@pytest.mark.parametrize("status", [200, 400, 403, 413, 429, 500, 502, 503, 504])
def test_ten_megabytes_of_html_make_no_false_verdict(tmp_path: Path, status: int) -> None:
    with scene(tmp_path, Fate(status, {"Content-Type": "text/html"}, b"<p>x</p>" * 1_250_000)) as there:
        reply = there.send([packed(0)], timeout_s=5)
    expected = {
        **dict.fromkeys((400, 413), Verdict.REFUSED),
        **dict.fromkeys((403, 429), Verdict.NOT_SENT),
    }
    assert reply.verdict is expected.get(status, Verdict.UNKNOWN)


def test_a_lost_reply_by_failpoint_is_unknown(tmp_path: Path) -> None:
    with scene(tmp_path) as there, armed("S5:drop_reply:1"):
        first, second = there.send([packed(0)]), there.send([packed(1)])
    assert (first.verdict, first.reason, second.verdict) == (Verdict.UNKNOWN, "reply_lost", Verdict.ACCEPTED)
    assert len(there.fake.taken()) == 2
