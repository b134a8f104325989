"""Sends at the command line: pushed, run from a file, and what each command shows of their stream."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from schemas.elements import DeadLetter
from schemas.outcomes import Outcome
from schemas.tables import Campaign
from sendonce.control.dead_letters import write_dead_letters
from sendonce.stores.base import Store
from tests.cli.conftest import Call
from tests.control.made import outcomes, seal

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def stream(sendonce: Call, store: Store, folder: Path) -> str:
    """The stream of three sends by `otp`, the template that ships: two to u1, one of them with a bad address beside."""
    assert sendonce("templates", "push", "otp").code == 0
    bodies = [send("a", [to("u1")]), send("b", [to("u1"), to("u2", email="nowhere")]), send("a", [to("u1")])]
    (folder / "sends.ndjson").write_text("".join(json.dumps(body) + "\n" for body in bodies))
    ran = sendonce("run", "--triggers", "sends.ndjson", "--json")
    assert (ran.code, ran.json["triggers"]["applied"], ran.json["triggers"]["ignored"]) == (0, 2, 1)
    assert "one.example" not in ran.out + ran.err
    (row,) = store.read(lambda reader: reader.scan(Campaign))
    return row.campaign_id


def to(recipient_id: str, **more: Any) -> dict[str, Any]:
    variables = {"code": "424242", "name": "Ada", "minutes": 10}
    return {"recipient_id": recipient_id, "email": f"{recipient_id}@one.example", "variables": variables, **more}


def send(key: str, recipients: list[dict[str, Any]]) -> dict[str, Any]:
    kind = {"v": 1, "type": "send", "template": "otp", "priority": "critical"}
    return {**kind, "idempotency_key": key, "recipients": recipients}


def test_list_and_status_show_a_stream_with_its_kind(sendonce: Call, stream: str) -> None:
    (listed,) = sendonce("list", "--json").json
    assert (listed["campaign"], listed["kind"], listed["state"]) == (stream, "stream", "running")
    assert (listed["total_recipients"], listed["sent_count"], listed["failed_count"]) == (3, 2, 1)
    shown = sendonce("list")
    assert "stream" in shown.out
    status = sendonce("status", stream)
    assert status.code == 0
    assert "Takes sends until" in status.out
    assert "is running: `sendonce run`" not in status.out
    found = sendonce("status", stream, "--json").json
    assert (found["kind"], found["reasons"], found["percent"]) == ("stream", {"address.invalid": 1}, 100.0)


def test_outcome_tells_of_each_send_to_a_recipient(sendonce: Call, stream: str) -> None:
    found = sendonce("outcome", stream, "u1", "--json").json
    assert (found["recipient_id"], found["outcome"]) == ("u1", "accepted")
    assert {one["idempotency_key"] for one in found["sends"]} == {"a", "b"}
    assert len({one["message_id"] for one in found["sends"]}) == 2
    shown = sendonce("outcome", stream, "u1").out
    assert shown.count("accepted") >= 2
    missing = sendonce("outcome", stream, "u")
    assert (missing.code, "rejects" in missing.err) == (2, False)
    assert f"no send of {stream} is to a recipient with that id" in " ".join(missing.err.split())
    refused = sendonce("outcome", stream, "u2", "--json").json
    assert (refused["reason"], refused["requests"]) == ("address.invalid", [])


def test_in_80_columns_ids_and_reasons_can_be_copied(sendonce: Call, stream: str, store: Store) -> None:
    """Nothing of a row is broken or cut; columns give way, and their counts are said below."""
    seal(store, "spring-sale-2026", [1_000])
    outcomes(store, "spring-sale-2026", 0, {0: Outcome.IN_DOUBT})
    listed = sendonce("list")
    assert listed.widest <= 80
    (head, *rows) = listed.out.splitlines()
    assert head.split()[:4] == ["campaign", "state", "recipients", "done"]
    assert {row.split()[0] for row in rows[:2]} == {stream, "spring-sale-2026"}
    assert rows[2] == ""
    assert "spring-sale-2026: 1 in doubt" in rows

    write_dead_letters(
        store, [DeadLetter("render", "address.smtputf8_unsupported", "", stream, 1234567890123456, 7, "m" * 52)]
    )
    for options in ((), ("--state", "all")):
        shown = sendonce("dead-letters", "list", *options)
        assert shown.widest <= 80
        for reason in ("address.smtputf8_unsupported", "address.invalid"):
            (row,) = [row for row in shown.out.splitlines() if reason in row.split()]
            assert stream in row.split()


def test_a_longer_id_takes_the_place_of_more_columns(sendonce: Call, store: Store) -> None:
    name = f"stream.{'password-reset' * 2}.critical.2026-11-30"
    seal(store, name, [2])
    outcomes(store, name, 0, {0: Outcome.ACCEPTED, 1: Outcome.PROVIDER_REFUSED})
    listed = sendonce("list")
    assert listed.widest <= 80
    assert listed.out.splitlines()[1].split()[0] == name
    assert "1 accepted, 1 refused" in " ".join(listed.out.split())


def test_the_dead_letter_of_a_recipient_of_a_send_says_to_publish_the_send_again(sendonce: Call, stream: str) -> None:
    (letter,) = sendonce("dead-letters", "list", "--json").json
    assert (letter["stage"], letter["reason"], letter["campaign"]) == ("trigger", "address.invalid", stream)
    for chosen in ((letter["id"],), ("--reason", "address.invalid", "--yes")):
        answer = sendonce("dead-letters", "replay", *chosen)
        said = " ".join(answer.out.split())
        assert (answer.code, "publish the send again under a new key" in said, "erased" in said) == (1, True, False)
    assert "erased" not in sendonce("dead-letters", "show", letter["id"]).out
    assert "only triggers have one" in sendonce("dead-letters", "show", letter["id"], "--body").err


def test_export_names_each_recipients_send_and_leaves_wiped_addresses_empty(sendonce: Call, stream: str) -> None:
    exported = sendonce("export", stream, "--with-address")
    rows = list(csv.DictReader(io.StringIO(exported.out)))
    assert sorted((row["recipient_id"], row["idempotency_key"], row["outcome"], row["email"]) for row in rows) == [
        ("u1", "a", "accepted", ""),
        ("u1", "b", "accepted", ""),
        ("u2", "b", "refused", ""),
    ]
    assert "wiped" in exported.err
    assert "idempotency_key" in json.loads(sendonce("export", stream, "--json").out.splitlines()[0])


@pytest.mark.parametrize(
    "command",
    [("preview", "{}", "u1"), ("rehearse", "{}"), ("test-send", "{}", "ann@one.example")],
    ids=["preview", "rehearse", "test-send"],
)
def test_what_needs_letters_of_a_stream_says_that_they_are_gone(
    sendonce: Call, stream: str, command: tuple[str, ...]
) -> None:
    answer = sendonce(*(word.format(stream) for word in command), "--json")
    assert answer.code == 2
    assert answer.json["error"]["reason"] == "stream"
    assert "it is a stream of sends" in answer.json["error"]["message"]


def test_a_send_that_waits_can_still_be_previewed(sendonce: Call, stream: str, folder: Path) -> None:
    sendonce("pause", stream)
    (folder / "more.ndjson").write_text(json.dumps(send("c", [to("u3")])) + "\n")
    assert sendonce("run", "--triggers", "more.ndjson", "--json").code == 1
    assert sendonce("preview", stream, "u3").code == 0
    assert sendonce("preview", stream, "u1", "--json").json["error"]["reason"] == "stream"


def test_pause_resume_cancel_and_what_comes_after(sendonce: Call, stream: str, folder: Path) -> None:
    assert sendonce("pause", stream, "--json").json["state"] == "paused"
    assert sendonce("resume", stream, "--json").json["state"] == "running"
    cancelled = sendonce("cancel", stream, "--json")
    assert (cancelled.code, cancelled.json["state"]) == (0, "cancelled")
    (folder / "late.ndjson").write_text(json.dumps(send("late", [to("u9")])) + "\n")
    assert sendonce("run", "--triggers", "late.ndjson", "--json").json["triggers"]["applied"] == 1
    assert sendonce("outcome", stream, "u9", "--json").json["outcome"] == "cancelled"
    assert sendonce("list", "--json").json[0]["cancelled"] == 1
    assert sendonce("unload", stream, "--json").code == 2


def test_the_names_of_streams_are_not_for_campaigns(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "people.csv").write_text("recipient_id,email\nr1,r1@one.example\n")
    answer = sendonce("load", "stream.otp.critical.2026-01-15", "people.csv", "-t", "newsletter", "--json")
    assert answer.code == 2
    assert "stream." in answer.json["error"]["message"]


def test_a_send_by_a_template_that_nobody_pushed_says_so(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "sends.ndjson").write_text(json.dumps(send("a", [to("u1")])) + "\n")
    answer = sendonce("run", "--triggers", "sends.ndjson")
    assert answer.code == 1
    assert "sendonce templates push otp" in " ".join(answer.out.split())
