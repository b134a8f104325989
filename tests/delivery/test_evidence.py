"""What a delivery event proves of a request in doubt: its own letter, or all letters of a call that is taken whole."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.ids import attempt_id, message_id
from schemas.ordinals import unpack
from schemas.tables import Decision, DeliveryEvent
from sendonce.control.event_payloads import Event
from sendonce.control.events import Recorded, record_events
from sendonce.delivery.resolver import ASSUME_AFTER, Policy, decide, settle_doubt
from sendonce.delivery.sweeper import HELD_LOOKED_AT_EVERY
from sendonce.senders.base import Reply, Verdict
from tests.control.made import Clock
from tests.delivery.world import CAMPAIGN, TERMS, World
from tests.fakes import Scripted

LOST = Scripted(Reply(Verdict.UNKNOWN, "timeout"))
STRANGE = attempt_id(1_768_467_600_000, b"not of ours")


def lost(world: World, size: int) -> str:
    """A request of a whole batch whose reply was lost; its attempt's id."""
    world.campaign([size])
    world.deliver(world.sender([LOST]))
    (doubt,) = world.doubts()
    return doubt.attempt_id


def about(world: World, attempt: str, recipient: int, **fields: object) -> Event:
    """An event of one letter, from a provider whose calls are taken letter by letter. Recipients count from 1."""
    event = Event(
        f"{fields.get('kind', 'Send')}-{attempt}-{recipient}",
        "ses",
        "Send",
        world.now(),
        attempt,
        message_id(world.key, CAMPAIGN, str(recipient)),
        CAMPAIGN,
        0,
    )
    return replace(event, **fields)  # type: ignore[arg-type]


def sweep_later(world: World, **policy: str) -> None:
    world.pass_s(HELD_LOOKED_AT_EVERY.total_seconds() + 1)
    world.sweep(**policy)


def decisions(world: World) -> list[tuple[str, str, list[int]]]:
    rows = world.store.read(lambda reader: reader.scan(Decision))
    return sorted((row.kind, row.by, unpack(row.ordinals or b"")) for row in rows)


def test_an_event_of_one_letter_says_nothing_of_the_others(world: World) -> None:
    """SES answers letter by letter, a mail server knows no request at all: the others may never have got there."""
    attempt = lost(world, 3)
    record_events(world.store, [about(world, attempt, 2)])
    sweep_later(world, in_doubt="hold")
    assert (world.kinds(), world.batch().state) == ("dad", "in_doubt")
    sweep_later(world, in_doubt="hold")
    assert (world.kinds(), world.batch().state) == ("dad", "held")
    record_events(world.store, [about(world, attempt, 1), about(world, attempt, 3)])
    sweep_later(world, in_doubt="hold")
    assert (world.kinds(), world.batch().state) == ("aaa", "done")
    assert decisions(world) == [
        ("evidence", "provider", [0, 2]),
        ("evidence", "provider", [1]),
        ("hold", "policy", [0, 2]),
    ]


def test_an_event_of_a_call_that_is_taken_whole_proves_all_of_it(world: World) -> None:
    attempt = lost(world, 3)
    record_events(world.store, [about(world, attempt, 2, provider="sendgrid", kind="dropped", whole=True)])
    sweep_later(world)
    assert (world.kinds(), world.campaign_row().state) == ("aaa", "completed")


def test_an_event_whose_letter_is_not_of_the_request_proves_nothing(world: World) -> None:
    attempt = lost(world, 2)
    record_events(world.store, [about(world, attempt, 9), about(world, attempt, 1, event_id="e", message_id=None)])
    sweep_later(world)
    assert world.kinds() == "dd"


def test_the_policy_decides_on_those_only_of_whom_no_event_tells(world: World) -> None:
    attempt = lost(world, 3)
    record_events(world.store, [about(world, attempt, 1)])
    world.sweep(in_doubt="assume")
    world.pass_s(ASSUME_AFTER.total_seconds() + 1)
    world.sweep(in_doubt="assume")
    assert (world.kinds(), world.batch().state) == ("auu", "done")
    assert {row.ordinal: row.attempt_id for row in world.outbound()} == dict.fromkeys(range(3), attempt)


def test_an_event_that_comes_before_the_doubt_settles_it(world: World) -> None:
    """The provider was quicker than the owner, which died before it read the answer."""
    world.campaign([2])
    seen: list[Recorded] = []

    def told(_: object) -> None:
        (attempt,) = {world.batch().attempt_id}
        seen.append(record_events(world.store, [about(world, attempt or "", number) for number in (1, 2)]))

    world.deliver(world.sender([replace(LOST, before=told)]))
    world.sweep()
    assert seen == [Recorded(added=2)]
    assert (world.kinds(), world.batch().state) == ("aa", "done")


def test_two_settlers_with_the_same_proof_leave_one_decision(world: World) -> None:
    attempt = lost(world, 3)
    record_events(world.store, [about(world, attempt, 2)])
    (doubt,) = world.doubts()
    rungs = [settle_doubt(world.store, world.key, doubt, TERMS, Policy("hold", "rows"), name) for name in ("d1", "d2")]
    assert rungs == ["evidence", ""]
    assert decisions(world) == [("evidence", "provider", [1])]
    assert world.kinds() == "dad"


