import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from schemas.outcomes import Outcome
from sendonce.control.campaigns import pause, resume, submit
from sendonce.control.completion import settle_campaign
from sendonce.control.progress import ACTIVE_GAP_S, aggregate_progress
from sendonce.control.status import all_statuses, campaign_status
from sendonce.stores.base import Store
from tests.control.made import Clock, batch_row, campaign_row, outcomes, seal

CASES = Path(__file__).parents[1] / "cases"


def case(slug: str) -> dict:
    return json.loads((CASES / slug / "scenario.json").read_text(encoding="utf-8"))


def accepted(count: int) -> dict[int, Outcome]:
    return dict.fromkeys(range(count), Outcome.ACCEPTED)


def test_what_was_fetched_but_not_sent_is_not_done(store: Store) -> None:
    """fetched-not-sent: 10 recipients, batches of 5, the provider hangs on the second request."""
    scenario = case("fetched-not-sent")
    seal(store, "spring", [scenario["batch"]] * 2, state="running")
    outcomes(store, "spring", 0, accepted(5))
    outcomes(store, "spring", 1, {}, state="sending")

    shown = campaign_status(store, "spring").as_json()

    assert shown["sent_count"] == scenario["expect"]["sent"]
    assert shown["open"] == scenario["expect"]["in_flight"]
    assert shown["percent"] == scenario["expect"]["percent"]
    assert (shown["processing_batches"], shown["queued_batches"], shown["state"]) == (1, 0, "running")


def test_a_campaign_with_somebody_deferred_is_not_finished(store: Store) -> None:
    """finished-with-unsent: three sent, one refused, one waits for a retry; nothing to fetch at the moment."""
    final = case("finished-with-unsent")["final"]
    seal(store, "spring", [5], state="running")
    outcomes(store, "spring", 0, {**accepted(3), 3: Outcome.PROVIDER_UNKNOWN_MAILBOX}, state="pending")

    assert settle_campaign(store, "spring") == "running"
    assert campaign_row(store, "spring").finished_at is None

    outcomes(store, "spring", 0, {4: Outcome.ACCEPTED})
    assert settle_campaign(store, "spring") == final["state"]
    shown = campaign_status(store, "spring").as_json()
    assert (shown["sent_count"], shown["failed_count"], shown["percent"]) == (final["sent"], final["failed"], 100.0)
    assert campaign_row(store, "spring").finished_at is not None


def test_a_doubt_keeps_a_campaign_open_also_while_a_person_is_waited_for(store: Store) -> None:
    seal(store, "spring", [2], state="running")
    for state in ("in_doubt", "held"):
        outcomes(store, "spring", 0, {0: Outcome.IN_DOUBT} if state == "in_doubt" else {}, state=state)
        assert settle_campaign(store, "spring") == "running"


def test_a_campaign_that_lost_batches_is_not_finished(store: Store) -> None:
    seal(store, "spring", [2, 2], state="running")
    outcomes(store, "spring", 0, accepted(2))
    lost = batch_row(store, "spring", 1)
    store.transact(lambda tx: tx.delete(lost), tag="lose")

    assert settle_campaign(store, "spring") == "running"


def test_a_paused_campaign_whose_last_requests_settled_everything_is_completed(store: Store) -> None:
    seal(store, "spring", [2], state="running")
    pause(store, "spring", "ann")
    outcomes(store, "spring", 0, accepted(2))

    assert settle_campaign(store, "spring") == "completed"


def test_settling_leaves_alone_what_is_not_running_and_what_it_does_not_know(store: Store) -> None:
    seal(store, "empty", [])
    seal(store, "idle", [1])

    assert settle_campaign(store, "empty") == "ready"
    assert settle_campaign(store, "idle") == "ready"
    assert settle_campaign(store, "nobody") == ""
    submit(store, "empty", "ann")
    assert settle_campaign(store, "empty") == "completed"


def test_rate_and_eta_leave_pauses_out(store: Store, clock: Clock) -> None:
    seal(store, "spring", [250, 750])
    submit(store, "spring", "ann")
    tick(store, clock, 0)
    tick(store, clock, 25)
    pause(store, "spring", "ann")
    tick(store, clock, 600)
    resume(store, "spring", "ann")
    outcomes(store, "spring", 0, accepted(250))
    tick(store, clock, 25)

    found = campaign_status(store, "spring")

    assert (found.active_s, found.percent, found.rate_per_s) == (
        pytest.approx(50, abs=1e-3),
        25.0,
        pytest.approx(5, abs=1e-3),
    )
    assert found.eta_s == pytest.approx(150, abs=1e-2)
    assert found.as_json()["eta_minutes"] == 2.5


