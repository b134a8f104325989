"""Streams from their first send to the end of their day: delivery, wiping, states, ends, progress."""

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from schemas.ids import message_id
from schemas.outcomes import Outcome
from schemas.tables import TABLES, Batch, Campaign, OutboundMessage, Progress, Recipient, Switch
from sendonce.config import Lane
from sendonce.control import stream_progress
from sendonce.control.campaigns import begin_cancel, pause, resume
from sendonce.control.doubts import list_doubts
from sendonce.control.faults import ControlFault
from sendonce.control.finals import is_wiped
from sendonce.control.outcomes import outcomes_of, recipient_outcomes
from sendonce.control.progress import count, quick_count
from sendonce.control.status import all_statuses, campaign_status
from sendonce.control.triggers import apply_triggers, read_or_bad
from sendonce.delivery.cancellation import cancel
from sendonce.delivery.halting import give_up, halt_campaign
from sendonce.delivery.lane_use import lane_uses
from sendonce.delivery.lanes import RunningLane
from sendonce.delivery.outlook import left_to_do
from sendonce.delivery.protocol import doubts
from sendonce.delivery.resolver import Policy, decide
from sendonce.delivery.sweeper import SweepMemory, sweep_lane
from sendonce.delivery.terms import Terms
from sendonce.senders.base import Reply, Verdict
from sendonce.stores.sqlite import SQLiteReader
from sendonce.times import CRITICAL
from tests.checker import judge
from tests.control.made import Clock
from tests.control.sending import STREAM_ID, batch_of, batches, body, people, ready, reasons, rows, stream, take, to
from tests.delivery.world import World
from tests.evidence import Records
from tests.fakes import Scripted

TERMS = Terms(lane="critical", sender="fake", provider="fake", scopes=("lane:critical", "sender:fake"), times=CRITICAL)
MIDNIGHT = datetime(2026, 1, 16, tzinfo=UTC)
LOST = Scripted(Reply(Verdict.UNKNOWN, "reply_lost"))
REFUSED = Scripted(Reply(Verdict.REFUSED, "550", outcome=Outcome.PROVIDER_UNKNOWN_MAILBOX))


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> Iterator[World]:
    world = World(tmp_path, clock)
    ready(world.store)
    yield world
    world.close()


def deliver_all(world: World, script: Any = ()) -> None:
    sender = world.sender(script)
    terms = replace(TERMS, asks_again_s=sender.capabilities.idempotency_window_s)
    for reference in world.plan(terms):
        world.owner(sender, terms).deliver(world.render(reference))


def sweep(world: World, memory: SweepMemory | None = None) -> Any:
    return sweep_lane(world.store, world.key, TERMS, Policy("hold", "rows"), world._id, memory)


def all_people(world: World) -> list[Recipient]:
    return [person for batch in batches(world.store) for person in people(world.store, batch)]


# Delivery and wiping.


def test_a_send_is_delivered_and_what_was_personal_is_wiped_with_its_end(world: World) -> None:
    take(world.store, body("a", [to(1), to(2)]))
    (before, _) = people(world.store, batch_of(world.store, "a"))
    deliver_all(world)

    batch = batch_of(world.store, "a")
    assert (batch.state, reasons(batch)) == ("done", ["accepted", "accepted"])
    after = people(world.store, batch)[0]
    assert after == replace(before, email="", template_variables="{}")
    assert after.address_key
    assert [arrival.message_id for arrival in world.log.accepted] == [
        message_id(world.key, STREAM_ID, person.recipient_id) for person in people(world.store, batch)
    ]


@pytest.mark.parametrize("fate", [REFUSED, None])
def test_whoever_gets_no_letter_is_wiped_too(world: World, fate: Scripted | None) -> None:
    take(world.store, body("a"))
    if fate is None:
        world.pass_s(601)
        assert sweep(world).too_late == 1
    else:
        deliver_all(world, [fate])
    assert batch_of(world.store, "a").state == "done"
    assert all(is_wiped(person) for person in all_people(world))


