"""Replaying dead letters: a trigger is applied again, whoever got no letter is opened again, each at most once."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from schemas.elements import DeadLetter
from schemas.ordinals import pack
from schemas.outcomes import Outcome
from schemas.tables import DeadLetterRow, Decision
from sendonce.control import suppressions
from sendonce.control.campaigns import begin_cancel
from sendonce.control.dead_letters import (
    DROPPED,
    STATES,
    Wanted,
    list_dead_letters,
    settle,
    sweep_dead_letters,
    write_dead_letters,
)
from sendonce.control.status import campaign_status
from sendonce.delivery import reopening
from sendonce.delivery.replay import Replay, replay
from sendonce.senders.base import Reply, Verdict
from sendonce.stores.base import StoreUnavailable
from tests.control.made import outcomes, seal
from tests.delivery.world import CAMPAIGN, World
from tests.fakes import Scripted

FULL, UNKNOWN = Outcome.PROVIDER_MAILBOX_FULL, Outcome.PROVIDER_UNKNOWN_MAILBOX


def trigger(campaign_id: str = CAMPAIGN, kind: str = "start", reason: str = "unknown_campaign") -> DeadLetter:
    body = json.dumps({"v": 1, "type": kind, "campaign_id": campaign_id}).encode()
    return DeadLetter("trigger", reason, "there is no such campaign", campaign_id, body=body)


def person(ordinal: int, code: Outcome = FULL, batch_no: int = 0, stage: str = "send") -> DeadLetter:
    return DeadLetter(stage, code.reason, "refused when it was to be sent", CAMPAIGN, batch_no, ordinal, "m")


def dead(world: World, *letters: DeadLetter, states: Any = ("open",)) -> list[DeadLetterRow]:
    write_dead_letters(world.store, letters)
    return list(list_dead_letters(world.store, Wanted(states=states)))


def did(told: list[Replay]) -> list[tuple[bool, str]]:
    return [(one.done, one.why) for one in told]


def row_of(world: World, letter: DeadLetterRow) -> DeadLetterRow:
    row = world.store.read(lambda reader: reader.get(DeadLetterRow, letter.dead_letter_id))
    assert row is not None
    return row


def refused(world: World, *codes: Outcome) -> None:
    """A completed campaign of one batch with these outcomes."""
    world.campaign([len(codes)])
    refusals = {
        ordinal: (Verdict.REFUSED, int(code), "") for ordinal, code in enumerate(codes) if code.kind == "refused"
    }
    world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED, exceptions=refusals))]))
    world.sweep()
    assert world.campaign_row().state == "completed"


# -- triggers -----------------------------------------------------------------------------------------------------


def test_a_trigger_is_applied_once_its_cause_is_mended_and_says_who_and_when(world: World) -> None:
    (letter,) = dead(world, trigger())
    still = replay(world.store, [letter], "ann", named=True)
    assert did(still) == [(False, f"it is still bad (unknown_campaign): {_unknown()}")]
    assert (row_of(world, letter).state, row_of(world, letter).settled_at) == ("open", None)

    world.campaign([1], state="ready")
    world.pass_s(60)
    assert did(replay(world.store, [letter], "ann", named=True)) == [(True, "applied")]
    assert world.campaign_row().state == "running"
    row = row_of(world, letter)
    assert (row.state, row.settled_by, row.body) == ("replayed", "ann", None)
    assert row.settled_at is not None
    assert abs(row.settled_at - world.clock.at) < timedelta(seconds=1)

    world.set_state("paused")
    ((done, why),) = did(replay(world.store, [letter], "bob", named=True))
    assert (done, why[:26]) == (False, "it was replayed by ann at ")
    assert world.campaign_row().state == "paused"


def _unknown() -> str:
    return f"there is no campaign {CAMPAIGN!r} in the store; `sendonce list` shows those there are"


def test_triggers_are_replayed_in_the_order_of_their_time(world: World) -> None:
    for kind in ("start", "pause"):
        write_dead_letters(world.store, [trigger(kind=kind)])
        world.pass_s(1)
    world.campaign([1], state="ready")
    assert did(replay(world.store, dead(world), "ann", named=False)) == [(True, "applied")] * 2
    assert world.campaign_row().state == "paused"


def test_a_trigger_that_changes_nothing_is_settled_all_the_same(world: World) -> None:
    (letter,) = dead(world, trigger())
    refused(world, FULL)
    assert did(replay(world.store, [letter], "ann", named=True)) == [
        (True, "nothing changed: too late: it is completed")
    ]


def test_killed_between_applying_and_settling_the_next_replay_settles(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    (letter,) = dead(world, trigger())
    world.campaign([1], state="ready")
    real = world.store.transact

    def transact(work: Any, *, tag: str) -> Any:
        if tag == "dead_letters_replayed":
            raise StoreUnavailable("away")
        return real(work, tag=tag)

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "transact", transact)
        with pytest.raises(StoreUnavailable):
            replay(world.store, [letter], "ann", named=True)
    assert (world.campaign_row().state, row_of(world, letter).state) == ("running", "open")
    ((done, why),) = did(replay(world.store, [letter], "ann", named=True))
    assert (done, why[:16], row_of(world, letter).state) == (True, "nothing changed:", "replayed")


def test_a_trigger_whose_body_is_erased_says_so(world: World) -> None:
    (letter,) = dead(world, trigger())
    world.campaign([1], state="ready")
    world.clock.at += timedelta(days=7, seconds=1)
    world.sweep()
    ((done, why),) = did(replay(world.store, [letter], "ann", named=True))
    assert (done, "publish the message again" in why, world.campaign_row().state) == (False, True, "ready")


# -- recipients ---------------------------------------------------------------------------------------------------


def test_one_recipient_is_opened_and_nobody_else(world: World) -> None:
    refused(world, FULL, FULL, UNKNOWN)
    letters = {row.ordinal: row for row in dead(world, person(0), person(1), person(2, UNKNOWN))}
    assert did(replay(world.store, [letters[1]], "ann", named=True)) == [(True, "open again")]
    assert (world.kinds(), world.campaign_row().state, world.batch().round) == ("ror", "running", 1)
    assert [row_of(world, letters[n]).state for n in range(3)] == ["open", "replayed", "open"]
    while world.plan_due():
        world.deliver(world.sender())
    assert world.kinds() == "rar"
    assert did(replay(world.store, [letters[1]], "ann", named=True))[0][0] is False
    assert world.kinds() == "rar"


def test_one_letter_named_twice_at_the_same_time_is_one_mail(world: World) -> None:
    """The case replay-only-failed."""
    refused(world, FULL)
    (letter,) = dead(world, person(0))
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda who: replay(world.store, [letter, letter], who, named=True), "abcd"))
    assert sum(any(one.done for one in some) for some in told) == 1
    while world.plan_due():
        world.deliver(world.sender())
    assert (world.kinds(), len(world.log.accepted)) == ("a", 1)


def test_by_a_filter_only_what_passes_is_opened_by_its_reason_or_id_anything_refused(world: World) -> None:
    refused(world, FULL, UNKNOWN)
    letters = dead(world, person(0), person(1, UNKNOWN))
    told = did(replay(world.store, letters, "ann", named=False))
    assert sorted(told) == [
        (False, "provider.unknown_mailbox: there is no such mailbox (--reason or an id replays it all the same)"),
        (True, "open again"),
    ]
    assert world.kinds() == "or"
    left = [row for row in dead(world) if row.ordinal == 1]
    assert did(replay(world.store, left, "ann", named=True)) == [(True, "open again")]
    assert world.kinds() == "oo"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (Outcome.ACCEPTED, "the provider took their letter"),
        (Outcome.ASSUMED, "nobody may get two"),
        (Outcome.SUPPRESSED_UNSUBSCRIBED, "a suppression holds"),
        (Outcome.CANCELLED, "stopped it for good"),
        (Outcome.OPEN, "to be sent to anyway"),
    ],
)
def test_whoever_is_not_refused_now_is_left_and_told_why(world: World, code: Outcome, why: str) -> None:
    world.campaign([1])
    outcomes(world.store, CAMPAIGN, 0, {0: code} if code else {})
    letters = dead(world, person(0))
    ((done, told),) = did(replay(world.store, letters, "ann", named=True))
    assert (done, why in told) == (False, True)
    assert Outcome(world.batch().outcomes[0]) is code
    assert len(dead(world)) == 1


def test_what_stands_for_a_whole_campaign_or_for_one_that_is_gone_is_left(world: World) -> None:
    letters = dead(
        world,
        DeadLetter("render", "template_fault", "", CAMPAIGN, 0),
        DeadLetter("send", FULL.reason, "", "autumn", 0, 0),
    )
    told = did(replay(world.store, letters, "ann", named=True))
    assert {done for done, _ in told} == {False}
    assert any("sendonce resume" in why for _, why in told)
    assert any("is not in the store" in why for _, why in told)


def test_a_cancelled_campaign_s_letters_are_left(world: World) -> None:
    refused(world, FULL)
    letters = dead(world, person(0))
    world.set_state("cancelled")
    ((done, why),) = did(replay(world.store, letters, "ann", named=True))
    assert (done, "it is cancelled" in why) == (False, True)


def test_a_batch_under_way_and_somebody_who_may_have_a_letter_are_left(world: World) -> None:
    world.campaign([1, 1])
    outcomes(world.store, CAMPAIGN, 0, {0: FULL}, state="in_doubt")
    outcomes(world.store, CAMPAIGN, 1, {0: FULL})
    resent = Decision("d", CAMPAIGN, "resend", world.now(), "bob", 1, "A", pack([0]))
    world.store.transact(lambda tx: tx.put(resent), tag="test")
    told = {
        one.letter.batch_no: one.why
        for one in replay(world.store, dead(world, person(0), person(0, batch_no=1)), "ann", named=True)
    }
    assert "being sent or in doubt" in told[0]
    assert "nobody may get two" in told[1]


def test_two_letters_of_one_recipient_are_one_opening(world: World) -> None:
    refused(world, FULL)
    letters = dead(world, person(0), person(0, stage="render"))
    assert did(replay(world.store, letters, "ann", named=True)) == [(True, "open again")] * 2
    assert world.kinds() == "o"


def test_a_thousand_letters_of_a_large_batch_are_opened_in_one_round(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopening, "SLICE", 20)
    refused(world, *[FULL] * 70)
    letters = dead(world, *(person(ordinal) for ordinal in range(70)))
    seen: list[int] = []
    told = replay(world.store, letters, "ann", named=False, progress=seen.append)
    assert {(one.done, one.why) for one in told} == {(True, "open again")}
    assert (world.kinds(), world.batch().round, seen[-1]) == ("o" * 70, 1, 70)


def test_a_suppression_holds_for_a_replay(world: World) -> None:
    """The case unsubscribed-while-paused: a dead letter of 6 replayed."""
    refused(world, FULL, FULL)
    replay(world.store, dead(world, person(0), person(1)), "ann", named=True)
    element = world.render(world.plan_one())
    world.pass_s(1)
    suppressions.add(world.store, world.people(world.batch())[0].email, by="ann")
    world.owner(world.sender()).deliver(element)
    assert world.kinds() == "sa"


# -- what is kept, and for how long -------------------------------------------------------------------------------


def test_bodies_go_after_seven_days_and_rows_after_ninety_a_few_at_a_time_also_when_no_campaign_runs(
    world: World,
) -> None:
    began = world.clock.at
    letters = dead(world, *(trigger(f"c{number}") for number in range(5)), DeadLetter("plan", "x", ""))

    def kept() -> tuple[int, int]:
        rows = world.store.read(lambda reader: reader.scan(DeadLetterRow))
        return len(rows), sum(row.body is not None for row in rows)

    world.clock.at = began + timedelta(days=7)
    assert sweep_dead_letters(world.store, 2) in (0, 2)
    world.clock.at = began + timedelta(days=7, seconds=1)
    while sweep_dead_letters(world.store, 2):
        pass
    assert kept() == (6, 0)
    assert {row.state for row in dead(world)} == {"open"}
    world.clock.at = began + timedelta(days=89)
    assert world.sweep().ended == 0
    assert kept() == (6, 0)
    world.clock.at = began + timedelta(days=90, seconds=1)
    world.sweep()
    assert kept() == (0, 0)
    assert len(letters) == 6


def test_the_sweep_does_no_more_than_it_is_told(world: World) -> None:
    dead(world, *(trigger(f"c{number}") for number in range(5)))
    world.clock.at += timedelta(days=8)
    assert [sweep_dead_letters(world.store, 2) for _ in range(4)] == [2, 2, 1, 0]


def test_dropping_is_once_and_erases_the_body(world: World) -> None:
    letters = dead(world, trigger(), person(0))
    names = [letter.dead_letter_id for letter in letters]
    assert (settle(world.store, names, DROPPED, "ann"), settle(world.store, names, DROPPED, "bob")) == (2, 0)
    rows = dead(world, states=STATES)
    assert {(row.state, row.settled_by, row.body) for row in rows} == {("dropped", "ann", None)}
    assert dead(world) == []
    # It went wrong again: whoever dropped it said that nothing is to be done.
    assert write_dead_letters(world.store, [person(0)]) == 0


def test_another_campaign_of_the_same_shape_is_not_touched(world: World) -> None:
    refused(world, FULL)
    seal(world.store, "autumn", [1], state="running")
    outcomes(world.store, "autumn", 0, {0: FULL})
    replay(world.store, dead(world, person(0)), "ann", named=True)
    assert Outcome(world.batch(0, "autumn").outcomes[0]) is FULL


def test_a_round_in_which_nobody_could_be_opened_is_not_told_of(world: World) -> None:
    world.campaign([1])
    outcomes(world.store, CAMPAIGN, 0, {0: FULL}, state="sending")
    ((done, _),) = did(replay(world.store, dead(world, person(0)), "ann", named=True))
    assert (done, campaign_status(world.store, CAMPAIGN).retries) == (False, None)


def test_a_cancel_in_the_middle_leaves_the_rest_and_says_so(world: World) -> None:
    world.campaign([1, 1])
    for batch_no in (0, 1):
        outcomes(world.store, CAMPAIGN, batch_no, {0: FULL})
    letters = dead(world, person(0), person(0, batch_no=1))

    def cancel(done: int) -> None:
        if world.campaign_row().state == "running":
            begin_cancel(world.store, CAMPAIGN, "bob")

    left, done = sorted(did(replay(world.store, letters, "ann", named=True, progress=cancel)))
    assert done == (True, "open again")
    assert (left[0], "it is cancelling" in left[1]) == (False, True)