def test_an_event_of_who_is_not_in_doubt_changes_nothing(world: World) -> None:
    world.campaign([2])
    world.deliver(world.sender())
    (attempt,) = world.attempts()
    before = world.batch()
    assert record_events(world.store, [about(world, attempt.attempt_id, 1)]) == Recorded(added=1)
    sweep_later(world)
    assert world.batch() == before


@pytest.mark.parametrize(("kind", "kinds"), [("assume", "uu"), ("resend", "oo")])
def test_an_event_that_comes_after_a_decision_is_on_record_and_changes_nothing(
    world: World, kind: str, kinds: str
) -> None:
    """What is final stays final, and a second letter may be under way."""
    attempt = lost(world, 2)
    (doubt,) = world.doubts()
    decide(world.store, world.key, doubt, kind, "ann", "", "rows", "d")
    assert record_events(world.store, [about(world, attempt, 1)]) == Recorded(added=1)
    sweep_later(world)
    assert world.kinds() == kinds


def test_an_event_of_the_first_request_does_not_settle_the_second(world: World) -> None:
    """After a decision to send again either letter may be the one that arrived."""
    first = lost(world, 1)
    (doubt,) = world.doubts()
    decide(world.store, world.key, doubt, "resend", "ann", "", "rows", "d")
    world.deliver(world.sender([LOST]))
    record_events(world.store, [about(world, first, 1)])
    sweep_later(world)
    assert world.kinds() == "d"


def test_events_of_unknown_requests_are_counted_and_left_out(world: World) -> None:
    attempt = lost(world, 1)
    events = [
        about(world, STRANGE, 1, event_id="e1"),
        about(world, STRANGE, 1, event_id="e2", campaign_id="theirs"),
        about(world, STRANGE, 1, event_id="e3", campaign_id=None, batch_no=None),
        about(world, attempt, 1, event_id="e4", campaign_id="theirs"),
        about(world, attempt, 1, event_id="e5", batch_no=7),
    ]
    expected = Recorded(unknown_campaign=2, unknown_attempt=3)
    assert record_events(world.store, events) == expected
    assert sum((record_events(world.store, [event]) for event in events), Recorded()) == expected
    assert world.store.read(lambda reader: reader.scan(DeliveryEvent)) == []


def test_a_letter_that_could_not_carry_its_campaign_is_known_by_its_attempt(world: World) -> None:
    """SES takes no dots in tags, and streams of sends have dots in their names; SMTP carries the attempt alone."""
    attempt = lost(world, 2)
    plain = {"campaign_id": None, "batch_no": None}
    assert record_events(world.store, [about(world, attempt, 1, **plain)]) == Recorded(added=1)
    sweep_later(world)
    assert world.kinds() == "ad"
    later = about(world, attempt, 1, kind="Open", at=datetime(2026, 1, 16, tzinfo=UTC), **plain)
    assert record_events(world.store, [later]) == Recorded(added=1)


def outcome_of(folder: Path, order: Sequence[int], cuts: set[int]) -> tuple[object, ...]:
    """What three lost requests and their events come to, if these come in this order, with sweeps in between."""
    folder.mkdir()
    world = World(folder, Clock(datetime(2026, 1, 15, 9, 0, tzinfo=UTC)))
    try:
        world.campaign([4])
        for _ in range(3):
            world.deliver(world.sender([LOST], recipients=1))
            world.sweep()
        world.deliver(world.sender([LOST], recipients=1))
        attempts = sorted(doubt.attempt_id for doubt in world.doubts())
        at = world.now()
        events = [
            event
            for number, attempt in enumerate(attempts[:3], 1)
            for event in (
                about(world, attempt, number, at=at),
                about(world, attempt, number, at=at, kind="Delivery"),
                about(world, attempt, number, at=at, kind="Open", campaign_id=None, batch_no=None),
                about(world, attempt, number + 1, at=at, event_id=f"wrong-{number}"),
            )
        ]
        theirs = about(world, attempts[0], 1, at=at, event_id="theirs", campaign_id="theirs")
        events += [about(world, STRANGE, 1, at=at), theirs]
        total, waiting = Recorded(), []
        for place, index in enumerate(order):
            waiting.append(events[index % len(events)])
            if place in cuts:
                total += record_events(world.store, waiting)
                waiting = []
                sweep_later(world)
        total += record_events(world.store, waiting)
        sweep_later(world)
        sweep_later(world)
        rows = world.store.read(lambda reader: reader.scan(DeliveryEvent))
        assert total.added == len(rows)
        return world.kinds(), {row.event_id for row in rows}, {row.body for row in rows}
    finally:
        world.close()


EVENTS = 14


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[object, ...]:
    return outcome_of(tmp_path_factory.mktemp("orders") / "once", range(EVENTS), set())


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_order_and_repetition_of_events_change_nothing(
    tmp_path_factory: pytest.TempPathFactory, once: tuple[object, ...], data: st.DataObject
) -> None:
    """Each once, 46 times, backwards: the same rows, the same outcomes."""
    again = data.draw(st.lists(st.integers(0, EVENTS - 1), max_size=46))
    cuts = data.draw(st.sets(st.integers(0, EVENTS + 46)))
    mixed = data.draw(st.permutations([*range(EVENTS), *again]))
    assert once[0] == "aaad"
    assert outcome_of(tmp_path_factory.mktemp("orders") / "mixed", mixed, cuts) == once
