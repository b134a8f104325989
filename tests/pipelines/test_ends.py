"""Real bounded runs whose work ends without an acceptance: at the campaign's end, or after too many tries."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import Campaign
from sendonce.config import Config, apply_config
from sendonce.control import stops
from sendonce.control.expiry import with_end
from sendonce.delivery import health, retry
from sendonce.delivery.sweeper import CLOSED_AT_ONCE
from sendonce.failpoints import armed
from sendonce.stores.base import Tx
from tests.pipelines.shop import Shop
from tests.providers.http import Fate
from tests.providers.sendgrid import KEY, FakeSendGrid

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    shop = Shop(tmp_path)
    yield shop
    shop.store.close()


def people(count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(count)]


def end_now(shop: Shop, campaign_id: str) -> None:
    def work(tx: Tx) -> None:
        row = tx.get(Campaign, campaign_id)
        assert row is not None
        tx.put(with_end(row, tx.now()))

    shop.store.transact(work, tag="test")


def test_a_campaign_under_a_used_up_limit_ends_at_its_end(shop: Shop) -> None:
    shop.configure(limits=[{"cap": "10/day"}])
    shop.campaign("spring", people(25))
    assert shop.run(once=True).unfinished == 15
    end_now(shop, "spring")
    report = shop.run()
    assert (report.ended, report.unfinished, report.waits_for) == ("done", 0, ())
    assert shop.state("spring")[0] == "completed"
    found = list(shop.outcomes("spring").values())
    assert (found.count("accepted"), found.count("expired")) == (10, 15)
    assert len(shop.letters()) == 10


def test_a_run_that_waits_for_a_limit_stops_waiting_at_the_end(shop: Shop) -> None:
    """The limit frees its next permit tomorrow; the end comes while the run waits for it."""
    shop.configure(limits=[{"cap": "10/day"}])
    shop.campaign("spring", people(25))

    def waiting(found: Any) -> None:
        if found.left.due_for == "limit" and found.sleep_s > 0:
            end_now(shop, "spring")

    assert shop.run(progress=waiting).ended == "done"
    assert shop.state("spring")[0] == "completed"


def test_a_paused_campaign_of_many_batches_is_closed_in_one_run(shop: Shop) -> None:
    shop.campaign("spring", people(CLOSED_AT_ONCE + 5), batch_size=1, state="paused")
    end_now(shop, "spring")
    assert shop.run().ended == "done"
    assert shop.state("spring")[0] == "completed"
    assert set(shop.outcomes("spring").values()) == {"expired"}
    assert shop.letters() == []


def test_a_stopped_lane_keeps_nobody_open_beyond_the_end(shop: Shop) -> None:
    shop.campaign("spring", people(5))
    stops.stop_sending(shop.store, "lane:bulk", "wrong list", "ann")
    assert shop.run().ended == "blocked"
    end_now(shop, "spring")
    assert shop.run().ended == "done"
    assert set(shop.outcomes("spring").values()) == {"expired"}


def test_a_run_does_not_spin_over_a_doubt_that_may_not_be_asked_about_now(shop: Shop) -> None:
    """The outbox may be asked again at any time, but its lane is stopped: the run says so and ends."""
    shop.campaign("spring", people(5))
    with armed("S6:drop_reply:1"):
        shop.run(once=True)
    assert set(shop.outcomes("spring").values()) == {"in_doubt"}
    stops.stop_sending(shop.store, "lane:bulk", "wrong list", "ann")
    report = shop.run()
    assert (report.ended, report.waits_for, report.rounds) == ("blocked", ("stopped",), 0)
    stops.end_stop(shop.store, "lane:bulk")
    assert shop.run().ended == "done"
    assert set(shop.outcomes("spring").values()) == {"accepted"}


def by_sendgrid(shop: Shop, url: str, monkeypatch: pytest.MonkeyPatch, **settings: Any) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    mail = {"adapter": "sendgrid", "api_key": "env:THE_KEY", "base_url": url, **settings}
    guard = {"recipients_allowed": ["@one.example"]}
    bulk = {"sender": "mail", "parallel": settings.get("parallel", 4)}
    config = Config.model_validate({"senders": {"mail": mail}, "lanes": {"bulk": bulk}, **guard})
    apply_config(shop.store, config, "test")


def test_a_batch_that_the_provider_never_takes_is_exhausted_and_its_neighbours_are_not(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retry, "FIRST_S", 0.01)
    monkeypatch.setattr(retry, "LONGEST_S", 0.02)
    monkeypatch.setattr(health, "FAILURES_TO_OPEN", 1000)

    def poisoned(body: dict[str, Any]) -> Fate | None:
        addresses = [one["to"][0]["email"] for one in body["personalizations"]]
        return Fate(503) if "3@one.example" in addresses else None

    with FakeSendGrid(tmp_path / "log.jsonl", rule=poisoned) as fake:
        by_sendgrid(shop, fake.url, monkeypatch, http_503="not_sent")
        shop.campaign("spring", people(30))
        assert shop.run().ended == "done"
        refused = [line for line in fake.requests() if line["verdict"] == "503"]
    assert len(refused) == 12
    found = shop.outcomes("spring")
    assert {number for number, what in found.items() if what == "exhausted"} == {str(number) for number in range(10)}
    assert {what for number, what in found.items() if int(number) >= 10} == {"accepted"}


def test_an_outage_opens_the_breaker_refuses_nobody_and_the_next_run_finishes(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 to everything: a handful of requests, no try spent beyond the breaker, everything accepted afterwards."""
    monkeypatch.setattr(retry, "LONGEST_S", 1.0)
    monkeypatch.setattr(health, "FIRST_OPEN_S", 0.5)
    monkeypatch.setattr(health, "LONGEST_OPEN_S", 0.5)
    with FakeSendGrid(tmp_path / "log.jsonl", script=[Fate(503)] * 9) as fake:
        by_sendgrid(shop, fake.url, monkeypatch, http_503="not_sent", parallel=1)
        shop.campaign("spring", people(30))
        assert shop.run().ended == "done"
        requests = fake.requests()
    assert set(shop.outcomes("spring").values()) == {"accepted"}
    assert sum(line["recipients"] for line in requests if line["accepted"]) == 30
    probes = [line["recipients"] for line in requests[health.FAILURES_TO_OPEN : 10]]
    assert probes == [1] * 5, "what probes an open breaker is one letter, the accepted one too"


def test_an_end_far_away_changes_nothing(shop: Shop) -> None:
    shop.campaign("spring", people(3))
    row = shop.store.read(lambda reader: reader.get(Campaign, "spring"))
    assert row is not None
    later = replace(with_end(row, datetime.now(UTC) + timedelta(days=30)))
    shop.store.transact(lambda tx: tx.put(later), tag="test")
    assert shop.run().ended == "done"
    assert set(shop.outcomes("spring").values()) == {"accepted"}
