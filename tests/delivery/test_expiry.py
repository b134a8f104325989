"""After a campaign's end nothing of it starts, and it is over soon, whatever keeps its lane or sender from sending."""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.outcomes import Outcome
from schemas.tables import Limit, Switch
from sendonce.control.expiry import with_end
from sendonce.delivery.resolver import decide
from sendonce.senders.base import Reply, Verdict
from tests.delivery.faulty import AGAIN, IDEMPOTENT
from tests.delivery.world import World
from tests.fakes import Scripted


def ends_in(world: World, seconds: float) -> None:
    row = with_end(world.campaign_row(), world.clock.at + timedelta(seconds=seconds))
    world.store.transact(lambda tx: tx.put(row), tag="test")


def test_one_moment_before_the_end_a_claim_sends_and_at_the_end_it_does_not(world: World) -> None:
    world.campaign([1, 1])
    first, second = (world.render(reference) for reference in world.plan())
    ends_in(world, 10)
    world.clock.at += timedelta(seconds=9, microseconds=900_000)
    world.owner(world.sender()).deliver(first)
    world.clock.at += timedelta(microseconds=100_000)
    assert world.owner(world.sender()).deliver(second).reason == "expired"
    assert (world.kinds(first.batch_no), world.kinds(second.batch_no)) == ("a", "r")
    assert Outcome(world.batch(second.batch_no).outcomes[0]) is Outcome.EXPIRED
    assert world.sweep().ended == 1
    assert world.campaign_row().state == "completed"


def test_the_end_reaches_a_batch_between_two_requests_and_keeps_what_was_accepted(world: World) -> None:
    world.campaign([3])
    ends_in(world, 10)
    script = [Scripted(Reply(Verdict.ACCEPTED), after=lambda _: world.pass_s(11))]
    world.deliver(world.sender(script, recipients=1))
    assert (world.kinds(), world.batch().state) == ("arr", "done")


def put(world: World, switch: Switch) -> None:
    world.store.transact(lambda tx: tx.put(switch), tag="test")


def block_limit(world: World) -> None:
    world.limit(Limit("lane:bulk", "cap", "cap", most=1, window_s=1e6))
    world.deliver(world.sender())


BLOCKS: dict[str, Callable[[World], None]] = {
    "stopped": lambda world: put(world, Switch("stop:lane:bulk", "stopped", world.clock.at, "ann", "wrong")),
    "halted": lambda world: put(world, Switch("sender:fake", "halted", world.clock.at, "w", "credentials")),
    "throttled": lambda world: put(
        world, Switch("sender:fake", "throttled", world.clock.at, "w", "429", world.clock.at + timedelta(hours=1))
    ),
    "breaker": lambda world: put(
        world, Switch("sender:fake", "open", world.clock.at, "w", "tls", world.clock.at + timedelta(hours=1))
    ),
    "probing": lambda world: put(
        world, Switch("sender:fake", "probing", world.clock.at, "w", "tls", world.clock.at + timedelta(hours=1))
    ),
    "limit": block_limit,
    "campaign_paused": lambda world: world.set_state("paused"),
    "campaign_halted": lambda world: world.set_state("halted"),
    "queued": lambda world: world.plan().clear(),
}


@pytest.mark.parametrize("block", BLOCKS)
def test_a_blocked_campaign_ends_all_the_same(world: World, block: str) -> None:
    world.campaign([1, 2])
    ends_in(world, 10)
    BLOCKS[block](world)
    assert world.sweep().too_late == 0
    world.pass_s(9)
    world.sweep()
    assert world.campaign_row().state != "completed"
    world.pass_s(1)
    swept = world.sweep()
    assert swept.ended == 1
    assert world.campaign_row().state == "completed"
    kinds = world.kinds(0) + world.kinds(1)
    assert kinds.count("r") == (3 if block != "limit" else 2)
    assert {row.outcome for row in world.outbound() if Outcome(row.outcome).kind == "refused"} == {Outcome.EXPIRED}


def test_a_reference_that_was_queued_at_the_end_is_worthless(world: World) -> None:
    world.campaign([1])
    element = world.render(world.plan_one())
    ends_in(world, 1)
    world.pass_s(1)
    assert world.sweep().too_late == 1
    assert world.owner(world.sender()).deliver(element).reason == "stale_reference"
    assert world.log.actions == []


@pytest.mark.parametrize("policy", ["hold", "assume", "resend"])
def test_the_end_closes_whoever_is_open_beside_a_doubt_at_once(world: World, policy: str) -> None:
    """Only the open intent's recipients are in doubt; the others were in no request and wait for nobody's decision."""
    world.campaign([3])
    ends_in(world, 10)
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], recipients=1))
    world.pass_s(11)
    world.sweep(in_doubt=policy)
    world.sweep(in_doubt=policy)
    assert world.kinds() == "drr"
    assert {row.ordinal: row.outcome for row in world.outbound()} == {1: Outcome.EXPIRED, 2: Outcome.EXPIRED}


def test_a_doubt_that_is_settled_after_the_end_completes_the_campaign(world: World) -> None:
    world.campaign([3])
    ends_in(world, 10)
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], recipients=1))
    world.pass_s(11)
    world.sweep(in_doubt="hold")
    assert (world.kinds(), world.batch().state) == ("drr", "held")
    (doubt,) = world.doubts()
    assert decide(world.store, world.key, doubt, "assume", "ann", "", "rows", "d") == "assume"
    world.sweep()
    assert (world.kinds(), world.campaign_row().state) == ("urr", "completed")


def test_a_repeat_of_a_doubt_is_no_new_request(world: World) -> None:
    """It may have been accepted before the end: asking again is how that is learned."""
    world.campaign([1])
    ends_in(world, 10)
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], **IDEMPOTENT))
    world.pass_s(11)
    world.sweep(AGAIN)
    world.deliver(world.sender(**IDEMPOTENT), AGAIN)
    assert world.kinds() == "a"


def test_a_batch_of_a_stream_ends_by_itself_while_its_neighbours_wait(world: World) -> None:
    world.campaign([1, 1])
    stream = replace(world.campaign_row(), kind="stream", options='{"day": "2026-01-15"}')
    ending = replace(world.batch(1), expires_at=world.clock.at + timedelta(seconds=5))
    world.store.transact(lambda tx: tx.put(stream, ending), tag="test")
    put(world, Switch("sender:fake", "halted", world.clock.at, "w", "credentials"))
    world.pass_s(5)
    assert world.sweep().too_late == 1
    assert (world.kinds(0), world.kinds(1)) == ("o", "r")