def test_a_cancel_wipes_what_it_closes(world: World) -> None:
    take(world.store, body("a"), body("b", [to(n) for n in range(3)]))
    assert cancel(world.store, STREAM_ID, "ann").after == "cancelled"
    assert {reason for batch in batches(world.store) for reason in reasons(batch)} == {"cancelled"}
    assert all(is_wiped(person) for person in all_people(world))


def test_a_doubt_keeps_its_letter_until_it_is_settled(world: World) -> None:
    take(world.store, body("a"))
    deliver_all(world, [LOST])
    batch = batch_of(world.store, "a")
    assert reasons(batch) == ["in_doubt"]
    assert not is_wiped(all_people(world)[0])
    (doubt,) = list_doubts(world.store)
    assert decide(world.store, world.key, doubt, "assume", "ann", "", "rows", "d-1") == "assume"
    assert reasons(batch_of(world.store, "a")) == ["assumed"]
    assert is_wiped(all_people(world)[0])


def test_a_part_of_a_send_that_is_final_waits_for_the_rest(world: World) -> None:
    """What is wiped is the send: its own request in doubt may have to be made again, byte for byte."""
    take(world.store, body("a", [to(1), to(2, email="bad")]))
    assert [is_wiped(person) for person in all_people(world)] == [False, True]
    deliver_all(world)
    assert [is_wiped(person) for person in all_people(world)] == [True, True]


def test_campaigns_keep_their_snapshot(world: World) -> None:
    world.campaign([2])
    before = world.people(world.batch())
    world.deliver(world.sender())
    assert world.kinds() == "aa"
    assert world.people(world.batch()) == before


def test_whoever_came_first_is_planned_first_in_whatever_shard(world: World) -> None:
    """The index is ordered by shard: sends of high shards waited until no newer one of a lower shard was left."""
    for number in range(40):
        take(world.store, body(f"k{number}"))
        world.pass_s(0.01)
    planned = [batch_of_reference(world, reference) for reference in world.plan(TERMS, 10)]
    assert [batch.idempotency_key for batch in planned] == [f"k{number}" for number in range(10)]


# One send's fault is its own.


def test_a_send_that_cannot_be_rendered_ends_alone(world: World) -> None:
    """A template that fails for all halts a campaign; the codes of a whole day would have waited for a person."""
    take(world.store, body("a"), body("b"))
    by_key = {batch_of(world.store, key).batch_no: key for key in "ab"}
    references = {by_key[reference.batch_no]: reference for reference in world.plan(TERMS)}

    ended = give_up(world.store, world.key, references["a"], "template x, body.txt.j2, line 3: broken", "rows")

    assert isinstance(ended, Batch)
    assert reasons(batch_of(world.store, "a")) == ["render.error"]
    assert stream(world.store).state == "running"
    (message,) = rows(world.store, OutboundMessage)
    assert message.detail == "template x, body.txt.j2, line 3: broken"
    world.owner(world.sender(), TERMS).deliver(world.render(references["b"]))
    assert reasons(batch_of(world.store, "b")) == ["accepted"]
    assert give_up(world.store, world.key, references["a"], "again", "rows") is None


def test_a_send_that_another_owner_has_is_left_to_it(world: World) -> None:
    take(world.store, body("a"))
    (reference,) = world.plan(TERMS)
    fate = Scripted(
        Reply(Verdict.ACCEPTED), before=lambda _: give_up(world.store, world.key, reference, "late", "rows")
    )
    world.owner(world.sender([fate]), TERMS).deliver(world.render(reference))
    assert reasons(batch_of(world.store, "a")) == ["accepted"]


def test_a_doubt_whose_letter_cannot_be_made_again_takes_the_next_rung(world: World) -> None:
    take(world.store, body("a"))
    deliver_all(world, [LOST])
    world.pass_s(5)
    asking = replace(TERMS, asks_again_s=86_400)
    (reference,) = world.plan(asking)
    after = give_up(world.store, world.key, reference, "template gone", "rows")
    assert isinstance(after, Batch)
    assert (after.state, after.wait_reason) == ("in_doubt", doubts.PAYLOAD_CHANGED)
    sweep(world)
    assert batch_of(world.store, "a").state == "held"


