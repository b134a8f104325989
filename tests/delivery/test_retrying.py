"""Retry: whoever was refused for a reason that passes is sent to again, as one round, and nobody else."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from schemas.elements import DeadLetter
from schemas.ordinals import pack, unpack
from schemas.outcomes import Outcome
from schemas.tables import Attempt, DeadLetterRow, Decision, Progress
from sendonce.control import suppressions
from sendonce.control.campaigns import begin_cancel, pause, resume
from sendonce.control.dead_letters import write_dead_letters
from sendonce.control.expiry import NEVER, PastEnd, end_of, with_end
from sendonce.control.faults import NotForStreams, UnknownCampaign, WrongState
from sendonce.control.outcomes import recipient_outcome
from sendonce.control.rounds import reopened_of
from sendonce.control.status import campaign_status
from sendonce.control.triggers import Trigger, apply_trigger
from sendonce.control.worth import BY_DEFAULT, WORTH, NeverAgain, UnknownReason, chosen_reasons
from sendonce.delivery import reopening
from sendonce.delivery.retrying import RoundTaken, plan_retry, retry
from sendonce.senders.base import Reply, Verdict
from sendonce.stores.base import StoreUnavailable
from tests.checker import changes, judge
from tests.control.made import Clock, outcomes
from tests.delivery.world import CAMPAIGN, TERMS, World
from tests.evidence import Records
from tests.fakes import Scripted

FULL, EXHAUSTED, UNKNOWN = Outcome.PROVIDER_MAILBOX_FULL, Outcome.EXHAUSTED, Outcome.PROVIDER_UNKNOWN_MAILBOX


def refuse(codes: dict[int, Outcome]) -> Scripted:
    """A call at which the provider refuses these ordinals and accepts the others."""
    exceptions = {ordinal: (Verdict.REFUSED, int(code), "") for ordinal, code in codes.items()}
    return Scripted(Reply(Verdict.ACCEPTED, exceptions=exceptions))


def completed(world: World, sizes: list[int], codes: dict[int, Outcome], **more: Any) -> None:
    """A campaign that was sent, in each batch of which these ordinals were refused."""
    world.campaign(sizes)
    while world.plan_due():
        world.deliver(world.sender([refuse(codes)]), replace(TERMS, **more))
    world.sweep()
    assert world.campaign_row().state == "completed"


def again(world: World, *reasons: str, by: str = "ann", **more: Any) -> Any:
    return retry(world.store, plan_retry(world.store, CAMPAIGN, chosen_reasons(reasons)), by, **more)


def send_all(world: World) -> None:
    while world.plan_due():
        world.deliver(world.sender())
    world.sweep()


def records(world: World) -> Records:
    from schemas.tables import TABLES

    return Records(world.store.read(lambda reader: {kind: reader.scan(kind) for kind in TABLES}))


def sound(world: World) -> None:
    found = judge(records(world), world.log.accepted, now=world.now())
    assert [str(violation) for violation in found.violations] == []


def retries(world: World) -> list[Decision]:
    rows = world.store.read(lambda reader: reader.scan(Decision, CAMPAIGN, index="decisions_by_campaign"))
    return [row for row in rows if row.kind == "retry"]


# -- which reasons ------------------------------------------------------------------------------------------------


def test_every_refusal_is_judged_and_nothing_else_is() -> None:
    assert set(WORTH) == {outcome for outcome in Outcome if outcome.kind == "refused"}
    assert {EXHAUSTED, FULL} == BY_DEFAULT


@pytest.mark.parametrize("name", ["nonsense", "", "refused", "Exhausted", "retry"])
def test_a_reason_that_nobody_knows_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(UnknownReason, match=r"exhausted, provider\.mailbox_full, render\.undefined_variable"):
        chosen_reasons([name])


@pytest.mark.parametrize(
    "outcome", [outcome for outcome in Outcome if outcome.kind != "refused"], ids=lambda outcome: outcome.name.lower()
)
def test_what_is_no_refusal_is_never_opened(outcome: Outcome) -> None:
    with pytest.raises(NeverAgain, match=f"{outcome.reason or outcome.kind} is sent to again"):
        chosen_reasons([outcome.reason or outcome.kind])


# -- what it does -------------------------------------------------------------------------------------------------


def test_only_what_passes_is_opened_and_the_campaign_runs_and_completes_again(world: World) -> None:
    completed(world, [6, 6], {1: FULL, 3: UNKNOWN, 5: EXHAUSTED})
    before, ended = records(world), world.campaign_row().finished_at
    world.pass_s(100)

    plan = plan_retry(world.store, CAMPAIGN, BY_DEFAULT)
    assert (plan.number, plan.to_open, plan.left) == (1, {FULL: 2, EXHAUSTED: 2}, {UNKNOWN: 2})
    opening = retry(world.store, plan, "ann")

    assert (opening.recipients, opening.batches, dict(opening.opened)) == (4, 2, {FULL: 2, EXHAUSTED: 2})
    assert [world.kinds(number) for number in (0, 1)] == ["aoarao"] * 2
    row = world.campaign_row()
    assert (row.state, row.finished_at, row.changed_by) == ("running", None, "ann")
    assert changes(before, records(world)) == []
    sound(world)
    world.pass_s(1)
    send_all(world)
    assert [world.kinds(number) for number in (0, 1)] == ["aaaraa"] * 2
    assert world.campaign_row().state == "completed"
    assert ended is not None
    assert (world.campaign_row().finished_at or ended) > ended
    assert max(world.log.times_accepted().values()) == 1
    sound(world)


def test_a_second_retry_opens_nobody(world: World) -> None:
    completed(world, [3], {0: FULL})
    assert again(world).recipients == 1
    assert again(world).recipients == 0
    send_all(world)
    assert again(world).recipients == 0
    assert (world.batch().round, len(retries(world))) == (1, 1)
    assert world.campaign_row().state == "completed"


def test_who_fails_again_can_be_opened_in_a_second_round(world: World) -> None:
    completed(world, [2], {0: FULL, 1: UNKNOWN})
    again(world)
    world.deliver(world.sender([refuse({0: FULL})]))
    world.sweep()
    assert again(world, by="bob").recipients == 1
    person = world.people(world.batch())[0]
    found, _ = recipient_outcome(world.store, CAMPAIGN, person.recipient_id)
    history = world.store.read(lambda reader: reopened_of(reader, CAMPAIGN, found.batch, found.ordinal))
    assert [(one.number, one.was, one.by) for one in history] == [
        (1, "provider.mailbox_full", "ann"),
        (2, "provider.mailbox_full", "bob"),
    ]
    assert world.batch().round == 2
    told = campaign_status(world.store, CAMPAIGN).as_json()["retries"]
    assert (told["round"], told["by"], told["reopened_in_round"], told["reopened"], told["done"]) == (
        2, "bob", 1, 2, True,
    )  # fmt: skip


def test_named_reasons_widen_and_narrow(world: World) -> None:
    completed(world, [3], {0: FULL, 1: EXHAUSTED, 2: UNKNOWN})
    assert dict(again(world, "provider.unknown_mailbox").opened) == {UNKNOWN: 1}
    assert world.kinds() == "rro"
    assert dict(again(world, "exhausted").opened) == {EXHAUSTED: 1}
    assert (world.kinds(), world.batch().state, world.batch().round) == ("roo", "pending", 2)


def test_the_outbound_row_of_a_refusal_goes_and_a_packed_log_tells_no_old_one(world: World) -> None:
    completed(world, [2], {0: FULL}, outbound_log="packed")
    assert [row.ordinal for row in world.outbound()] == [0]
    again(world)
    assert world.outbound() == []
    world.deliver(world.sender(), replace(TERMS, outbound_log="packed"))
    person = world.people(world.batch())[0]
    found, attempts = recipient_outcome(world.store, CAMPAIGN, person.recipient_id)
    assert (found.outcome, found.attempt_id, len(attempts)) == ("accepted", attempts[-1].attempt_id, 2)


def test_who_unsubscribed_meanwhile_gets_nothing(world: World) -> None:
    completed(world, [3], {0: FULL, 1: FULL})
    again(world)
    element = world.render(world.plan_one())
    world.pass_s(1)
    suppressions.add(world.store, world.people(world.batch())[1].email.upper(), by="ann")
    world.owner(world.sender()).deliver(element)
    assert world.kinds() == "asa"
    assert [action.ordinals for action in world.log.actions if action.what == "accepted"][1:] == [(0,)]
    assert again(world).recipients == 0


def test_progress_percent_and_time_left_are_right_again(world: World) -> None:
    completed(world, [10], {0: FULL, 1: FULL})
    world.pass_s(5000)
    assert campaign_status(world.store, CAMPAIGN).percent == 100.0
    again(world)
    shown = campaign_status(world.store, CAMPAIGN)
    assert (shown.percent, shown.counts.outcomes["open"]) == (80.0, 2)
    assert shown.active_s < 60  # what passed between its end and the retry is no active time
    row = world.store.read(lambda reader: reader.get(Progress, CAMPAIGN))
    assert row is not None
    assert (row.n_open, row.n_accepted, row.batches_pending) == (2, 8, 1)


def test_open_dead_letters_of_those_opened_are_settled_and_open_again_if_it_fails_again(world: World) -> None:
    completed(world, [2], {0: FULL, 1: UNKNOWN})
    letters = [DeadLetter("send", code.reason, "", CAMPAIGN, 0, ordinal) for ordinal, code in ((0, FULL), (1, UNKNOWN))]
    assert write_dead_letters(world.store, letters) == 2
    again(world)

    def states() -> dict[str, tuple[str, str | None]]:
        rows = world.store.read(lambda reader: reader.scan(DeadLetterRow))
        return {row.reason: (row.state, row.settled_by) for row in rows}

    assert states() == {FULL.reason: ("replayed", "ann"), UNKNOWN.reason: ("open", None)}
    assert write_dead_letters(world.store, letters) == 1
    assert states()[FULL.reason] == ("open", None)


# -- states, ends -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["paused", "halted"])
def test_a_campaign_that_does_not_run_stays_so_and_sends_when_it_goes_on(world: World, state: str) -> None:
    world.campaign([2, 2])
    world.deliver(world.sender([refuse({0: FULL})]))
    world.set_state(state)
    assert again(world).recipients == 1
    assert world.campaign_row().state == state
    assert not world.plan_due()
    resume(world.store, CAMPAIGN, "ann")
    send_all(world)
    assert world.campaign_row().state == "completed"
    assert max(world.log.times_accepted().values()) == 1


@pytest.mark.parametrize("state", ["loading", "ready", "cancelling", "cancelled"])
def test_a_campaign_that_never_ran_or_was_cancelled_is_refused(world: World, state: str) -> None:
    completed(world, [1], {0: FULL})
    world.set_state(state)
    with pytest.raises(WrongState, match=f"cannot retry campaign spring: it is {state}"):
        again(world)
    assert world.kinds() == "r"


def test_an_unknown_campaign_and_a_stream_are_refused(world: World) -> None:
    with pytest.raises(UnknownCampaign):
        again(world)
    completed(world, [1], {0: FULL})
    row = replace(world.campaign_row(), kind="stream")
    world.store.transact(lambda tx: tx.put(row), tag="test")
    with pytest.raises(NotForStreams, match="under a new key"):
        again(world)


def test_an_end_that_is_past_is_refused_with_the_mend_and_a_new_end_mends_it(world: World) -> None:
    completed(world, [1], {0: FULL})
    row = with_end(world.campaign_row(), world.clock.at + timedelta(hours=1))
    world.store.transact(lambda tx: tx.put(row), tag="test")
    plan = plan_retry(world.store, CAMPAIGN, BY_DEFAULT)
    world.pass_s(3600)
    for call in (lambda: again(world), lambda: retry(world.store, plan, "ann")):
        with pytest.raises(PastEnd, match="--expires TIME gives it a later one"):
            call()
    assert world.campaign_row().state == "completed"

    plan = plan_retry(world.store, CAMPAIGN, BY_DEFAULT, expires_at=NEVER)
    retry(world.store, plan, "ann", expires_at=NEVER)
    assert end_of(world.campaign_row()) is None
    send_all(world)
    assert world.kinds() == "a"


def test_who_missed_the_end_is_opened_only_if_named(world: World) -> None:
    completed(world, [2], {0: Outcome.EXPIRED})
    assert again(world).recipients == 0
    assert again(world, "expired").recipients == 1


def test_a_start_trigger_of_a_campaign_that_is_over_changes_nothing(world: World) -> None:
    completed(world, [1], {0: FULL})
    change = apply_trigger(world.store, Trigger("start", CAMPAIGN, None), "trigger")
    assert (change.changed, world.campaign_row().state, world.kinds()) == (False, "completed", "r")


# -- what is under way, what may have arrived ---------------------------------------------------------------------


@pytest.mark.parametrize("state", ["queued", "sending", "in_doubt", "held"])
def test_a_batch_that_is_under_way_is_left_and_counted(world: World, state: str) -> None:
    world.campaign([3, 1])
    outcomes(world.store, CAMPAIGN, 0, {0: FULL, 1: Outcome.ACCEPTED}, state=state)
    plan = plan_retry(world.store, CAMPAIGN, BY_DEFAULT)
    assert (plan.recipients, plan.under_way) == (0, 1)
    assert retry(world.store, plan, "ann").under_way == 1
    assert retries(world) == []


def test_a_batch_that_is_taken_between_look_and_call_is_left(world: World) -> None:
    completed(world, [2], {0: FULL})
    again(world)
    world.deliver(world.sender([refuse({0: FULL})]))
    world.sweep()
    plan = plan_retry(world.store, CAMPAIGN, BY_DEFAULT)
    outcomes(world.store, CAMPAIGN, 0, {}, state="queued")
    opening = retry(world.store, plan, "ann")
    assert (opening.recipients, opening.under_way) == (0, 1)


def test_a_pending_batch_is_opened_and_keeps_waiting(world: World) -> None:
    world.campaign([3])
    outcomes(world.store, CAMPAIGN, 0, {0: FULL}, state="pending")
    due = world.batch().due_at + timedelta(hours=1)
    waiting = replace(world.batch(), due_at=due, wait_reason="limit")
    world.store.transact(lambda tx: tx.put(waiting), tag="test")
    assert again(world).recipients == 1
    assert (world.kinds(), world.batch().due_at, world.batch().wait_reason) == ("ooo", due, "limit")
    waiting = replace(world.batch(), wait_reason="domain:slow", outcomes=bytes((97, 0, 0)), n_refused=1, n_open=2)
    world.store.transact(lambda tx: tx.put(waiting), tag="test")
    assert again(world).recipients == 1
    assert (world.batch().due_at < due, world.batch().wait_reason) == (True, None)


def test_who_was_resent_in_doubt_and_then_given_up_is_never_opened(world: World) -> None:
    """Their first request may have been accepted: the store cannot prove that they got nothing."""
    completed(world, [3], {0: EXHAUSTED, 1: EXHAUSTED})
    decision = Decision("d1", CAMPAIGN, "resend", world.now(), "bob", 0, "A1", pack([1]))
    world.store.transact(lambda tx: tx.put(decision), tag="test")
    plan = plan_retry(world.store, CAMPAIGN, BY_DEFAULT)
    assert (plan.to_open, plan.maybe_reached) == ({EXHAUSTED: 1}, 1)
    opening = retry(world.store, plan, "ann")
    assert (opening.recipients, opening.maybe_reached, world.kinds()) == (1, 1, "ora")


def test_evidence_of_an_acceptance_that_came_too_late_holds(world: World) -> None:
    completed(world, [2], {0: EXHAUSTED})
    batch = world.batch()
    late = Attempt(
        batch.shard, CAMPAIGN, 0, "Z", pack([0]), 1, "w0", "fake", "h", "accepted", batch.due_at, batch.due_at,
        evidence=True, outcomes=bytes([Outcome.ACCEPTED]),
    )  # fmt: skip
    world.store.transact(lambda tx: tx.put(late), tag="test")
    opening = again(world)
    assert (opening.recipients, opening.maybe_reached, world.kinds()) == (0, 1, "ra")
    assert world.campaign_row().state == "completed"


# -- kills, two at once -------------------------------------------------------------------------------------------


class Killed(BaseException):
    """The process is gone."""


def die_after(recipients: int) -> Any:
    def progress(done: int) -> None:
        if done >= recipients:
            raise Killed

    return progress


def test_killed_in_the_middle_the_same_round_goes_on_and_nobody_is_opened_twice(world: World) -> None:
    completed(world, [2] * 6, {0: FULL})
    with pytest.raises(Killed):
        again(world, progress=die_after(2))
    assert campaign_status(world.store, CAMPAIGN).as_json()["retries"]["done"] is False
    # Those who were opened fail again before the call is made again: they have had their round.
    for _ in range(2):
        world.deliver(world.sender([refuse({0: FULL})]))
    plan = plan_retry(world.store, CAMPAIGN, BY_DEFAULT)
    assert (plan.number, plan.recipients, plan.goes_on) == (1, 4, "ann")

    assert retry(world.store, plan, "bob").recipients == 4

    covered = [(row.batch_no, ordinal) for row in retries(world) for ordinal in unpack(row.ordinals or b"")]
    assert sorted(covered) == [(number, 0) for number in range(6)]
    told = campaign_status(world.store, CAMPAIGN).as_json()["retries"]
    assert (told["round"], told["done"], told["reopened"]) == (1, True, 6)
    send_all(world)
    assert plan_retry(world.store, CAMPAIGN, BY_DEFAULT).number == 2
    sound(world)


def test_killed_after_the_last_batch_the_next_call_closes_the_round(world: World) -> None:
    completed(world, [1], {0: FULL})
    with pytest.raises(Killed):
        again(world, progress=die_after(1))
    assert again(world).recipients == 0
    assert campaign_status(world.store, CAMPAIGN).as_json()["retries"]["done"] is True


def test_a_call_for_other_reasons_begins_a_round_of_its_own(world: World) -> None:
    completed(world, [2] * 3, {0: FULL, 1: UNKNOWN})
    with pytest.raises(Killed):
        again(world, progress=die_after(1))
    assert plan_retry(world.store, CAMPAIGN, chosen_reasons(["provider.unknown_mailbox"])).number == 2
    assert again(world, "provider.unknown_mailbox").recipients == 3


def test_two_who_planned_the_same_make_one_round(world: World) -> None:
    completed(world, [1] * 20, {0: FULL})
    plans = [plan_retry(world.store, CAMPAIGN, BY_DEFAULT) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        openings = list(pool.map(lambda plan: retry(world.store, plan, "ann"), plans))
    assert sum(opening.recipients for opening in openings) == 20
    assert {world.batch(number).round for number in range(20)} == {1}
    send_all(world)
    assert max(world.log.times_accepted().values()) == 1
    assert len(world.log.accepted) == 20
    sound(world)


def test_who_planned_before_another_s_round_was_over_opens_nobody_after_it(world: World) -> None:
    completed(world, [1], {0: FULL})
    late = plan_retry(world.store, CAMPAIGN, BY_DEFAULT)
    again(world)
    world.deliver(world.sender([refuse({0: FULL})]))
    world.sweep()
    assert retry(world.store, late, "bob").recipients == 0
    assert world.kinds() == "r"


def test_the_same_round_for_other_reasons_is_refused(world: World) -> None:
    completed(world, [2], {0: FULL, 1: UNKNOWN})
    other = plan_retry(world.store, CAMPAIGN, chosen_reasons(["provider.unknown_mailbox"]))
    again(world)
    with pytest.raises(RoundTaken, match="ann has just begun round 1"):
        retry(world.store, other, "bob")


def test_a_cancel_in_the_middle_ends_the_retry_and_closes_what_it_opened(world: World) -> None:
    completed(world, [1] * 4, {0: FULL})
    with pytest.raises(WrongState, match="cancelling"):
        again(world, progress=lambda done: begin_cancel(world.store, CAMPAIGN, "bob") if done == 2 else None)
    world.sweep()
    assert sorted(world.kinds(number) for number in range(4)) == ["c", "c", "r", "r"]
    assert world.campaign_row().state == "cancelled"
    sound(world)


def test_a_pause_in_the_middle_holds(world: World) -> None:
    completed(world, [1] * 4, {0: FULL})
    opening = again(world, progress=lambda done: pause(world.store, CAMPAIGN, "bob") if done == 2 else None)
    assert (opening.recipients, world.campaign_row().state) == (4, "paused")
    assert not world.plan_due()


def test_a_job_that_completes_the_campaign_between_two_batches_is_no_end(world: World) -> None:
    completed(world, [1] * 3, {0: FULL})

    def finish(done: int) -> None:
        send_all(world)
        assert world.campaign_row().state == "completed"

    assert again(world, progress=finish).recipients == 3
    assert [world.kinds(number) for number in range(3)] == ["a"] * 3
    assert world.campaign_row().state == "completed"
    sound(world)


def test_a_lost_reply_to_a_commit_counts_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    completed(world, [3], {0: FULL, 1: EXHAUSTED})
    plan, real, lost = plan_retry(world.store, CAMPAIGN, BY_DEFAULT), world.store.transact, []

    def transact(work: Any, *, tag: str) -> Any:
        result = real(work, tag=tag)
        if tag == "retry" and not lost:
            lost.append(tag)
            raise StoreUnavailable("away", maybe_applied=True)
        return result

    monkeypatch.setattr(world.store, "transact", transact)
    opening = retry(world.store, plan, "ann")
    assert (dict(opening.opened), opening.batches) == ({FULL: 1, EXHAUSTED: 1}, 1)
    assert len(retries(world)) == 2


def test_a_large_batch_is_opened_in_slices_and_due_when_all_are(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopening, "SLICE", 2)
    completed(world, [5], dict.fromkeys(range(5), FULL))
    due: list[bool] = []
    real = world.store.transact

    def transact(work: Any, *, tag: str) -> Any:
        result = real(work, tag=tag)
        due.extend([world.plan_due()] if tag == "retry" else [])
        return result

    monkeypatch.setattr(world.store, "transact", transact)
    assert again(world).recipients == 5
    assert due == [False, False, True]
    assert (len(retries(world)), world.kinds()) == (3, "ooooo")


def test_killed_between_two_slices_the_batch_is_sent_all_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reopening, "SLICE", 2)
    completed(world, [5], dict.fromkeys(range(5), FULL))
    real = world.store.transact

    def transact(work: Any, *, tag: str) -> Any:
        if retries(world):
            raise Killed
        return real(work, tag=tag)

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "transact", transact)
        with pytest.raises(Killed):
            again(world)
    assert (world.kinds(), world.plan_due()) == ("oorrr", False)
    world.pass_s(31)
    assert world.plan_due()
    assert again(world).recipients == 3
    assert world.kinds() == "ooooo"


def test_no_tick_can_end_a_campaign_that_is_being_opened(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Had the campaign been set running before its first batch was opened, a sweep would have completed it again."""
    completed(world, [1] * 3, {0: FULL})
    real, seen = world.store.transact, []

    def transact(work: Any, *, tag: str) -> Any:
        result = real(work, tag=tag)
        if tag in ("retry", "retry_begin"):
            monkeypatch.setattr(world.store, "transact", real)
            world.sweep()
            monkeypatch.setattr(world.store, "transact", transact)
            seen.append(world.campaign_row().state)
        return result

    monkeypatch.setattr(world.store, "transact", transact)
    again(world)
    assert seen == ["completed", "running", "running", "running"]


