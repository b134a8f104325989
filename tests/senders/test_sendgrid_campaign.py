"""A whole campaign by SendGrid: from the list to every outcome, throttled once, one address refused by the provider."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.checker import judge
from tests.evidence import read_sqlite
from tests.providers.http import Fate
from tests.providers.sendgrid import KEY, FakeSendGrid, arrivals, errors
from tests.senders.whole_campaigns import Command, command_line, submitted

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def sendonce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(tmp_path, monkeypatch, capsys, THE_KEY=KEY)


def prepare(folder: Path, sendonce: Command, base_url: str, count: int) -> None:
    sender = f"adapter: sendgrid, api_key: env:THE_KEY, base_url: '{base_url}', categories: [a]"
    submitted(folder, sendonce, sender, count)


def test_every_recipient_gets_one_letter_and_one_outcome(tmp_path: Path, sendonce: Command) -> None:
    def unknown_mailbox(body: dict[str, Any]) -> Fate | None:
        people = [one["to"][0]["email"] for one in body["personalizations"]]
        if "u150@one.example" in people:
            return errors((f"personalizations.{people.index('u150@one.example')}.to.0.email", "no valid address"))
        return None

    log = tmp_path / "sendgrid.jsonl"
    throttled = Fate(429, {"Retry-After": "1"})
    with FakeSendGrid(log, script=[throttled], rule=unknown_mailbox, bodies=tmp_path / "bodies.jsonl") as fake:
        prepare(tmp_path, sendonce, fake.url, 300)
        code, said, _ = sendonce("run", "--json")
        assert (code, json.loads(said)["ended"]) == (0, "done")
        letters = fake.letters()

    status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["state"], status["sent_count"], status["failed_count"]) == ("completed", 299, 1)
    assert {letter.to for letter in letters} == {f"u{number}@one.example" for number in range(300) if number != 150}
    assert len(letters) == 299
    assert all(f"Ann {letter.to[1:].partition('@')[0]}" in letter.text for letter in letters)
    records = read_sqlite(tmp_path / ".sendonce" / "sendonce.db")
    findings = judge(records, arrivals(log), now=datetime.now(UTC), ended=True)
    assert findings.violations == []
    assert findings.accepted_once == 299
    assert KEY.encode() not in (tmp_path / ".sendonce" / "sendonce.db").read_bytes()
    assert json.loads(sendonce("outcome", "spring", "r150", "--json")[1])["reason"] == "provider.invalid_address"


def test_a_revoked_key_stops_the_campaign_and_says_how_to_mend_it(tmp_path: Path, sendonce: Command) -> None:
    """Case credits-401: what was accepted stays, the rest is neither failed nor sent."""
    revoked = errors((None, "The provided authorization grant is invalid, expired, or revoked"), status=401)
    log = tmp_path / "sendgrid.jsonl"
    with FakeSendGrid(log, script=[Fate(), *[revoked] * 50]) as fake:
        prepare(tmp_path, sendonce, fake.url, 300)
        sendonce("run", "--once", "--json")
        said = sendonce("status", "spring")[1]
        status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["sent_count"], status["failed_count"], status["in_doubt"]) == (100, 0, 0)
    assert "credentials" in said
    assert "give the sender a key that is in force" in " ".join(said.split())
    assert KEY not in said
    assert sum(line["recipients"] for line in fake.accepted()) == 100
    assert len(fake.requests()) <= 4


def test_a_missing_key_stops_the_run_before_anything_is_sent(
    tmp_path: Path, sendonce: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "sendgrid.jsonl"
    with FakeSendGrid(log) as fake:
        prepare(tmp_path, sendonce, fake.url, 3)
        monkeypatch.delenv("THE_KEY")
        code, out, err = sendonce("run")
    assert code == 2
    said = " ".join((out + err).split())
    assert "sender mail: its api_key is env:THE_KEY, and no such variable is set here; set THE_KEY" in said
    assert fake.requests() == []
