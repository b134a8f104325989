"""Leases that are renewed: an answer may take longer than a lease, and nobody takes its request for lost meanwhile."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

import pytest

from schemas.outcomes import Outcome
from schemas.tables import Switch
from sendonce.delivery import health
from sendonce.delivery.leases import LeaseKeeper
from sendonce.delivery.protocol import owning
from sendonce.senders.base import Prepared, Reply, Verdict
from sendonce.stores.base import StoreUnavailable
from tests.delivery.faulty import Killed, With, die
from tests.delivery.world import TERMS, World
from tests.fakes import FakeSender, Scripted

# The store's clock is the test's; the keeper's is real, and its looks are short.
PATIENT = replace(TERMS, times=replace(TERMS.times, lease_s=0.3, request_timeout_s=0.1, margin_s=0.05, answer_s=60.0))
PATIENT_WITH_ANOTHER = replace(PATIENT, fallback=replace(PATIENT, sender="backup", provider="backup"))
LOST = Reply(Verdict.UNKNOWN, "timeout")
LONG_S = 1000.0


class PatientSender(FakeSender):
    """Its provider may take long to answer."""

    def send_and_wait(self, prepared: Prepared, timeout_s: float, answer_s: float) -> Reply:
        assert (timeout_s, answer_s) == (0.1, 60.0)
        return self.send(prepared, timeout_s)


def patient(world: World, *script: Scripted) -> PatientSender:
    return PatientSender(world.log, script=script)


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def switch_of(world: World) -> Switch | None:
    return world.store.read(lambda reader: reader.get(Switch, "sender:fake"))


def heartbeat_of(world: World, batch_no: int = 0) -> datetime:
    found = world.batch(batch_no).heartbeat_at
    assert found is not None
    return found


def renewed(world: World, batch_no: int = 0) -> None:
    """Let the store's clock pass several leases, then wait for a renewal at that time."""
    world.pass_s(LONG_S)
    until(lambda: heartbeat_of(world, batch_no) >= world.clock.at)


def test_a_slow_answer_is_no_doubt_while_its_owner_waits(world: World) -> None:
    world.campaign([3])
    swept: list[int] = []

    def slow(_: Prepared) -> None:
        for _again in range(3):
            renewed(world)
            swept.append(world.sweep().expired)

    done = world.deliver(patient(world, Scripted(Reply(Verdict.ACCEPTED), after=slow)), PATIENT)
    assert swept == [0, 0, 0]
    assert (world.kinds(), world.batch().state, done.outcomes) == ("aaa", "done", {"accepted": 3})
    assert set(world.log.times_accepted().values()) == {1}


def test_renewals_end_with_the_call(world: World) -> None:
    """Between two requests, and after a killed owner, a lease is what was written last."""
    world.campaign([3])
    with pytest.raises(Killed):
        world.deliver(
            patient(world, Scripted(Reply(Verdict.ACCEPTED), before=lambda _: renewed(world), after=die)), PATIENT
        )
    seen = world.batch()
    world.pass_s(LONG_S)
    time.sleep(0.3)  # three renewals' time: a thread that went on would have written
    assert world.batch() == seen
    assert world.sweep(PATIENT).expired == 1
    assert world.kinds() == "ddd"


def test_a_request_that_was_taken_for_lost_is_renewed_no_more_and_its_answer_is_evidence(world: World) -> None:
    """The owner was held for longer than its lease; then it gets its answer all the same."""
    world.campaign([2])

    def taken_over(_: Prepared) -> None:
        world.store.transact(lambda tx: tx.put(replace(tx.get(type(seen), *key), token=seen.token + 1)), tag="test")

    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "busy"))]))
    seen = world.batch()
    key = (seen.shard, seen.campaign_id, seen.batch_no)

    def lost(prepared: Prepared) -> None:
        nonlocal seen
        seen = world.batch()
        taken_over(prepared)
        world.pass_s(LONG_S)
        time.sleep(0.3)
        assert world.batch().heartbeat_at == seen.heartbeat_at
        assert world.sweep(PATIENT, in_doubt="assume").expired == 1

    world.pass_s(600)
    world.deliver(patient(world, Scripted(Reply(Verdict.ACCEPTED), after=lost)), PATIENT)
    assert world.kinds() == "dd"
    world.pass_s(1)
    world.sweep(PATIENT, in_doubt="assume")
    assert (world.kinds(), world.batch().state) == ("aa", "done")


@pytest.mark.parametrize("change", [{"token": 99}, {"attempt_id": "another"}, {"state": "in_doubt"}])
def test_only_the_very_request_is_renewed(world: World, change: dict[str, object]) -> None:
    world.campaign([1])
    answers: list[bool] = []

    def other(_: Prepared) -> None:
        mine, stored = world.batch(), replace(world.batch(), **change)  # type: ignore[arg-type]
        world.store.transact(lambda tx: tx.put(stored), tag="test")
        world.pass_s(10)
        answers.append(world.store.transact(lambda tx: owning.renew(tx, PATIENT, mine, late=False), tag="renew"))
        assert world.batch() == stored
        world.store.transact(lambda tx: tx.put(mine), tag="test")
        answers.append(world.store.transact(lambda tx: owning.renew(tx, PATIENT, mine, late=False), tag="renew"))
        after = world.batch()
        assert after == replace(mine, heartbeat_at=after.heartbeat_at)
        assert heartbeat_of(world) >= world.clock.at

    world.deliver(world.sender([Scripted(Reply(Verdict.ACCEPTED), before=other)]))
    assert answers == [False, True]
    assert world.kinds() == "a"


