"""Each row of the table of transitions, and what may never happen."""

from dataclasses import replace

import pytest

from schemas.letters import FormLetter, Letter, Letters, dump
from schemas.outcomes import Outcome
from schemas.tables import Decision, Limit, Permit, Suppression, Switch
from sendonce.delivery import protocol
from sendonce.delivery.requests import next_letters
from sendonce.delivery.resolver import decide
from sendonce.delivery.terms import Move
from sendonce.senders.base import Capabilities, Reply, Verdict
from sendonce.stores.base import StoreUnavailable
from tests.delivery.world import TERMS, World
from tests.fakes import Scripted

IDEMPOTENT = {"idempotency_window_s": 3600.0}
AGAIN = replace(TERMS, asks_again_s=3600.0)


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


def test_an_unknown_verdict_leaves_only_its_request_in_doubt(world: World) -> None:
    world.campaign([5])
    unknown = Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(2, 3))
    world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED)), unknown], recipients=2))
    assert (world.kinds(), world.batch().state) == ("aaddo", "in_doubt")


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


def test_a_sender_that_needs_a_person_halts_and_nothing_more_is_planned(world: World) -> None:
    world.campaign([2, 2])
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "disk_full", halts_sender=True))]))
    assert world.batch(0).tries == world.batch(1).tries == 0
    switch = world.store.read(lambda reader: reader.get(Switch, "sender:fake"))
    assert switch is not None
    assert (switch.kind, switch.reason) == ("halted", "disk_full")
    world.pass_s(100)
    assert world.plan() == []


def test_an_expired_lease_means_in_doubt_never_send_again(world: World) -> None:
    """Killed between intent and verdict: nobody knows, so nobody guesses."""
    world.campaign([3])
    killed = Scripted(Reply(Verdict.ACCEPTED), before=_die)
    with pytest.raises(Killed):
        world.deliver(world.sender([killed]))
    world.pass_s(TERMS.times.lease_s - 1)
    assert world.sweep().expired == 0
    world.pass_s(2)
    assert world.sweep().expired == 1
    assert (world.kinds(), world.batch().state) == ("ddd", "held")
    world.pass_s(1000)
    assert world.plan() == []


def test_a_doubt_at_a_provider_that_deduplicates_is_asked_again_byte_for_byte(world: World) -> None:
    world.campaign([3])
    killed = Scripted(Reply(Verdict.ACCEPTED), after=_die)
    with pytest.raises(Killed):
        world.deliver(world.sender([killed], recipients=2, **IDEMPOTENT))
    world.pass_s(TERMS.times.lease_s + 1)
    world.sweep(AGAIN)
    assert world.kinds() == "ddo"
    world.deliver(world.sender(recipients=2, **IDEMPOTENT), worker="w2")
    assert (world.kinds(), world.batch().state) == ("aaa", "done")
    first, again, rest = [action for action in world.log.actions if action.what == "called"]
    assert (first.attempt_id, first.payload_hash) == (again.attempt_id, again.payload_hash)
    assert rest.ordinals == (2,)
    assert set(world.log.times_accepted().values()) == {1}


def test_a_doubt_whose_bytes_changed_is_never_asked_again(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], **IDEMPOTENT))
    world.pass_s(1)
    reference = world.plan_one(AGAIN)
    letters = world.letters(reference)
    changed = replace(letters, from_address="Other <other@shop.example>")
    element = replace(world.render(reference), letters=dump(changed))
    delivery = world.owner(world.sender(**IDEMPOTENT), AGAIN).deliver(element)
    assert (delivery.reason, delivery.requests) == ("payload_changed", 0)
    assert world.plan(AGAIN) == []
    world.sweep(AGAIN)
    assert world.batch().state == "held"


def test_an_element_that_comes_again_after_a_doubt_does_not_touch_it(world: World) -> None:
    """Found by the simulator (seed 297): a redelivered element repeated a request in doubt at a provider that does not

    de-duplicate, and a second letter went out without a decision.
    """
    world.campaign([2])
    element = world.render(world.plan_one())
    owner = world.owner(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(0, 1))]))
    owner.deliver(element)
    again = owner.deliver(element)
    assert (again.move, again.requests, world.kinds()) == (Move.LOST, 0, "dd")
    assert set(world.log.times_accepted().values()) == {1}


