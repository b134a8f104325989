"""Campaigns of one lane share it by recipients: none waits for another's end, and none saves up for later."""

from datetime import timedelta

import pytest

from schemas.outcomes import Outcome
from schemas.tables import Batch, Limit
from sendonce.delivery.fair import FairShare
from tests.delivery.world import TERMS, World


def rate(per_s: float, burst: int) -> Limit:
    return Limit("lane:bulk", "rate", "rate", per_s=per_s, burst=burst)


def run(world: World, for_s: float, fair: FairShare, *, window: int = 10_000) -> None:
    """Rounds as a job makes them: look, plan, deliver what was planned, half a second later again."""
    from sendonce.delivery.planner import plan_lane

    end = world.clock.at + timedelta(seconds=for_s)
    while world.clock.at < end:
        world.sweep()
        for reference in plan_lane(world.store, TERMS, window, fair).references:
            world.owner(world.sender(recipients=1000)).deliver(world.render(reference))
        world.pass_s(0.5)


def accepted(world: World, campaign_id: str) -> int:
    batches = world.store.read(lambda reader: reader.scan(Batch))
    return sum(
        code == Outcome.ACCEPTED for batch in batches if batch.campaign_id == campaign_id for code in batch.outcomes
    )


@pytest.mark.parametrize(
    ("first", "second"),
    [([100] * 20, [100] * 20), ([400] * 5, [20] * 100), ([7] * 200, [300] * 6), ([50] * 40, [2000])],
)
def test_two_campaigns_of_one_lane_share_its_limit(world: World, first: list[int], second: list[int]) -> None:
    world.campaign(first, campaign_id="autumn")
    world.campaign(second, campaign_id="spring")
    world.limit(rate(50, 50))
    run(world, 24, FairShare())
    sent = [accepted(world, name) for name in ("autumn", "spring")]
    assert sum(sent) >= 0.9 * 50 * 24
    assert abs(sent[0] - sent[1]) <= 400 + 50  # a batch that was begun is not taken away


def test_a_window_of_one_batch_is_shared_too(world: World) -> None:
    """The plan takes one batch at a time: always the same campaign's, the other would wait for its end."""
    world.campaign([100] * 20, campaign_id="autumn")
    world.campaign([100] * 20, campaign_id="spring")
    fair = FairShare()
    for _ in range(10):
        run(world, 0.5, fair, window=1)
    assert [accepted(world, name) for name in ("autumn", "spring")] == [500, 500]


def test_a_campaign_that_comes_later_is_owed_nothing_for_before(world: World) -> None:
    world.campaign([100] * 40, campaign_id="autumn")
    fair = FairShare()
    for _ in range(10):
        run(world, 0.5, fair, window=1)
    world.campaign([100] * 40, campaign_id="spring")
    for _ in range(10):
        run(world, 0.5, fair, window=1)
    assert [accepted(world, name) for name in ("autumn", "spring")] == [1500, 500]


def test_a_small_campaign_passes_a_large_one(world: World) -> None:
    world.campaign([100] * 100, campaign_id="autumn")
    fair = FairShare()
    run(world, 0.5, fair, window=1)
    world.campaign([10], campaign_id="spring")
    run(world, 0.5, fair, window=1)
    assert accepted(world, "spring") == 10


def test_who_had_no_work_for_a_while_saves_nothing_up() -> None:
    fair = FairShare()
    fair.served({"a": 0, "b": 0})
    served = fair.served({"a": 1000, "b": 0})
    fair.idle(served, {"b"})
    assert fair.served({"a": 1000, "b": 0}) == {"a": 1000, "b": 1000}


def test_who_got_more_before_others_had_work_is_not_paid_back() -> None:
    fair = FairShare()
    fair.idle(fair.served({"a": 0, "b": 0}), {"a", "b"})
    assert fair.served({"a": 10, "b": 0}) == {"a": 10, "b": 0}
    assert fair.served({"b": 5}) == {"b": 5}
    assert fair.served({"b": 5, "a": 10}) == {"b": 5, "a": 5}  # back again, as if new
