"""A campaign's end as people write it, and what `submit` does with it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from sendonce.control import campaigns
from sendonce.control.expiry import NEVER, BadEnd, end_of, is_over, read_end
from sendonce.control.guards import NotReady
from sendonce.control.status import campaign_status
from sendonce.control.triggers import BadTrigger, Trigger, apply_trigger
from sendonce.stores.base import Store
from tests.control.made import batch_row, campaign_row, seal


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2026-12-24T18:00+01:00", "2026-12-24T17:00:00"),
        ("2026-12-24T18:00:30Z", "2026-12-24T18:00:30"),
        ("2026-12-24 18:00 Europe/Paris", "2026-12-24T17:00:00"),
        ("  2026-12-24T18:00 europe/paris ", "2026-12-24T17:00:00"),
        ("2026-07-01 18:00 America/New_York", "2026-07-01T22:00:00"),
        ("2026-12-24 18:00 UTC", "2026-12-24T18:00:00"),
        ("2026-12-24 18:00 +05:30", "2026-12-24T12:30:00"),
    ],
)
def test_a_time_with_its_zone_is_understood(text: str, utc: str) -> None:
    assert read_end(text) == datetime.fromisoformat(utc).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no time"),
        ("tomorrow", "no time"),
        ("2026-13-01T00:00Z", "no time"),
        ("24.12.2026 18:00 Europe/Paris", "no time"),
        ("2026-12-24T18:00", "time zone"),
        ("2026-12-24 18:00", "time zone"),
        ("2026-12-24", "time zone"),
        ("2026-12-24 18:00 Mars/Base", "no time"),
        ("2026-03-29 02:30 Europe/Paris", "is left out"),
        ("2026-10-25 02:30 Europe/Paris", "comes twice"),
        ("0001-01-01T00:00+14:00", "beyond"),
        ("9999-12-31T23:59-12:00", "beyond"),
    ],
)
def test_what_is_no_moment_is_refused_with_the_mend(text: str, says: str) -> None:
    with pytest.raises(BadEnd, match=says):
        read_end(text)


def test_never_is_no_end() -> None:
    assert read_end("Never") == NEVER


def soon(store: Store, seconds: float = 60.0) -> datetime:
    return store.read(lambda reader: reader.now()) + timedelta(seconds=seconds)


def test_submit_sets_an_end_changes_it_and_takes_it_away(store: Store) -> None:
    seal(store, "spring", [2])
    first, later = soon(store), soon(store, 3600)
    assert campaigns.submit(store, "spring", "ann", expires_at=first).after == "running"
    assert end_of(campaign_row(store, "spring")) == first
    assert campaign_status(store, "spring").as_json()["expires_at"] == first.isoformat().replace("+00:00", "Z")
    assert not campaigns.submit(store, "spring", "ann").changed
    assert end_of(campaign_row(store, "spring")) == first, "no option, no change"
    campaigns.pause(store, "spring", "ann")
    changed = campaigns.submit(store, "spring", "ann", expires_at=later)
    assert (changed.changed, changed.after) == (True, "paused")
    assert end_of(campaign_row(store, "spring")) == later
    campaigns.submit(store, "spring", "ann", expires_at=NEVER)
    assert end_of(campaign_row(store, "spring")) is None


def test_an_end_that_is_past_is_refused_and_changes_nothing(store: Store) -> None:
    seal(store, "spring", [2])
    with pytest.raises(BadEnd, match="is past"):
        campaigns.submit(store, "spring", "ann", expires_at=soon(store, -1))
    assert campaign_row(store, "spring").state == "ready"


def test_a_campaign_whose_end_came_before_its_start_does_not_start(store: Store) -> None:
    campaign = seal(store, "spring", [2])
    past = replace(campaign, options='{"expires_at":"2020-01-01T00:00:00Z"}')
    store.transact(lambda tx: tx.put(past), tag="test")
    with pytest.raises(NotReady, match=r"its end .* is past") as refused:
        campaigns.submit(store, "spring", "ann")
    assert refused.value.reason == "expired"
    with pytest.raises(BadTrigger) as bad:
        apply_trigger(store, Trigger("start", "spring", None), "trigger")
    assert bad.value.reason == "expired"
    assert campaigns.submit(store, "spring", "ann", expires_at=soon(store)).after == "running"


def test_the_earlier_of_two_ends_holds_and_the_end_itself_is_too_late(store: Store) -> None:
    campaign, at = seal(store, "spring", [2]), datetime(2026, 1, 15, 9, 0, tzinfo=UTC)
    ending = replace(campaign, options='{"expires_at":"2026-01-15T09:00:00Z"}')
    batch = batch_row(store, "spring", 0)
    sooner = replace(batch, expires_at=at - timedelta(seconds=1))
    later = replace(batch, expires_at=at + timedelta(seconds=1))
    before = at - timedelta(microseconds=1)
    assert [is_over(ending, one, before) for one in (None, batch, later)] == [False] * 3
    assert is_over(ending, sooner, before)
    assert [is_over(ending, one, at) for one in (None, batch, later)] == [True] * 3
    assert not is_over(campaign, batch, at)
