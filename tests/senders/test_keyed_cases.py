"""Recorded faults of others, at Resend and at a webhook: each case once for either."""

import csv
import json
import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from schemas.letters import Letter
from schemas.outcomes import Outcome
from sendonce.senders.base import Unsendable, Verdict
from sendonce.senders.http import Answer
from tests.providers.http import Fate
from tests.senders import resend_account, webhook_account
from tests.senders.sendgrid_letters import CASES, packed, request_of, verdicts, whole

Scene = Callable[..., AbstractContextManager[Any]]
BOTH = pytest.mark.parametrize("scene", [resend_account.scene, webhook_account.scene], ids=["resend", "webhook"])


def people_of(case: str) -> list[str]:
    with (CASES / case / "recipients.csv").open(encoding="utf-8") as file:
        return [row["email"] for row in csv.DictReader(file)]


@BOTH
@pytest.mark.parametrize(
    "variant", json.loads((CASES / "timeout-ambiguous" / "variants.json").read_text()), ids=lambda v: v["id"]
)
def test_accepted_and_not_said_is_in_doubt(scene: Scene, variant: dict[str, Any]) -> None:
    """Case timeout-ambiguous: no answer, 503, too late, refused connection, reset before the body is read."""
    then, accepts = variant["then"], variant["accept"]
    fates = {
        "close": Fate(200, fault="close_after_read", accepts=accepts),
        503: Fate(503, accepts=accepts),
        "sleep 60 s": Fate(200, fault="stall", accepts=accepts),
        "reset before body": Fate(fault="reset_before_read"),
    }
    letters = [packed(number, address) for number, address in enumerate(people_of("timeout-ambiguous"))]
    with scene(*[fates[then]] if then in fates else []) as there:
        if then == "connection refused":
            there.fake.misbehave("refuse_connection")
        reply = there.send(letters, timeout_s=0.5)
        expected = Verdict.NOT_SENT if then == "connection refused" else Verdict.UNKNOWN
        assert set(verdicts(reply, letters).values()) == {expected}
        assert len(there.accepted()) == (len(letters) if accepts else 0)
        if then != "connection refused":
            assert there.send(letters).verdict is Verdict.ACCEPTED
            assert sorted(there.accepted()) == sorted(letter.to for letter in letters)


@BOTH
def test_each_letter_has_its_own_way_out(scene: Scene) -> None:
    """Case list-unsubscribe: both headers, https, and nobody gets another's link."""
    people = people_of("list-unsubscribe")
    letters = [packed(n, to, unsubscribe_url=f"https://shop.example/u/t-{n}%2B%2F") for n, to in enumerate(people)]
    with scene() as there:
        assert there.send(letters).verdict is Verdict.ACCEPTED
        said = json.loads(there.fake.attempts[0].body)
    listed = said if isinstance(said, list) else said["data"]["messages"]
    found = {one["to"] if isinstance(one["to"], str) else one["to"][0]: one["headers"] for one in listed}
    assert found == {
        to: {
            "List-Unsubscribe": f"<https://shop.example/u/t-{n}%2B%2F>",
            "List-Unsubscribe-Post": "List-Unsubscribe=One-Click",
        }
        for n, to in enumerate(people)
    }


@BOTH
@pytest.mark.parametrize("line", [0, 1])
def test_a_subject_that_hides_a_line_break_is_refused(scene: Scene, line: int) -> None:
    """Case encoded-newline-injection: whoever decodes the subject and writes it out would write a header of its own."""
    rows = (CASES / "encoded-newline-injection" / "vars.jsonl").read_text().splitlines()
    letter = whole(5, subject=f"{json.loads(rows[line])['name']}, your order")
    with scene() as there, pytest.raises(Unsendable) as caught:
        there.sender.prepare(request_of([packed(1), letter]))
    assert (caught.value.ordinal, caught.value.outcome) == (5, Outcome.RENDER_HEADER_CONTROL_CHAR)


@BOTH
def test_an_encoded_word_that_hides_nothing_goes_as_it_was_written(scene: Scene) -> None:
    rows = (CASES / "encoded-newline-injection" / "vars.jsonl").read_text().splitlines()
    subject = json.loads(rows[2])["name"]
    with scene() as there:
        there.send([whole(5, subject=subject)])
        assert [letter[1] for letter in there.fake.letters()] == [subject]


@BOTH
@pytest.mark.parametrize("end", ["\r\nBcc: evil@x.example", "\nX: y", "\rX", "\x00there"])
def test_a_line_break_in_a_subject_refuses_that_letter_alone(scene: Scene, end: str) -> None:
    """Case crlf-injection."""
    good: list[Letter] = [packed(1), packed(2)]
    with scene() as there:
        with pytest.raises(Unsendable) as caught:
            there.sender.prepare(request_of([*good, whole(5, subject=f"Hi{end}")]))
        assert (caught.value.ordinal, there.fake.attempts) == (5, [])
        assert there.send(good).verdict is Verdict.ACCEPTED


def test_an_address_beyond_ascii_is_refused_before_resend_is_asked() -> None:
    """Case smtputf8-local: its provider takes it and drops the letter later."""
    with resend_account.scene() as there, pytest.raises(Unsendable) as caught:
        there.sender.prepare(request_of([packed(n, to) for n, to in enumerate(people_of("smtputf8-local"))]))
    assert (caught.value.ordinal, caught.value.outcome) == (0, Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED)


@BOTH
@pytest.mark.parametrize("seed", range(200))
def test_no_reply_makes_an_adapter_raise(scene: Scene, seed: int) -> None:
    """Whatever JSON comes back: a verdict, and of a 2xx that names people never a refusal of somebody else."""
    chance = random.Random(seed)
    body = json.dumps(anything(chance, 3)).encode()
    status = chance.choice([200, 202, 400, 403, 409, 422, 429, 500, 503])
    letters = [packed(number) for number in range(3)]
    with scene() as there:
        prepared = there.sender.prepare(request_of(letters))
        answer = Answer(status, True, headers={"content-type": "application/json"}, body=body)
        there.sender._poster.post = lambda *_: answer
        reply = there.sender.send(prepared, 5)
    assert set(reply.exceptions) <= {0, 1, 2}
    assert reply.verdict in Verdict


def anything(chance: random.Random, depth: int) -> Any:
    names = ["data", "errors", "index", "message", "id", "results", "message_id", "status", "reason", "name"]
    leaves = [None, True, 0, 1, -1, 1.5, 10**30, "", "accepted", "refused", "x@y.example", f"{1:052d}", "`from`"]
    kind = chance.random()
    if depth == 0 or kind < 0.2:
        return chance.choice(leaves)
    if kind < 0.5:
        return [anything(chance, depth - 1) for _ in range(chance.randint(0, 3))]
    return {chance.choice(names): anything(chance, depth - 1) for _ in range(chance.randint(0, 4))}
