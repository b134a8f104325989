"""Campaigns that start later on the Spanner emulator: by its own time, and by no other ways of reading than before."""

import time
from datetime import timedelta
from itertools import count

import pytest

from sendonce.control.campaigns import pause, resume, submit
from sendonce.control.schedule import NOW
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.resolver import Policy
from sendonce.delivery.sweeper import sweep_lane
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store, store_key
from tests.control.made import batch_row, campaign_row, seal
from tests.delivery.world import TERMS
from tests.emulated import Emulator
from tests.stores.commits import watched

pytest.importorskip("google.cloud.spanner", reason="google-cloud-spanner is not installed")
PATIENCE_S = 60.0
_numbers = count(1)


@pytest.fixture
def store(spanner: Emulator) -> Store:
    return init_store(f"spanner://sendonce-test/scheduled/store-{next(_numbers)}")


def test_it_is_planned_from_its_time_on_as_spanner_tells_the_time(store: Store) -> None:
    seal(store, "spring", [3, 3])
    now = store.read(lambda reader: reader.now())
    submit(store, "spring", "ann", at=now + timedelta(hours=1))
    pause(store, "spring", "ann")
    assert resume(store, "spring", "ann").starts_at == now + timedelta(hours=1)
    assert plan_lane(store, TERMS, 100).references == []
    assert batch_row(store, "spring", 0).state == "pending"

    at = store.read(lambda reader: reader.now()) + timedelta(seconds=1)
    submit(store, "spring", "ann", at=at)
    ends_s = time.monotonic() + PATIENCE_S
    while not (planned := plan_lane(store, TERMS, 100).references):
        assert time.monotonic() < ends_s
        time.sleep(0.05)
    assert store.read(lambda reader: reader.now()) >= at
    assert sorted(reference.batch_no for reference in planned) == [0, 1]


def test_a_campaign_that_waits_costs_looks_and_no_writes(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its look asks for what is due of campaigns that run, as ever; of its own batches only for doubts."""
    seal(store, "spring", [3] * 4)
    now = store.read(lambda reader: reader.now())
    submit(store, "spring", "ann", at=now + timedelta(hours=1))
    sweep_lane(store, store_key(store), TERMS, Policy("hold", "rows"), lambda: "id")  # purges once
    before = campaign_row(store, "spring")
    calls = watched(store, monkeypatch)

    assert plan_lane(store, TERMS, 100).references == []
    looks = [text for request, _, text in calls.reads if "campaign_batches" in text]
    assert len(looks) == 1
    assert "FORCE_INDEX=batches_open" in looks[0]
    sweep_lane(store, store_key(store), TERMS, Policy("hold", "rows"), lambda: "id")
    assert not {"plan", "progress", "settle_campaign"} & set(calls.by_tag)
    assert campaign_row(store, "spring") == before

    submit(store, "spring", "ann", at=NOW)
    assert len(plan_lane(store, TERMS, 100).references) == 4
