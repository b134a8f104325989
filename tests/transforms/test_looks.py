"""Sends that are planned where they are stored: when, how many, and what becomes of them without a graph."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.elements import Reference
from schemas.tables import Batch, Limit
from sendonce.control.campaigns import begin_cancel, pause
from sendonce.control.stops import end_stop, stop_sending
from sendonce.control.triggers import Taken, apply_triggers, read_or_bad
from sendonce.delivery import batches
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.terms import Terms
from sendonce.times import CRITICAL
from tests.control.made import Clock
from tests.control.sending import STREAM_ID, batch_of, body, ready, reasons, take_one, to
from tests.delivery.world import World
from transforms.looks import DEAF_TICKS, HANDED_S, Looks

TERMS = Terms(lane="critical", sender="fake", provider="fake", scopes=("lane:critical", "sender:fake"), times=CRITICAL)


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> Iterator[World]:
    world = World(tmp_path, clock)
    ready(world.store)
    yield world
    world.close()


class Planned(Looks):
    """As a live job has them: its own `Queue`, with a graph that has just ticked."""

    def __init__(self, tick_s: float = 3600.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(tick_s, clock)
        self.told: list[Reference] = []
        self.given()

    def planned(self, references: Sequence[Reference]) -> None:
        self.told += references


def seen(looks: Looks, room: int, lane: str = "critical") -> None:
    looks.seen(lane, room)


def taken(world: World, looks: Planned, *bodies: bytes) -> list[Taken]:
    return apply_triggers(world.store, [read_or_bad(one) for one in bodies], "trigger", looks)


def states(world: World, *keys: str) -> list[str]:
    return [batch_of(world.store, key).state for key in keys]


def test_a_send_is_planned_where_it_is_stored_and_goes_as_any_other(world: World) -> None:
    looks = Planned()
    seen(looks, 10)
    (one,) = taken(world, looks, body("a", [to(1), to(2)]))
    stored = batch_of(world.store, "a")
    assert one.planned == Reference(STREAM_ID, stored.batch_no, 1, "critical")
    assert (stored.state, stored.open_state, stored.plan_no) == ("queued", "queued", 1)
    assert looks.told == [one.planned]
    assert stored.visible_at is not None
    assert stored.visible_at - world.now() == timedelta(seconds=HANDED_S)
    assert world.plan(TERMS) == []

    world.owner(world.sender(), TERMS).deliver(world.render(one.planned))
    assert reasons(batch_of(world.store, "a")) == ["accepted", "accepted"]
    assert sorted(world.log.times_accepted().values()) == [1, 1]


def test_a_send_whose_reference_was_lost_is_planned_again_in_time_and_the_late_reference_does_nothing(
    world: World,
) -> None:
    looks = Planned()
    seen(looks, 10)
    (one,) = taken(world, looks, body("a"))
    world.pass_s(HANDED_S - 0.1)
    assert world.plan(TERMS) == []
    world.pass_s(0.2)
    (again,) = world.plan(TERMS)
    assert one.planned is not None
    assert again == replace(one.planned, plan_no=2)
    rendered = [world.render(reference) for reference in (again, one.planned)]
    sender = world.sender()
    for late in rendered:
        world.owner(sender, TERMS).deliver(late)
    assert list(world.log.times_accepted().values()) == [1]


def test_the_same_send_again_is_not_given_twice(world: World) -> None:
    looks = Planned()
    seen(looks, 10)
    first, second = taken(world, looks, body("a"), body("a"))
    assert (first.ended, second.ended, second.planned) == ("applied", "ignored", None)


def test_where_a_look_left_something_a_send_waits_for_its_turn(world: World) -> None:
    """Whoever comes later must not overtake for ever who waits."""
    looks = Planned()
    assert [one.planned for one in taken(world, looks, body("before-any-look"))] == [None]
    for number in range(4):
        take_one(world.store, body(f"old{number}"))
    plan = plan_lane(world.store, TERMS, 3)
    assert (len(plan.references), plan.room) == (3, 0)
    seen(looks, plan.room)
    assert looks.may_be_left("critical")
    assert [one.planned for one in taken(world, looks, body("new"))] == [None]

    plan = plan_lane(world.store, TERMS, 100)
    assert (len(plan.references), plan.room) == (3, 97)
    seen(looks, plan.room)
    assert not looks.may_be_left("critical")
    assert [one.planned is None for one in taken(world, looks, body("next"))] == [False]


def test_a_full_window_is_taken_for_one_that_left_something(world: World) -> None:
    for number in range(3):
        take_one(world.store, body(f"old{number}"))
    assert plan_lane(world.store, TERMS, 3).room == 0
    assert plan_lane(world.store, TERMS, 3).room == 3


def test_no_more_is_given_than_there_was_room_for(world: World) -> None:
    looks = Planned()
    seen(looks, 3)
    taken(world, looks, body("two", [to(1), to(2)]), body("two-more", [to(3), to(4)]), body("one"), body("none"))
    assert states(world, "two", "two-more", "one", "none") == ["queued", "pending", "queued", "pending"]
    seen(looks, 1)
    assert states(world, "two-more") == ["pending"]
    taken(world, looks, body("later"))
    assert states(world, "later") == ["queued"]


@pytest.mark.parametrize("stopped", [pause, begin_cancel])
def test_nothing_of_a_stream_that_is_stopped_is_given(world: World, stopped) -> None:  # type: ignore[no-untyped-def]
    looks = Planned()
    seen(looks, 10)
    take_one(world.store, body("first"))
    stopped(world.store, STREAM_ID, "ann")
    (one,) = taken(world, looks, body("a"))
    assert (one.ended, one.planned, batch_of(world.store, "a").plan_no) == ("applied", None, 0)


def test_neither_what_is_over_nor_another_lanes_is_given(world: World) -> None:
    looks = Planned()
    seen(looks, 10, "high")
    bodies = [body("critical"), body("no-address", [to(1, email="x")], priority="high"), body("high", priority="high")]
    assert [one.planned is not None for one in taken(world, looks, *bodies)] == [False, False, True]
    assert states(world, "critical", "no-address", "high") == ["pending", "done", "queued"]


def test_a_lane_without_permits_or_that_is_stopped_has_no_room(world: World) -> None:
    assert plan_lane(world.store, TERMS, 10).room == 10
    assert stop_sending(world.store, "lane:critical", "", "ann")
    assert plan_lane(world.store, TERMS, 10).room == 0
    assert end_stop(world.store, "lane:critical")
    limit = Limit("lane:critical", "per_second", "rate", per_s=1.0, burst=4, level=4.0, level_at=world.now())
    world.store.transact(lambda tx: tx.put(limit), tag="test")
    assert 0 < plan_lane(world.store, TERMS, 10).room < 10
    world.store.transact(lambda tx: tx.put(replace(limit, per_s=0.001, level=0.0)), tag="test")
    assert plan_lane(world.store, TERMS, 10).room == 0


def test_given_once_critical_first(world: World) -> None:
    looks = Planned()
    critical, high = Reference("s", 1, 1, "critical"), Reference("s", 2, 1, "high")
    looks.give([high])
    looks.give([critical])
    assert looks.given() == [critical, high]
    assert looks.given() == []


def test_a_tick_looks_when_asked_or_in_time() -> None:
    now_s = [100.0]
    looks = Looks(tick_s=0.2, clock=lambda: now_s[0])
    assert looks.due()
    assert not looks.due()
    looks.ask()
    assert looks.due()
    now_s[0] += 0.05
    assert not looks.due()
    now_s[0] += 0.12  # a tick that came early is one all the same
    assert looks.due()


def test_a_graph_that_does_not_tick_plans_nothing_and_keeps_nothing_from_others(world: World) -> None:
    """Its topic was deleted, or its thread renders for seconds: codes waited for it while another job idled."""
    now_s = [100.0]
    looks = Planned(0.2, lambda: now_s[0])
    seen(looks, 10)
    taken(world, looks, body("a"))
    now_s[0] += DEAF_TICKS * 0.2 + 0.01
    taken(world, looks, body("b"))
    assert states(world, "a", "b") == ["queued", "pending"]
    assert len(world.plan(TERMS)) == 1
    world.pass_s(HANDED_S + 0.1)
    assert [reference.plan_no for reference in world.plan(TERMS)] == [2]
    looks.given()
    taken(world, looks, body("c"))
    assert states(world, "c") == ["queued"]


def test_what_comes_while_a_look_is_under_way_is_left_to_the_next_one(world: World) -> None:
    looks = Planned()
    seen(looks, 10)
    seen(looks, 0)  # a look begins
    assert looks.may_be_left("critical")
    taken(world, looks, body("a"))
    assert states(world, "a") == ["pending"]


def test_without_a_graph_nothing_is_given_and_what_was_goes_back(world: World) -> None:
    looks = Planned()
    seen(looks, 10)
    first, second = taken(world, looks, body("a"), body("b"))
    assert first.planned is not None
    assert second.planned is not None
    assert looks.give([first.planned])
    assert looks.end() == [first.planned]
    assert not looks.give([second.planned])
    assert looks.due()
    taken(world, looks, body("c"))
    assert states(world, "c") == ["pending"]
    assert looks.given() == []  # a graph ticks again
    assert looks.give([second.planned])


def test_a_send_is_handed_over_before_what_else_was_pulled_is_followed(world: World) -> None:
    looks = Planned()
    seen(looks, 10)
    handed: list[int] = []

    class Store:
        def __getattr__(self, name: str) -> object:
            return getattr(world.store, name)

        def transact(self, work: Any, *, tag: str) -> Any:
            handed.append(len(looks.told))
            return world.store.transact(work, tag=tag)

    pause_it = json.dumps({"v": 1, "type": "pause", "campaign_id": STREAM_ID}).encode()
    bodies = [body("a"), pause_it, pause_it]
    apply_triggers(Store(), [read_or_bad(one) for one in bodies], "trigger", looks)  # type: ignore[arg-type]
    assert handed[0] == 0
    assert set(handed[1:]) == {1}


def test_threads_together_never_take_more_than_the_room(clock: Clock) -> None:
    looks = Planned()
    seen(looks, 100)
    one = Batch(0, "s", 1, 1, "UTC", "pending", "pending", clock.at, b"\x00", n_open=1)
    stored: list[Batch] = []

    def take() -> None:
        for _ in range(50):
            stored.append(looks.queue("critical", one, clock.at))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(batch.state == batches.QUEUED for batch in stored) == 100
