"""Sends through the whole graph: from a trigger's bytes to letters in the outbox."""

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.elements import TriggerMessage
from schemas.ids import own_recipient_id
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, OutboundMessage, Recipient
from sendonce.config import Config, apply_config
from sendonce.control.pushed_templates import push_template
from sendonce.moments import to_micros
from sendonce.rendering.catalogue import source_of
from tests.control.sending import FILES, body, template, to
from tests.pipelines.shop import Shop

CASES = Path(__file__).parent.parent / "cases"
# Short, so that what a killed process had in its hands is soon another's; the inequalities between them hold.
QUICK = {
    "times": {
        "permit_ttl_s": 0.5,
        "request_timeout_s": 0.4,
        "margin_s": 0.1,
        "lease_s": 1.2,
        "visibility_s": 1.0,
        "window_s": 0.9,
    },
    "hold_max_s": 0.5,
}


@pytest.fixture(autouse=True)
def _sends(shop: Shop) -> None:
    configure(shop)
    push_template(shop.store, template(), "test")


def configure(shop: Shop, **guards: Any) -> None:
    outbox = {"adapter": "outbox", "path": str(shop.folder / "outbox")}
    settings = {
        "from": "Shop <codes@shop.example>",
        "senders": {"outbox": outbox},
        "lanes": {"critical": QUICK, "high": QUICK},
        **guards,
    }
    apply_config(shop.store, Config.model_validate(settings), "test")


def messages(*bodies: bytes) -> list[TriggerMessage]:
    return [TriggerMessage(one, "{}", str(number)) for number, one in enumerate(bodies)]


def send(shop: Shop, *bodies: bytes) -> list[str]:
    return [result.ended for result in shop.run(triggers=messages(*bodies)).triggers]


def batch(shop: Shop, key: str) -> Batch:
    (found,) = [row for row in shop.store.read(lambda reader: reader.scan(Batch)) if row.idempotency_key == key]
    return found


def reasons(shop: Shop, key: str) -> list[str]:
    return [Outcome(code).reason or Outcome(code).kind for code in batch(shop, key).outcomes]


def test_a_send_becomes_letters_with_the_publishers_own_ids(shop: Shop) -> None:
    first = to(1, variables={"code": "111111"})
    second = to(2, email="Bob@Two.example", variables={"code": "222222"})
    assert send(shop, body("order-1", [first, second])) == ["applied"]

    letters = {letter["To"]: letter.get_body(("plain",)).get_content() for letter in shop.letters()}  # type: ignore[union-attr]
    assert letters == {"u1@one.example": "u1: 111111\n", "Bob@two.example": "u2: 222222\n"}
    assert {letter["From"] for letter in shop.letters()} == {"Shop <codes@shop.example>"}
    assert reasons(shop, "order-1") == ["accepted", "accepted"]
    people = shop.store.read(lambda reader: reader.scan(Recipient))
    assert {(own_recipient_id(one.recipient_id), one.email, one.template_variables) for one in people} == {
        ("u1", "", "{}"),
        ("u2", "", "{}"),
    }


def test_the_same_send_many_times_and_at_several_runs_is_one_letter(shop: Shop) -> None:
    assert send(shop, *[body("a")] * 5) == ["applied"] + ["ignored"] * 4
    assert send(shop, body("a"), body("a", [to(2)])) == ["ignored", "bad"]
    assert len(shop.letters()) == 1
    (letter,) = shop.dead_letters()
    assert (letter.reason, letter.stage, letter.body) == ("idempotency_conflict", "trigger", body("a", [to(2)]))


def test_a_codes_end_counts_from_its_publishing_and_not_from_when_a_worker_read_it(shop: Shop) -> None:
    """A job on a runner of the cloud that was down for an hour would have sent codes that were an hour old."""
    now = shop.store.read(lambda reader: reader.now())
    ages = {"hour": timedelta(hours=1), "late": timedelta(minutes=10, seconds=1), "young": timedelta(minutes=1)}
    known = [TriggerMessage(body(key), "{}", key, to_micros(now - age)) for key, age in ages.items()]
    report = shop.run(triggers=[*known, TriggerMessage(body("unknown"), "{}", "unknown")])
    assert [result.ended for result in report.triggers] == ["applied"] * 4
    found = {key: reasons(shop, key)[0] for key in (*ages, "unknown")}
    assert found == {"hour": "expired", "late": "expired", "young": "accepted", "unknown": "accepted"}
    assert batch(shop, "young").expires_at == now + timedelta(minutes=9)