def test_a_campaign_still_halts(world: World) -> None:
    world.campaign([1])
    (reference,) = world.plan()
    assert give_up(world.store, world.key, reference, "broken", "rows") is True
    assert world.campaign_row().state == "halted"
    assert world.kinds() == "o"


# States and ends.


def test_pause_holds_a_stream_and_resume_lets_it_go(world: World) -> None:
    take(world.store, body("a"))
    pause(world.store, STREAM_ID, "ann")
    take(world.store, body("b"))
    deliver_all(world)
    assert world.log.accepted == []
    resume(world.store, STREAM_ID, "ann")
    deliver_all(world)
    assert [reasons(batch) for batch in batches(world.store)] == [["accepted"], ["accepted"]]


def test_a_send_into_a_halted_stream_waits_for_its_end_or_for_a_person(world: World) -> None:
    take(world.store, body("a"))
    (reference,) = world.plan(TERMS)
    halt_campaign(world.store, reference, "not allowed")
    take(world.store, body("b"), body("c", expires_at="2026-01-15T12:00:00Z"))
    deliver_all(world)
    world.pass_s(601)
    assert sweep(world).too_late == 2
    assert [reasons(batch_of(world.store, key)) for key in "abc"] == [["expired"], ["expired"], ["open"]]
    resume(world.store, STREAM_ID, "ann")
    deliver_all(world)
    assert reasons(batch_of(world.store, "c")) == ["accepted"]


def test_a_stream_ends_by_itself_when_its_day_is_over_and_nothing_is_open(world: World) -> None:
    world.clock.at = MIDNIGHT - timedelta(seconds=2)
    take(world.store, body("a", [to(1), to(2), to(3, email="x")]), body("b", expires_at="2026-01-16T00:30:00Z"))
    sweep(world)
    assert stream(world.store).state == "running"
    pause(world.store, STREAM_ID, "ann")
    resume(world.store, STREAM_ID, "ann")
    (first, second) = world.plan(TERMS)
    owner = world.owner(world.sender(), TERMS)
    owner.deliver(world.render(first))
    world.clock.at = MIDNIGHT + timedelta(seconds=3)
    assert sweep(world).ended == 0  # one is still open
    owner.deliver(world.render(second))
    assert sweep(world).ended == 1

    row = stream(world.store)
    assert (row.state, row.recipients, row.batches) == ("completed", 4, 2)
    assert row.finished_at is not None
    (progress,) = rows(world.store, Progress)
    assert (progress.total, progress.n_accepted, progress.n_refused, progress.batches_done) == (4, 3, 1, 2)
    assert take(world.store, body("c"))[0].campaign_id == "stream.otp.critical.2026-01-16"


@pytest.mark.parametrize("state", ["paused", "halted"])
def test_a_stream_that_stands_still_ends_too(world: World, state: str) -> None:
    take(world.store, body("a"))
    world.set_state(state, STREAM_ID)
    world.clock.at = MIDNIGHT
    assert sweep(world).too_late == 1
    assert stream(world.store).state == "completed"


def test_a_send_whose_stream_was_ended_by_a_faster_clock_comes_into_the_next(world: World) -> None:
    take(world.store, body("a"))
    world.set_state("completed", STREAM_ID)
    assert take(world.store, body("b"))[0].campaign_id == "stream.otp.critical.2026-01-16"


def test_sends_into_a_cancelled_stream_are_in_its_numbers(world: World) -> None:
    take(world.store, body("a", [to(1), to(2)]))
    cancel(world.store, STREAM_ID, "ann")
    take(world.store, body("b", [to(n) for n in range(3)]), body("c"))
    take(world.store, body("d", expires_at="2026-01-15T08:00:00Z"))
    (progress,) = rows(world.store, Progress)
    assert (progress.total, progress.n_cancelled, progress.n_refused, progress.batches_done) == (7, 6, 1, 4)
    status = campaign_status(world.store, STREAM_ID)
    assert (status.total, status.percent, status.counts.outcomes["cancelled"]) == (7, 100.0, 6)


