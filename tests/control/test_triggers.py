"""Triggers that come late, again, or before what they speak of. A person's same call stays refused."""

import json

import pytest

from schemas.tables import Decision
from sendonce.control.campaigns import begin_cancel, pause, resume, submit
from sendonce.control.faults import UnknownCampaign, WrongState
from sendonce.control.triggers import BadTrigger, Trigger, apply_trigger, read_trigger
from sendonce.stores.base import Store
from tests.control.made import campaign_row, seal


@pytest.mark.parametrize("kind", ["start", "pause", "resume", "cancel"])
@pytest.mark.parametrize("state", ["completed", "cancelling", "cancelled"])
def test_a_trigger_after_the_end_changes_nothing_and_is_no_fault(store: Store, state: str, kind: str) -> None:
    """A start that was redelivered a week later became a dead letter."""
    seal(store, "spring", [2], state=state)
    before = campaign_row(store, "spring")

    change = apply_trigger(store, Trigger(kind, "spring", None), "trigger")

    assert (change.changed, change.after) == (False, state)
    assert campaign_row(store, "spring") == before


@pytest.mark.parametrize(("kind", "state"), [("pause", "ready"), ("resume", "ready"), ("start", "loading")])
def test_a_trigger_before_its_time_is_still_a_fault(store: Store, kind: str, state: str) -> None:
    seal(store, "spring", [2], state=state)

    with pytest.raises(BadTrigger) as refused:
        apply_trigger(store, Trigger(kind, "spring", None), "trigger")

    assert refused.value.reason == "wrong_state"


@pytest.mark.parametrize("seq", [None, 1, 9])
def test_a_cancel_before_its_campaign_is_kept_and_wins_over_the_start(store: Store, seq: int | None) -> None:
    """It became a dead letter, and the campaign that somebody had called off was sent."""
    cancel = Trigger("cancel", "spring", 5)
    kept = apply_trigger(store, cancel, "trigger")
    again = apply_trigger(store, cancel, "trigger")
    assert (kept.changed, again.changed) == (True, False)

    seal(store, "spring", [2])
    change = apply_trigger(store, Trigger("start", "spring", seq), "trigger")

    assert (change.before, change.after, change.changed) == ("ready", "cancelling", True)
    row = campaign_row(store, "spring")
    assert (row.state, row.started_at) == ("cancelling", None)
    (decision,) = store.read(lambda reader: reader.scan(Decision, "spring", index="decisions_by_campaign"))
    assert (decision.kind, decision.by) == ("cancel", "trigger")
    assert not apply_trigger(store, Trigger("start", "spring", None), "trigger").changed


def test_a_person_who_starts_what_was_called_off_is_told(store: Store) -> None:
    apply_trigger(store, Trigger("cancel", "spring", None), "trigger")
    seal(store, "spring", [2])

    assert "a trigger cancelled it before it was loaded" in submit(store, "spring", "ann").note
    with pytest.raises(WrongState):
        submit(store, "spring", "ann")


def test_a_kept_cancel_is_for_its_campaign_alone(store: Store) -> None:
    apply_trigger(store, Trigger("cancel", "spring", None), "trigger")
    seal(store, "summer", [2])

    assert submit(store, "summer", "ann").after == "running"


@pytest.mark.parametrize("action", [submit, pause, resume, begin_cancel])
def test_a_person_must_name_a_campaign_that_is_there(store: Store, action) -> None:  # type: ignore[no-untyped-def]
    apply_trigger(store, Trigger("cancel", "spring", None), "trigger")

    with pytest.raises(UnknownCampaign):
        action(store, "spring", "ann")


@pytest.mark.parametrize("name", ["spring\\n", "", "-spring", "a b", "x" * 101])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    """A line break at its end passed: Python's `$` stands before it, too."""
    with pytest.raises(BadTrigger) as refused:
        read_trigger(f'{{"v": 1, "type": "cancel", "campaign_id": "{name}"}}'.encode())

    assert refused.value.reason == "invalid"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"v": 1, "type": "start"}, "the body: needs campaign_id"),
        ({"v": 1, "type": "send", "template": "SECRET", "priority": "high"}, "needs idempotency_key, recipients"),
        (
            {"v": 1, "type": "start", "SECRET": 1},
            "the body: field 3 is not known (counted from 1); known are v, type, "
            "campaign_id, seq, at; needs campaign_id",
        ),
        (
            {"v": 1, "campaign": "SECRET", "type": "pause"},
            "the body: field 2 (campaign_id?) is not known (counted from "
            "1); known are v, type, campaign_id, seq; needs campaign_id",
        ),
        (
            {"v": 1, "type": "start", "campaign_id": "spring", "SECRET": 1, "Seq": 2},
            "the body: field 4, field 5 (seq?) are not known (counted from 1); known are v, type, campaign_id, seq, at",
        ),
        (
            {
                "v": 1,
                "type": "send",
                "template": "otp",
                "priority": "high",
                "idempotency_key": "k",
                "recipients": [{"recipient_id": "1", "email": "SECRET", "SECRET@one.example": 1, "vars": {}}],
            },
            "recipients.0: field 3, field 4 are not known (counted from 1); known are recipient_id, email, locale, "
            "timezone, variables",
        ),
        (
            {"v": 1, "type": "start", "campaign_id": "spring", **{f"SECRET{number}": 1 for number in range(8)}},
            "the body: field 4, field 5, field 6, field 7, field 8 and 3 more are not known (counted from 1); known "
            "are v, type, campaign_id, seq, at",
        ),
        (
            {
                "v": 1,
                "type": "send",
                "template": "otp",
                "priority": "high",
                "idempotency_key": "k",
                "recipients": [{"recipient_id": "SECRET"}],
            },
            "recipients.0: needs email",
        ),
    ],
)
def test_what_is_missing_or_not_known_is_told_and_nothing_else(body: dict[str, object], said: str) -> None:
    with pytest.raises(BadTrigger) as fault:
        read_trigger(json.dumps(body).encode())
    assert fault.value.reason == "invalid"
    assert fault.value.detail.endswith(said)
    assert "SECRET" not in fault.value.detail
