"""Before its time nothing of a campaign is planned, claimed or sent; from then on it goes as any other."""

from datetime import datetime, timedelta

from schemas.tables import Limit, Progress
from sendonce.config import Lane
from sendonce.control.campaigns import begin_cancel, pause, resume, submit
from sendonce.control.schedule import NOW, with_start
from sendonce.delivery.cancellation import cancel
from sendonce.delivery.fair import FairShare
from sendonce.delivery.lane_use import lane_uses
from sendonce.delivery.lanes import RunningLane
from sendonce.delivery.outlook import Left, left_to_do
from sendonce.delivery.resolver import Policy
from sendonce.delivery.terms import Move
from tests.delivery.test_fair import accepted, run
from tests.delivery.world import CAMPAIGN, TERMS, World

HOUR = timedelta(hours=1)


def scheduled(world: World, sizes: list[int], ahead: timedelta = HOUR, campaign_id: str = CAMPAIGN) -> datetime:
    world.campaign(sizes, state="ready", campaign_id=campaign_id)
    at = world.clock.at + ahead
    submit(world.store, campaign_id, "ann", at=at)
    return at


def move_late(world: World, at: datetime) -> None:
    """As a transaction that read the store's time before the start, and was written after it."""
    moved = with_start(world.campaign_row(), at, at - 2 * HOUR, moves=True)
    world.store.transact(lambda tx: tx.put(moved), tag="test")


def left(world: World) -> Left:
    lane = RunningLane(Lane(name="bulk", sender="fake"), TERMS, Policy("hold", "rows"), None, None)  # type: ignore[arg-type]
    return world.store.read(lambda reader: left_to_do(reader, [lane]))


def test_nothing_is_planned_before_its_time_and_everything_from_then_on(world: World) -> None:
    at = scheduled(world, [3, 3])
    world.clock.at = at - timedelta(seconds=1)
    assert world.plan() == []
    world.clock.at = at - timedelta(microseconds=1)
    assert world.plan() == []
    world.clock.at = at
    assert {reference.batch_no for reference in world.plan()} == {0, 1}


def test_a_time_that_is_past_starts_at_once_and_one_time(world: World) -> None:
    scheduled(world, [3], -HOUR)
    world.deliver(world.sender())
    submit(world.store, CAMPAIGN, "ann", at=world.clock.at - HOUR)
    assert world.plan() == []
    assert (world.kinds(), len(world.log.accepted)) == ("aaa", 3)


def test_a_batch_that_was_planned_before_a_move_goes_back_and_waits(world: World) -> None:
    """On Spanner a move may read the store's time before the start, and be written after a plan at the start."""
    at = scheduled(world, [3])
    world.clock.at = at
    reference = world.plan_one()
    letters = world.render(reference)
    move_late(world, at + HOUR)

    found = world.owner(world.sender()).deliver(letters)

    assert (found.move, found.reason, found.requests, found.until) == (Move.ENDED, "scheduled", 0, at + HOUR)
    batch = world.batch()
    assert (batch.state, batch.wait_reason, batch.attempt_id) == ("pending", None, None)
    assert batch.due_at < at + HOUR, "the row of the campaign alone says when"
    assert (world.plan(), world.attempts(), world.log.accepted) == ([], [], [])
    assert world.owner(world.sender()).deliver(letters).move == Move.LOST

    submit(world.store, CAMPAIGN, "ann", at=NOW)  # an earlier time finds it at once
    world.deliver(world.sender())
    assert (world.kinds(), len(world.log.accepted)) == ("aaa", 3)


def test_an_owner_in_the_middle_of_a_batch_stops_at_its_next_request(world: World) -> None:
    at = scheduled(world, [4])
    world.clock.at = at
    world.limit(Limit("lane:bulk", "rate", "rate", per_s=0.001, burst=2))
    world.deliver(world.sender())
    move_late(world, at + HOUR)
    world.limit(Limit("lane:bulk", "rate", "rate", per_s=100, burst=100))
    assert world.plan() == [], "also of what a limit sent away"
    world.clock.at = at + HOUR
    world.deliver(world.sender())
    assert (world.kinds(), len(world.log.accepted)) == ("aaaa", 4)