def test_a_store_that_is_away_for_a_while_ends_no_renewal(world: World) -> None:
    world.campaign([1])
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "busy"))]))
    mine, faults = world.batch(), [StoreUnavailable("away"), ValueError("out of the blue")]
    held = threading.Event()

    def transact(work: Callable[[object], Iterable[bool]], *, tag: str) -> Iterable[bool]:
        if faults:
            raise faults.pop(0)
        held.set()
        return [True]

    keeper = LeaseKeeper(With(world.store, transact=transact))  # type: ignore[arg-type]
    with keeper.kept(mine, PATIENT):
        assert held.wait(30)
    assert faults == []


def test_a_call_that_outlives_all_its_time_is_kept_no_longer(world: World) -> None:
    """A sender that hangs must not hold its batch for ever: it is in doubt like that of a dead process."""
    world.campaign([1])
    world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "busy"))]))
    renewals: list[float] = []

    def transact(work: Callable[[object], Iterable[bool]], *, tag: str) -> Iterable[bool]:
        renewals.append(time.monotonic())
        return [True]

    times = replace(PATIENT.times, lease_s=0.06, request_timeout_s=0.1, answer_s=0.2, margin_s=0.0)
    terms = replace(PATIENT, times=times)
    keeper = LeaseKeeper(With(world.store, transact=transact))  # type: ignore[arg-type]
    began = time.monotonic()
    with keeper.kept(world.batch(), terms):
        until(lambda: time.monotonic() > began + 0.6)
    assert renewals
    assert max(renewals) < began + 0.3 + 0.1
    with keeper.kept(world.batch(), terms):  # the thread is still there for the next one
        count = len(renewals)
        until(lambda: len(renewals) > count)


def test_without_a_longer_answer_nothing_is_renewed(world: World) -> None:
    """Lanes of codes wait no longer than a request may take."""
    world.campaign([1])
    quick = replace(PATIENT, times=replace(PATIENT.times, answer_s=0.0))
    sender = patient(world)
    sender.send_and_wait = None  # type: ignore[assignment, method-assign]
    assert world.deliver(sender, quick).outcomes == {"accepted": 1}
    assert Outcome(world.batch().outcomes[0]).kind == "accepted"


def test_a_slow_answer_is_a_failure_for_a_lane_that_has_another_way(world: World) -> None:
    """Else a mail server that is silent after each letter would keep a lane from its fallback for ten minutes."""
    world.campaign([1] * health.FAILURES_TO_OPEN)
    references = world.plan()
    seen: list[Switch | None] = [None]

    def side_by_side() -> None:
        if not references:
            return
        element = world.render(references.pop())

        def slow(_: Prepared) -> None:
            until(lambda: switch_of(world) != seen[-1])
            seen.append(switch_of(world))
            renewed(world, element.batch_no)  # it is told once, however long it lasts
            assert switch_of(world) == seen[-1]
            side_by_side()

        world.owner(patient(world, Scripted(Reply(Verdict.ACCEPTED), after=slow)), PATIENT_WITH_ANOTHER).deliver(
            element
        )

    side_by_side()
    kinds = [(row.kind, row.reason) for row in seen if row is not None]
    assert kinds == [(health.FAILING, health.SLOW)] * (health.FAILURES_TO_OPEN - 1) + [(health.OPEN, health.SLOW)]
    assert switch_of(world) is None  # the answers came after all
    assert set(world.log.times_accepted().values()) == {1}


def test_a_slow_answer_is_only_waited_for_where_there_is_no_other_way(world: World) -> None:
    world.campaign([1])

    def slow(_: Prepared) -> None:
        for _again in range(3):
            renewed(world)
        assert switch_of(world) is None

    world.deliver(patient(world, Scripted(Reply(Verdict.ACCEPTED), after=slow)), PATIENT)
    assert (world.kinds(), switch_of(world)) == ("a", None)


def test_others_wait_for_as_long_as_a_probe_is_waited_for(world: World) -> None:
    """Each probe may end in doubt: a silent server gets one, not one a lease."""
    world.campaign([1, 1])
    opened = Switch(
        "sender:fake", health.OPEN, world.now(), "w", "timeout", world.now(), '{"failures": 5, "opened": 1}'
    )
    world.store.transact(lambda tx: tx.put(opened), tag="test")
    world.pass_s(1)

    def slow(prepared: Prepared) -> None:
        for _again in range(2):
            renewed(world, prepared.request.batch_no)
            until(lambda: (switch_of(world) or opened).until_at > world.clock.at)  # type: ignore[operator]
            assert world.plan(PATIENT) == []

    first, _ = world.plan(PATIENT)
    world.owner(patient(world, Scripted(Reply(Verdict.ACCEPTED), after=slow)), PATIENT).deliver(world.render(first))
    assert switch_of(world) is None