def test_a_doubt_older_than_the_providers_window_is_not_asked_again(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], **IDEMPOTENT))
    world.pass_s(3600 - TERMS.times.request_timeout_s)
    assert world.plan(AGAIN) == []
    world.sweep(AGAIN)
    assert world.batch().state == "held"


def test_not_sent_says_nothing_about_the_first_try(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], **IDEMPOTENT))
    world.pass_s(1)
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))], **IDEMPOTENT))
    assert (world.kinds(), world.batch().state) == ("dd", "in_doubt")
    assert len([action for action in world.log.actions if action.what == "called"]) == 2


def test_a_fenced_owner_writes_nothing_but_evidence_which_settles_the_doubt(world: World) -> None:
    """Paused after the provider accepted, past a take-over: the late verdict is proof, not an outcome."""
    world.campaign([2])

    def taken_over(_: object) -> None:
        world.pass_s(TERMS.times.lease_s + 1)
        world.sweep(in_doubt="assume")

    delivery = world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED), after=taken_over)]))
    assert (delivery.move, delivery.reason) == (Move.LOST, "fenced")
    assert (world.kinds(), world.batch().state) == ("dd", "in_doubt")
    assert [attempt.evidence for attempt in world.attempts()] == [True]
    assert world.sweep(in_doubt="assume").settled == 1
    assert (world.kinds(), world.batch().state) == ("aa", "done")
    assert world.store.read(lambda reader: reader.scan(Decision)) == []


def test_a_late_refusal_proves_nothing_once_the_request_was_repeated(world: World) -> None:
    """Found by the simulator: a call was refused, its repeat accepted with the reply lost, then the refusal came."""
    world.campaign([1])

    def repeated_meanwhile(_: object) -> None:
        world.pass_s(TERMS.times.lease_s + 1)
        world.sweep(AGAIN)
        again = world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(0,))], **IDEMPOTENT)
        world.deliver(again, worker="w2")

    fate = Scripted(Reply(Verdict.REFUSED, outcome=int(Outcome.PROVIDER_REFUSED)), after=repeated_meanwhile)
    delivery = world.deliver(world.sender([fate], **IDEMPOTENT))
    assert delivery.reason == "fenced"
    world.pass_s(1)
    world.sweep(AGAIN)
    assert (world.kinds(), world.batch().state) == ("d", "in_doubt")
    world.deliver(world.sender(**IDEMPOTENT), worker="w3")
    assert world.kinds() == "a"


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

    owner._store = _With(owner._store, transact=slow)
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


@pytest.mark.parametrize(("kind", "kinds", "state"), [("assume", "uu", "done"), ("resend", "oo", "pending")])
def test_a_person_decides_a_held_doubt_once(world: World, kind: str, kinds: str, state: str) -> None:
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))]))
    world.sweep()
    batch = world.batch()
    assert batch.state == "held"
    for decision_id in ("one", "two"):
        decide(world.store, world.key, batch, kind, "ann", "asked the provider", "rows", decision_id)
    assert (world.kinds(), world.batch().state) == (kinds, state)
    decisions = world.store.read(lambda reader: reader.scan(Decision))
    assert sorted(decision.kind for decision in decisions) == sorted(["hold", kind])


def test_a_campaign_is_completed_only_when_nothing_is_open_or_in_doubt(world: World) -> None:
    world.campaign([1, 1])
    world.deliver(world.sender())
    world.sweep()
    assert world.campaign_row().state == "running"
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))]))
    world.sweep()
    assert world.campaign_row().state == "running"
    held = next(batch for batch in (world.batch(0), world.batch(1)) if batch.state == "held")
    decide(world.store, world.key, held, "assume", "ann", "", "rows", "one")
    world.sweep()
    assert world.campaign_row().state == "completed"


def test_a_claim_whose_commit_reply_was_lost_is_settled_by_reading_back(world: World) -> None:
    """The case alreadyexists-own-retry: our own token in the row means that we hold it."""
    world.campaign([2])
    reference = world.plan_one()
    owner = world.owner(world.sender())
    owner._store = _With(owner._store, transact=_losing_replies(world, {"claim", "advance"}))
    delivery = owner.deliver(world.render(reference))
    assert (delivery.requests, world.kinds(), world.batch().state) == (1, "aa", "done")
    assert set(world.log.times_accepted().values()) == {1}


def test_a_final_outcome_never_changes(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender())
    with pytest.raises(protocol.batches.FinalOutcome):
        protocol.batches.apply(world.batch(), {0: Outcome.CANCELLED})


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