def test_an_expired_send_does_not_hide_behind_many_that_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sendonce.delivery.sweeper.CLOSED_AT_ONCE", 2)
    take(world.store, *(body(f"w{n}", expires_at="2026-01-15T12:00:00Z") for n in range(5)))
    take(world.store, *(body(f"x{n}") for n in range(3)))
    world.store.transact(lambda tx: tx.put(Switch("sender:fake", "halted", tx.now(), "w", "credentials")), tag="test")
    world.pass_s(601)
    assert [sweep(world).too_late for _ in range(3)] == [2, 1, 0]
    assert {key: reasons(batch_of(world.store, key))[0] for key in ("x0", "x1", "x2", "w0")} == {
        "x0": "expired",
        "x1": "expired",
        "x2": "expired",
        "w0": "open",
    }


def test_doubts_that_are_past_their_end_do_not_stand_before_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.delivery.sweeper.CLOSED_AT_ONCE", 1)
    take(world.store, *(body(f"d{n}") for n in range(3)))
    deliver_all(world, [LOST, LOST, LOST])
    take(world.store, body("w"))
    world.pass_s(601)
    assert sweep(world).too_late == 1
    assert reasons(batch_of(world.store, "w")) == ["expired"]


# Numbers.


def test_progress_of_a_large_stream_is_summed_up_little_by_little(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_progress, "BATCHES_A_LOOK", 10)
    take(world.store, *(body(f"k{n}") for n in range(100)))
    deliver_all(world)
    memory = SweepMemory()
    looks = 0
    while not rows(world.store, Progress):
        sweep(world, memory)
        world.pass_s(1)
        looks += 1
    assert 5 < looks < 64
    (progress,) = rows(world.store, Progress)
    assert (progress.total, progress.n_accepted, progress.batches_done) == (100, 100, 100)


def test_progress_that_does_not_move_is_not_written_at_every_look(world: World) -> None:
    take(world.store, body("a"))
    memory = SweepMemory()
    written = set()
    for _ in range(9):
        sweep(world, memory)
        written.add(rows(world.store, Progress)[0].at)
        world.pass_s(1)
    assert len(written) == 1
    world.pass_s(10)
    sweep(world, memory)
    assert rows(world.store, Progress)[0].at not in written


