"""Limits hold for every window, over any mix of requests, processes and restarts, and waste little."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.outcomes import Outcome
from schemas.tables import Limit, Permit
from sendonce.delivery import limits
from sendonce.delivery.limits import Grant, Wait
from sendonce.senders.base import Reply, Verdict
from tests.delivery.world import TERMS, World
from tests.fakes import START, Scripted


def rate(per_s: float, burst: int) -> Limit:
    return Limit("lane:bulk", "rate", "rate", per_s=per_s, burst=burst)


def cap(most: int, window_s: float, scope: str = "lane:bulk") -> Limit:
    return Limit(scope, f"cap:{window_s:g}", "cap", most=most, window_s=window_s)


def take(world: World, n: int, attempt: str, used_within_s: float = 0.0) -> int | Wait:
    """Ask for n permits in one transaction, as a claim does; how many were granted, or the wait."""

    def work(tx):  # type: ignore[no-untyped-def]
        now = tx.now()
        rows = limits.limits_of(tx, ["lane:bulk", "sender:fake"])
        answer = limits.ask(tx, rows, n, now)
        if isinstance(answer, Grant):
            limits.take(tx, rows, answer, attempt, now, used_within_s)
            return answer.n
        return answer

    return world.store.transact(work, tag="take")


def drive(world: World, n: int, total: int, for_s: float) -> list[tuple[datetime, int]]:
    """Take n at a time, waiting as told, until `total` are through or the time is over."""
    end = world.clock.at + timedelta(seconds=for_s)
    granted: list[tuple[datetime, int]] = []
    while sum(count for _, count in granted) < total and world.clock.at < end:
        answer = take(world, min(n, total - sum(count for _, count in granted)), f"a{len(granted)}")
        if isinstance(answer, Wait):
            assert answer.until > world.clock.at
            world.clock.at = answer.until
        else:
            granted.append((world.clock.at, answer))
    return granted


def most_in_any(granted: list[tuple[datetime, int]], window_s: float) -> int:
    span = timedelta(seconds=window_s)
    return max(sum(n for at, n in granted if start <= at < start + span) for start, _ in granted)


def test_burst_after_idle(world: World) -> None:
    """The case burst-after-idle: a long pause fills the bucket once, not for its whole length."""
    world.limit(rate(10, 10))
    drive(world, 1, 20, 60)
    world.pass_s(600)
    after = drive(world, 1, 500, 600)
    assert most_in_any(after, 1) <= 20
    assert most_in_any(after, 60) <= 610


def test_off_by_one(world: World) -> None:
    """The case off-by-one: 10 in any 5 s, never 11, and all 25 within 10 to 15 s."""
    world.limit(cap(10, 5))
    began = world.clock.at
    granted = drive(world, 1, 25, 60)
    assert sum(n for _, n in granted) == 25
    assert most_in_any(granted, 5) == 10
    assert 10 <= (granted[-1][0] - began).total_seconds() <= 15


def test_unit_is_recipients_not_requests(world: World) -> None:
    """The case unit-requests-vs-recipients: 3,000 people at 100/s take some 30 s, however few requests carry them."""
    world.limit(rate(100, 1000))
    began = world.clock.at
    granted = drive(world, 1000, 3000, 100)
    assert [n for _, n in granted] == [1000] * 3
    assert (granted[-1][0] - began).total_seconds() == pytest.approx(20, abs=0.1)


def test_a_cap_is_used_to_its_last_permit(world: World) -> None:
    world.limit(cap(1500, 3600))
    assert [n for _, n in drive(world, 1000, 1500, 60)] == [1000, 500]
    answer = take(world, 1000, "next")
    assert isinstance(answer, Wait)
    assert (answer.until - world.clock.at).total_seconds() == pytest.approx(3600, abs=0.01)


def test_a_request_that_may_still_arrive_counts_until_it_is_over(world: World) -> None:
    """Granted long ago but on the wire for long: the window is one of arrivals."""
    world.limit(cap(10, 5))
    assert take(world, 10, "slow", used_within_s=30) == 10
    world.pass_s(6)
    assert isinstance(take(world, 1, "next"), Wait)

    def over(tx):  # type: ignore[no-untyped-def]
        (permit,) = tx.scan(Permit, "lane:bulk")
        limits.used(tx, limits.limits_of(tx, ["lane:bulk"]), "slow", permit.granted_at)

    world.store.transact(over, tag="test")
    assert isinstance(take(world, 1, "next"), Wait)
    world.pass_s(5.01)
    assert take(world, 1, "next") == 1


def test_the_smallest_of_several_limits_wins(world: World) -> None:
    world.limit(rate(1000, 1000), cap(30, 60, scope="sender:fake"))
    assert take(world, 100, "a") == 30
    assert isinstance(take(world, 100, "b"), Wait)


def test_given_back_permits_never_overfill_a_bucket(world: World) -> None:
    world.limit(rate(10, 10))
    now = world.clock.at

    def back(tx):  # type: ignore[no-untyped-def]
        limits.give_back(tx, limits.limits_of(tx, ["lane:bulk"]), "a", now, 10)

    assert take(world, 4, "a") == 4
    world.store.transact(back, tag="test")
    assert take(world, 10, "b") == 10
    assert isinstance(take(world, 1, "c"), Wait)


def test_a_clock_that_falls_back_fills_nothing(world: World) -> None:
    world.limit(rate(10, 10))
    take(world, 10, "a")
    world.pass_s(-3600)
    assert isinstance(take(world, 1, "b"), Wait)


@pytest.mark.parametrize(
    ("rows", "most", "largest"),
    [
        ([], 1000, 1000),
        ([rate(100, 1000)], 1000, 200),
        ([rate(100, 50)], 1000, 25),
        ([rate(100, 1)], 1000, 1),
        ([rate(0.2, 1)], 1000, 1),
        ([cap(7, 60)], 1000, 7),
    ],
)
def test_a_request_is_no_larger_than_the_life_of_its_permit(rows: list[Limit], most: int, largest: int) -> None:
    assert limits.largest_request(rows, 2.0, most, START) == largest


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    per_s=st.floats(0.5, 200),
    burst=st.integers(1, 300),
    most=st.integers(1, 300),
    window_s=st.floats(0.5, 60),
    steps=st.lists(st.tuples(st.integers(1, 200), st.floats(0, 5)), min_size=1, max_size=40),
)
def test_no_window_ever_holds_more_than_its_limits(
    world: World, per_s: float, burst: int, most: int, window_s: float, steps: list[tuple[int, float]]
) -> None:
    world.pass_s(100_000)
    world.limit(rate(per_s, burst), cap(most, window_s, "sender:fake"))
    _forget(world)
    granted: list[tuple[datetime, int]] = []
    for number, (n, pause_s) in enumerate(steps):
        world.pass_s(pause_s)
        answer = take(world, n, f"{world.clock.at.timestamp()}-{number}")
        if not isinstance(answer, Wait):
            assert 1 <= answer <= n
            granted.append((world.clock.at, answer))
    for index, (start, _) in enumerate(granted):
        for end, _ in granted[index:]:
            passed_s = (end - start).total_seconds()
            inside = sum(n for at, n in granted if start <= at <= end)
            assert inside <= burst + per_s * passed_s + 1e-3
            if passed_s < window_s - 1e-6:
                assert inside <= most


def _forget(world: World) -> None:
    def work(tx):  # type: ignore[no-untyped-def]
        tx.delete(*tx.scan(Permit, "lane:bulk"), *tx.scan(Permit, "sender:fake"))

    world.store.transact(work, tag="test")


def test_a_limited_lane_sends_request_by_request_as_permits_come(world: World) -> None:
    """No wait is left to the runner: what finds no permit goes back to the store with its due time."""
    world.campaign([25])
    world.limit(rate(10, 10))
    sender = world.sender()
    began = world.clock.at
    for _ in range(20):
        if not world.plan_due():
            world.pass_s(0.1)
            continue
        world.deliver(sender)
    arrivals = [(arrival.at, 1) for arrival in world.log.accepted]
    assert len(arrivals) == 25
    assert most_in_any(arrivals, 1) <= 20
    assert (arrivals[-1][0] - began).total_seconds() <= 2.1


def test_permits_of_a_request_that_reached_nobody_come_back(world: World) -> None:
    world.campaign([2])
    world.limit(rate(1, 10))
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))]))
    assert take(world, 10, "after") == 10


def test_permits_of_a_call_that_arrived_in_part_do_not(world: World) -> None:
    """Refused for one address, split, and then no connection: every recipient of it arrived at least once."""
    world.campaign([2])
    world.limit(cap(2, 60))
    reply = Reply(Verdict.NOT_SENT, "connect", exceptions={0: (Verdict.REFUSED, int(Outcome.PROVIDER_REFUSED), "")})
    world.deliver(world.sender([Scripted(reply)], mixes_forms=True))
    assert world.kinds() == "ro"
    assert isinstance(take(world, 1, "after"), Wait)


def test_permits_of_a_throttled_request_do_not(world: World) -> None:
    world.campaign([2])
    world.limit(rate(1, 10))
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "throttled", throttled=True))]))
    assert isinstance(take(world, 10, "after"), Wait)


def test_a_batch_may_be_held_by_its_owner_when_the_permit_is_near(world: World) -> None:
    """The step holds one rendered batch; its reference stays the live one until it is claimed again."""
    world.campaign([6])
    world.limit(rate(2, 4))
    terms = replace(TERMS, hold_max_s=2.0)
    sender = world.sender()
    owner = world.owner(sender, terms)
    element = world.render(world.plan_one(terms))
    first = owner.deliver(element)
    assert (first.move.value, world.batch().state, world.kinds()) == ("hold", "queued", "aaaaoo")
    assert first.until is not None
    world.clock.at = first.until
    second = owner.deliver(element)
    assert (second.move.value, world.batch().state, world.kinds()) == ("ended", "done", "aaaaaa")
