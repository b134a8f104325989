"""Whole campaigns by Resend and by a webhook: from the list to every outcome, replies cut after acceptance."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.checker import judge
from tests.evidence import Arrival, read_sqlite
from tests.providers.http import Fate
from tests.providers.keyed import KeyedProvider
from tests.providers.resend import KEY, FakeResend
from tests.providers.webhook import SECRET, FakeReceiver
from tests.senders.whole_campaigns import Command, command_line, submitted

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def sendonce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(tmp_path, monkeypatch, capsys, THE_KEY=KEY, THE_SECRET=SECRET)


def prepare(folder: Path, sendonce: Command, sender: str, count: int, environment: str = "production") -> None:
    guard = "" if environment == "production" else 'recipients_allowed: ["@one.example"]\n'
    lane = "batch_size: 50, parallel: 2"
    submitted(folder, sendonce, sender, count, lane=lane, guard=guard, environment=environment)


def arrivals(fake: KeyedProvider) -> list[Arrival]:
    """Every letter that was taken, for the checker, by the attempt that brought it."""
    found = []
    for number, attempt in enumerate(fake.attempts):
        said = json.loads(attempt.body) if attempt.taken else {}
        for letter in attempt.taken:
            batch_no = said["data"]["batch_no"] if isinstance(said, dict) else _tag(said[0], "batch_no")
            at = datetime.fromtimestamp(attempt.at_s, UTC)
            found.append(Arrival(letter.message_id, "spring", int(batch_no), attempt.key, at, f"attempt {number}"))
    return found


def _tag(email: dict[str, list[dict[str, str]]], name: str) -> str:
    return next(tag["value"] for tag in email["tags"] if tag["name"] == name)


CUT = Fate(200, fault="close_after_read")


def judged(folder: Path, sendonce: Command, fake: KeyedProvider, refused: int, secret: str) -> None:
    status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["state"], status["sent_count"], status["failed_count"], status["in_doubt"]) == (
        "completed",
        200 - refused,
        refused,
        0,
    )
    letters = fake.letters()
    assert {letter[0] for letter in letters} == {f"u{n}@one.example" for n in range(200) if n != 150 or not refused}
    assert len(letters) == 200 - refused
    assert all(f"Ann {to[1:].partition('@')[0]}" in text for to, _, text, _, _ in letters)
    store = folder / ".sendonce" / "sendonce.db"
    findings = judge(read_sqlite(store), arrivals(fake), now=datetime.now(UTC), ended=True)
    assert findings.violations == []
    assert findings.accepted_once == 200 - refused
    assert secret.encode() not in store.read_bytes()


def test_replies_cut_after_acceptance_make_no_second_letter_at_resend(tmp_path: Path, sendonce: Command) -> None:
    with FakeResend(CUT, Fate(), CUT, Fate(500, accepts=False), CUT) as fake:
        fake.misbehave("refuse_recipient", "u150@one.example")
        prepare(tmp_path, sendonce, f"adapter: resend, api_key: env:THE_KEY, base_url: '{fake.url}'", 200)
        code, said, _ = sendonce("run", "--json")
        assert (code, json.loads(said)["ended"]) == (0, "done")
        judged(tmp_path, sendonce, fake, 1, KEY)
    assert sum(attempt.replayed for attempt in fake.attempts) == 3
    assert json.loads(sendonce("outcome", "spring", "r150", "--json")[1])["reason"] == "provider.invalid_address"


def test_a_receiver_that_keeps_keys_takes_each_letter_once(tmp_path: Path, sendonce: Command) -> None:
    with FakeReceiver(CUT, Fate(429, {"Retry-After": "1"}), CUT, Fate(500, accepts=False)) as fake:
        fake.misbehave("refuse_recipient", "u150@one.example")
        settings = f"adapter: webhook, url: '{fake.url}/letters', secret: env:THE_SECRET, allow_private: true"
        prepare(tmp_path, sendonce, f"{settings}, idempotency_window_s: 86400", 200, "test")
        code, said, _ = sendonce("run", "--json")
        assert (code, json.loads(said)["ended"]) == (0, "done")
        judged(tmp_path, sendonce, fake, 1, SECRET)
    assert sum(attempt.replayed for attempt in fake.attempts) == 2


def test_a_receiver_without_keys_is_never_asked_again(tmp_path: Path, sendonce: Command) -> None:
    with FakeReceiver(CUT) as fake:
        fake.answers = "bare"
        settings = f"adapter: webhook, url: '{fake.url}/letters', secret: env:THE_SECRET, allow_private: true"
        prepare(tmp_path, sendonce, settings, 200, "test")
        sendonce("run", "--once", "--json")
        sendonce("run", "--once", "--json")
    status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["sent_count"], status["in_doubt"]) == (150, 50)
    assert len({attempt.key for attempt in fake.attempts}) == len(fake.attempts) == 4
    assert len(fake.letters()) == 200


def test_one_letter_that_a_receiver_refuses_without_naming_it_holds_nobody_up(
    tmp_path: Path, sendonce: Command
) -> None:
    """Requests get smaller until it is alone, then they grow again."""
    with FakeReceiver() as fake:
        fake.answers = "whole"
        fake.misbehave("refuse_recipient", "u150@one.example")
        settings = f"adapter: webhook, url: '{fake.url}/letters', secret: env:THE_SECRET, allow_private: true"
        prepare(tmp_path, sendonce, settings, 200, "test")
        code, said, _ = sendonce("run", "--json")
        assert (code, json.loads(said)["ended"]) == (0, "done")
        judged(tmp_path, sendonce, fake, 1, SECRET)
    refused = [len(json.loads(attempt.body)["data"]["messages"]) for attempt in fake.attempts if not attempt.letters]
    assert refused == sorted(refused, reverse=True)
    assert refused[-1] == 1
    assert len(refused) <= 5


def test_private_addresses_are_refused_in_a_store_for_production(tmp_path: Path, sendonce: Command) -> None:
    with FakeReceiver() as fake:
        settings = f"adapter: webhook, url: '{fake.url}/letters', secret: env:THE_SECRET, allow_private: true"
        with pytest.raises(AssertionError, match="mail has allow_private, which is for tests"):
            prepare(tmp_path, sendonce, settings, 3)
        sendonce("run", "--once")
    assert fake.attempts == []


def test_a_revoked_key_stops_the_campaign_and_says_how_to_mend_it(tmp_path: Path, sendonce: Command) -> None:
    with FakeResend() as fake:
        fake.misbehave("refuse_account")
        prepare(tmp_path, sendonce, f"adapter: resend, api_key: env:THE_KEY, base_url: '{fake.url}'", 200)
        sendonce("run", "--once", "--json")
    said = sendonce("status", "spring")[1]
    status = json.loads(sendonce("status", "spring", "--json")[1])
    assert (status["sent_count"], status["failed_count"], status["in_doubt"]) == (0, 0, 0)
    assert "give the sender a key that is in force" in " ".join(said.split())
    assert KEY not in said
    assert len(fake.attempts) <= 4
