import pytest

from schemas.tables import Decision
from sendonce.control.campaigns import begin_cancel, pause, resume, start, submit
from sendonce.control.faults import UnknownCampaign, WrongState
from sendonce.stores.base import Store
from tests.control.made import Clock, campaign_row, seal


def test_submit_starts_once_and_says_who_and_when(store: Store) -> None:
    seal(store, "spring", [2])

    first = submit(store, "spring", "ann@desk")
    again = submit(store, "spring", "bob@desk")

    assert (first.before, first.after, first.changed) == ("ready", "running", True)
    assert (again.before, again.after, again.changed) == ("running", "running", False)
    row = campaign_row(store, "spring")
    assert (row.state, row.changed_by, row.started_at) == ("running", "ann@desk", row.changed_at)


def test_a_start_delivered_again_does_not_resume_a_paused_campaign(store: Store) -> None:
    """resume-from-start: the start trigger is redelivered while the campaign is paused."""
    seal(store, "spring", [10], state="running")
    pause(store, "spring", "ann")

    again = submit(store, "spring", "trigger")

    assert not again.changed
    assert again.note == "it is paused; `sendonce resume` goes on"
    assert campaign_row(store, "spring").state == "paused"


def test_pause_and_resume_any_number_of_times_keep_the_first_start(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    submit(store, "spring", "ann")
    started = campaign_row(store, "spring").started_at

    for _ in range(3):
        clock.at = clock.at.replace(minute=clock.at.minute + 1)
        assert pause(store, "spring", "ann").changed
        assert not pause(store, "spring", "ann").changed
        assert resume(store, "spring", "ann").changed
        assert not resume(store, "spring", "ann").changed

    row = campaign_row(store, "spring")
    assert (row.state, row.started_at) == ("running", started)


def test_resume_clears_the_reason_of_the_pause(store: Store) -> None:
    seal(store, "spring", [2], state="running")
    pause(store, "spring", "ann", reason="wrong price")
    assert campaign_row(store, "spring").state_reason == "wrong price"

    resume(store, "spring", "ann")

    assert campaign_row(store, "spring").state_reason is None


@pytest.mark.parametrize(
    ("state", "action", "mend"),
    [
        ("loading", submit, "still being loaded; run `sendonce load` again"),
        ("completed", submit, "load a new campaign to send again"),
        ("cancelled", submit, "cancelled, and that is final"),
        ("cancelling", submit, "cancelled, and that is final"),
        ("ready", pause, "has not been submitted"),
        ("completed", pause, "cannot be changed"),
        ("ready", resume, "`sendonce submit` starts it"),
        ("cancelled", resume, "cannot be changed"),
        ("cancelling", resume, "cannot be changed"),
        ("completed", begin_cancel, "cannot be changed"),
    ],
)
def test_what_a_state_does_not_allow_is_refused_with_the_mend(store: Store, state: str, action, mend: str) -> None:
    seal(store, "spring", [2], state=state)

    with pytest.raises(WrongState, match="campaign spring: it is ") as refused:
        action(store, "spring", "ann")

    assert mend in str(refused.value)
    assert campaign_row(store, "spring").state == state


@pytest.mark.parametrize("action", [submit, pause, resume, begin_cancel])
def test_an_unknown_campaign_is_named(store: Store, action) -> None:
    with pytest.raises(UnknownCampaign, match=r"no campaign 'sprnig' in the store; `sendonce list`"):
        action(store, "sprnig", "ann")


def test_an_older_seq_than_the_last_applied_changes_nothing(store: Store) -> None:
    seal(store, "spring", [2])
    start(store, "spring", "trigger", seq=5)
    pause(store, "spring", "trigger", seq=7)

    late = resume(store, "spring", "trigger", seq=6)
    twice = resume(store, "spring", "trigger", seq=7)
    newer = resume(store, "spring", "trigger", seq=8)

    assert (late.changed, late.after, twice.changed) == (False, "paused", False)
    assert "seq 6 is not newer than 7" in late.note
    assert (newer.after, campaign_row(store, "spring").seq) == ("running", 8)


def test_a_seq_counts_as_applied_even_when_nothing_had_to_change(store: Store) -> None:
    seal(store, "spring", [2], state="running")
    start(store, "spring", "trigger", seq=9)

    assert not pause(store, "spring", "trigger", seq=8).changed


def test_a_cancel_before_the_start_is_kept(store: Store) -> None:
    seal(store, "spring", [2])
    begin_cancel(store, "spring", "trigger", seq=2)

    assert not start(store, "spring", "trigger", seq=1).changed
    with pytest.raises(WrongState):
        start(store, "spring", "trigger", seq=3)


def test_who_cancelled_is_a_decision_row_once(store: Store) -> None:
    seal(store, "spring", [2], state="running")
    begin_cancel(store, "spring", "ann@desk")
    begin_cancel(store, "spring", "bob@desk")

    rows = store.read(lambda reader: reader.scan(Decision, "spring", index="decisions_by_campaign"))
    assert [(row.kind, row.by) for row in rows] == [("cancel", "ann@desk")]
