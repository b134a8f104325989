"""A reference that is only slow is not planned again; a lost one is."""

from schemas.elements import Reference
from tests.delivery.world import TERMS, World
from transforms.keeper import Keeper


def keeper_of(world: World) -> Keeper:
    return Keeper(world.store, clock=lambda: (world.clock.at - world.began).total_seconds())


def hold(keeper: Keeper, reference: Reference) -> None:
    """As `hold`, without the thread: the test looks itself."""
    keeper._thread = object()  # type: ignore[assignment]
    keeper.hold(reference, TERMS.times.visibility_s)


def test_what_is_held_for_long_stays_invisible(world: World) -> None:
    """Found by two processes that planned each other's slow batches for ever: nobody sent anything."""
    world.campaign([3])
    keeper, reference = keeper_of(world), world.plan_one()
    hold(keeper, reference)
    for _ in range(20):
        world.pass_s(TERMS.times.visibility_s * 0.45)
        assert keeper.extend() == 1
        assert world.plan() == []
    world.owner(world.sender()).deliver(world.render(reference))
    assert world.kinds() == "aaa"


def test_what_was_dropped_or_lost_is_planned_again(world: World) -> None:
    world.campaign([3])
    keeper, reference = keeper_of(world), world.plan_one()
    hold(keeper, reference)
    keeper.drop(reference)
    world.pass_s(TERMS.times.visibility_s + 1)
    assert keeper.extend() == 0
    assert len(world.plan()) == 1


def test_a_stale_reference_is_let_go_and_harms_nobody(world: World) -> None:
    world.campaign([3])
    keeper, old = keeper_of(world), world.plan_one()
    hold(keeper, old)
    world.pass_s(TERMS.times.visibility_s + 1)
    (new,) = world.plan()
    before = world.batch()
    assert keeper.extend() == 0
    assert world.batch() == before
    assert keeper._held == {}
    assert new.plan_no == old.plan_no + 1


def test_the_thread_ends_when_nothing_is_held(world: World) -> None:
    world.campaign([3])
    keeper, reference = Keeper(world.store), world.plan_one()
    keeper.hold(reference, 0.2)
    thread = keeper._thread
    assert thread is not None
    keeper.drop_all()
    thread.join(5)
    assert not thread.is_alive()
    assert keeper._thread is None
