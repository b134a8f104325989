"""A reference that is only slow is not planned again; a lost one is."""

from datetime import timedelta

import pytest

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


def test_many_are_extended_together_each_for_its_own_time(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction for each held up every claim before a store that takes one writer at a time."""
    world.campaign([1] * 40)
    keeper, references = keeper_of(world), world.plan()
    short, long = references[0], references[1:]
    keeper._thread = object()  # type: ignore[assignment]
    keeper.hold(short, 10.0)
    for reference in long:
        keeper.hold(reference, 20.0)
    tags: list[str] = []
    real = world.store.transact
    monkeypatch.setattr(world.store, "transact", lambda work, tag: (tags.append(tag), real(work, tag=tag))[1])
    world.pass_s(9.0)
    assert keeper.extend() == 40
    assert tags == ["keep"] * 3, "32 at a time, and the one that is visible again earlier"

    def left_s(reference: Reference) -> int:
        visible_at = world.batch(reference.batch_no).visible_at
        assert visible_at is not None
        return round((visible_at - world.clock.at).total_seconds())

    assert left_s(short) == 10
    assert {left_s(reference) for reference in long} == {20}


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


def test_what_is_hidden_for_a_moment_only_is_kept_in_time_and_then_as_any_other(world: World) -> None:
    world.campaign([3])
    keeper, reference = keeper_of(world), world.plan_one()
    keeper._thread = object()  # type: ignore[assignment]
    keeper.hold(reference, TERMS.times.visibility_s, hidden_s=1.0)
    assert keeper.extend() == 0
    world.pass_s(0.41)
    assert keeper.extend() == 1
    assert world.batch().visible_at == world.now() + timedelta(seconds=TERMS.times.visibility_s)
    world.pass_s(1.0)
    assert keeper.extend() == 0
    world.pass_s(TERMS.times.visibility_s * 0.4)
    assert keeper.extend() == 1