@pytest.mark.parametrize("waits_s", [3, 20, 3600])
def test_time_before_a_campaign_first_ran_is_not_active(store: Store, clock: Clock, waits_s: float) -> None:
    """A job that came 20 s after `submit` halved the speed that `status` told."""
    seal(store, "spring", [250, 750])
    submit(store, "spring", "ann")
    clock.at += timedelta(seconds=waits_s)
    assert campaign_status(store, "spring").active_s == 0
    tick(store, clock, 0)
    outcomes(store, "spring", 0, accepted(250))
    tick(store, clock, 10)

    found = campaign_status(store, "spring")

    assert (found.active_s, found.rate_per_s) == (pytest.approx(10, abs=1e-3), pytest.approx(25, abs=1e-3))


def test_work_before_the_first_sums_is_active(store: Store, clock: Clock) -> None:
    seal(store, "spring", [250, 750])
    submit(store, "spring", "ann")
    clock.at += timedelta(seconds=600)
    claimed = replace(batch_row(store, "spring", 0), claimed_at=clock.at)
    store.transact(lambda tx: tx.put(claimed), tag="test")
    outcomes(store, "spring", 0, accepted(250))
    tick(store, clock, 5)

    found = campaign_status(store, "spring")

    assert (found.active_s, found.rate_per_s) == (pytest.approx(5, abs=1e-3), pytest.approx(50, abs=1e-3))


def test_time_in_which_no_job_ran_is_not_active(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    submit(store, "spring", "ann")
    clock.at += timedelta(hours=1)
    aggregate_progress(store, "spring", clock.at)
    assert campaign_status(store, "spring").active_s == pytest.approx(0, abs=1e-3)

    tick(store, clock, 10)
    clock.at += timedelta(hours=8)
    assert campaign_status(store, "spring").active_s == pytest.approx(10 + ACTIVE_GAP_S, abs=1e-3)


def test_without_a_measured_rate_nothing_is_estimated(store: Store) -> None:
    seal(store, "spring", [2], state="running")

    shown = campaign_status(store, "spring").as_json()

    assert (shown["eta_minutes"], shown["rate_per_s"], shown["delivered_count"], shown["percent"]) == (
        None,
        None,
        None,
        0.0,
    )


def test_a_late_aggregation_never_replaces_a_newer_one(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2], state="running")
    newer = aggregate_progress(store, "spring", clock.at + timedelta(seconds=5))

    assert aggregate_progress(store, "spring", clock.at) == newer
    assert aggregate_progress(store, "nobody", clock.at) is None


def test_outcomes_of_every_kind_add_up_to_the_snapshot(store: Store) -> None:
    seal(store, "spring", [6, 3], state="running")
    kinds = [
        Outcome.ACCEPTED,
        Outcome.RENDER_ERROR,
        Outcome.SKIPPED_OPERATOR,
        Outcome.SUPPRESSED_MANUAL,
        Outcome.ASSUMED,
        Outcome.IN_DOUBT,
    ]
    outcomes(store, "spring", 0, dict(enumerate(kinds)), state="in_doubt")

    shown = campaign_status(store, "spring").as_json()

    parts = ("sent_count", "failed_count", "skipped", "suppressed", "cancelled", "assumed", "in_doubt", "open")
    assert [shown[part] for part in parts] == [1, 1, 1, 1, 0, 1, 1, 3]
    assert sum(shown[part] for part in parts) == shown["total_recipients"] == 9


def test_campaigns_are_listed_newest_first(store: Store, clock: Clock) -> None:
    seal(store, "a", [1])
    clock.at += timedelta(seconds=1)
    seal(store, "b", [1])

    assert [found.campaign.campaign_id for found in all_statuses(store)] == ["b", "a"]


def tick(store: Store, clock: Clock, seconds: float) -> None:
    clock.at += timedelta(seconds=seconds)
    aggregate_progress(store, "spring", clock.at)
