"""A request in doubt keeps nobody waiting but those who were in it: it goes beside its batch, and is settled there."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from schemas.elements import RenderedBatch
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import AsideDoubt, Decision, Limit, Suppression
from sendonce.control.campaigns import begin_cancel
from sendonce.control.event_payloads import Event
from sendonce.control.events import record_events
from sendonce.control.expiry import with_end
from sendonce.control.outcomes import recipient_outcomes
from sendonce.delivery import resolver
from sendonce.delivery.letters import element_of
from sendonce.delivery.protocol import aside
from sendonce.delivery.resolver import Policy, decide
from sendonce.delivery.sweeper import HELD_LOOKED_AT_EVERY, SweepMemory, sweep_lane
from sendonce.senders.base import Prepared, Reply, Verdict
from tests.delivery.test_failover import BOTH, backup, go, put, time_is_over
from tests.delivery.world import CAMPAIGN, TERMS, World
from tests.fakes import Scripted

LOST = Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=())
TAKEN = Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(0,))
GOOD = Scripted(Reply(Verdict.ACCEPTED))


def beside(world: World) -> list[AsideDoubt]:
    return world.store.read(lambda reader: reader.scan(AsideDoubt))


def decisions(world: World) -> list[Decision]:
    return world.store.read(lambda reader: reader.scan(Decision))


def lost(world: World, size: int, at: int, *, in_doubt: str = "hold") -> None:
    """A batch whose request no. `at` (from 0) was lost, in a lane whose requests have one recipient each."""
    world.campaign([size])
    world.deliver(world.sender([GOOD] * at + [LOST], recipients=1))
    world.sweep(in_doubt=in_doubt)


def test_the_others_of_a_batch_go_on_and_the_doubt_comes_back_at_the_end(world: World) -> None:
    lost(world, 4, 1)
    assert (world.kinds(), world.batch().state) == ("adoo", "pending")
    (doubt,) = beside(world)
    assert (doubt.state, unpack(doubt.ordinals)) == ("held", [1])
    world.deliver(world.sender(recipients=1))
    batch = world.batch()
    assert (world.kinds(), batch.state, batch.attempt_id) == ("adaa", "held", doubt.attempt_id)
    assert (batch.intent_at, batch.payload_hash, batch.provider) == (doubt.intent_at, doubt.payload_hash, "fake")
    assert batch.doubt_since == doubt.doubt_since
    assert beside(world) == []
    decide(world.store, world.key, world.doubts()[0], "assume", "ann", "", "rows", "d")
    world.sweep()
    assert (world.kinds(), world.campaign_row().state) == ("auaa", "completed")


def test_a_campaign_with_a_doubt_beside_a_batch_is_not_completed(world: World) -> None:
    lost(world, 3, 0)
    world.deliver(world.sender(recipients=1))
    for _ in range(3):
        world.pass_s(3600)
        world.sweep()
        assert world.campaign_row().state == "running"
    assert world.kinds() == "daa"


def test_every_doubt_of_a_batch_is_known_and_settled_by_itself(world: World) -> None:
    world.campaign([4])
    for _ in range(3):
        world.deliver(world.sender([LOST], recipients=1))
        world.sweep()
    assert (world.kinds(), world.batch().state, len(beside(world))) == ("dddo", "pending", 3)
    first, second, third = world.doubts()
    assert [doubt.ordinals for doubt in (first, second, third)] == [(0,), (1,), (2,)]
    assert decide(world.store, world.key, second, "assume", "ann", "", "rows", "d2") == "assume"
    assert decide(world.store, world.key, second, "assume", "ann", "", "rows", "d2b") == ""
    assert (world.kinds(), len(beside(world))) == ("dudo", 2)
    world.deliver(world.sender(recipients=1))
    assert (world.kinds(), world.batch().state, world.batch().attempt_id) == ("duda", "held", first.attempt_id)
    decide(world.store, world.key, first, "assume", "ann", "", "rows", "d1")
    assert (world.kinds(), world.batch().state, world.batch().attempt_id) == ("uuda", "held", third.attempt_id)
    decide(world.store, world.key, third, "assume", "ann", "", "rows", "d3")
    assert (world.kinds(), world.batch().state) == ("uuua", "done")
    assert {row.attempt_id for row in decisions(world) if row.kind == "assume"} == {
        doubt.attempt_id for doubt in (first, second, third)
    }


def test_a_message_on_record_names_the_request_that_was_beside(world: World) -> None:
    lost(world, 2, 0)
    (doubt,) = world.doubts()
    decide(world.store, world.key, doubt, "assume", "ann", "", "rows", "d")
    (row,) = [row for row in world.outbound() if row.ordinal == 0]
    assert (row.attempt_id, row.provider, row.outcome) == (doubt.attempt_id, "fake", Outcome.ASSUMED)


def rendered_for_others(world: World) -> RenderedBatch:
    """As rendering makes it: whoever is in doubt beside the batch has no letter in it."""
    reference = world.plan_one()
    letters = world.letters(reference)
    others = [letter for letter in letters.letters if world.batch().outcomes[letter.ordinal] == Outcome.OPEN]
    return element_of(reference, replace(letters, letters=others), world.now())


def test_who_is_open_again_and_unsubscribed_waits_for_the_next_rendering(world: World) -> None:
    """Found by the simulator: a batch rendered without somebody in doubt beside it; a person had it sent again; then
    they unsubscribed, and the owner gave up for want of a name."""
    lost(world, 2, 0)
    element = rendered_for_others(world)
    decide(world.store, world.key, world.doubts()[0], "resend", "ann", "", "rows", "d")
    gone = Suppression(world.people(world.batch())[0].address_key, "*", 16, world.now(), "test", "link")
    world.store.transact(lambda tx: tx.put(gone), tag="test")
    world.owner(world.sender(recipients=1)).deliver(element)
    assert (world.kinds(), world.batch().state) == ("oa", "pending")
    world.deliver(world.sender(recipients=1))
    # The lost request may have reached them.
    assert (world.kinds(), world.batch().state) == ("ua", "done")


@pytest.mark.parametrize("end", ["cancel", "expiry"])
def test_a_sweep_ends_a_batch_for_whoever_was_open_again_without_a_letter(world: World, end: str) -> None:
    """Found by the simulator, as the one before: here the campaign was cancelled, or ended."""
    lost(world, 2, 0)
    element = rendered_for_others(world)
    decide(world.store, world.key, world.doubts()[0], "resend", "ann", "", "rows", "d")
    if end == "cancel":
        begin_cancel(world.store, CAMPAIGN, "ann")
    else:
        over = with_end(world.campaign_row(), world.now())
        world.store.transact(lambda tx: tx.put(over), tag="test")
    world.owner(world.sender(recipients=1)).deliver(element)
    assert (world.kinds(), world.batch().state) == ("oo", "pending")
    world.sweep()
    assert world.kinds() == ("uc" if end == "cancel" else "ur")


def test_a_decision_may_come_while_the_batch_is_being_sent(world: World) -> None:
    """The owner goes on; whoever is open again goes with a later request of it, once."""
    lost(world, 4, 0)
    (doubt,) = world.doubts()

    def decided(_: Prepared) -> None:
        assert world.batch().state == "sending"
        decide(world.store, world.key, doubt, "resend", "ann", "", "rows", "d")

    done = world.deliver(world.sender([GOOD, Scripted(Reply(Verdict.ACCEPTED), before=decided)], recipients=1))
    assert (world.kinds(), world.batch().state) == ("aaaa", "done")
    assert done.requests == 4
    assert sorted(world.log.times_accepted().values()) == [1, 1, 1, 1]
    assert sorted(row.kind for row in decisions(world)) == ["hold", "resend"]


def test_a_resend_of_one_that_waits_beside_makes_it_due_with_the_others(world: World) -> None:
    world.campaign([3])
    world.deliver(world.sender([TAKEN], recipients=1))
    world.sweep()
    (doubt,) = world.doubts()
    decide(world.store, world.key, doubt, "resend", "ann", "", "rows", "d")
    assert (world.kinds(), beside(world)) == ("ooo", [])
    world.deliver(world.sender(recipients=3))
    assert world.kinds() == "aaa"
    assert sorted(world.log.times_accepted().values()) == [1, 1, 2]  # as was decided, and is on record
    assert [unpack(row.ordinals or b"") for row in decisions(world) if row.kind == "resend"] == [[0]]


def test_an_event_settles_a_doubt_beside_its_batch(world: World) -> None:
    lost(world, 3, 0)
    (doubt,) = world.doubts()
    record_events(world.store, [Event("e1", "sendgrid", "delivered", world.now(), doubt.attempt_id, whole=True)])
    world.pass_s(HELD_LOOKED_AT_EVERY.total_seconds() + 1)
    world.sweep()
    assert (world.kinds(), beside(world)) == ("aoo", [])


def test_what_a_fenced_owner_learns_late_settles_what_is_held(world: World) -> None:
    """It was taken for lost, and left to a person at once; the answer came all the same."""
    world.campaign([2])

    def taken_for_lost(_: Prepared) -> None:
        world.pass_s(TERMS.times.lease_s + 1)
        assert world.sweep().expired == 1
        assert world.batch().state == "held"

    world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED), after=taken_for_lost)]))
    assert world.kinds() == "dd"
    world.pass_s(HELD_LOOKED_AT_EVERY.total_seconds() + 1)
    world.sweep()
    assert (world.kinds(), world.batch().state, world.campaign_row().state) == ("aa", "done", "completed")


def test_a_doubt_is_assumed_after_a_day_though_the_others_still_wait(world: World) -> None:
    lost(world, 3, 0, in_doubt="assume")
    assert [doubt.state for doubt in beside(world)] == ["in_doubt"]
    world.limit(Limit("lane:bulk", "cap:60", "cap", most=0, window_s=60.0))
    world.pass_s(resolver.ASSUME_AFTER.total_seconds() + 1)
    world.sweep(in_doubt="assume")
    assert (world.kinds(), world.batch().state, beside(world)) == ("uoo", "pending", [])


def test_one_that_can_be_asked_again_is_asked_first(world: World) -> None:
    """At a provider that knows keys the others wait only for the repeat."""
    keys = {"idempotency_window_s": 3600.0}
    again = replace(TERMS, asks_again_s=3600.0)
    world.campaign([3])
    world.deliver(world.sender([LOST], recipients=1, **keys))
    world.sweep(again)
    assert (world.batch().state, beside(world)) == ("in_doubt", [])
    world.pass_s(10)
    world.deliver(world.sender(recipients=1, **keys))
    assert world.kinds() == "aaa"
    calls = [(action.attempt_id, action.ordinals) for action in world.log.actions if action.what == "called"]
    assert calls[0] == calls[1]


def test_the_others_go_by_the_fallback_while_the_account_in_doubt_cannot_be_asked(world: World) -> None:
    """And once it can be, the doubt is asked again there, under its key."""
    keys: dict[str, object] = {"idempotency_window_s": 3600.0}
    own_terms = replace(BOTH, asks_again_s=3600.0)

    def sweep() -> None:
        world.sweep(own_terms)

    world.campaign([3])
    own, other = world.sender([TAKEN], recipients=1, **keys), backup(world)
    go(world, own, other, own_terms)
    sweep()
    assert beside(world) == []
    put(world, "open", for_s=60)
    sweep()
    assert (world.kinds(), [doubt.state for doubt in beside(world)]) == ("doo", ["in_doubt"])
    go(world, own, other, own_terms)
    assert (world.kinds(), world.batch().state) == ("daa", "in_doubt")
    time_is_over(world)
    sweep()
    go(world, own, other, own_terms)
    assert (world.kinds(), world.batch().state) == ("aaa", "done")
    calls = [(action.sender, action.ordinals) for action in world.log.actions if action.what == "called"]
    assert calls == [("fake", (0,)), ("backup", (1, 2)), ("fake", (0,))]
    assert set(world.log.times_accepted().values()) == {1}


@pytest.mark.parametrize("ends", ["cancel", "expire"])
def test_the_open_end_and_the_doubt_stays_to_be_settled(world: World, ends: str) -> None:
    lost(world, 3, 0)
    if ends == "cancel":
        begin_cancel(world.store, CAMPAIGN, "ann")
    else:
        over = with_end(world.campaign_row(), world.now() + timedelta(seconds=1))
        world.store.transact(lambda tx: tx.put(over), tag="test")
        world.pass_s(2)
    world.sweep()
    assert (world.kinds(), world.batch().state) == ("dcc" if ends == "cancel" else "drr", "held")
    decide(world.store, world.key, world.doubts()[0], "assume", "ann", "", "rows", "d")
    world.sweep()
    assert world.campaign_row().state == ("cancelled" if ends == "cancel" else "completed")


def test_everybody_else_may_be_exhausted_and_the_doubt_is_still_known(world: World) -> None:
    lost(world, 2, 0)
    stubborn = replace(TERMS, most_tries=1)
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))]), stubborn)
    assert (world.kinds(), world.batch().state) == ("dr", "held")


def test_the_record_of_a_person_in_doubt_names_the_request(world: World) -> None:
    lost(world, 3, 1)
    (doubt,) = world.doubts()
    lines = {line.ordinal: line for line in recipient_outcomes(world.store, CAMPAIGN)}
    assert (lines[1].outcome, lines[1].attempt_id, lines[1].at) == ("in_doubt", doubt.attempt_id, doubt.since)
    assert lines[2].attempt_id is None


def test_setting_aside_twice_or_with_nobody_else_changes_nothing(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender([LOST]))
    world.sweep()
    assert (world.kinds(), world.batch().state, beside(world)) == ("dd", "held", [])
    seen = world.batch()
    assert world.store.transact(lambda tx: aside.set_aside(tx, CAMPAIGN, 0), tag="test") is None
    assert world.batch() == seen


def test_an_expired_owner_s_request_goes_beside_too(world: World) -> None:
    world.campaign([3])

    def gone(_: Prepared) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED), after=gone)], recipients=1))
    world.pass_s(TERMS.times.lease_s + 1)
    world.sweep()
    assert (world.kinds(), world.batch().state, len(beside(world))) == ("doo", "pending", 1)
    world.deliver(world.sender(recipients=1))
    assert (world.kinds(), world.batch().state) == ("daa", "held")
    assert max(world.log.times_accepted().values()) == 1


def test_a_doubt_beside_a_batch_never_speaks_for_somebody_who_was_not_sent_to_by_it(world: World) -> None:
    """The fault: of one request the first letter was in doubt and the second not sent. The second was then in doubt by
    another request, and whatever settled the first request settled it, too."""
    world.campaign([3])
    cut = Reply(Verdict.UNKNOWN, "closed", exceptions={1: (Verdict.NOT_SENT, 0, "closed")})
    world.deliver(world.sender([Scripted(cut, accepts=())], recipients=2))
    world.sweep()
    assert world.kinds() == "doo"
    world.pass_s(60)
    world.deliver(world.sender([LOST], recipients=2))
    world.sweep()
    first, second = world.doubts()
    assert (first.ordinals, second.ordinals) == ((0,), (1, 2))
    decide(world.store, world.key, first, "assume", "ann", "", "rows", "d")
    assert world.kinds() == "udd"


def test_part_of_a_request_is_not_asked_again_under_the_key_of_the_whole(world: World) -> None:
    world.campaign([3])
    cut = Reply(Verdict.UNKNOWN, "closed", exceptions={1: (Verdict.NOT_SENT, 0, "closed")})
    go(world, world.sender([Scripted(cut, accepts=())], recipients=2), backup(world))
    put(world, "open", for_s=60)
    keyed = replace(BOTH, asks_again_s=3600.0)
    policy = resolver.Policy("hold", "rows")
    sweep_lane(world.store, world.key, keyed, policy, world._id)
    (doubt,) = beside(world)
    assert (unpack(doubt.ordinals), doubt.wait_reason) == ([0], "payload_changed")


def test_a_doubt_that_is_left_to_a_person_holds_up_nobody_for_a_moment(world: World) -> None:
    """One step: a process killed between two would leave the others waiting."""
    world.campaign([3])
    world.deliver(world.sender([LOST], recipients=1))
    (doubt,) = world.doubts()
    assert decide(world.store, world.key, doubt, "hold", "policy", "", "rows", "d") == "hold"
    assert (world.batch().state, [row.state for row in beside(world)]) == ("pending", ["held"])


def test_a_resend_of_one_beside_does_not_wait_for_the_doubt_in_the_batch(world: World) -> None:
    world.campaign([2])
    for _ in range(2):
        world.deliver(world.sender([LOST], recipients=1))
        world.sweep()
    assert (world.kinds(), world.batch().state, len(beside(world))) == ("dd", "held", 1)
    second = next(doubt for doubt in world.doubts() if doubt.aside)
    decide(world.store, world.key, second, "resend", "ann", "", "rows", "d")
    assert (world.kinds().count("o"), world.batch().state, len(beside(world))) == (1, "pending", 1)
    world.deliver(world.sender(recipients=1))
    assert (sorted(world.kinds()), world.batch().state) == (["a", "d"], "held")


def test_many_old_doubts_are_looked_at_seldom(world: World) -> None:
    """Each look reads; a thousand that wait for their day to be assumed must not read a thousand times a tick."""
    lost(world, 2, 0, in_doubt="assume")
    memory, looks = SweepMemory(), 0
    policy = Policy("assume", "rows")
    world.limit(Limit("lane:bulk", "cap:60", "cap", most=0, window_s=60.0))
    real = world.store.read

    def sweep() -> None:
        sweep_lane(world.store, world.key, TERMS, policy, world._id, memory)

    def counted(work: Any, **more: Any) -> Any:
        nonlocal looks
        looks += "evidence_of" in getattr(work, "__qualname__", "") or "settle_doubt" in work.__qualname__
        return real(work, **more)

    world.pass_s(3600)
    world.store.read = counted  # type: ignore[method-assign]
    for _ in range(300):
        sweep()
        world.pass_s(1)
    assert 1 <= looks <= 4
    world.pass_s(resolver.ASSUME_AFTER.total_seconds())
    sweep()
    assert world.kinds() == "uo"


@pytest.mark.parametrize("ends", ["cancelled", "expired", "suppressed", "exhausted"])
def test_whoever_was_sent_to_again_is_never_on_record_as_left_out(world: World, ends: str) -> None:
    """Their first letter may have arrived: it is assumed, whatever becomes of the second."""
    world.campaign([2])
    world.deliver(world.sender([TAKEN], recipients=1))
    world.sweep()
    (doubt,) = world.doubts()
    decide(world.store, world.key, doubt, "resend", "ann", "", "rows", "d")
    if ends == "cancelled":
        begin_cancel(world.store, CAMPAIGN, "ann")
        world.sweep()
    elif ends == "expired":
        over = with_end(world.campaign_row(), world.now() + timedelta(seconds=1))
        world.store.transact(lambda tx: tx.put(over), tag="test")
        world.pass_s(2)
        world.sweep()
    elif ends == "suppressed":
        reference = world.plan_one()
        struck = {0: Outcome.SUPPRESSED_UNSUBSCRIBED, 1: Outcome.SUPPRESSED_UNSUBSCRIBED}
        world.owner(world.sender()).deliver(world.render(reference, struck))
    else:
        world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))]), replace(TERMS, most_tries=1))
    assert world.kinds() == {"cancelled": "uc", "expired": "ur", "suppressed": "us", "exhausted": "ur"}[ends]
