"""A sender that fails or throttles is left alone, by all, for as long as it should be, and nobody pays for it."""

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from schemas.tables import Limit, Switch
from sendonce.delivery import health
from sendonce.senders.base import Reply, Verdict
from tests.delivery.faulty import AGAIN, IDEMPOTENT, Killed, die
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


# -- the probe ------------------------------------------------------------------------------------------------------


STALLED = Reply(Verdict.UNKNOWN, "timeout")
TAKEN = Reply(Verdict.ACCEPTED)


def opened(world: World, sizes: list[int]) -> None:
    """A campaign whose sender's breaker is open and just due for its probe."""
    world.campaign(sizes)
    fail(world, health.FAILURES_TO_OPEN)
    while not world.plan_due():
        world.pass_s(1)


def test_a_probe_carries_one_letter_and_the_rest_of_its_batch_follows_in_full(world: World) -> None:
    """A provider that stalls puts one recipient in doubt a probe, not a thousand."""
    opened(world, [9])
    world.deliver(world.sender())
    assert [len(action.ordinals) for action in world.log.actions if action.what == "accepted"] == [1, 8]
    assert world.kinds() == "a" * 9


def test_a_provider_that_stalls_for_hours_puts_few_in_doubt(world: World) -> None:
    """Bounded harm: the requests until the breaker opens, those in flight by then among them, then a letter a probe."""
    parallel, each = 4, 10
    world.campaign([each] * 60)
    elements = [world.render(reference) for reference in world.plan(window=each * parallel)]

    def chain(left: int) -> Scripted:
        """This many more requests begin while this one is in flight."""

        def others(_: object) -> None:
            if left:
                world.owner(world.sender([chain(left - 1)]), worker=f"w{left}").deliver(elements[left])

        return Scripted(STALLED, before=others)

    world.owner(world.sender([chain(parallel - 1)])).deliver(elements[0])
    began, probes = world.clock.at, 40
    for _ in range(health.FAILURES_TO_OPEN - parallel + probes):
        while not world.plan_due():
            world.pass_s(5)
        world.deliver(world.sender([Scripted(STALLED)]))
        world.pass_s(30)
    in_doubt = sum(world.kinds(number).count("d") for number in range(60))
    before_it_opened = max(parallel, health.FAILURES_TO_OPEN) * each
    assert in_doubt == before_it_opened + probes
    hours = (world.clock.at - began).total_seconds() / 3600
    assert probes / hours < 3600 / health.LONGEST_OPEN_S + 3
    found = switch(world)
    assert found is not None
    assert found.kind == "open"


def test_of_several_processes_exactly_one_probes(world: World) -> None:
    opened(world, [1] * 6)
    elements = [world.render(reference) for reference in world.plan(window=4)]
    reasons: list[str] = []

    def meanwhile(_: object) -> None:
        for number, element in enumerate(elements[1:]):
            reasons.append(world.owner(world.sender(), worker=f"other-{number}").deliver(element).reason)
        assert world.plan() == [], "nothing is even planned while somebody probes"

    world.owner(world.sender([Scripted(STALLED, before=meanwhile)])).deliver(elements[0])
    assert reasons == ["breaker_open"] * 3
    found = switch(world)
    assert found is not None
    assert (found.kind, orjson.loads(found.detail)["opened"]) == ("open", 2)


def test_a_failure_from_before_the_breaker_opened_does_not_let_a_second_probe_out(world: World) -> None:
    """Requests that were in flight when it opened end at any time, also while the probe is out."""
    world.campaign([1] * 9)
    early, probing = (world.render(reference) for reference in world.plan(window=2))
    probed: list[Switch | None] = []

    def meanwhile(_: object) -> None:
        fail(world, health.FAILURES_TO_OPEN)
        world.pass_s(health.FIRST_OPEN_S + 0.1)
        with pytest.raises(Killed):
            world.owner(world.sender([Scripted(TAKEN, before=die)]), worker="w2").deliver(probing)
        probed.append(switch(world))

    world.owner(world.sender([Scripted(STALLED, before=meanwhile)])).deliver(early)
    found = switch(world)
    assert probed == [found]
    assert found is not None
    assert found.kind == "probing"
    assert world.plan() == []


def test_after_a_killed_probe_the_next_one_goes_when_its_lease_is_over(world: World) -> None:
    opened(world, [1] * 4)
    with pytest.raises(Killed):
        world.deliver(world.sender([Scripted(TAKEN, before=die)]))
    world.pass_s(59)
    assert world.plan() == []
    world.pass_s(2)
    world.deliver(world.sender([Scripted(TAKEN)]))
    assert switch(world) is None


