import json
import mailbox
import os
import re
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

from schemas.tables import Campaign
from sendonce.stores.opening import open_store
from tests.cli.conftest import Call

KEYS = [
    "recipients",
    "rows_rejected",
    "rows_duplicate",
    "accepted",
    "refused",
    "skipped",
    "suppressed",
    "cancelled",
    "assumed",
    "in_doubt",
    "unaccounted",
    "duplicates",
    "seconds",
]
OUTCOMES = KEYS[3:11]


def last_line(out: str) -> dict[str, float]:
    return json.loads(out.splitlines()[-1])


def test_the_demo_sends_once_counts_everyone_and_a_second_run_sends_nothing(sendonce: Call, folder: Path) -> None:
    first = sendonce("demo", "--recipients", "300", "--json")
    found = last_line(first.out)
    letters = {path: path.stat().st_mtime_ns for path in folder.rglob("*.mbox")}

    assert first.code == 0
    assert list(found) == KEYS
    assert found["recipients"] == sum(found[kind] for kind in OUTCOMES) == 300
    assert (found["unaccounted"], found["duplicates"], found["in_doubt"]) == (0, 0, 0)
    assert found["rows_rejected"] > 0
    assert found["rows_duplicate"] > 0
    assert found["refused"] > 0
    counted = [message["message-id"] for path in letters for message in mailbox.mbox(path)]
    assert len(counted) == len(set(counted)) == found["accepted"]

    again = sendonce("demo", "--recipients", "300", "--json")
    assert again.code == 0
    assert {**last_line(again.out), "seconds": 0} == {**found, "seconds": 0}
    assert last_line(again.out)["seconds"] == 0
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*.mbox")} == letters

    shown = sendonce("demo", "--recipients", "300")
    assert "nothing more is sent" in shown.out
    assert shown.widest <= 80
    assert ".example" not in shown.out + shown.err + first.out + first.err


def test_the_demo_leaves_the_folders_own_store_alone(sendonce: Call, folder: Path) -> None:
    sendonce("init")
    settings = sendonce("config", "show").out

    assert sendonce("demo", "--recipients", "20", "--json").code == 0

    assert sendonce("config", "show").out == settings
    assert sendonce("list", "--json").json == []


def test_fresh_starts_anew(sendonce: Call, folder: Path) -> None:
    sendonce("demo", "--recipients", "20", "--json")
    url = f"sqlite:///{folder / '.sendonce/demo/sendonce.db'}"
    before = open_store(url).read(lambda reader: reader.now())

    # A process of its own, as for a person: this one still holds the store that is thrown away.
    fresh = subprocess.run(
        [sys.executable, "-m", "sendonce.cli", "demo", "--recipients", "20", "--json", "--fresh"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )

    assert fresh.returncode == 0, fresh.stderr
    assert last_line(fresh.stdout)["seconds"] > 0
    with closing(open_store(url)) as store:
        (campaign,) = store.read(lambda reader: reader.scan(Campaign))
    assert (campaign.campaign_id, campaign.created_at > before) == ("demo-20", True)


def test_the_demos_offers_lie_ahead_and_its_list_can_be_made_again(sendonce: Call, folder: Path) -> None:
    first = last_line(sendonce("demo", "--recipients", "40", "--json").out)
    people = folder / ".sendonce/demo/demo-40.csv"
    text = people.read_text()
    people.unlink()

    again = last_line(sendonce("demo", "--recipients", "40", "--json").out)

    assert {**again, "seconds": 0} == {**first, "seconds": 0}
    assert people.read_text() == text
    ends = [datetime.fromisoformat(found) for found in re.findall(r'"offer_ends"": ?""([^"]+)""', text)]
    assert ends
    assert min(ends) > datetime.now(UTC)
