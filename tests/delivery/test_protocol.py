"""Each row of the table of transitions, and what may never happen."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from schemas.letters import FormLetter, Letter, Letters
from schemas.outcomes import Outcome
from schemas.tables import Suppression, Switch
from sendonce.delivery import batches
from sendonce.delivery.protocol import queueing
from sendonce.delivery.requests import next_letters
from sendonce.delivery.terms import Move
from sendonce.senders.base import Capabilities, Reply, Verdict
from tests.delivery.faulty import With, losing_replies
from tests.delivery.world import TERMS, World
from tests.fakes import Scripted


def test_a_batch_goes_from_pending_to_done_in_two_transactions_and_one_request(world: World) -> None:
    world.campaign([3])
    delivery = world.deliver(world.sender())
    assert (delivery.move, delivery.requests, delivery.outcomes) == (Move.ENDED, 1, {"accepted": 3})
    batch = world.batch()
    assert (batch.state, batch.open_state, batch.n_accepted, batch.n_open) == ("done", None, 3, 0)
    assert batch.attempt_id is None
    assert [row.outcome for row in world.outbound()] == [Outcome.ACCEPTED] * 3
    assert len(world.attempts()) == 1


def test_a_second_plan_gives_no_second_reference_before_visibility(world: World) -> None:
    world.campaign([3])
    assert len(world.plan()) == 1
    assert world.plan() == []
    world.pass_s(TERMS.times.visibility_s + 0.1)
    assert [reference.plan_no for reference in world.plan()] == [2]


def test_an_older_reference_is_dropped(world: World) -> None:
    world.campaign([3])
    old = world.plan_one()
    world.pass_s(TERMS.times.visibility_s + 0.1)
    world.plan_one()
    delivery = world.owner(world.sender()).deliver(world.render(old))
    assert (delivery.move, delivery.reason) == (Move.LOST, "stale_reference")
    assert world.log.actions == []


def test_the_same_element_twice_sends_once(world: World) -> None:
    """A runner re-runs a bundle: the case bundle-retry-resend."""
    world.campaign([3])
    element = world.render(world.plan_one())
    owner = world.owner(world.sender())
    assert owner.deliver(element).requests == 1
    for _ in range(4):
        assert owner.deliver(element).move is Move.LOST
    assert set(world.log.times_accepted().values()) == {1}


def test_refused_recipients_are_written_and_their_neighbours_sent(world: World) -> None:
    world.campaign([3])
    element = world.render(world.plan_one(), {1: Outcome.RENDER_UNDEFINED_VARIABLE})
    world.owner(world.sender()).deliver(element)
    assert world.kinds() == "ara"
    assert [row.outcome for row in world.outbound()] == [2, Outcome.RENDER_UNDEFINED_VARIABLE, 2]


def test_a_batch_of_refusals_is_done_without_a_request(world: World) -> None:
    world.campaign([2])
    element = world.render(world.plan_one(), dict.fromkeys(range(2), Outcome.RENDER_ERROR))
    world.owner(world.sender()).deliver(element)
    assert (world.kinds(), world.batch().state, world.log.actions) == ("rr", "done", [])


def test_no_request_without_a_committed_intent(world: World) -> None:
    world.campaign([2])
    seen = []
    fate = Scripted(Reply(Verdict.ACCEPTED), before=lambda prepared: seen.append((world.batch(), prepared)))
    world.deliver(world.sender([fate]))
    ((batch, prepared),) = seen
    assert batch.state == "sending"
    assert batch.attempt_id == prepared.request.attempt_id
    assert batch.payload_hash == prepared.payload_hash


def test_a_provider_with_small_calls_gets_several_each_with_its_own_intent(world: World) -> None:
    world.campaign([5])
    delivery = world.deliver(world.sender(recipients=2))
    assert delivery.requests == 3
    assert [action.ordinals for action in world.log.actions if action.what == "accepted"] == [(0, 1), (2, 3), (4,)]
    assert len({attempt.attempt_id for attempt in world.attempts()}) == 3


def test_what_was_not_sent_goes_again_and_spends_a_try(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))]))
    batch = world.batch()
    assert (world.kinds(), batch.state, batch.tries, batch.wait_reason) == ("oo", "pending", 1, "connect")
    assert world.plan() == []
    world.pass_s(1.0)
    world.deliver(world.sender())
    assert (world.kinds(), world.batch().tries) == ("aa", 0)


def test_throttling_spends_no_try_and_waits_as_asked(world: World) -> None:
    world.campaign([2])
    reply = Reply(Verdict.NOT_SENT, "throttled", retry_after_s=7.0, throttled=True)
    world.deliver(world.sender([Scripted(reply)]))
    assert (world.batch().tries, world.kinds()) == (0, "oo")
    world.pass_s(6.9)
    assert world.plan() == []
    world.pass_s(0.2)
    assert len(world.plan()) == 1


def test_after_too_many_failures_in_a_row_the_recipients_are_refused_as_exhausted(world: World) -> None:
    world.campaign([2])
    terms = replace(TERMS, most_tries=3)
    for _ in range(3):
        world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))]), terms)
        world.pass_s(1000)
    assert (world.kinds(), world.batch().state) == ("rr", "done")
    assert {row.outcome for row in world.outbound()} == {Outcome.EXHAUSTED}


@pytest.mark.parametrize(("failures", "kinds"), [(11, "oo"), (12, "rr")])
def test_the_twelfth_failure_in_a_row_is_the_last(world: World, failures: int, kinds: str) -> None:
    """Other batches get through in between, so it is this one's fault and not the provider's."""
    world.campaign([2, *[1] * 12])
    for number in range(1, failures + 1):
        world.pass_s(300)
        references = {reference.batch_no: reference for reference in world.plan()}
        down = world.sender([Scripted(Reply(Verdict.NOT_SENT, "http_503"))])
        world.owner(down).deliver(world.render(references[0]))
        world.owner(world.sender()).deliver(world.render(references[number]))
        for other, reference in references.items():
            if other not in (0, number):
                world.store.transact(lambda tx, r=reference: queueing.release(tx, r, tx.now()), tag="test")
    assert (world.kinds(), world.batch().tries) == (kinds, failures)


def test_recipients_that_were_not_tried_yet_have_all_their_tries_left(world: World) -> None:
    """A batch of two requests: the first is given up, the second fails once and must not go with it."""
    world.campaign([2])
    terms = replace(TERMS, most_tries=3)
    for _ in range(4):
        world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))], recipients=1), terms)
        world.pass_s(1000)
    assert (world.kinds(), world.batch().tries) == ("ro", 1)


def test_a_sender_that_needs_a_person_halts_and_nothing_more_is_planned(world: World) -> None:
    world.campaign([2, 2])
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "disk_full", halts_sender=True))]))
    assert world.batch(0).tries == world.batch(1).tries == 0
    switch = world.store.read(lambda reader: reader.get(Switch, "sender:fake"))
    assert switch is not None
    assert (switch.kind, switch.reason) == ("halted", "disk_full")
    world.pass_s(100)
    assert world.plan() == []


def test_an_owner_past_its_deadline_sends_nothing(world: World) -> None:
    """A pause between intent and request: the owner fences itself."""
    world.campaign([2])
    sender = world.sender()
    owner = world.owner(sender)
    element = world.render(world.plan_one())
    commits = owner._store.transact

    def slow(work, *, tag):  # type: ignore[no-untyped-def]
        turn = commits(work, tag=tag)
        if tag == "claim":
            world.own_skew_s += TERMS.times.lease_s
        return turn

    owner._store = With(owner._store, transact=slow)
    delivery = owner.deliver(element)
    assert world.log.actions == []
    assert (delivery.requests, world.kinds(), world.batch().state) == (0, "oo", "pending")


@pytest.mark.parametrize("state", ["paused", "halted"])
def test_a_campaign_that_does_not_run_gets_no_request(world: World, state: str) -> None:
    world.campaign([2])
    element = world.render(world.plan_one())
    world.set_state(state)
    world.owner(world.sender()).deliver(element)
    assert (world.log.actions, world.batch().state, world.batch().wait_reason) == ([], "pending", state)


def test_a_pause_reaches_a_batch_between_two_requests(world: World) -> None:
    world.campaign([4])
    fate = Scripted(Reply(Verdict.ACCEPTED), after=lambda _: world.set_state("paused"))
    world.deliver(world.sender([fate], recipients=2))
    assert (world.kinds(), world.batch().state) == ("aaoo", "pending")


def test_a_cancel_reaches_a_batch_between_two_requests_and_closes_it(world: World) -> None:
    """The case cancel-drains-buffer: nothing starts after the cancel."""
    world.campaign([4])
    fate = Scripted(Reply(Verdict.ACCEPTED), after=lambda _: world.set_state("cancelling"))
    world.deliver(world.sender([fate], recipients=2))
    assert (world.kinds(), world.batch().state) == ("aacc", "cancelled")
    assert len(world.outbound()) == 4


def test_a_suppression_between_render_and_claim_strikes_the_recipient_out(world: World) -> None:
    """The case unsubscribed-while-paused."""
    world.campaign([3])
    element = world.render(world.plan_one())
    world.pass_s(1)
    person = world.people(world.batch())[1]
    row = Suppression(
        person.address_key, "*", int(Outcome.SUPPRESSED_UNSUBSCRIBED), world.clock.at, "test", "unsubscribe"
    )
    world.store.transact(lambda tx: tx.insert(row), tag="test")
    world.owner(world.sender()).deliver(element)
    assert world.kinds() == "asa"
    assert [action.ordinals for action in world.log.actions if action.what == "accepted"] == [(0, 2)]


def test_a_stop_hands_the_batch_back_at_once(world: World) -> None:
    world.campaign([2])
    element = world.render(world.plan_one())
    world.owner(world.sender(), stopping=True).deliver(element)
    assert (world.log.actions, world.batch().state) == ([], "pending")
    assert len(world.plan()) == 1


def test_an_expired_batch_is_refused_not_sent(world: World) -> None:
    world.campaign([2])
    element = world.render(world.plan_one())
    row = replace(world.batch(), expires_at=world.clock.at)
    world.store.transact(lambda tx: tx.put(row), tag="test")
    world.owner(world.sender()).deliver(element)
    assert (world.kinds(), world.batch().state, world.log.actions) == ("rr", "done", [])


def test_a_claim_whose_commit_reply_was_lost_is_settled_by_reading_back(world: World) -> None:
    """The case alreadyexists-own-retry: our own token in the row means that we hold it."""
    world.campaign([2])
    reference = world.plan_one()
    owner = world.owner(world.sender())
    owner._store = With(owner._store, transact=losing_replies(world, {"claim", "advance"}))
    delivery = owner.deliver(world.render(reference))
    assert (delivery.requests, world.kinds(), world.batch().state) == (1, "aa", "done")
    assert set(world.log.times_accepted().values()) == {1}


def test_a_final_outcome_never_changes(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender())
    with pytest.raises(batches.FinalOutcome):
        batches.apply(world.batch(), {0: Outcome.CANCELLED})


def test_packed_writes_rows_for_exceptions_only(world: World) -> None:
    world.campaign([3])
    terms = replace(TERMS, outbound_log="packed")
    element = world.render(world.plan_one(terms), {1: Outcome.RENDER_ERROR})
    world.owner(world.sender(), terms).deliver(element)
    assert [(row.ordinal, row.outcome) for row in world.outbound()] == [(1, Outcome.RENDER_ERROR)]


def test_small_campaigns_take_turns_with_large_ones(world: World) -> None:
    world.campaign([1] * 6)
    world.campaign([1] * 2, campaign_id="small")
    planned = [reference.campaign_id for reference in world.plan(window=4)]
    assert sorted(planned) == ["small", "small", "spring", "spring"]


def test_letters_without_a_form_share_an_intent_only_a_few_at_a_time() -> None:
    """Each is a call of its own: what a kill puts in doubt stays small."""
    form = FormLetter("px", 0, "Hi", "Dear all", "")
    letters = [Letter(n, str(n), f"u{n}@one.example", "", form=0 if n % 2 else None) for n in range(10)]
    rendered = Letters("news@shop.example", "", [form], letters, [])
    few = Capabilities(recipients=1000, mixes_forms=False, calls=3)
    assert [letter.ordinal for letter in next_letters(rendered, range(10), few, 1000)] == [0, 2, 4]
    assert [letter.ordinal for letter in next_letters(rendered, range(1, 10), few, 1000)] == [1, 3, 5, 7, 9]


def test_a_request_of_several_calls_takes_up_one_form_letter_after_the_other() -> None:
    """A provider whose calls have one form letter each: calls are full, and there are only so many in a request."""
    forms = [FormLetter("px", 0, "Hi", text, "") for text in "abc"]
    of = [0, 1, None, 0, 2, 1, None, 0, 2]
    letters = [Letter(n, str(n), f"u{n}@one.example", "", form=form) for n, form in enumerate(of)]
    rendered = Letters("news@shop.example", "", forms, letters, [])

    def chosen(recipients: int, calls: int, most: int = 1000, left: Iterable[int] = range(9)) -> list[int]:
        can = Capabilities(recipients=recipients, mixes_forms=True, calls=calls)
        return [letter.ordinal for letter in next_letters(rendered, set(left), can, most)]

    assert chosen(100, 100) == [0, 3, 7, 1, 5, 2, 4, 8, 6]
    assert chosen(100, 2) == [0, 3, 7, 1, 5]
    assert chosen(100, 3) == [0, 3, 7, 1, 5, 2]
    assert chosen(4, 100) == [0, 3, 7, 1]
    assert chosen(100, 100, most=2) == [0, 3]
    assert chosen(100, 2, left=range(1, 9)) == [1, 5, 2]


def test_a_request_that_its_owner_dropped_as_late_spends_no_try(world: World) -> None:
    """Found with a slow store: twelve late permits in a row refused everybody as exhausted; nothing was ever sent."""
    world.campaign([2])
    owner = world.owner(world.sender())
    commits = owner._store.transact

    def slow(work, *, tag):  # type: ignore[no-untyped-def]
        turn = commits(work, tag=tag)
        world.own_skew_s += 3.0 if tag == "claim" else 0.0
        return turn

    owner._store = With(owner._store, transact=slow)
    for _ in range(TERMS.most_tries + 2):
        owner.deliver(world.render(world.plan_one()))
        world.pass_s(1)
    assert (world.kinds(), world.batch().tries) == ("oo", 0)
