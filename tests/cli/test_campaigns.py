import csv
import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from schemas.elements import Reference
from schemas.outcomes import Outcome
from schemas.tables import Attempt, Decision
from sendonce.control.early_cancels import keep_early_cancel
from sendonce.control.status import campaign_status
from sendonce.delivery.halting import halt_campaign
from sendonce.stores.base import Store
from tests.cli.conftest import Call, hears_ctrl_c
from tests.control.made import batch_row, campaign_row, outcomes, seal

ROOT = Path(__file__).parents[2]
SEED_METRICS = (
    "total_recipients",
    "queued_batches",
    "processing_batches",
    "sent_count",
    "delivered_count",
    "failed_count",
    "eta_minutes",
)


def mixed(store: Store) -> None:
    """A running campaign with one of everything."""
    seal(store, "spring", [4, 3], state="running")
    kinds = [Outcome.ACCEPTED, Outcome.RENDER_UNDEFINED_VARIABLE, Outcome.SUPPRESSED_UNSUBSCRIBED, Outcome.IN_DOUBT]
    outcomes(store, "spring", 0, dict(enumerate(kinds)), state="in_doubt")


def test_submit_pause_resume_and_cancel_say_what_changed(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3])

    states = [sendonce(action, "spring", "--json") for action in ("submit", "submit", "pause", "resume", "cancel")]

    assert [answer.code for answer in states] == [0] * 5
    assert [(answer.json["state"], answer.json["changed"]) for answer in states] == [
        ("running", True),
        ("running", False),
        ("paused", True),
        ("running", True),
        ("cancelled", True),
    ]
    assert "@" in campaign_row(store, "spring").changed_by or campaign_row(store, "spring").changed_by == "system"


def test_pause_keeps_its_reason_for_status(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3], state="running")
    sendonce("pause", "spring", "--reason", "wrong price")

    assert "wrong price" in sendonce("status", "spring").out
    assert sendonce("status", "spring", "--json").json["state_reason"] == "wrong price"


def test_cancel_exits_with_1_while_something_settles(sendonce: Call, store: Store) -> None:
    mixed(store)

    answer = sendonce("cancel", "spring")

    assert answer.code == 1
    assert "running → cancelling" in answer.out
    assert "`sendonce doubts list`" in answer.err
    assert sendonce("doubts", "assume", "spring").code == 0
    assert sendonce("cancel", "spring", "--json").json["state"] == "cancelled"
    assert sendonce("cancel", "spring").code == 0


def test_what_a_state_forbids_exits_with_2_and_the_mend(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3])
    sendonce("cancel", "spring")

    answer = sendonce("resume", "spring")

    assert answer.code == 2
    assert (
        answer.err == "Error: cannot resume campaign spring: it is cancelled; a cancelled campaign cannot be changed\n"
    )


def test_status_has_the_seed_metrics_by_their_names_and_adds_up(sendonce: Call, store: Store) -> None:
    mixed(store)

    shown = sendonce("status", "spring", "--json").json

    assert [shown[name] for name in SEED_METRICS] == [7, 1, 0, 1, None, 1, shown["eta_minutes"]]
    parts = ("sent_count", "failed_count", "skipped", "suppressed", "cancelled", "assumed", "in_doubt", "open")
    assert sum(shown[part] for part in parts) == 7
    assert (shown["percent"], shown["in_doubt"], shown["held"], shown["in_doubt_batches"]) == (42.9, 1, 0, 1)
    assert shown["oldest_due"].endswith("Z")
    assert shown["reasons"] == {"render.undefined_variable": 1, "suppressed.unsubscribed": 1}


def test_status_for_people_fits_and_says_what_to_do(sendonce: Call, store: Store) -> None:
    mixed(store)

    answer = sendonce("status")

    assert (answer.code, answer.widest <= 80) == (0, True)
    assert "No job of the lane bulk is running: `sendonce run`" in answer.out
    assert "42.9 %  3 of 7" in answer.out
    assert "render.undefined_variable" in answer.out


