"""A person's stop is in force at the next claim and advance, and no provider's answer lifts it."""

from pathlib import Path

import pytest

from schemas.tables import Setting
from sendonce.control.stops import end_stop, stop_sending
from sendonce.delivery.terms import Move
from sendonce.senders.base import Reply, Verdict
from tests.control.made import Clock
from tests.delivery.world import World
from tests.fakes import START, Scripted

SCOPES = ["all", "lane:bulk", "sender:fake"]


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, Clock(START))
    made.campaign([2, 2])
    made.store.transact(lambda tx: tx.put(Setting("sender", "fake", "{}", tx.now(), "test")), tag="test")
    return made


@pytest.mark.parametrize("scope", SCOPES)
def test_a_stop_holds_at_the_next_claim_and_work_goes_on_after_it(world: World, scope: str) -> None:
    reference = world.plan_one()
    element = world.render(reference)
    stop_sending(world.store, scope, "wrong price", "ann")

    ended = world.owner(world.sender()).deliver(element)

    assert (ended.move, ended.requests, world.log.words()) == (Move.ENDED, 0, [])
    assert not world.plan_due()
    end_stop(world.store, scope)
    world.pass_s(120)
    assert world.deliver(world.sender()).requests == 1


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize(
    "reply",
    [
        Reply(Verdict.ACCEPTED),
        Reply(Verdict.NOT_SENT, reason="http_429", throttled=True, retry_after_s=1.0),
        Reply(Verdict.NOT_SENT, reason="credentials", halts_sender=True),
        Reply(Verdict.NOT_SENT, reason="connect"),
    ],
    ids=lambda reply: reply.reason or "accepted",
)
def test_what_was_in_flight_does_not_lift_a_stop(world: World, scope: str, reply: Reply) -> None:
    """A sender's own row is rewritten by each answer; a stop that stood in it would be gone."""

    def stop(prepared: object) -> None:
        stop_sending(world.store, scope, "wrong price", "ann")

    world.deliver(world.sender([Scripted(reply, before=stop)]))
    world.pass_s(3600)

    assert not world.plan_due()
