import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sendonce.cli.letterbox import look_into
from sendonce.stores.base import Store
from tests.cli.conftest import Call, hears_ctrl_c

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def note(folder: Path) -> str:
    """A small bulk template of one sentence."""
    path = folder / "templates/note"
    path.mkdir(parents=True)
    (path / "template.yaml").write_text("priority: bulk\nvariables: {name: {type: text, example: Ada}}\n")
    (path / "subject.j2").write_text("Hello {{ name }}")
    (path / "body.txt.j2").write_text("Hello {{ name }}. Leave: {{ unsubscribe_url }}\n")
    return "note"


def people(folder: Path, count: int) -> str:
    rows = "".join(f"r{number},u{number}@one.example,N{number}\n" for number in range(count))
    (folder / "people.csv").write_text(f"recipient_id,email,name\n{rows}rX,x@one.example,\n")
    return "people.csv"


def test_a_campaign_goes_from_a_file_to_its_last_outcome(sendonce: Call, store: Store, note: str, folder: Path) -> None:
    sendonce("load", "spring", people(folder, 20), "-t", note)
    assert "Nothing to send" in sendonce("run").out
    sendonce("submit", "spring")

    once = sendonce("run", "--once", "--json")
    again = sendonce("run", "--json")

    assert (once.code, once.json["unfinished"]) == (0, 0)
    assert (again.code, again.json["ended"], again.json["rounds"]) == (0, "done", 0)
    shown = sendonce("status", "spring", "--json").json
    assert (shown["state"], shown["percent"], shown["sent_count"], shown["failed_count"]) == ("completed", 100.0, 20, 1)
    found = look_into(folder / ".sendonce/outbox/spring")
    assert (found.letters, found.duplicates) == (20, 0)
    assert "one.example" not in once.out + once.err
    outcome = sendonce("outcome", "spring", "rX", "--json").json
    assert (outcome["outcome"], outcome["attempts"]) == ("refused", 0)


def test_work_on_other_lanes_and_paused_work_is_left_and_said(
    sendonce: Call, store: Store, note: str, folder: Path
) -> None:
    sendonce("load", "spring", people(folder, 2), "-t", note)
    sendonce("submit", "spring")
    assert sendonce("run", "--lanes", "critical,high", "--json").json["rounds"] == 0
    sendonce("pause", "spring")

    answer = sendonce("run")

    assert answer.code == 1
    assert "3 recipients are not finished" in answer.out
    assert "`sendonce resume CAMPAIGN`" in answer.out
    assert answer.widest <= 80


def test_triggers_of_a_file_are_applied_first(sendonce: Call, store: Store, note: str, folder: Path) -> None:
    sendonce("load", "spring", people(folder, 2), "-t", note)
    start = json.dumps({"v": 1, "type": "start", "campaign_id": "spring"})
    (folder / "triggers.ndjson").write_text(f"{start}\n\nnot json\n")

    answer = sendonce("run", "--triggers", "triggers.ndjson", "--json")

    assert (answer.code, answer.json["unfinished"]) == (1, 0)
    triggers = answer.json["triggers"]
    assert {name: triggers[name] for name in ("applied", "ignored", "bad", "not_reached")} == {
        "applied": 1,
        "ignored": 0,
        "bad": 1,
        "not_reached": 0,
    }
    assert [(one["place"], one["reason"]) for one in triggers["problems"]] == [("triggers.ndjson:3", "not_json")]
    assert sendonce("status", "spring", "--json").json["state"] == "completed"

    again = sendonce("run", "--triggers", "triggers.ndjson")

    assert (again.code, again.widest <= 80) == (1, True)
    assert "Triggers: 1 ignored, 1 bad." in again.out
    assert "· triggers.ndjson:3: not_json: the body is no strict JSON" in again.out


def test_ctrl_c_lets_what_is_in_flight_end_and_the_next_run_goes_on(
    sendonce: Call, store: Store, note: str, folder: Path
) -> None:
    settings = (folder / "sendonce.yaml").read_text()
    slow = settings.replace("batch_size: 5000, limits: []", "batch_size: 5, limits: [{rate: 10/s, burst: 5}]")
    assert slow != settings
    (folder / "sendonce.yaml").write_text(slow)
    sendonce("config", "apply")
    sendonce("load", "spring", people(folder, 39), "-t", note)
    sendonce("submit", "spring")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    child = subprocess.Popen(
        [sys.executable, "-m", "sendonce.cli", "run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
        cwd=folder,
        preexec_fn=hears_ctrl_c,
        text=True,
    )
    deadline_s = time.monotonic() + 60
    while not sendonce("status", "spring", "--json").json["sent_count"]:
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=60)

    assert child.returncode == 1
    assert "Stopping: what is in flight ends first" in err
    assert "`sendonce run` goes on from here." in out
    left = sendonce("status", "spring", "--json").json
    assert left["processing_batches"] == left["in_doubt"] == 0
    assert left["open"] > 0

    (folder / "sendonce.yaml").write_text(settings)
    sendonce("config", "apply")
    assert sendonce("run").code == 0
    found = look_into(folder / ".sendonce/outbox/spring")
    assert (found.letters, found.duplicates) == (39, 0)
