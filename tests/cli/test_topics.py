"""Topics for outcomes and dead letters, as commands show them; nobody answers behind them here."""

from datetime import timedelta
from pathlib import Path

import pytest

from schemas.elements import DeadLetter
from sendonce.config import load_config
from sendonce.control import doctor, notices
from sendonce.control.dead_letters import write_dead_letters
from sendonce.stores.base import Store, Tx
from tests.cli.conftest import Call
from tests.control.made import seal

TOPIC = "projects/shop-test/topics/dead"


@pytest.fixture
def topic(store: Store, sendonce: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic in the settings and in the store, at a Pub/Sub that is not there."""
    pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
    monkeypatch.setenv("PUBSUB_EMULATOR_HOST", "127.0.0.1:1")
    monkeypatch.setattr("sendonce.control.topics.CALL_S", 2.0)
    (folder / "sendonce.yaml").write_text(f"dead_letters_topic: {TOPIC}")
    answer = sendonce("config", "apply")
    assert answer.code == 0
    assert "topic dead_letters" in answer.out
    return TOPIC


def wait_since_long(store: Store) -> None:
    """One notice that was written a minute ago."""

    def work(tx: Tx) -> None:
        at = tx.now() - timedelta(minutes=1)
        tx.put(notices._notice("n", notices.DEAD_LETTERS, at, {}, {}))

    store.transact(work, tag="test")


def test_config_shows_and_applies_it(topic: str, sendonce: Call) -> None:
    assert f"dead_letters_topic: {topic}" in sendonce("config", "show").out
    assert sendonce("config", "show", "--json").json["settings"]["dead_letters_topic"] == topic
    assert sendonce("config", "apply").out == "The store has these settings already.\n"


def test_config_apply_tells_what_changes_in_words(topic: str, sendonce: Call, folder: Path) -> None:
    (folder / "sendonce.yaml").write_text("{}")
    (change,) = [
        change for change in sendonce("config", "apply", "--dry-run", "--json").json if "topic" in change["what"]
    ]
    assert change == {
        "action": "remove",
        "what": "topic dead_letters",
        "fields": [{"field": None, "before": f'"{topic}"', "after": None}],
    }


def findings(store: Store) -> dict[str, doctor.Finding]:
    """What the doctor says of topics; all that it looks at takes longer."""
    config = load_config(Path("sendonce.yaml"), {})
    return {finding.what: finding for finding in doctor._topics(store, config)}


def test_doctor_says_that_nobody_answers_and_what_waits(topic: str, store: Store) -> None:
    wait_since_long(store)
    told = findings(store)
    assert told["dead_letters_topic"].level == "fail"
    assert "127.0.0.1:1 did not take messages" in told["dead_letters_topic"].found
    assert told["dead_letters_topic"].mend == "is it there, and is the way free?"
    assert told["notices"].level == "warn"
    assert told["notices"].found.startswith("1 dead-letter notice wait")


def test_doctor_speaks_of_notices_whose_topic_was_taken_away(
    topic: str, sendonce: Call, store: Store, folder: Path
) -> None:
    assert write_dead_letters(store, [DeadLetter("trigger", "invalid", "", body=b"x")]) == 1
    (folder / "sendonce.yaml").write_text("{}")
    assert sendonce("config", "apply").code == 0
    told = findings(store)
    assert "dead_letters_topic" not in told
    assert "given up after a week" in told["notices"].mend


def test_doctor_has_nothing_to_say_without_topics(store: Store) -> None:
    assert findings(store) == {}


def test_status_tells_of_notices_that_wait(topic: str, sendonce: Call, store: Store) -> None:
    seal(store, "spring", [1], state="running")
    assert sendonce("status", "--json").json["late_notices"] == []
    wait_since_long(store)
    assert sendonce("status", "--json").json["late_notices"] == ["dead_letters"]
    assert "Dead-letter notices wait: `sendonce doctor` says why" in sendonce("status").out