# -- whoever was accepted -----------------------------------------------------------------------------------------

CODES = st.sampled_from(sorted(set(Outcome) - {Outcome.IN_DOUBT}))


@given(st.data())
@settings(max_examples=60)
def test_nobody_but_the_refused_is_opened_whatever_is_asked_for(data: st.DataObject) -> None:
    """I10, over any outcomes, reasons, earlier resends and evidence."""
    codes = data.draw(st.lists(CODES, min_size=1, max_size=12))
    names = data.draw(st.lists(st.sampled_from([one.reason for one in WORTH]), max_size=4))
    resent = data.draw(st.sets(st.integers(0, len(codes) - 1)))
    seen = data.draw(st.sets(st.integers(0, len(codes) - 1)))
    with TemporaryDirectory() as folder:
        world = World(Path(folder), Clock(datetime(2026, 1, 15, 9, tzinfo=UTC)))
        world.campaign([len(codes)])
        fates = {ordinal: code for ordinal, code in enumerate(codes) if code is not Outcome.OPEN}
        outcomes(world.store, CAMPAIGN, 0, fates)
        decision = Decision("d", CAMPAIGN, "resend", world.now(), "p", 0, "A", pack(resent))
        batch = world.batch()
        attempt = Attempt(
            batch.shard, CAMPAIGN, 0, "E", pack(seen), 1, "w", "fake", "h", "accepted", batch.due_at, batch.due_at,
            evidence=True, outcomes=bytes([Outcome.ACCEPTED] * len(seen)),
        )  # fmt: skip
        world.store.transact(lambda tx: tx.put(decision, attempt), tag="test")
        again(world, *names)
        chosen = chosen_reasons(names)
        for ordinal, was in enumerate(codes):
            reopens = was in chosen and ordinal not in resent and ordinal not in seen
            assert world.batch().outcomes[ordinal] == (Outcome.OPEN if reopens else was)
        covered = {ordinal for row in retries(world) for ordinal in unpack(row.ordinals or b"")}
        assert covered == {o for o, was in enumerate(codes) if was in chosen and o not in resent | seen}
        world.close()


def test_the_work_grows_with_the_batches_alone(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """One transaction for each slice, and as many looks at the whole campaign for 20 batches as for two."""
    monkeypatch.setattr(reopening, "SLICE", 50)
    counted = []
    for number in (2, 20):
        folder = tmp_path / str(number)
        folder.mkdir()
        world = World(folder, clock)
        world.campaign([50] * number)
        for batch_no in range(number):
            outcomes(world.store, CAMPAIGN, batch_no, dict.fromkeys(range(50), FULL))
        tags: list[str] = []
        with monkeypatch.context() as patch:
            patch.setattr(world.store, "read", _noting(world.store.read, tags, "read"))
            patch.setattr(world.store, "transact", _noting(world.store.transact, tags, ""))
            assert again(world).recipients == 50 * number
        assert tags.count("retry") == number
        counted.append(sorted(tag for tag in tags if tag != "retry"))
        world.close()
    assert counted[0] == counted[1]


def _noting(real: Any, tags: list[str], what: str) -> Any:
    def call(work: Any, **more: Any) -> Any:
        tags.append(what or more["tag"])
        return real(work, **more)

    return call