def test_a_repeat_of_a_doubt_is_the_probe_and_the_others_wait_for_it(world: World) -> None:
    world.campaign([1] * 4)
    sender: Callable[..., Any] = lambda *script: world.sender(script, **IDEMPOTENT)  # noqa: E731
    for _ in range(health.FAILURES_TO_OPEN):
        world.pass_s(2)
        world.deliver(sender(Scripted(STALLED)))
    world.pass_s(health.FIRST_OPEN_S + 0.1)
    doubted, other = (world.render(reference) for reference in world.plan(AGAIN)[:2])
    waiting: list[str] = []

    def meanwhile(_: object) -> None:
        found = switch(world)
        assert found is not None
        waiting.append(found.kind)
        waiting.append(world.owner(sender(), AGAIN, worker="w2").deliver(other).reason)

    assert world.batch(doubted.batch_no).state == "in_doubt"
    world.owner(sender(Scripted(TAKEN, before=meanwhile)), AGAIN).deliver(doubted)
    assert waiting[0] == "probing"
    assert waiting[1] in ("breaker_open", "limit")
    assert switch(world) is None


def test_a_probe_that_its_owner_drops_as_late_lets_another_go_at_once(world: World) -> None:
    opened(world, [1] * 3)
    real = world.store.transact

    def slow(work: Any, *, tag: str) -> Any:
        result = real(work, tag=tag)
        if tag == "claim":
            world.pass_s(20)
        return result

    element = world.render(world.plan_one())
    world.store.transact = slow  # type: ignore[method-assign]
    assert world.owner(world.sender()).deliver(element).reason == "late"
    world.store.transact = real  # type: ignore[method-assign]
    world.deliver(world.sender())
    assert switch(world) is None


def test_batches_that_met_a_probe_go_as_soon_as_it_closed_the_breaker(world: World) -> None:
    opened(world, [1] * 3)
    first, second = (world.render(reference) for reference in world.plan(window=2))

    def meanwhile(_: object) -> None:
        world.owner(world.sender(), worker="w2").deliver(second)

    world.owner(world.sender([Scripted(TAKEN, before=meanwhile)])).deliver(first)
    assert second.batch_no in {reference.batch_no for reference in world.plan()}


# -- what is still in flight ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [TAKEN, Reply(Verdict.NOT_SENT, "connect"), STALLED])
def test_what_was_in_flight_when_the_provider_throttled_does_not_end_the_wait(world: World, late: Reply) -> None:
    """Eight workers, one 429 that names a time: the seven replies that follow it must not let the next request out."""
    world.campaign([1] * 4)
    throttled = Reply(Verdict.NOT_SENT, "http_429", retry_after_s=60.0, throttled=True)
    elements = [world.render(reference) for reference in world.plan(window=2)]

    def meanwhile(_: object) -> None:
        world.owner(world.sender([Scripted(throttled)]), worker="w2").deliver(elements[1])

    world.owner(world.sender([Scripted(late, before=meanwhile)])).deliver(elements[0])
    world.pass_s(59)
    assert world.plan() == []
    world.pass_s(1.1)
    assert world.plan() != []


def test_one_throttling_that_many_workers_meet_halves_the_rates_once(world: World) -> None:
    world.campaign([1] * 4)
    world.limit(Limit("lane:bulk", "rate", "rate", per_s=100.0, burst=100))
    reply = Reply(Verdict.NOT_SENT, "http_429", retry_after_s=7.0, throttled=True)
    elements = [world.render(reference) for reference in world.plan(window=3)]

    def meanwhile(_: object) -> None:
        for element in elements[1:]:
            world.owner(world.sender([Scripted(reply)]), worker="w2").deliver(element)

    world.owner(world.sender([Scripted(reply, before=meanwhile)])).deliver(elements[0])
    assert slow(world) == 0.5


def test_throttled_again_and_again_without_a_named_time_the_wait_doubles(world: World) -> None:
    """Without a reset header the back-off is the sender's own: 429 for ever must not be asked every second."""
    world.campaign([1])
    waits = []
    for _ in range(12):
        while not world.plan_due():
            world.pass_s(0.25)
        world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "http_429", throttled=True))]))
        found = switch(world)
        assert found is not None
        assert found.until_at is not None
        waits.append((found.until_at - world.now()).total_seconds())
    assert waits[0] <= 1.0
    assert waits == sorted(waits)
    assert 100 < waits[-1] <= 300
    assert world.batch().tries == 0


def test_a_sender_that_was_halted_stays_so_whatever_was_in_flight(world: World) -> None:
    world.campaign([1] * 4)
    elements = [world.render(reference) for reference in world.plan(window=4)]
    halts = Reply(Verdict.NOT_SENT, "credentials", halts_sender=True)

    def halted(_: object) -> None:
        world.owner(world.sender([Scripted(halts)]), worker="w2").deliver(elements[3])

    script = [TAKEN, Reply(Verdict.NOT_SENT, "http_429", throttled=True), Reply(Verdict.NOT_SENT, "connect")]
    for element, reply in zip(elements, script, strict=False):
        world.owner(world.sender([Scripted(reply, before=halted)])).deliver(element)
        found = switch(world)
        assert found is not None
        assert (found.kind, found.reason) == ("halted", "credentials")
    assert [world.batch(number).tries for number in range(4)] == [0] * 4
