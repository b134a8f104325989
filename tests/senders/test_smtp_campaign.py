"""A whole campaign by SMTP: from the list to every outcome, through a server that throttles, refuses and leaves."""

import json
import sqlite3
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas.tables import OutboundMessage
from tests.checker import judge
from tests.evidence import Arrival, Records, read_sqlite
from tests.providers.smtp import FakeSmtp, Fault
from tests.senders.smtp_letters import PASSWORD, USER, read, sent_of
from tests.senders.whole_campaigns import Command, command_line, submitted

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.needs("aiosmtplib")]


@pytest.fixture
def sendonce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(tmp_path, monkeypatch, capsys, U=USER, P=PASSWORD)


def prepare(folder: Path, sendonce: Command, port: int, count: int) -> None:
    sender = f"adapter: smtp, host: 127.0.0.1, port: {port}, tls: never, user: env:U, password: env:P"
    lane = "batch_size: 100, parallel: 2, times: {request_timeout_s: 10, lease_s: 30}"
    submitted(folder, sendonce, sender, count, lane=lane)


def arrivals(fake: FakeSmtp, records: Records) -> list[Arrival]:
    """What the server took, each under the batch that its message id belongs to."""
    batches = {row.message_id: (row.campaign_id, row.batch_no) for row in records.of(OutboundMessage)}
    found = []
    for number, letter in enumerate(fake.taken):
        message_id = sent_of(letter.to, letter.data).message_id
        attempt = str(read(letter.data)["X-Sendonce-Attempt"])
        found.append(Arrival(message_id, *batches[message_id], attempt, letter.at, f"letter {number}"))
    return found


def test_every_recipient_gets_one_letter_and_one_outcome(tmp_path: Path, sendonce: Command) -> None:
    def unknown(phase: str, argument: str) -> Fault | None:
        bad = (phase, argument) == ("rcpt", "u150@one.example")
        return Fault("rcpt", "reply", "550 5.1.1 <u150@one.example>: no such user") if bad else None

    faults = [
        Fault("mail", "leave", "421 4.3.2 too many letters", after=37, times=1),
        Fault("rcpt", "reply", "450 4.2.0 greylisted", after=60, times=1),
        Fault("data", "close", after=90, times=1),
        Fault("after", "close", after=120, times=1),
    ]
    with FakeSmtp(*faults, rule=unknown, users={USER: PASSWORD}) as fake:
        prepare(tmp_path, sendonce, fake.port, 300)
        code, said, _ = sendonce("run", "--json")
        assert (code, json.loads(said)["ended"]) == (0, "done")

    status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["state"], status["sent_count"], status["failed_count"]) == ("completed", 299, 1)
    assert sorted(fake.recipients()) == sorted(f"u{number}@one.example" for number in range(300) if number != 150)
    assert all(f"Ann {one.to[1:].partition('@')[0]}" in sent_of(one.to, one.data).text for one in fake.taken)
    records = read_sqlite(tmp_path / ".sendonce" / "sendonce.db")
    findings = judge(records, arrivals(fake, records), now=datetime.now(UTC), ended=True)
    assert findings.violations == []
    assert findings.accepted_once == 299
    assert PASSWORD.encode() not in (tmp_path / ".sendonce" / "sendonce.db").read_bytes()
    assert json.loads(sendonce("outcome", "spring", "r150", "--json")[1])["reason"] == "provider.unknown_mailbox"


def test_a_wrong_password_stops_the_campaign_and_says_how_to_mend_it(
    tmp_path: Path, sendonce: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeSmtp(users={USER: PASSWORD}) as fake:
        prepare(tmp_path, sendonce, fake.port, 300)
        monkeypatch.setenv("P", "wrong-horse")
        sendonce("run", "--once", "--json")
        said = sendonce("status", "spring")[1]
        status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["sent_count"], status["failed_count"], status["in_doubt"]) == (0, 0, 0)
    assert "credentials" in said
    assert "(or user and password)" in " ".join(said.split())
    assert "wrong-horse" not in said
    assert fake.taken == []
    assert fake.verbs().count("AUTH") <= 4


def test_a_lost_answer_is_one_doubt_and_no_second_letter(tmp_path: Path, sendonce: Command) -> None:
    with FakeSmtp(Fault("dot", "close", after=10, times=1, takes=True), users={USER: PASSWORD}) as fake:
        prepare(tmp_path, sendonce, fake.port, 60)
        sendonce("run", "--once", "--json")
        status = json.loads(sendonce("status", "spring", "--json")[1])
    assert status["failed_count"] == 0
    assert status["in_doubt"] == 1
    assert len(fake.recipients()) == len(set(fake.recipients()))


def test_an_answer_that_takes_longer_than_a_lease_is_no_doubt(
    tmp_path: Path, sendonce: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that looks long at each letter: the lease is renewed while its answer is waited for."""
    times = "{request_timeout_s: 1, permit_ttl_s: 1, margin_s: 0.5, lease_s: 3, answer_s: 60}"
    leases: list[datetime] = []

    def lease_began() -> datetime:
        with sqlite3.connect(tmp_path / ".sendonce" / "sendonce.db") as store:
            ((micros,),) = store.execute("SELECT heartbeat_at FROM campaign_batches WHERE state = 'sending'")
        return datetime.fromtimestamp(micros / 1e6, UTC)

    def look(phase: str, argument: str) -> Fault | None:
        if phase == "dot":
            leases.append(lease_began())
            while lease_began() < leases[0] + timedelta(seconds=3.5):  # past the end of the first one
                time.sleep(0.05)
            leases.append(lease_began())
        return None

    with FakeSmtp(rule=look, users={USER: PASSWORD}) as fake:
        sender = f"adapter: smtp, host: 127.0.0.1, port: {fake.port}, tls: never, user: env:U, password: env:P"
        submitted(tmp_path, sendonce, sender, 1, lane=f"times: {times}")
        assert sendonce("run", "--json")[0] == 0
    status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["state"], status["sent_count"], status["in_doubt"]) == ("completed", 1, 0)
    assert len(fake.taken) == 1
    assert leases[-1] > leases[0]