def test_nothing_that_runs_often_looks_at_every_batch_of_a_stream(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream has a batch for each send: sums over all of them at each tick held up what was to be sent."""
    take(world.store, *(body(f"k{n}") for n in range(10)))
    deliver_all(world)
    memory = SweepMemory()
    sweep(world, memory)
    seen: list[tuple[Any, ...]] = []
    scan, tally = SQLiteReader.scan, SQLiteReader.tally

    def note(work: Any, name: str) -> Any:
        def noted(self: Any, kind: type, *prefix: Any, **more: Any) -> Any:
            if kind in (Batch, Recipient, OutboundMessage) and more.get("index") is None and len(prefix) < 3:
                seen.append((name, kind.__name__, *prefix))
            return work(self, kind, *prefix, **more)

        return noted

    monkeypatch.setattr(SQLiteReader, "scan", note(scan, "scan"))
    monkeypatch.setattr(SQLiteReader, "tally", note(tally, "tally"))
    take(world.store, body("next"))
    deliver_all(world)
    sweep(world, memory)
    world.store.read(lambda reader: left_to_do(reader, [running_lane()]))
    assert seen == []


def running_lane() -> RunningLane:
    """As much of a lane as a look at what is left needs."""
    return RunningLane(Lane(name="critical", sender="fake"), TERMS, Policy("hold", "rows"), None, None)  # type: ignore[arg-type]


def test_a_watch_forgets_streams_that_are_over(world: World) -> None:
    take(world.store, body("a"))
    deliver_all(world)
    memory = SweepMemory()
    sweep(world, memory)
    assert memory.sums._streams
    world.clock.at = MIDNIGHT
    sweep(world, memory)
    sweep(world, memory)
    assert not memory.sums._streams


def test_lists_of_many_take_a_large_streams_numbers_from_its_progress(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.control.progress.LARGE", 2)
    take(world.store, *(body(f"k{n}") for n in range(3)))
    deliver_all(world)
    sweep(world)
    exact = world.store.read(lambda reader: count(reader, STREAM_ID))
    take(world.store, body("later"))
    assert world.store.read(lambda reader: quick_count(reader, STREAM_ID)) == exact
    (status,) = all_statuses(world.store)
    assert (status.total, status.campaign.kind) == (3, "stream")
    assert campaign_status(world.store, STREAM_ID).total == 4


def test_the_speed_of_a_large_stream_is_told_from_a_part_of_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200,000 sends a look every second at `lanes --watch` read every one."""
    take(world.store, *(body(f"k{n}") for n in range(256)))
    deliver_all(world)
    sweep(world)
    exact = speed_of_critical(world)
    assert exact == pytest.approx(256 / 60)
    monkeypatch.setattr("sendonce.delivery.lane_use.LARGE", 128)
    looked_at, tally = list[Any](), SQLiteReader.tally

    def noted(self: Any, kind: type, *prefix: Any, **more: Any) -> Any:
        if kind is Batch and more.get("index") is None:
            looked_at.append(prefix[0])
        return tally(self, kind, *prefix, **more)

    monkeypatch.setattr(SQLiteReader, "tally", noted)
    assert speed_of_critical(world) == pytest.approx(exact, rel=0.5)
    assert looked_at == list(range(32))


def speed_of_critical(world: World) -> float:
    (use,) = (use for use in lane_uses(world.store)[1] if use.scope == "lane:critical")
    assert use.per_s is not None
    return use.per_s


def test_status_tells_why_recipients_of_a_stream_got_no_letter(world: World) -> None:
    take(world.store, body("a", [to(1), to(2, email="x"), to(3, email="u1@one.example")]), body("b"))
    deliver_all(world, [Scripted(Reply(Verdict.ACCEPTED)), REFUSED])
    status = campaign_status(world.store, STREAM_ID)
    assert status.reasons == {"address.invalid": 1, "skipped.duplicate": 1, "provider.unknown_mailbox": 1}
    assert status.as_json()["total_recipients"] == 4
    assert status.as_json()["kind"] == "stream"


def test_an_outcome_in_a_stream_is_one_of_each_send_under_the_publishers_id(world: World) -> None:
    take(world.store, body("a"), body("other", [to("1x"), to(2)]))
    deliver_all(world)
    world.pass_s(1)
    take(world.store, body("b"))
    found = outcomes_of(world.store, STREAM_ID, "u1")
    assert [(one.outcome.idempotency_key, one.outcome.outcome, len(one.attempts)) for one in found] == [
        ("a", "accepted", 1),
        ("b", "open", 0),
    ]
    assert {one.outcome.recipient_id for one in found} == {"u1"}
    for wrong in ("u", "u1\x1f", "u10"):
        with pytest.raises(ControlFault):
            outcomes_of(world.store, STREAM_ID, wrong)
    lines = list(recipient_outcomes(world.store, STREAM_ID))
    assert sorted((line.recipient_id, line.idempotency_key) for line in lines) == [
        ("u1", "a"),
        ("u1", "b"),
        ("u1x", "other"),
        ("u2", "other"),
    ]
    assert {line.email for line in lines} == {"", "u1@one.example"}  # only what is open still has its address


# Any order, any interleaving.


class Sends(RuleBasedStateMachine):
    """Publishers, people and a job beside each other: each key's recipients end once, and are sent to at most once."""

    folder: Path

    @initialize()
    def begin(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.clock = Clock(datetime(2026, 1, 15, 23, 50, tzinfo=UTC))
        self.world = World(self.folder, self.clock)
        ready(self.world.store)
        self.taken: dict[str, int] = {}
        self.planned: list[Any] = []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.finish()
        finally:
            self.world.close()
            shutil.rmtree(self.folder)

    @rule(keys=st.lists(st.integers(0, 7), min_size=1, max_size=5), size=st.integers(1, 3), late=st.booleans())
    def publish(self, keys: list[int], size: int, late: bool) -> None:
        """The size of a send is its key's own, so that a repetition is the same and another size a conflict."""
        bodies = [
            body(f"k{key}", [to(n) for n in range(size)], expires_at="2026-01-15T23:00:00Z" if late else None)
            for key in keys
        ]
        found = apply_triggers(self.world.store, [read_or_bad(one) for one in bodies], "trigger")
        for key, taken in zip(keys, found, strict=True):
            if taken.ended == "applied":
                assert f"k{key}" not in self.taken
                self.taken[f"k{key}"] = size
            else:
                assert taken.ended == "ignored" or taken.reason == "idempotency_conflict"

    @rule(action=st.sampled_from([pause, resume, pause, resume, begin_cancel]))
    def control(self, action: Any) -> None:
        for name in self.streams():
            try:
                action(self.world.store, name, "ann")
            except ControlFault:
                continue

    @rule()
    def plan(self) -> None:
        self.planned += self.world.plan(TERMS)

    @rule(fate=st.sampled_from(["accepted", "refused", "not_sent", "lost", "killed"]), place=st.integers(0, 5))
    def deliver(self, fate: str, place: int) -> None:
        """One of the references that are under way, perhaps stale, perhaps again."""
        if not self.planned:
            return
        reference = self.planned[place % len(self.planned)]
        if batch_of_reference(self.world, reference).open_state is None:
            return
        script = {
            "accepted": [],
            "refused": [REFUSED],
            "not_sent": [Scripted(Reply(Verdict.NOT_SENT, "connect"))],
            "lost": [Scripted(Reply(Verdict.UNKNOWN, "reply_lost"), accepts=(0,))],
            "killed": [Scripted(Reply(Verdict.ACCEPTED), after=killed)],
        }[fate]
        try:
            self.world.owner(self.world.sender(script), TERMS).deliver(self.world.render(reference))
        except Killed:
            self.planned.remove(reference)

    @rule(seconds=st.sampled_from([0.3, 9.0, 20.0, 400.0]))
    def wait(self, seconds: float) -> None:
        self.world.pass_s(seconds)

    @rule()
    def look(self) -> None:
        sweep(self.world)

    @invariant()
    def nobody_is_sent_to_twice(self) -> None:
        if hasattr(self, "world"):
            assert all(times == 1 for times in self.world.log.times_accepted().values())

    def streams(self) -> list[str]:
        return [row.campaign_id for row in rows(self.world.store, Campaign)]

    def finish(self) -> None:
        """Faults off, everybody lets go: everything ends, and every key has its recipients, once each."""
        world = self.world
        self.control(resume)
        for _ in range(40):
            world.pass_s(30)
            sweep(world)
            deliver_all(world)
            for doubt in list_doubts(world.store):
                decide(world.store, world.key, doubt, "assume", "ann", "", "rows", world._id())
        world.clock.at = MIDNIGHT + timedelta(days=2)
        sweep(world)
        found = {batch.idempotency_key: batch for batch in rows(world.store, Batch)}
        assert {key: batch.size for key, batch in found.items()} == self.taken
        assert all(Outcome(code).final for batch in found.values() for code in batch.outcomes)
        assert all(is_wiped(person) for person in rows(world.store, Recipient))
        assert {row.state for row in rows(world.store, Campaign)} <= {"completed", "cancelled"}
        self.nobody_is_sent_to_twice()
        records = Records({kind: rows(world.store, kind) for kind in TABLES})
        findings = judge(records, world.log.accepted, now=world.now(), ended=True)
        assert [one for one in findings.violations if one.invariant != "I7"] == []


class Killed(BaseException):
    """What no code of ours catches: the process is gone."""


def killed(_: Any) -> None:
    raise Killed


def batch_of_reference(world: World, reference: Any) -> Batch:
    return world.batch(reference.batch_no, reference.campaign_id)


Sends.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestSends = Sends.TestCase
