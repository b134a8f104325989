"""The SendGrid adapter before a fake SendGrid: which calls it makes, and what it says became of each letter."""

import csv
import hashlib
import json
import math
import random
import threading
import time
from collections import Counter
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from schemas.outcomes import Outcome
from sendonce.failpoints import armed
from sendonce.senders.base import Verdict
from sendonce.senders.sendgrid import SendGrid
from sendonce.senders.sendgrid_body import Call
from sendonce.senders.sendgrid_replies import Judgement
from tests.providers.http import AFTER_STATUS, BEFORE_STATUS, Fate, patience_s
from tests.providers.sendgrid import KEY, errors
from tests.senders.sendgrid_letters import (
    CASES,
    Scene,
    outcomes,
    packed,
    request_of,
    scene,
    sender_for,
    settings,
    verdicts,
    whole,
)

BAD = "bad@@one.example"


def people_of(case: str) -> list[str]:
    with (CASES / case / "recipients.csv").open(encoding="utf-8") as file:
        return [row["email"] for row in csv.DictReader(file)]


def script_of(case: str) -> list[Fate]:
    """The scripted answers of a case's provider."""
    steps = json.loads((CASES / case / "provider.json").read_text())["steps"]
    return [
        Fate(step["status"], step.get("headers", {}), json.dumps(step["body"]).encode() if "body" in step else b"")
        for step in steps
    ]


# -- accepted -------------------------------------------------------------------------------------------------------


def test_a_form_letter_is_accepted_in_one_call(tmp_path: Path) -> None:
    letters = [packed(number) for number in range(50)]
    with scene(tmp_path) as there:
        prepared = there.sender.prepare(request_of(letters))
        reply = there.sender.send(prepared, 10)
    (line,) = there.fake.requests()
    assert (reply.verdict, reply.reason, dict(reply.exceptions)) == (Verdict.ACCEPTED, "", {})
    assert reply.provider_ref == line["sha256"][:22]
    assert (line["recipients"], line["attempt_ids"]) == (50, [prepared.request.attempt_id])
    assert prepared.payload_hash == line["sha256"]


def test_whole_letters_go_side_by_side_and_are_hashed_in_order(tmp_path: Path) -> None:
    letters = [whole(number) for number in range(24)]
    with scene(tmp_path, delay_s=0.05, parallel=6) as there:
        prepared = there.sender.prepare(request_of(letters))
        started_s = time.monotonic()
        reply = there.sender.send(prepared, 30)
        took_s = time.monotonic() - started_s
    assert reply.verdict is Verdict.ACCEPTED
    assert there.calls() == [1] * 24
    assert sorted(there.accepted()) == sorted(letter.to for letter in letters)
    assert prepared.payload_hash == hashlib.sha256(b"".join(call.body for call in prepared.calls)).hexdigest()
    assert [call.letters[0].ordinal for call in prepared.calls] == list(range(24))
    assert there.fake.connections <= 6
    assert took_s < 24 * 0.05
    assert reply.provider_ref is not None
    assert len(reply.provider_ref) <= 256


def test_connections_are_kept_between_requests(tmp_path: Path) -> None:
    with scene(tmp_path) as there:
        for number in range(5):
            assert there.send([packed(number)]).verdict is Verdict.ACCEPTED
    assert there.fake.connections == 1


def test_a_household_is_mailed_twice_in_two_calls(tmp_path: Path) -> None:
    """Case dup-in-request: the addresses that the provider took are as many as were reported."""
    letters = [packed(number, address) for number, address in enumerate(people_of("dup-in-request"))]
    with scene(tmp_path) as there:
        reply = there.send(letters)
    assert reply.verdict is Verdict.ACCEPTED
    assert not reply.exceptions
    assert sorted(there.calls()) == [1, 2]
    assert sorted(there.accepted()) == sorted(letter.to for letter in letters)


def test_the_sandbox_answers_200_and_that_is_accepted(tmp_path: Path) -> None:
    with scene(tmp_path, sandbox=True) as there:
        assert there.send([packed(0)]).verdict is Verdict.ACCEPTED
    assert there.accepted() == []


