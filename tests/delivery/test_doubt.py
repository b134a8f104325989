"""Doubt: made by kills, pauses and lost replies; settled by proof or by a decision, and never by a guess."""

from dataclasses import replace

import pytest

from schemas.letters import dump
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Decision, Limit, Permit
from sendonce.delivery.protocol import owning
from sendonce.delivery.resolver import RESEND_AFTER, decide
from sendonce.delivery.terms import Move
from sendonce.senders.base import Reply, Verdict
from tests.delivery.faulty import AGAIN, IDEMPOTENT, Killed, die
from tests.delivery.world import TERMS, World
from tests.fakes import Scripted


def test_an_unknown_verdict_leaves_only_its_request_in_doubt(world: World) -> None:
    world.campaign([5])
    unknown = Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(2, 3))
    world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED)), unknown], recipients=2))
    assert (world.kinds(), world.batch().state) == ("aaddo", "in_doubt")


def test_an_expired_lease_means_in_doubt_never_send_again(world: World) -> None:
    """Killed between intent and verdict: nobody knows, so nobody guesses."""
    world.campaign([3])
    killed = Scripted(Reply(Verdict.ACCEPTED), before=die)
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
    killed = Scripted(Reply(Verdict.ACCEPTED), after=die)
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
    (row,) = world.store.read(lambda reader: reader.scan(Decision))
    assert (row.kind, row.by, row.reason, unpack(row.ordinals or b"")) == (
        "evidence",
        "provider",
        "late_answer",
        [0, 1],
    )


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


def test_a_repeat_forgets_nobody_who_was_in_the_request(world: World) -> None:
    """Found by the simulator: the repeat's row took the place of the first one's, with those in doubt alone."""
    world.campaign([3])
    unknown = {1: (Verdict.UNKNOWN, 0, ""), 2: (Verdict.REFUSED, int(Outcome.PROVIDER_REFUSED), "")}
    world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED, exceptions=unknown), accepts=(0,))], **IDEMPOTENT))
    assert world.kinds() == "adr"
    world.pass_s(1)
    world.deliver(world.sender(**IDEMPOTENT), worker="w2")
    assert world.kinds() == "aar"
    (attempt,) = world.attempts()
    assert unpack(attempt.ordinals) == [0, 1, 2]
    assert attempt.outcomes == bytes((Outcome.ACCEPTED, Outcome.ACCEPTED, Outcome.PROVIDER_REFUSED))


@pytest.mark.parametrize(
    ("refusal", "kinds"),
    [
        (Reply(Verdict.REFUSED, outcome=int(Outcome.PROVIDER_REFUSED)), "dd"),
        (Reply(Verdict.ACCEPTED, exceptions={1: (Verdict.REFUSED, int(Outcome.PROVIDER_REFUSED), "")}), "ad"),
    ],
    ids=["of all", "of some"],
)
def test_a_repeat_that_stood_still_past_the_providers_window_proves_by_no_refusal(
    world: World, refusal: Reply, kinds: str
) -> None:
    """The provider had taken the first try, no longer knew its key, and refused the repeat as a new request."""
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(0, 1))], **IDEMPOTENT))
    world.pass_s(1)
    late = Scripted(refusal, before=lambda _: world.pass_s(IDEMPOTENT["idempotency_window_s"]))
    world.deliver(world.sender([late], **IDEMPOTENT), worker="w2")
    assert (world.kinds(), world.batch().state) == (kinds, "in_doubt")


@pytest.mark.parametrize(("kind", "kinds", "state"), [("assume", "uu", "done"), ("resend", "oo", "pending")])
def test_a_person_decides_a_held_doubt_once(world: World, kind: str, kinds: str, state: str) -> None:
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))]))
    world.sweep()
    assert world.batch().state == "held"
    (doubt,) = world.doubts()
    for decision_id in ("one", "two"):
        decide(world.store, world.key, doubt, kind, "ann", "asked the provider", "rows", decision_id)
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
    (held,) = world.doubts()
    decide(world.store, world.key, held, "assume", "ann", "", "rows", "one")
    world.sweep()
    assert world.campaign_row().state == "completed"


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


def test_a_repeat_is_not_taken_for_another_request_of_the_same_owner(world: World) -> None:
    """The owner has gone on with the rest of the batch: a repeat that comes again finds another intent there."""
    world.campaign([2])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"))], recipients=1, **IDEMPOTENT))
    world.pass_s(1)
    doubt = world.batch()
    reference = world.plan_one(AGAIN)
    moves: list[Move] = []

    def repeated(_: object) -> None:
        hashed, provider = doubt.payload_hash or "", doubt.provider or ""
        turn = world.store.transact(
            lambda tx: owning.reclaim(tx, AGAIN, reference, "w1", hashed, provider, {}), tag="reclaim"
        )
        moves.append(turn.move)

    script = [Scripted(Reply(Verdict.ACCEPTED)), Scripted(Reply(Verdict.ACCEPTED), before=repeated)]
    owner = world.owner(world.sender(script, recipients=1, **IDEMPOTENT), AGAIN)
    owner.deliver(world.render(reference))
    assert (moves, world.kinds()) == ([Move.LOST], "aa")


def test_a_refusal_after_a_resend_never_says_that_nothing_was_sent(world: World) -> None:
    """The first request may have been accepted; the provider's refusal of the second tells nothing of it."""
    world.campaign([3])
    world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "http_504"), accepts=None)], recipients=2))
    assert world.kinds() == "ddo"
    decide(world.store, world.key, world.doubts()[0], "resend", "ann", "looked", "rows", "decision")
    reply = Reply(
        Verdict.ACCEPTED,
        exceptions={
            0: (Verdict.REFUSED, int(Outcome.PROVIDER_REFUSED), ""),
            2: (Verdict.REFUSED, int(Outcome.PROVIDER_REFUSED), ""),
        },
    )
    world.deliver(world.sender([Scripted(reply)], recipients=100, mixes_forms=True))
    assert world.kinds() == "uar"


def test_a_lane_sends_again_once_and_leaves_a_second_doubt_to_a_person(world: World) -> None:
    """Else a silent provider could get the same letter every 15 minutes."""
    world.campaign([2])
    for _ in range(2):
        world.deliver(world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=None)]))
        world.sweep(in_doubt="resend")
        assert world.kinds() == "dd"
        world.pass_s(RESEND_AFTER.total_seconds() + 1)
        world.sweep(in_doubt="resend")
    assert (world.kinds(), world.batch().state) == ("dd", "held")
    kinds = [row.kind for row in world.store.read(lambda reader: reader.scan(Decision))]
    assert sorted(kinds) == ["hold", "resend"]
