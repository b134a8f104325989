"""Real runs with campaigns that start later: whoever is there at the time starts them, once."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipelines.local import Round
from schemas.elements import TriggerMessage
from schemas.tables import Attempt
from sendonce.config import Config, apply_config
from sendonce.control.campaigns import submit
from sendonce.control.schedule import NOW
from tests.pipelines.shop import Shop, people
from tests.providers.sendgrid import KEY, FakeSendGrid

CASE = Path(__file__).parent.parent / "cases" / "past-schedule"
HOUR = timedelta(hours=1)


def store_time(shop: Shop) -> datetime:
    return shop.store.read(lambda reader: reader.now())


def requests(shop: Shop) -> list[datetime]:
    """When the intents of all requests were written."""
    return [row.started_at for row in shop.store.read(lambda reader: reader.scan(Attempt))]


def test_a_run_sends_what_is_due_and_waits_for_what_starts_later(shop: Shop) -> None:
    shop.campaign("now", people(3))
    shop.campaign("later", people(4, first=10), state="ready")
    submit(shop.store, "later", "ann", at=store_time(shop) + HOUR)
    waited: list[str] = []

    def waiting(found: Round) -> None:
        if found.left.due_for == "scheduled" and found.sleep_s > 0:
            waited.append(shop.state("now")[0])
            submit(shop.store, "later", "ann", at=NOW)

    report = shop.run(progress=waiting)

    assert (report.ended, report.unfinished, waited[0]) == ("done", 0, "completed")
    assert len(shop.letters()) == 7


def test_one_round_leaves_it_and_a_run_that_is_stopped_while_it_waits_is_followed_by_another(shop: Shop) -> None:
    shop.campaign("later", people(4), state="ready")
    submit(shop.store, "later", "ann", at=store_time(shop) + HOUR)
    once = shop.run(once=True)
    assert (once.ended, once.unfinished, shop.letters()) == ("once", 4, [])
    stop = threading.Event()
    stopped = shop.run(stop=stop, progress=lambda found: stop.set())
    assert (stopped.ended, stopped.unfinished, stopped.waits_for, shop.letters()) == ("stopped", 4, (), [])

    at = store_time(shop) + timedelta(seconds=1)
    submit(shop.store, "later", "ann", at=at)
    assert shop.run().ended == "done"
    assert len(shop.letters()) == 4
    assert all(request >= at for request in requests(shop))


def test_two_runs_start_it_once(shop: Shop) -> None:
    shop.campaign("later", people(40), state="ready", batch_size=5)
    at = store_time(shop) + timedelta(seconds=2)
    submit(shop.store, "later", "ann", at=at)
    with ThreadPoolExecutor(2) as pool:
        reports = [run.result() for run in [pool.submit(shop.run) for _ in range(2)]]
    assert {report.ended for report in reports} == {"done"}
    assert sorted(letter["To"] for letter in shop.letters()) == [f"p{n:04d}@one.example" for n in range(1, 41)]
    assert all(request >= at for request in requests(shop))


def test_case_past_schedule(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through the graph and to the provider: its times, as far from now as from the case's clock, in our triggers."""
    clock = datetime.fromisoformat((CASE / "clock.txt").read_text().strip())
    moved = datetime.now(UTC) - clock
    triggers = []
    for line in (CASE / "messages.jsonl").read_text().splitlines():
        data = json.loads(line)["data"]
        at = data["send_at"]
        if at in ("2026-01-15T09:00:00Z", "2026-01-18T18:00:00Z"):
            at = (datetime.fromisoformat(at) + moved).isoformat()
        body = {"v": 1, "type": "start", "campaign_id": data["campaign_id"], "at": at}
        triggers.append(TriggerMessage(json.dumps(body).encode(), "{}", data["campaign_id"]))
    monkeypatch.setenv("THE_KEY", KEY)
    bodies = tmp_path / "bodies.jsonl"
    with FakeSendGrid(tmp_path / "log.jsonl", bodies=bodies) as fake:
        mail = {"adapter": "sendgrid", "api_key": "env:THE_KEY", "base_url": fake.url}
        settings: dict[str, Any] = {"senders": {"mail": mail}, "lanes": {"bulk": {"sender": "mail"}}}
        apply_config(shop.store, Config.model_validate({**settings, "recipients_allowed": ["@one.example"]}), "test")
        for name in ("c-1", "c-2", "c-3", "c-4"):
            shop.campaign(name, people(3), state="ready")
        first = shop.run(once=True, triggers=triggers)
        again = shop.run(once=True, triggers=triggers)

    assert [result.ended for result in first.triggers] == ["applied", "applied", "bad", "bad"]
    assert [result.ended for result in again.triggers] == ["ignored", "ignored", "bad", "bad"]
    assert [shop.state(name)[0] for name in ("c-1", "c-2", "c-3", "c-4")] == ["completed", "running", "ready", "ready"]
    assert {row.reason for row in shop.dead_letters()} == {"invalid"}
    taken = bodies.read_text()
    assert (len(taken.splitlines()), "send_at" in taken) == (1, False)