class Killed(Exception):
    """In place of a kill: nothing after it runs."""


def _die(_: object) -> None:
    raise Killed


class _With:
    """A store with one method replaced."""

    def __init__(self, store: object, **replaced: object) -> None:
        self._store = store
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def _losing_replies(world: World, tags: set[str]):  # type: ignore[no-untyped-def]
    """Commits that are applied while their reply gets lost, once for each of these tags."""
    left = set(tags)

    def transact(work, *, tag):  # type: ignore[no-untyped-def]
        result = world.store.transact(work, tag=tag)
        if tag in left:
            left.remove(tag)
            raise StoreUnavailable("the reply was lost", maybe_applied=True)
        return result

    return transact


def test_letters_without_a_form_share_an_intent_only_a_few_at_a_time() -> None:
    """Each is a call of its own: what a kill puts in doubt stays small."""
    form = FormLetter("px", 0, "Hi", "Dear all", "")
    letters = [Letter(n, str(n), f"u{n}@one.example", "", form=0 if n % 2 else None) for n in range(10)]
    rendered = Letters("news@shop.example", "", [form], letters, [])
    few = Capabilities(recipients=1000, mixes_forms=False, whole=3)
    assert [letter.ordinal for letter in next_letters(rendered, range(10), few, 1000)] == [0, 2, 4]
    assert [letter.ordinal for letter in next_letters(rendered, range(1, 10), few, 1000)] == [1, 3, 5, 7, 9]


def test_a_doubt_stays_where_its_first_try_is_known(world: World) -> None:
    """Found with an outbox whose folder was changed: the repeat went to the new one, and everybody got two letters."""
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(0, 1))], **IDEMPOTENT))
    world.pass_s(1)
    elsewhere = replace(AGAIN, provider="another place")
    assert world.plan(elsewhere) == []
    world.sweep(elsewhere)
    assert (world.kinds(), world.batch().state) == ("dd", "held")


def test_a_doubt_larger_than_a_lowered_rate_goes_through_in_debt(world: World) -> None:
    world.campaign([10])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], **IDEMPOTENT))
    world.limit(Limit("lane:bulk", "rate", "rate", per_s=2.0, burst=2))
    world.pass_s(1)
    world.deliver(world.sender(**IDEMPOTENT), worker="w2")
    assert world.kinds() == "a" * 10
    (limit,) = world.store.read(lambda reader: reader.scan(Limit, "lane:bulk"))
    assert limit.level == -8.0


def test_a_doubt_larger_than_a_lowered_cap_is_left_to_the_next_rung(world: World) -> None:
    world.campaign([10])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], **IDEMPOTENT))
    world.limit(Limit("lane:bulk", "cap:60", "cap", most=5, window_s=60.0))
    world.pass_s(1)
    world.deliver(world.sender(**IDEMPOTENT), worker="w2")
    assert (world.kinds(), world.batch().wait_reason) == ("d" * 10, "over_limit")
    world.sweep(AGAIN)
    assert world.batch().state == "held"


def test_a_repeat_under_a_cap_is_counted_once(world: World) -> None:
    world.campaign([10])
    world.limit(Limit("lane:bulk", "cap:86400", "cap", most=15, window_s=86400.0))
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], **IDEMPOTENT))
    world.pass_s(1)
    world.deliver(world.sender(**IDEMPOTENT), worker="w2")
    assert world.kinds() == "a" * 10
    permits = world.store.read(lambda reader: reader.scan(Permit, "lane:bulk"))
    assert [permit.n for permit in permits] == [10]


def test_a_request_that_its_owner_dropped_as_late_spends_no_try(world: World) -> None:
    """Found with a slow store: twelve late permits in a row refused everybody as exhausted; nothing was ever sent."""
    world.campaign([2])
    owner = world.owner(world.sender())
    commits = owner._store.transact

    def slow(work, *, tag):  # type: ignore[no-untyped-def]
        turn = commits(work, tag=tag)
        world.own_skew_s += 3.0 if tag == "claim" else 0.0
        return turn

    owner._store = _With(owner._store, transact=slow)
    for _ in range(TERMS.most_tries + 2):
        owner.deliver(world.render(world.plan_one()))
        world.pass_s(1)
    assert (world.kinds(), world.batch().tries) == ("oo", 0)
