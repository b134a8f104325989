"""A whole campaign by SES: from the list to every outcome, throttled once, one address refused by the provider."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.checker import judge
from tests.evidence import read_sqlite
from tests.providers.http import Fate
from tests.providers.ses import KEY_ID, REGION, SECRET, FakeSes, arrivals, error
from tests.senders.whole_campaigns import Command, command_line, submitted

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def sendonce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(tmp_path, monkeypatch, capsys, KEY_ID=KEY_ID, THE_SECRET=SECRET)


def prepare(folder: Path, sendonce: Command, url: str, count: int) -> None:
    account = f"adapter: ses, region: {REGION}, endpoint_url: '{url}', configuration_set: bulk, parallel: 2"
    keys = "access_key_id: env:KEY_ID, secret_access_key: env:THE_SECRET"
    submitted(folder, sendonce, f"{account}, {keys}", count)


def test_every_recipient_gets_one_letter_and_one_outcome(tmp_path: Path, sendonce: Command) -> None:
    def unknown(address: str) -> tuple[str, str] | None:
        return ("INVALID_PARAMETER", "Missing final '@domain'") if address == "u150@one.example" else None

    log = tmp_path / "ses.jsonl"
    slow = error("TooManyRequestsException", "Maximum sending rate exceeded.", 429)
    with FakeSes(log, script=[slow], entries=unknown, bodies=tmp_path / "bodies.jsonl") as fake:
        prepare(tmp_path, sendonce, fake.url, 300)
        code, said, _ = sendonce("run", "--json")
        assert (code, json.loads(said)["ended"]) == (0, "done")
        letters = fake.letters()

    status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["state"], status["sent_count"], status["failed_count"]) == ("completed", 299, 1)
    assert {letter.to for letter in letters} == {f"u{number}@one.example" for number in range(300) if number != 150}
    assert len(letters) == 299
    assert all(f"Ann {letter.to[1:].partition('@')[0]}" in letter.text for letter in letters)
    assert all(letter.headers["List-Unsubscribe"].startswith("<https://shop.example/u/") for letter in letters)
    assert {line["operation"] for line in fake.requests()} <= {"SendBulkEmail", ""}
    records = read_sqlite(tmp_path / ".sendonce" / "sendonce.db")
    findings = judge(records, arrivals(log), now=datetime.now(UTC), ended=True)
    assert findings.violations == []
    assert findings.accepted_once == 299
    assert SECRET.encode() not in (tmp_path / ".sendonce" / "sendonce.db").read_bytes()
    assert json.loads(sendonce("outcome", "spring", "r150", "--json")[1])["reason"] == "provider.invalid_address"


def test_an_account_that_is_paused_stops_the_campaign_and_says_how_to_mend_it(
    tmp_path: Path, sendonce: Command
) -> None:
    paused = error("SendingPausedException", "Email sending is paused for the account.")
    log = tmp_path / "ses.jsonl"
    with FakeSes(log, script=[Fate(200), *[paused] * 50]) as fake:
        prepare(tmp_path, sendonce, fake.url, 300)
        sendonce("run", "--once", "--json")
        said = sendonce("status", "spring")[1]
        status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["sent_count"], status["failed_count"], status["in_doubt"]) == (50, 0, 0)
    assert "sending_paused" in said
    assert "sending is paused for the account: see why, and let it send again" in " ".join(said.split())
    assert len(fake.taken()) == 50
    assert len(fake.requests()) <= 6


def test_a_lost_answer_is_in_doubt_and_nobody_gets_two(tmp_path: Path, sendonce: Command) -> None:
    log = tmp_path / "ses.jsonl"
    with FakeSes(log, script=[Fate(200, fault="close_after_read")], bodies=tmp_path / "bodies.jsonl") as fake:
        prepare(tmp_path, sendonce, fake.url, 200)
        sendonce("run", "--once", "--json")
        status = json.loads(sendonce("status", "spring", "--json")[1])
        letters = fake.letters()
    assert status["in_doubt"] == 50
    assert status["failed_count"] == 0
    assert len({letter.to for letter in letters}) == len(letters) == status["sent_count"] + 50
    records = read_sqlite(tmp_path / ".sendonce" / "sendonce.db")
    assert judge(records, arrivals(log), now=datetime.now(UTC), ended=False).violations == []
