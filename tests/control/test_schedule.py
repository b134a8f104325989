"""A campaign that starts later: as triggers and people say it, and what the campaign's row then is."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.outcomes import Outcome
from schemas.tables import Campaign
from sendonce.control.campaigns import begin_cancel, check_retry, pause, resume, submit
from sendonce.control.completion import settle_campaign
from sendonce.control.expiry import NEVER, BadEnd, end_of
from sendonce.control.guards import NotReady
from sendonce.control.schedule import FURTHEST, NOW, BadStart, read_start, start_of, starts_later
from sendonce.control.status import campaign_status
from sendonce.control.stream_names import STREAM
from sendonce.control.triggers import Taken, Trigger, apply_triggers, read_or_bad, read_trigger
from sendonce.stores.base import Store
from tests.control.made import Clock, campaign_row, outcomes, seal

CASE = Path(__file__).parent.parent / "cases" / "past-schedule"
HOUR = timedelta(hours=1)


def body(campaign_id: str = "spring", **fields: Any) -> bytes:
    return json.dumps({"v": 1, "type": "start", "campaign_id": campaign_id, **fields}).encode()


def take(store: Store, *bodies: bytes) -> list[Taken]:
    return apply_triggers(store, [read_or_bad(one) for one in bodies], "trigger")


def text(at: datetime) -> str:
    return at.isoformat().replace("+00:00", "Z")


def starts_at(store: Store, campaign_id: str = "spring") -> datetime | None:
    """When it starts; None once it has begun."""
    row = campaign_row(store, campaign_id)
    return store.read(lambda reader: starts_later(row, reader.now()))


def at_once(store: Store, clock: Clock, campaign_id: str = "spring") -> bool:
    """Whether it began at the store's time now; each commit takes a microsecond of it."""
    started = start_of(campaign_row(store, campaign_id))
    assert started is not None
    return timedelta(0) <= started - clock.at < timedelta(seconds=1)


# -- triggers ----------------------------------------------------------------------------------------------------------


def test_case_past_schedule(store: Store, clock: Clock) -> None:
    """Its times as `at` of our triggers: one that is past starts at once, one 80 hours ahead is ours to hold."""
    clock.at = datetime.fromisoformat((CASE / "clock.txt").read_text().strip())
    sent = [json.loads(line)["data"] for line in (CASE / "messages.jsonl").read_text().splitlines()]
    for one in sent:
        seal(store, one["campaign_id"], [3])

    past, ahead, naive, at_24 = take(store, *(body(one["campaign_id"], at=one["send_at"]) for one in sent))

    assert (past.ended, at_once(store, clock, "c-1")) == ("applied", True)
    assert starts_at(store, "c-1") is None
    assert (ahead.ended, ahead.detail) == ("applied", "it starts at 2026-01-18T18:00:00Z")
    assert starts_at(store, "c-2") == datetime(2026, 1, 18, 18, tzinfo=UTC)
    for refused, name in ((naive, "c-3"), (at_24, "c-4")):
        assert (refused.ended, refused.reason) == ("bad", "invalid")
        assert refused.detail.startswith("at: must be a time with its offset and hours from 00 to 23, like ")
        assert campaign_row(store, name).state == "ready"

    again = take(store, *(body(one["campaign_id"], at=one["send_at"]) for one in sent[:2]))
    assert [one.ended for one in again] == ["ignored", "ignored"], "one time each"
    assert starts_at(store, "c-2") == datetime(2026, 1, 18, 18, tzinfo=UTC)


@pytest.mark.parametrize("kind", ["pause", "resume", "cancel"])
def test_only_a_start_has_a_time(kind: str) -> None:
    bad = read_or_bad(json.dumps({"v": 1, "type": kind, "campaign_id": "c", "at": "2026-01-15T09:00:00Z"}).encode())
    assert not isinstance(bad, Trigger)
    assert "is not known" in str(bad)


@pytest.mark.parametrize("at", [None, 1_800_000_000, "", "tomorrow", "2026-01-15", "x" * 41])
def test_an_at_that_is_no_time_is_refused_without_its_value(at: object) -> None:
    bad = read_or_bad(body(at=at))
    assert not isinstance(bad, Trigger)
    assert str(bad).startswith("at: ")
    assert "tomorrow" not in str(bad)