def test_a_paused_one_does_not_start_at_its_time(world: World) -> None:
    at = scheduled(world, [3])
    pause(world.store, CAMPAIGN, "ann")
    world.clock.at = at + HOUR
    assert world.plan() == []
    resume(world.store, CAMPAIGN, "ann")
    assert len(world.plan()) == 1


def test_one_that_is_resumed_before_its_time_still_waits(world: World) -> None:
    at = scheduled(world, [3])
    pause(world.store, CAMPAIGN, "ann")
    resume(world.store, CAMPAIGN, "ann")
    assert world.plan() == []
    world.clock.at = at
    assert len(world.plan()) == 1


def test_a_cancel_before_its_time_ends_it_at_once(world: World) -> None:
    at = scheduled(world, [3, 2])
    assert cancel(world.store, CAMPAIGN, "ann").after == "cancelled"
    world.clock.at = at + HOUR
    assert world.plan() == []
    assert (world.kinds(0), world.kinds(1), world.log.accepted) == ("ccc", "cc", [])


def test_a_cancel_by_a_trigger_is_swept_before_its_time(world: World) -> None:
    scheduled(world, [3])
    begin_cancel(world.store, CAMPAIGN, "trigger")
    assert left(world).due_for == "close"
    world.sweep()
    world.sweep()
    assert (world.campaign_row().state, world.kinds()) == ("cancelled", "ccc")


def test_sweeps_write_nothing_of_it_before_its_time(world: World) -> None:
    at = scheduled(world, [3])
    before = world.campaign_row()

    def progress() -> Progress | None:
        return world.store.read(lambda reader: reader.get(Progress, CAMPAIGN))

    for _ in range(3):
        world.sweep()
        world.pass_s(600)
    assert (progress(), world.campaign_row()) == (None, before)
    world.clock.at = at + timedelta(seconds=5)
    world.sweep()
    found = progress()
    assert found is not None
    assert (found.n_open, found.active_s) == (3, 0.0)


def test_what_is_left_is_due_at_its_time(world: World) -> None:
    at = scheduled(world, [3])
    found = left(world)
    assert (found.unfinished, found.due_at, found.due_for, found.waits_for) == (3, at, "scheduled", ())
    scheduled(world, [2], HOUR / 2, "sooner")
    assert left(world).due_at == at - HOUR / 2
    world.campaign([1], campaign_id="now")
    assert left(world).due_for == "limit", "what may go now is not kept waiting"
    pause(world.store, CAMPAIGN, "ann")
    assert left(world).waits_for == ("paused",)


def test_lanes_tell_who_waits_for_a_start(world: World) -> None:
    at = scheduled(world, [3])
    _, scopes = lane_uses(world.store)
    (bulk,) = [scope for scope in scopes if scope.scope == "lane:bulk"]
    assert [(found.reason, found.recipients, found.until) for found in bulk.waiting] == [("scheduled", 3, at)]


def test_it_is_owed_nothing_for_the_time_before_its_start(world: World) -> None:
    world.campaign([100] * 40, campaign_id="autumn")
    scheduled(world, [100] * 20, timedelta(seconds=20))
    world.limit(Limit("lane:bulk", "rate", "rate", per_s=50, burst=50))
    fair = FairShare()
    run(world, 20, fair)
    assert accepted(world, CAMPAIGN) == 0
    before = accepted(world, "autumn")
    assert before >= 0.9 * 50 * 20
    run(world, 20, fair)
    sent = accepted(world, "autumn") - before, accepted(world, CAMPAIGN)
    assert abs(sent[0] - sent[1]) <= 150
