"""A sender that fails or throttles is left alone, by all, for as long as it should be, and nobody pays for it."""

import pytest

from schemas.tables import Limit, Switch
from sendonce.delivery import health
from sendonce.senders.base import Reply, Verdict
from tests.delivery.world import World
from tests.fakes import Scripted

DOWN = Scripted(Reply(Verdict.NOT_SENT, "connect"))


def switch(world: World) -> Switch | None:
    return world.store.read(lambda reader: reader.get(Switch, "sender:fake"))


def fail(world: World, times: int) -> None:
    """Requests that do not reach the provider, one after the other, each when its batch is due again."""
    for _ in range(times):
        while not world.plan_due():
            world.pass_s(1)
        world.deliver(world.sender([DOWN]))


def test_a_sender_in_good_health_has_no_row(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender())
    assert switch(world) is None


def test_the_breaker_opens_after_five_failures_in_a_row_and_spends_no_more_tries(world: World) -> None:
    world.campaign([2])
    fail(world, health.FAILURES_TO_OPEN)
    found = switch(world)
    assert found is not None
    assert (found.kind, found.reason) == ("open", "connect")
    assert world.batch().tries == health.FAILURES_TO_OPEN - 1
    assert world.plan() == []
    fail(world, 3)
    assert world.batch().tries == health.FAILURES_TO_OPEN - 1


def test_an_acceptance_in_between_starts_the_count_anew(world: World) -> None:
    world.campaign([1, 1])
    fail(world, health.FAILURES_TO_OPEN - 1)
    while not world.plan_due():
        world.pass_s(1)
    world.deliver(world.sender())
    assert switch(world) is None
    fail(world, 1)
    found = switch(world)
    assert found is not None
    assert found.kind == "failing"


def test_one_request_probes_while_the_others_wait_and_its_acceptance_closes_the_breaker(world: World) -> None:
    world.campaign([1] * 8)
    fail(world, health.FAILURES_TO_OPEN)
    world.pass_s(health.FIRST_OPEN_S + 0.1)
    elements = [world.render(reference) for reference in world.plan(window=3)]
    waiting: list[str] = []

    def others(_: object) -> None:
        waiting.extend(world.owner(world.sender(), worker="w2").deliver(element).reason for element in elements[1:])

    world.owner(world.sender([Scripted(Reply(Verdict.ACCEPTED), before=others)])).deliver(elements[0])
    assert waiting == ["breaker_open"] * 2
    assert switch(world) is None
    assert len(world.plan()) > 0


def test_a_failed_probe_opens_the_breaker_for_twice_as_long(world: World) -> None:
    world.campaign([1] * 3)
    fail(world, health.FAILURES_TO_OPEN)
    first = switch(world)
    fail(world, 1)
    second = switch(world)
    assert first is not None
    assert second is not None
    assert first.until_at is not None
    assert second.until_at is not None
    assert (second.until_at - world.now()).total_seconds() == pytest.approx(2 * health.FIRST_OPEN_S, abs=0.1)


def test_a_killed_probe_does_not_keep_the_breaker_open_for_ever(world: World) -> None:
    world.campaign([1] * 2)
    fail(world, health.FAILURES_TO_OPEN)
    world.pass_s(health.FIRST_OPEN_S + 0.1)

    def die(_: object) -> None:
        raise RuntimeError("killed")

    with pytest.raises(RuntimeError):
        world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED), before=die)]))
    assert world.plan() == []
    world.pass_s(61)
    world.deliver(world.sender())
    assert switch(world) is None


def test_unknown_verdicts_count_as_failures_too(world: World) -> None:
    world.campaign([1] * 8)
    for _ in range(health.FAILURES_TO_OPEN):
        world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))]))
    found = switch(world)
    assert found is not None
    assert found.kind == "open"


def test_throttling_stops_the_sender_until_the_time_it_named_and_halves_its_rates(world: World) -> None:
    """The case 429-reset-epoch, from the store's side."""
    world.campaign([1] * 4)
    world.limit(Limit("lane:bulk", "rate", "rate", per_s=100.0, burst=100))
    reply = Reply(Verdict.NOT_SENT, "throttled", retry_after_s=7.0, throttled=True)
    world.deliver(world.sender([Scripted(reply)]))
    found = switch(world)
    assert found is not None
    assert found.kind == "throttled"
    assert world.plan() == []
    world.pass_s(7.1)
    assert slow(world) == 0.5
    world.deliver(world.sender())
    assert switch(world) is None
    world.pass_s(3)
    world.deliver(world.sender())
    assert slow(world) == pytest.approx(0.6)


def slow(world: World) -> float:
    (limit,) = world.store.read(lambda reader: reader.scan(Limit, "lane:bulk"))
    return limit.slow


def test_an_acceptance_does_not_overrule_a_person_who_stopped_the_sender(world: World) -> None:
    world.campaign([1])
    stop = Switch("sender:fake", "stopped", world.clock.at, "ann", "wrong list")

    def stopped(_: object) -> None:
        world.store.transact(lambda tx: tx.put(stop), tag="test")

    world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED), after=stopped)]))
    found = switch(world)
    assert found is not None
    assert found.kind == "stopped"