def test_a_newer_seq_moves_the_start_and_an_older_or_equal_one_does_not(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    first, second = clock.at + HOUR, clock.at + 2 * HOUR
    later, early = take(store, body(seq=2, at=text(second)), body(seq=1, at=text(first)))
    assert (later.ended, early.ended, starts_at(store)) == ("applied", "ignored", second)

    again, other, newer = take(
        store, body(seq=2, at=text(second)), body(seq=2, at=text(first)), body(seq=3, at=text(first))
    )
    assert (again.ended, other.ended, newer.ended, starts_at(store)) == ("ignored", "ignored", "applied", first)
    assert campaign_row(store, "spring").changed_by == "trigger"

    (now,) = take(store, body(seq=4))
    assert (now.ended, now.detail) == ("applied", f"it starts now, not at {text(first)}")
    assert at_once(store, clock)


def test_without_a_seq_a_trigger_that_comes_late_moves_nothing(store: Store, clock: Clock) -> None:
    """Redelivered after the time was moved, it would have started the campaign at the time of before, or at once."""
    seal(store, "spring", [2])
    take(store, body(at=text(clock.at + HOUR)))
    submit(store, "spring", "ann", at=clock.at + 2 * HOUR)
    for late in (body(at=text(clock.at + HOUR)), body()):
        (taken,) = take(store, late)
        assert taken.ended == "ignored"
        assert taken.detail.endswith("a start that moves it needs a seq")
    assert starts_at(store) == clock.at + 2 * HOUR
    assert take(store, body(seq=0, at=text(clock.at + HOUR)))[0].ended == "applied", "the first that carries an order"


def test_a_start_too_far_ahead_or_after_the_end_is_a_dead_letter(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    (far,) = take(store, body(at=text(clock.at + FURTHEST + timedelta(seconds=1))))
    assert (far.ended, far.reason) == ("bad", "bad_at")
    assert "more than 366 days ahead" in far.detail
    assert campaign_row(store, "spring").state == "ready"
    assert take(store, body(at=text(clock.at + FURTHEST)))[0].ended == "applied"

    submit(store, "spring", "ann", at=clock.at + HOUR, expires_at=clock.at + 2 * HOUR)
    (late,) = take(store, body(seq=1, at=text(clock.at + 2 * HOUR)))
    assert (late.ended, late.reason) == ("bad", "bad_at")
    assert "not before the campaign's end" in late.detail
    assert starts_at(store) == clock.at + HOUR
    assert campaign_row(store, "spring").seq is None, "a refused trigger was not applied"


def test_a_cancel_that_came_first_wins_over_a_start_that_is_ahead(store: Store, clock: Clock) -> None:
    take(store, json.dumps({"v": 1, "type": "cancel", "campaign_id": "spring"}).encode())
    seal(store, "spring", [2])
    (taken,) = take(store, body(at=text(clock.at + HOUR)))
    assert taken.ended == "applied"
    row = campaign_row(store, "spring")
    assert (row.state, row.started_at) == ("cancelling", None)


def test_a_start_is_read_to_utc() -> None:
    trigger = read_trigger(body(at="2026-01-15T10:30:00.5+01:00"))
    assert isinstance(trigger, Trigger)
    assert trigger.at == datetime(2026, 1, 15, 9, 30, 0, 500_000, tzinfo=UTC)


# -- people ------------------------------------------------------------------------------------------------------------


def test_it_has_begun_at_its_time_and_not_a_microsecond_before(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    at = clock.at + HOUR
    change = submit(store, "spring", "ann", at=at)
    assert (change.before, change.after, change.changed, change.starts_at) == ("ready", "running", True, at)
    clock.at = at - timedelta(microseconds=1)
    assert starts_at(store) == at
    clock.at = at
    assert starts_at(store) is None


def test_submitting_again_moves_it_until_it_has_begun(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    at = clock.at + HOUR
    submit(store, "spring", "ann", at=at + HOUR)
    moved = submit(store, "spring", "bob", at=at)
    assert (moved.changed, moved.starts_at, campaign_row(store, "spring").changed_by) == (True, at, "bob")
    assert not submit(store, "spring", "cid", at=at).changed
    assert campaign_row(store, "spring").changed_by == "bob"

    clock.at = at
    late = submit(store, "spring", "cid", at=at + HOUR)
    assert (late.changed, late.starts_at) == (False, None)
    assert late.note == f"it began at {text(at)}, so another time changes nothing"
    assert submit(store, "spring", "cid", at=NOW).note == "it is running already"
    assert start_of(campaign_row(store, "spring")) == at


def test_now_starts_what_was_to_start_later_and_says_so(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    submit(store, "spring", "ann", at=clock.at + HOUR)
    change = submit(store, "spring", "ann", at=NOW)
    assert (change.changed, change.starts_at) == (True, None)
    assert change.note == f"it starts now, not at {text(clock.at + HOUR)}"
    assert at_once(store, clock)


def test_another_end_alone_leaves_the_start(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    at = clock.at + HOUR
    submit(store, "spring", "ann", at=at)
    assert submit(store, "spring", "ann", expires_at=at + HOUR).changed
    assert starts_at(store) == at
    with pytest.raises(BadEnd, match="is not after the campaign's start"):
        submit(store, "spring", "ann", expires_at=at)
    row = campaign_row(store, "spring")
    assert end_of(row) == at + HOUR
    with pytest.raises(BadEnd, match="is not after the campaign's start"):
        store.read(lambda reader: check_retry(reader, row, at))
    both = submit(store, "spring", "ann", at=at + 2 * HOUR, expires_at=at + 3 * HOUR)
    assert (both.changed, starts_at(store)) == (True, at + 2 * HOUR)
    submit(store, "spring", "ann", at=at + 9 * HOUR, expires_at=NEVER)
    assert starts_at(store) == at + 9 * HOUR


@pytest.mark.parametrize("end", [HOUR, 2 * HOUR])
def test_a_start_at_or_after_the_end_is_refused_and_changes_nothing(store: Store, clock: Clock, end: timedelta) -> None:
    seal(store, "spring", [2])
    with pytest.raises(BadStart, match="nobody would get a letter"):
        submit(store, "spring", "ann", at=clock.at + 2 * HOUR, expires_at=clock.at + end)
    row = campaign_row(store, "spring")
    assert (row.state, start_of(row), end_of(row)) == ("ready", None, None)


def test_a_start_now_of_what_may_not_start_is_refused(store: Store, clock: Clock) -> None:
    """Its sender may have become a real one since it was submitted."""
    from sendonce.config import Config, apply_config

    seal(store, "spring", [2], priority="high")
    at = clock.at + HOUR
    submit(store, "spring", "ann", at=at)
    real = {"adapter": "sendgrid", "api_key": "env:KEY"}
    apply_config(store, Config.model_validate({"senders": {"grid": real}, "lanes": {"high": {"sender": "grid"}}}), "t")
    with pytest.raises(NotReady):
        submit(store, "spring", "ann", at=NOW)
    assert starts_at(store) == at


def test_pause_and_resume_before_it_begins_keep_its_time(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    at = clock.at + HOUR
    submit(store, "spring", "ann", at=at)
    assert pause(store, "spring", "ann").after == "paused"
    assert starts_at(store) == at
    change = resume(store, "spring", "ann")
    assert (change.after, change.starts_at, starts_at(store)) == ("running", at, at)


def test_a_paused_one_may_be_moved_and_stays_paused(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    at = clock.at + HOUR
    submit(store, "spring", "ann", at=at)
    pause(store, "spring", "ann")
    moved = submit(store, "spring", "ann", at=at + HOUR)
    assert (moved.after, moved.changed, starts_at(store)) == ("paused", True, at + HOUR)
    assert moved.note.endswith("once it is resumed")
    now = submit(store, "spring", "ann", at=NOW)
    assert (now.after, now.changed, starts_at(store)) == ("paused", True, None)
    assert now.note.startswith("it starts when it is resumed, not at ")


def test_a_time_that_passes_while_it_is_paused_lets_it_begin_when_it_is_resumed(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    submit(store, "spring", "ann", at=clock.at + HOUR)
    pause(store, "spring", "ann")
    clock.at += 2 * HOUR
    change = resume(store, "spring", "ann")
    assert (change.after, change.starts_at) == ("running", None)


def test_one_that_is_cancelled_before_its_time_never_started(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    submit(store, "spring", "ann", at=clock.at + HOUR)
    change = begin_cancel(store, "spring", "ann")
    assert (change.after, change.starts_at) == ("cancelling", None)
    assert campaign_status(store, "spring").as_json()["started_at"] is None


def test_nothing_ends_before_it_has_begun(store: Store, clock: Clock) -> None:
    """Everybody was refused while it was loaded: it would have been over before its start."""
    seal(store, "spring", [1])
    outcomes(store, "spring", 0, {0: Outcome.ADDRESS_INVALID})
    submit(store, "spring", "ann", at=clock.at + HOUR)
    assert settle_campaign(store, "spring") == "running"
    clock.at += HOUR
    assert settle_campaign(store, "spring") == "completed"


def test_a_stream_never_starts_later(store: Store, clock: Clock) -> None:
    row = seal(store, "spring", [2], state="running")
    assert starts_later(row, clock.at - HOUR) == row.started_at
    stream = Campaign(**{**vars(row), "kind": STREAM})
    assert starts_later(stream, clock.at - HOUR) is None


def test_people_write_a_start_as_they_write_an_end() -> None:
    assert read_start("2026-12-24 18:00 Europe/Paris") == datetime(2026, 12, 24, 17, tzinfo=UTC)
    for wrong in ("never", "2026-12-24T18:00", "soon"):
        with pytest.raises(BadStart, match="write it like"):
            read_start(wrong)


# -- what is told of it ------------------------------------------------------------------------------------------------


def test_status_tells_when_it_starts_and_measures_nothing_before(store: Store, clock: Clock) -> None:
    seal(store, "spring", [2])
    at = clock.at + HOUR
    submit(store, "spring", "ann", at=at)
    clock.at += HOUR / 2
    found = campaign_status(store, "spring").as_json()
    assert (found["state"], found["started_at"], found["starts_in_s"]) == ("running", text(at), 1800.0)
    assert (found["eta_minutes"], found["rate_per_s"], found["active_s"]) == (None, None, 0.0)
    clock.at = at + timedelta(seconds=10)
    found = campaign_status(store, "spring").as_json()
    assert (found["starts_in_s"], found["active_s"]) == (None, 0.0)