def test_a_campaign_whose_template_makes_no_letter_is_not_told_to_go_on(sendonce: Call, store: Store) -> None:
    """It would halt again at once: its template is sealed with it."""
    seal(store, "spring", [3], state="running")
    halt_campaign(store, Reference("spring", 0, 0, "bulk"), "template_fault")

    said = " ".join(sendonce("status", "spring").out.split())

    assert "resume" not in said
    assert "`sendonce cancel spring`" in said
    assert "load under a new id" in said


def test_status_of_an_empty_store_is_a_wrong_call(sendonce: Call, store: Store) -> None:
    answer = sendonce("status")

    assert answer.code == 2
    assert "`sendonce load` makes one" in answer.err


def test_status_watch_ends_with_the_campaign(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [2], state="running")

    def end() -> None:
        time.sleep(0.5)
        outcomes(store, "spring", 0, {0: Outcome.ACCEPTED, 1: Outcome.ACCEPTED})
        sendonce_settles(store)

    other = threading.Thread(target=end)
    other.start()
    answer = sendonce("status", "spring", "--watch", "--json", "--every", "0.2")
    other.join()

    lines = [json.loads(line) for line in answer.out.splitlines()]
    assert answer.code == 0
    assert (lines[0]["state"], lines[-1]["state"], lines[-1]["percent"]) == ("running", "completed", 100.0)


def sendonce_settles(store: Store) -> None:
    from sendonce.control.completion import settle_campaign

    settle_campaign(store, "spring")


def test_load_says_that_a_trigger_called_the_campaign_off_before(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "people.csv").write_text("recipient_id,email,code,name,minutes\n1,a@one.example,4242,Ada,10\n")
    call = ("load", "spring", "people.csv", "-t", "otp", "--from", "shop@one.example")
    keep_early_cancel(store, "spring", None)
    for _ in range(2):  # also when it was loaded before
        loaded = sendonce(*call)
        assert (loaded.code, loaded.widest <= 80) == (0, True), loaded.err
        assert "called spring off before it was loaded: `sendonce submit spring` will cancel it" in " ".join(
            loaded.out.split()
        )
    assert sendonce(*call, "--json").json["called_off"]
    assert sendonce("submit", "spring", "--yes").code in (0, 1)
    assert campaign_row(store, "spring").state in ("cancelling", "cancelled")
    assert not sendonce(*call, "--json").json["called_off"]
    other = sendonce("load", "summer", *call[2:])
    assert (other.code, "called" in other.out) == (0, False)


def test_list_shows_every_campaign(sendonce: Call, store: Store) -> None:
    assert "No campaigns yet" in sendonce("list").out
    mixed(store)
    seal(store, "summer", [1])

    answer = sendonce("list")

    assert answer.widest <= 80
    assert [row["campaign"] for row in sendonce("list", "--json").json] == ["summer", "spring"]
    assert "spring" in answer.out


def test_outcome_tells_one_recipients_story(sendonce: Call, store: Store) -> None:
    mixed(store)

    refused = sendonce("outcome", "spring", "2", "--json").json
    assert (refused["outcome"], refused["reason"], refused["batch"]) == ("refused", "render.undefined_variable", 0)
    assert len(refused["message_id"]) == 52
    assert sendonce("outcome", "spring", "1").widest <= 80

    missing = sendonce("outcome", "spring", "nobody")
    assert missing.code == 2
    assert (
        "no recipient with that id; rows that were not taken are in rejects/spring.ndjson beside the store"
        in missing.err
    )


def test_outcome_names_the_requests_that_carried_a_recipient(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [2], state="running")
    row = batch_row(store, "spring", 0)
    now = store.read(lambda reader: reader.now())
    first = Attempt(row.shard, "spring", 0, "01A", b"\x01", 1, "w", "outbox", "", "not_sent", now, now, reason="late")
    store.transact(lambda tx: tx.insert(first), tag="test")

    assert sendonce("outcome", "spring", "1", "--json").json["requests"][0]["reason"] == "late"
    assert "not_sent late" in sendonce("outcome", "spring", "1").out
    assert sendonce("outcome", "spring", "2", "--json").json["requests"] == []