def test_two_requests_at_once_share_the_connections(tmp_path: Path) -> None:
    replies: dict[int, Verdict] = {}

    def send(there: Scene, first: int) -> None:
        letters = [whole(number, f"p{number}@one.example") for number in range(first, first + 8)]
        replies[first] = there.send(letters).verdict

    with scene(tmp_path, delay_s=0.01, parallel=3) as there:
        threads = [threading.Thread(target=send, args=(there, first)) for first in (0, 100, 200, 300)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert set(replies.values()) == {Verdict.ACCEPTED}
    assert len(set(there.accepted())) == len(there.accepted()) == 32
    assert there.fake.connections <= 3


# -- 400 ------------------------------------------------------------------------------------------------------------


def test_a_named_recipient_is_refused_and_the_others_go_in_one_more_call(tmp_path: Path) -> None:
    """Case one-bad-address-400."""
    letters = [packed(number, address) for number, address in enumerate(people_of("one-bad-address-400"))]
    with scene(tmp_path, *script_of("one-bad-address-400")) as there:
        reply = there.send(letters)
    assert there.calls() == [10, 9]
    assert sorted(there.accepted()) == sorted(letter.to for letter in letters if letter.to != BAD)
    assert outcomes(reply, letters) == {3: Outcome.PROVIDER_INVALID_ADDRESS}
    assert Counter(verdicts(reply, letters).values()) == {Verdict.ACCEPTED: 9, Verdict.REFUSED: 1}
    assert reply.exceptions[3][2] == "Does not contain a valid address."


def test_without_a_name_halves_find_the_one(tmp_path: Path) -> None:
    """Case one-bad-address-400, the provider that names no index."""
    rule = json.loads((CASES / "one-bad-address-400" / "provider-no-index.json").read_text())["rule"]

    def judge(body: dict[str, Any]) -> Fate | None:
        if rule["if_contains"] not in json.dumps(body):
            return Fate(rule["else"]["status"])
        return Fate(rule["then"]["status"], body=json.dumps(rule["then"]["body"]).encode())

    letters = [packed(number, address) for number, address in enumerate(people_of("one-bad-address-400"))]
    with scene(tmp_path, rule=judge) as there:
        reply = there.send(letters)
    assert len(there.calls()) <= 9
    assert outcomes(reply, letters) == {3: Outcome.PROVIDER_REFUSED}
    assert sorted(there.accepted()) == sorted(letter.to for letter in letters if letter.to != BAD)
    assert not reply.halts_sender


@pytest.mark.parametrize("place", [0, 1, 499, 500, 777, 999])
def test_one_of_a_thousand_is_found_in_21_calls(tmp_path: Path, place: int) -> None:
    letters = [packed(number, BAD if number == place else "") for number in range(1000)]
    with scene(tmp_path, names_fields=False, checks="limits") as there:
        reply = there.send(letters, timeout_s=60)
    assert len(there.calls()) <= 2 * math.ceil(math.log2(1000)) + 1
    assert outcomes(reply, letters) == {place: Outcome.PROVIDER_REFUSED}
    assert len(there.accepted()) == len(set(there.accepted())) == 999


def test_a_half_that_must_hold_the_fault_is_not_tried_as_a_whole(tmp_path: Path) -> None:
    """Every refused call counts against the account: SendGrid blocks those who make too many bad requests."""
    letters = [packed(number, BAD if number == 999 else "") for number in range(1000)]
    with scene(tmp_path, names_fields=False, checks="limits") as there:
        there.send(letters, timeout_s=60)
    assert len(there.calls()) == 12
    assert [line["verdict"] for line in there.fake.requests()].count("400") == 2


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("names_fields", [True, False])
def test_whoever_is_bad_the_good_ones_get_one_letter_each(tmp_path: Path, seed: int, names_fields: bool) -> None:
    chance = random.Random(seed)
    n = chance.randint(1, 40)
    bad = set(chance.sample(range(n), chance.randint(0, max(1, n // 3))))
    letters = [
        (whole if chance.random() < 0.1 else packed)(number, f"bad@@{number}.example" if number in bad else "")
        for number in range(n)
    ]
    with scene(tmp_path, names_fields=names_fields, checks="limits") as there:
        reply = there.send(letters, timeout_s=60)
    assert set(outcomes(reply, letters)) == bad
    assert sorted(there.accepted()) == sorted(letters[number].to for number in range(n) if number not in bad)
    assert {verdict for o, verdict in verdicts(reply, letters).items() if o not in bad} <= {Verdict.ACCEPTED}
    assert not reply.halts_sender


def test_two_bad_ones_of_two_are_refused_and_do_not_halt_the_sender(tmp_path: Path) -> None:
    letters = [packed(0, BAD), packed(1, "bad@@two.example")]
    with scene(tmp_path, names_fields=False) as there:
        reply = there.send(letters)
    assert set(outcomes(reply, letters)) == {0, 1}
    assert not reply.halts_sender


@pytest.mark.parametrize("make", [packed, whole])
def test_when_everything_is_refused_the_account_is_to_blame_and_nobody_is_refused(tmp_path: Path, make: Any) -> None:
    letters = [make(number) for number in range(200)]
    with scene(tmp_path, rule=lambda body: errors((None, "Bad Request")), parallel=2) as there:
        reply = there.send(letters, timeout_s=60)
    assert len(there.calls()) <= 2 * math.ceil(math.log2(200)) + 2
    assert set(verdicts(reply, letters).values()) == {Verdict.NOT_SENT}
    assert (reply.halts_sender, reply.reason) == (True, "refused_all")


def test_a_sending_address_that_is_not_verified_refuses_nobody(tmp_path: Path) -> None:
    letters = [packed(number) for number in range(10)]
    script = [errors(("from", "The from address does not match a verified Sender Identity."))]
    with scene(tmp_path, *script) as there:
        reply = there.send(letters)
    assert there.calls() == [10]
    assert set(verdicts(reply, letters).values()) == {Verdict.NOT_SENT}
    assert (reply.halts_sender, reply.reason) == (True, "refused_from")


def test_an_html_page_as_400_is_taken_for_an_answer_without_a_name(tmp_path: Path) -> None:
    with scene(tmp_path, Fate(400, body=b"<html>no</html>")) as there:
        reply = there.send([packed(0), packed(1), packed(2)])
    assert reply.verdict is Verdict.ACCEPTED
    assert sorted(there.accepted()) == ["u0@one.example", "u1@one.example", "u2@one.example"]


# -- 413 ------------------------------------------------------------------------------------------------------------


def test_a_call_that_is_too_large_is_sent_in_parts(tmp_path: Path) -> None:
    def small(body: dict[str, Any]) -> Fate | None:
        return errors((None, "content too large"), status=413) if len(body["personalizations"]) > 3 else None

    letters = [packed(number) for number in range(10)]
    with scene(tmp_path, rule=small) as there:
        reply = there.send(letters)
    assert (reply.verdict, dict(reply.exceptions)) == (Verdict.ACCEPTED, {})
    assert sorted(there.accepted()) == sorted(letter.to for letter in letters)


def test_the_second_half_of_a_call_that_was_too_large_is_tried_as_a_whole(tmp_path: Path) -> None:
    with scene(tmp_path, Fate(413)) as there:
        assert there.send([packed(number) for number in range(10)]).verdict is Verdict.ACCEPTED
    assert there.calls() == [10, 5, 5]


def test_a_letter_that_alone_is_too_large_is_refused(tmp_path: Path) -> None:
    with scene(tmp_path, Fate(413, body=b"<html>413</html>")) as there:
        reply = there.send([whole(5)])
    assert (reply.verdict, reply.outcome, reply.halts_sender) == (Verdict.REFUSED, Outcome.PROVIDER_TOO_LARGE, False)


# -- account, throttling --------------------------------------------------------------------------------------------


def test_credits_run_out_after_the_first_request(tmp_path: Path) -> None:
    """Case credits-401."""
    letters = [packed(number, address) for number, address in enumerate(people_of("credits-401"))]
    with scene(tmp_path, *script_of("credits-401")) as there:
        first, second = there.send(letters[:3]), there.send(letters[3:])
    assert first.verdict is Verdict.ACCEPTED
    assert (second.verdict, second.reason, second.halts_sender) == (Verdict.NOT_SENT, "credits", True)
    assert set(there.accepted()) == {letter.to for letter in letters[:3]}


def test_a_wrong_key_halts_the_sender_and_is_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with scene(tmp_path) as there:
        there.fake._key = "SG.other"
        reply = there.send([packed(0)])
        assert KEY not in repr(there.sender) + repr(vars(there.sender).get("_settings"))
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "credentials", True)
    said = caplog.text + repr(reply)
    assert "sender mail is halted (credentials)" in said
    assert KEY not in said
    assert "one.example" not in said


def test_a_key_revoked_in_the_middle_leaves_the_rest_unsent(tmp_path: Path) -> None:
    letters = [whole(number) for number in range(6)]
    with scene(tmp_path, Fate(), Fate(), errors((None, "revoked"), status=401), parallel=1) as there:
        reply = there.send(letters)
    found = verdicts(reply, letters)
    assert [found[number] for number in range(6)] == [Verdict.ACCEPTED] * 2 + [Verdict.NOT_SENT] * 4
    assert len(there.calls()) == 3
    assert reply.halts_sender


@pytest.mark.parametrize(("field", "reason"), [(None, "forbidden"), ("from", "refused_from")])
def test_403_halts_the_sender(tmp_path: Path, field: str | None, reason: str) -> None:
    with scene(tmp_path, errors((field, "The from address does not match"), status=403)) as there:
        reply = there.send([packed(0)])
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, reason, True)


def test_a_wrong_base_url_refuses_nobody(tmp_path: Path) -> None:
    with scene(tmp_path) as there, sender_for(there.fake.url + "/elsewhere") as lost:
        reply = lost.send(lost.prepare(request_of([packed(0)])), 10)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "http_404", True)


def test_throttled_four_ways_then_accepted(tmp_path: Path) -> None:
    """Case 429-reset-epoch: a reset ahead, one in the past, none, a date. Nobody fails; five requests in all."""
    now_s = int((CASES / "429-reset-epoch" / "clock.txt").read_text())
    date = {"Retry-After": formatdate(now_s + 5, usegmt=True)}
    script = [
        Fate(fate.status, date if "Retry-After" in fate.headers else fate.headers)
        for fate in script_of("429-reset-epoch")
    ]
    letters = [packed(number, address) for number, address in enumerate(people_of("429-reset-epoch"))]
    with scene(tmp_path, *script, now_s=now_s) as there:
        replies = [there.send(letters) for _ in script]
    assert [reply.retry_after_s for reply in replies] == [7.0, 1.0, None, 5.0, None]
    assert [reply.throttled for reply in replies] == [True] * 4 + [False]
    assert [reply.verdict for reply in replies] == [Verdict.NOT_SENT] * 4 + [Verdict.ACCEPTED]
    assert there.calls() == [5] * 5


def test_throttled_in_the_middle_of_halving(tmp_path: Path) -> None:
    """What was accepted stays so, what was not tried waits, and nobody is refused."""
    letters = [packed(number, BAD if number == 9 else "") for number in range(10)]
    script = [errors((None, "Bad Request")), Fate(), Fate(429, {"Retry-After": "3"})]
    with scene(tmp_path, *script) as there:
        reply = there.send(letters)
    found = verdicts(reply, letters)
    assert [found[number] for number in range(10)] == [Verdict.ACCEPTED] * 5 + [Verdict.NOT_SENT] * 5
    assert (reply.throttled, reply.retry_after_s) == (True, 3.0)


# -- nobody knows ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "variant", json.loads((CASES / "timeout-ambiguous" / "variants.json").read_text()), ids=lambda v: v["id"]
)
def test_accepted_and_not_said_is_not_sent_again(tmp_path: Path, variant: dict[str, Any]) -> None:
    """Case timeout-ambiguous: no answer, 503, too late, refused connection, reset before the body is read."""
    then, accepts = variant["then"], variant["accept"]
    fates = {
        "close": Fate(fault="close_after_read", accepts=accepts),
        503: Fate(503, accepts=accepts),
        "sleep 60 s": Fate(fault="stall", accepts=accepts),
        "reset before body": Fate(fault="reset_before_read"),
    }
    letters = [packed(number, address) for number, address in enumerate(people_of("timeout-ambiguous"))]
    with scene(tmp_path, *[fates[then]] if then in fates else []) as there:
        if then == "connection refused":
            there.fake.__exit__()
        reply = there.send(letters, timeout_s=0.5)
    expected = Verdict.NOT_SENT if then == "connection refused" else Verdict.UNKNOWN
    assert set(verdicts(reply, letters).values()) == {expected}
    assert len(there.accepted()) == (len(letters) if accepts else 0)


def test_after_a_doubt_the_rest_waits(tmp_path: Path) -> None:
    letters = [whole(number) for number in range(6)]
    with scene(tmp_path, Fate(), Fate(500, accepts=True), parallel=1) as there:
        reply = there.send(letters)
    found = verdicts(reply, letters)
    assert [found[number] for number in range(6)] == [Verdict.ACCEPTED, Verdict.UNKNOWN] + [Verdict.NOT_SENT] * 4
    assert reply.reason == "http_500"
    assert len(there.calls()) == 2


def test_all_calls_of_a_request_share_its_time(tmp_path: Path) -> None:
    letters = [whole(number) for number in range(8)]
    with scene(tmp_path, delay_s=0.2, parallel=1) as there:
        started_s = time.monotonic()
        reply = there.send(letters, timeout_s=0.7)
        took_s = time.monotonic() - started_s
    found = Counter(verdicts(reply, letters).values())
    assert took_s < 1.5
    assert found[Verdict.ACCEPTED] >= 1
    assert found[Verdict.UNKNOWN] <= 1
    assert found[Verdict.NOT_SENT] >= 3
    assert found[Verdict.ACCEPTED] <= len(there.accepted()) <= found[Verdict.ACCEPTED] + found[Verdict.UNKNOWN]


def test_no_call_begins_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    time_s = 0.0

    def slow_post(call: Call, timeout_s: float) -> tuple[Judgement, str]:
        nonlocal time_s
        times_left.append(timeout_s)
        time_s += 3
        return Judgement(Verdict.ACCEPTED), "m"

    times_left: list[float] = []
    letters = [whole(number) for number in range(5)]
    sender = SendGrid(settings(parallel=1), KEY, clock=lambda: time_s)
    monkeypatch.setattr(sender, "_post", slow_post)
    reply = sender.send(sender.prepare(request_of(letters)), 5)
    sender.close()
    assert times_left == [5, 2]
    assert [verdicts(reply, letters)[number] for number in range(5)] == [Verdict.ACCEPTED] * 2 + [Verdict.NOT_SENT] * 3
    assert reply.reason == "no_time_left"


@pytest.mark.parametrize("status", [202, 429, 401])
@pytest.mark.parametrize("fault", [*BEFORE_STATUS, *AFTER_STATUS])
def test_no_fault_of_the_wire_makes_a_false_verdict(tmp_path: Path, fault: str, status: int) -> None:
    """Accepted only what the provider took; not sent only what it did not."""
    letters = [packed(number) for number in range(3)]
    with scene(tmp_path, Fate(status, fault=fault)) as there:
        reply = there.send(letters, timeout_s=patience_s(fault))
    took = bool(there.accepted())
    assert (reply.verdict is Verdict.ACCEPTED) <= took
    assert (reply.verdict is Verdict.NOT_SENT) <= (not took)
    has_status_line = fault in AFTER_STATUS
    assert (reply.verdict is Verdict.UNKNOWN) == (not has_status_line)


@pytest.mark.parametrize("status", [200, 202, 400, 401, 403, 413, 429, 500, 502, 503, 504])
def test_ten_megabytes_of_html_change_no_verdict(tmp_path: Path, status: int) -> None:
    with scene(tmp_path, Fate(status, {"Content-Type": "text/html"}, b"<p>x</p>" * 1_250_000)) as there:
        reply = there.send([packed(0)], timeout_s=5)
    expected = {
        **dict.fromkeys((200, 202), Verdict.ACCEPTED),
        **dict.fromkeys((400, 413), Verdict.REFUSED),
        **dict.fromkeys((401, 403, 429), Verdict.NOT_SENT),
    }
    assert reply.verdict is expected.get(status, Verdict.UNKNOWN)
    assert (reply.halts_sender, reply.throttled) == (status in (401, 403), status == 429)


def test_a_lost_reply_by_failpoint_is_unknown(tmp_path: Path) -> None:
    with scene(tmp_path) as there, armed("S5:drop_reply:1"):
        first, second = there.send([packed(0)]), there.send([packed(1)])
    assert (first.verdict, first.reason, second.verdict) == (Verdict.UNKNOWN, "reply_lost", Verdict.ACCEPTED)
    assert len(there.accepted()) == 2


def test_the_adapter_claims_no_deduplication(tmp_path: Path) -> None:
    with scene(tmp_path, parallel=5) as there:
        capabilities = there.sender.capabilities
    assert (capabilities.recipients, capabilities.mixes_forms, capabilities.parallel) == (1000, False, 5)
    assert capabilities.idempotency_window_s is None