def test_case_duplicate_delivery_of_a_send_is_one_run(shop: Shop) -> None:
    lines = (CASES / "duplicate-delivery" / "messages.jsonl").read_text().splitlines()
    deliveries = [json.loads(line) for line in lines]
    rows = (CASES / "duplicate-delivery" / "recipients.csv").read_text().splitlines()[1:]
    people = [to(row.split(",")[0], email=row.split(",")[1]) for row in rows]
    bodies = [body(delivery["data"]["campaign_id"], people) for delivery in deliveries]
    assert send(shop, *bodies) == ["applied", "ignored", "ignored"]
    assert len(shop.letters()) == 3


def test_a_hundred_sends_go_in_one_run(shop: Shop) -> None:
    assert send(shop, *(body(f"k{n}", [to(n)]) for n in range(100))) == ["applied"] * 100
    assert len(shop.letters()) == 100
    (stream,) = shop.store.read(lambda reader: reader.scan(Campaign))
    assert (stream.kind, stream.state) == ("stream", "running")


def test_a_send_whose_template_fails_for_all_ends_alone_and_the_next_version_goes(shop: Shop) -> None:
    """A template with a fault halted its campaign; a whole day's codes would have waited for a person."""
    push_template(shop.store, template(body_txt_j2="{{ code "), "test")
    assert send(shop, body("broken", [to(1), to(2)])) == ["applied"]
    assert reasons(shop, "broken") == ["render.error", "render.error"]
    push_template(shop.store, template(), "test")
    assert send(shop, body("mended", [to(1)])) == ["applied"]

    assert reasons(shop, "mended") == ["accepted"]
    campaign = batch(shop, "mended").campaign_id
    assert batch(shop, "broken").campaign_id == campaign
    assert shop.state(campaign) == ("running", None)
    letters = shop.dead_letters()
    assert {(one.stage, one.reason, one.ordinal) for one in letters} == {
        ("render", "template_fault", 0),
        ("render", "template_fault", 1),
    }


def test_a_variable_that_is_missing_refuses_its_recipient(shop: Shop) -> None:
    assert send(shop, body("a", [to(1), to(2, variables={})])) == ["applied"]
    assert reasons(shop, "a") == ["accepted", "render.undefined_variable"]


def test_each_send_comes_from_the_address_of_its_own_template(shop: Shop) -> None:
    send(shop, body("a"))
    own = source_of("otp", {**FILES, "template.yaml": FILES["template.yaml"] + "from: New <new@shop.example>\n"})
    push_template(shop.store, own, "test")
    send(shop, body("b"))
    assert sorted(letter["From"] for letter in shop.letters()) == [
        "New <new@shop.example>",
        "Shop <codes@shop.example>",
    ]


def test_the_guards_of_campaigns_hold_for_sends(shop: Shop) -> None:
    configure(shop, recipients_allowed=["u1@one.example"])
    send(shop, body("a", [to(1), to(2)]))
    assert reasons(shop, "a") == ["accepted", "skipped.not_allowed"]
    configure(shop, redirect_all_to="qa@shop.example")
    send(shop, body("b", [to(3)]))
    assert sorted(letter["To"] for letter in shop.letters()) == ["qa@shop.example", "u1@one.example"]


def test_whoever_is_suppressed_gets_no_send(shop: Shop) -> None:
    from sendonce.control.suppressions import add

    add(shop.store, "U1@one.example", by="ann")
    send(shop, body("a", [to(1), to(2)]))
    assert reasons(shop, "a") == ["suppressed.manual", "accepted"]


def test_a_run_ends_while_a_stream_runs_on(shop: Shop) -> None:
    report = shop.run(triggers=messages(body("a")))
    assert (report.ended, report.unfinished) == ("done", 0)
    assert shop.run().ended == "done"


@pytest.mark.parametrize("point", ["S1", "S3", "S7"])
def test_a_kill_between_any_two_steps_loses_nothing_and_sends_nothing_twice(shop: Shop, point: str) -> None:
    triggers = shop.folder / "triggers.ndjson"
    bodies = [body(f"k{n}", [to(n), to(f"{n}b")]) for n in range(3)]
    triggers.write_bytes(b"\n".join(bodies) + b"\n")
    program = "from sendonce.cli.main import run; import sys; sys.exit(run(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "run", "--triggers", str(triggers)]
    root = str(Path(__file__).parent.parent.parent)
    environment = {**os.environ, "SENDONCE_STORE": shop.url, "SENDONCE_FAILPOINT": f"{point}:kill9", "PYTHONPATH": root}
    killed = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert killed.returncode == -9, killed.stderr

    ended = send(shop, *bodies)

    assert ended == ["ignored"] * 3
    assert [reasons(shop, f"k{n}") for n in range(3)] == [["accepted", "accepted"]] * 3
    assert sorted(letter["To"] for letter in shop.letters()) == sorted(
        f"u{n}{half}@one.example" for n in range(3) for half in ("", "b")
    )
    found = shop.store.read(lambda reader: reader.scan(OutboundMessage))
    assert len(found) == 6