def test_export_has_one_line_per_recipient_and_no_address(sendonce: Call, store: Store, folder: Path) -> None:
    mixed(store)

    rows = list(csv.DictReader(io.StringIO(sendonce("export", "spring").out)))
    objects = [json.loads(line) for line in sendonce("export", "spring", "--json").out.splitlines()]

    assert [row["recipient_id"] for row in rows] == ["1", "2", "3", "4", "5", "6", "7"]
    assert [row["outcome"] for row in rows] == ["accepted", "refused", "suppressed", "in_doubt", "open", "open", "open"]
    assert [found["outcome"] for found in objects] == [row["outcome"] for row in rows]
    assert list(rows[0]) == list(objects[0])
    assert "@" not in sendonce("export", "spring").out

    answer = sendonce("export", "spring", "--with-address", "-o", "out.csv")
    assert "7 recipients written to out.csv" in answer.err
    assert (folder / "out.csv").read_text().splitlines()[1].endswith(",u1@one.example")


@pytest.mark.parametrize("layout", ["csv", "ndjson"])
def test_an_export_of_nothing_known_writes_nothing(sendonce: Call, store: Store, folder: Path, layout: str) -> None:
    answer = sendonce("export", "sprung", "--format", layout)
    assert (answer.code, answer.out) == (2, "")

    assert sendonce("export", "sprung", "-o", "out.csv").code == 2
    assert not (folder / "out.csv").exists()


def test_export_to_a_folder_that_is_not_there_names_it(sendonce: Call, store: Store) -> None:
    mixed(store)

    answer = sendonce("export", "spring", "-o", "nowhere/out.csv")

    assert answer.code == 1
    assert "nowhere/out.csv: No such file or directory" in answer.err


def test_doubts_are_listed_and_decided_by_a_person(sendonce: Call, store: Store) -> None:
    mixed(store)

    listed = sendonce("doubts", "list", "--json").json
    assert [(doubt["campaign"], doubt["batch"], doubt["recipients"]) for doubt in listed] == [("spring", 0, 1)]
    assert sendonce("doubts", "list").widest <= 80

    answer = sendonce("doubts", "assume", "spring", "--reason", "seen in the provider's log", "--json")

    assert answer.json == {"decision": "assume", "batches": 1, "recipients": 1}
    assert campaign_status(store, "spring").counts.outcomes["assumed"] == 1
    decisions = store.read(lambda reader: reader.scan(Decision, "spring", index="decisions_by_campaign"))
    assert [(row.kind, row.batch_no, row.reason) for row in decisions] == [("assume", 0, "seen in the provider's log")]
    assert "No doubts" in sendonce("doubts", "list", "spring").out
    assert sendonce("doubts", "assume", "spring", "--json").json["batches"] == 0


def test_sending_again_is_asked_for_because_somebody_may_get_two_letters(
    sendonce: Call, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    mixed(store)
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    asked = sendonce("doubts", "resend", "spring")
    assert asked.code == 1
    assert "Up to 1 person may get a second letter" in asked.err
    assert batch_row(store, "spring", 0).n_in_doubt == 1

    assert sendonce("doubts", "resend", "spring", "--yes").code == 0
    assert (batch_row(store, "spring", 0).state, batch_row(store, "spring", 0).n_open) == ("pending", 1)


def test_a_cancelled_campaign_sends_nothing_again(sendonce: Call, store: Store) -> None:
    mixed(store)
    sendonce("cancel", "spring")

    answer = sendonce("doubts", "resend", "spring", "--yes")

    assert answer.code == 2
    assert "use `sendonce doubts assume`" in answer.err


def test_a_batch_that_is_not_in_doubt_is_named(sendonce: Call, store: Store) -> None:
    mixed(store)

    answer = sendonce("doubts", "assume", "spring", "--batch", "1")

    assert answer.code == 2
    assert "batch 1 of spring is not in doubt" in answer.err
    assert sendonce("doubts", "list", "winter").code == 2


def test_ctrl_c_while_watching_ends_quietly(store: Store, folder: Path) -> None:
    seal(store, "spring", [2], state="running")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-m", "sendonce.cli", "status", "spring", "--watch", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=folder,
        preexec_fn=hears_ctrl_c,
    )
    assert child.stdout is not None
    child.stdout.readline()
    child.send_signal(signal.SIGINT)
    _, said = child.communicate(timeout=30)

    assert child.returncode == 1
    assert said.decode().strip() == "Stopped. `sendonce status spring --watch --json` goes on from here."
