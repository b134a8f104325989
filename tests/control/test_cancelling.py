from schemas.outcomes import Outcome
from schemas.tables import OutboundMessage
from sendonce.control.campaigns import begin_cancel
from sendonce.control.status import campaign_status
from sendonce.delivery.cancellation import cancel, sweep_cancelled
from sendonce.stores.base import Store
from tests.control.made import batch_row, campaign_row, outcomes, seal


def accepted(count: int) -> dict[int, Outcome]:
    return dict.fromkeys(range(count), Outcome.ACCEPTED)


def test_cancel_gives_everybody_who_was_not_sent_to_an_outcome_and_a_row(store: Store) -> None:
    """cancel-drains-buffer: what waits or is queued is cancelled, what was sent stays sent, the sum is whole."""
    seal(store, "spring", [3, 3, 3], state="running")
    outcomes(store, "spring", 0, accepted(3))
    outcomes(store, "spring", 1, accepted(1), state="pending")
    outcomes(store, "spring", 2, {}, state="queued")

    change = cancel(store, "spring", "ann")

    assert (change.before, change.after, change.changed) == ("running", "cancelled", True)
    shown = campaign_status(store, "spring").as_json()
    assert (shown["sent_count"], shown["cancelled"], shown["open"], shown["state"]) == (4, 5, 0, "cancelled")
    rows = store.read(lambda reader: reader.scan(OutboundMessage, "spring", index="outbound_by_campaign"))
    assert [(row.batch_no, row.ordinal, row.outcome) for row in rows] == [
        (1, 1, Outcome.CANCELLED),
        (1, 2, Outcome.CANCELLED),
        (2, 0, Outcome.CANCELLED),
        (2, 1, Outcome.CANCELLED),
        (2, 2, Outcome.CANCELLED),
    ]


def test_cancel_waits_for_what_is_in_flight_or_in_doubt_and_may_be_repeated(store: Store) -> None:
    seal(store, "spring", [2, 2], state="running")
    outcomes(store, "spring", 0, {}, state="sending")
    outcomes(store, "spring", 1, {0: Outcome.IN_DOUBT, 1: Outcome.ACCEPTED}, state="in_doubt")

    assert cancel(store, "spring", "ann").after == "cancelling"
    assert cancel(store, "spring", "ann").after == "cancelling"
    assert batch_row(store, "spring", 0).state == "sending"

    outcomes(store, "spring", 0, {0: Outcome.ACCEPTED}, state="pending")
    outcomes(store, "spring", 1, {0: Outcome.ACCEPTED})
    assert cancel(store, "spring", "ann").after == "cancelled"
    assert not cancel(store, "spring", "ann").changed
    shown = campaign_status(store, "spring").as_json()
    assert (shown["sent_count"], shown["cancelled"], shown["open"]) == (3, 1, 0)


def test_a_cancel_cut_off_by_a_kill_is_finished_by_calling_it_again(store: Store) -> None:
    seal(store, "spring", [1] * 5, state="running")
    begin_cancel(store, "spring", "ann")
    closed: list[int] = []

    change = cancel(store, "spring", "ann", progress=closed.append)

    assert (change.after, change.changed, closed) == ("cancelled", True, [5])


def test_the_sweep_of_a_tick_closes_some_at_a_time_and_only_of_cancelled_campaigns(store: Store) -> None:
    seal(store, "spring", [1] * 5, state="running")
    assert sweep_cancelled(store, "spring", 10) == 0

    begin_cancel(store, "spring", "ann")
    assert [sweep_cancelled(store, "spring", 2) for _ in range(4)] == [2, 2, 1, 0]


def test_a_campaign_that_was_never_started_is_cancelled_whole(store: Store) -> None:
    seal(store, "spring", [3])

    assert cancel(store, "spring", "ann").after == "cancelled"
    assert campaign_status(store, "spring").counts.outcomes["cancelled"] == 3


def test_a_campaign_that_is_still_loading_is_cancelled_at_once(store: Store) -> None:
    seal(store, "spring", [3], state="loading")

    change = cancel(store, "spring", "ann")

    assert (change.before, change.after, change.changed) == ("loading", "cancelled", True)
    assert campaign_row(store, "spring").finished_at is not None
