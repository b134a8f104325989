"""The fake SendGrid refuses what SendGrid's pages say it refuses, and writes down what it took."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

from sendonce.senders.base import Verdict
from tests.providers.sendgrid import KEY, arrivals, read_letters, read_log
from tests.providers.sendgrid_rules import CONTRACT, LIMITS, contract, errors_of
from tests.senders.sendgrid_letters import ATTEMPT, NOW_S, packed, request_of, sender_for

ROOT = Path(__file__).parents[2]


def good() -> dict[str, Any]:
    return {
        "personalizations": [
            {
                "to": [{"email": f"u{number}@one.example"}],
                "custom_args": {"message_id": f"m{number}"},
                "substitutions": {"-a-": "x"},
                "headers": {"List-Unsubscribe": "<https://shop.example/u>"},
            }
            for number in range(2)
        ],
        "from": {"email": "news@shop.example", "name": "Shop"},
        "subject": "Hello",
        "content": [{"type": "text/plain", "value": "Text"}, {"type": "text/html", "value": "<p>Text</p>"}],
    }


def person(change: Callable[[dict[str, Any]], Any]) -> Callable[[dict[str, Any]], Any]:
    return lambda body: change(body["personalizations"][1])


def test_a_good_request_is_taken() -> None:
    assert errors_of(good(), 1000, now_s=NOW_S) == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda body: body.update(personalizations=[]), "personalizations"),
        (lambda body: body.update(personalizations=body["personalizations"] * 501), "personalizations"),
        (person(lambda one: one.update(to=[{"email": f"p{n}@x.example"} for n in range(1000)])), "personalizations"),
        (person(lambda one: one.update(to=[{"email": "U0@one.example"}])), "personalizations"),
        (person(lambda one: one.update(bcc=[{"email": "u1@one.example"}])), "personalizations"),
        (person(lambda one: one.update(to=[])), "personalizations.1.to"),
        (person(lambda one: one.update(to=[{"email": "bad@@one.example"}])), "personalizations.1.to.0.email"),
        (person(lambda one: one.update(to=[{"email": "zoë@one.example"}])), "personalizations.1.to.0.email"),
        (person(lambda one: one.update(to=[{"email": "a@b.example", "name": "A; B"}])), "personalizations.1.to.0.name"),
        (person(lambda one: one.update(substitutions={"-a-": 5})), "personalizations.1.substitutions"),
        (person(lambda one: one.update(substitutions={"-a-": "€" * 3333})), "personalizations.1.substitutions"),
        (person(lambda one: one.update(custom_args={"a": "x" * 10_000})), "personalizations.1.custom_args"),
        (person(lambda one: one.update(headers={"SUBJECT": "x"})), "personalizations.1.headers"),
        (person(lambda one: one.update(headers={"X-Naïve": "x"})), "personalizations.1.headers"),
        (person(lambda one: one.update(headers={"X-A": "x\r\nBcc: y"})), "personalizations.1.headers"),
        (lambda body: body.update(subject=""), "subject"),
        (lambda body: body.update({"from": {"email": "news"}}), "from.email"),
        (lambda body: body.update(reply_to={"email": ""}), "reply_to.email"),
        (lambda body: body.update(content=[]), "content"),
        (lambda body: body["content"].reverse(), "content"),
        (lambda body: body["content"][0].update(value=""), "content.0.value"),
        (lambda body: body.update(categories=["a", "a"]), "categories"),
        (lambda body: body.update(categories=[str(n) for n in range(11)]), "categories"),
        (lambda body: body.update(categories=["x" * 256]), "categories"),
        (lambda body: body.update(send_at=NOW_S + 73 * 3600), "send_at"),
        (lambda body: body.update(ip_pool_name="x"), "ip_pool_name"),
        (lambda body: body.update(asm={"group_id": "7"}), "asm.group_id"),
    ],
)
def test_a_broken_limit_is_refused_by_its_field(change: Callable[[dict[str, Any]], Any], field: str) -> None:
    body = good()
    change(body)
    assert field in {error["field"] for error in errors_of(body, 1000, now_s=NOW_S)}


def test_a_request_of_30_megabytes_is_refused() -> None:
    assert errors_of(good(), 29_999_999) == []
    assert errors_of(good(), 30_000_000)


def test_every_limit_names_its_page() -> None:
    assert {page.partition("/docs/")[0] for _, page in LIMITS.values()} == {"https://www.twilio.com"}


def test_the_published_description_is_used_where_it_is() -> None:
    """It is not part of this repository; without it, requests are checked against the limits alone."""
    found = errors_of({**good(), "template_id": 5}, 1000, now_s=NOW_S)
    if CONTRACT.exists():
        assert found[0]["message"].startswith("contract: ")
    else:
        assert (contract(), found) == (None, [])


def test_it_runs_as_a_process_with_a_log_a_script_and_bodies(tmp_path: Path) -> None:
    log, bodies, script = tmp_path / "log.jsonl", tmp_path / "bodies.jsonl", tmp_path / "script.json"
    script.write_text(
        json.dumps(
            [
                {"status": 429, "headers": {"Retry-After": "2"}},
                {"status": 400, "body": {"errors": [{"message": "bad", "field": "personalizations.1.to.0.email"}]}},
            ]
        )
    )
    options = ["--log", log, "--script", script, "--bodies", bodies, "--port", "0", "--key", KEY, "--checks", "all"]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.providers.sendgrid", *options], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            with sender_for(url) as sender:
                throttled, mixed = (
                    sender.send(sender.prepare(request_of([packed(number) for number in range(3)])), 10)
                    for _ in range(2)
                )
        finally:
            process.send_signal(signal.SIGTERM)
    assert process.returncode == 0
    assert (throttled.verdict, throttled.retry_after_s) == (Verdict.NOT_SENT, 2.0)
    assert mixed.exceptions[1][0] is Verdict.REFUSED
    lines = read_log(log)
    assert [(line["verdict"], line["recipients"], line["accepted"]) for line in lines] == [
        ("429", 3, False),
        ("400", 3, False),
        ("202", 2, True),
    ]
    assert {line["sha256"] for line in lines[:2]} == {lines[0]["sha256"]}
    came = arrivals(log)
    assert [(one.message_id, one.campaign_id, one.batch_no, one.attempt_id) for one in came] == [
        (f"{number:052d}", "spring", 42, ATTEMPT) for number in (0, 2)
    ]
    assert [letter.subject for letter in read_letters(bodies)] == ["Hello Ann 0", "Hello Ann 2"]
    assert orjson.loads(bodies.read_bytes())["personalizations"][0]["custom_args"]["batch_no"] == "42"
