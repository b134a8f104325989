"""A lane with a second sender: what certainly was not taken moves, and nothing else; it comes back by itself."""

from dataclasses import replace

import pytest

from schemas.tables import Limit, Switch
from sendonce.control.stops import end_stop, stop_sending
from sendonce.delivery import health
from sendonce.delivery.resolver import Policy
from sendonce.delivery.routes import route
from sendonce.delivery.sweeper import sweep_lane
from sendonce.delivery.terms import Terms
from sendonce.senders.base import Reply, Verdict
from tests.delivery.world import CAMPAIGN, TERMS, World
from tests.fakes import FakeSender, Scripted

OTHER = replace(TERMS, sender="backup", provider="backup", scopes=("lane:bulk", "sender:backup"))
BOTH = replace(TERMS, fallback=OTHER)
DOWN = Scripted(Reply(Verdict.NOT_SENT, "connect"))
LOST = Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=())


def put(world: World, kind: str, sender: str = "fake", *, for_s: float | None = None) -> None:
    until = None if for_s is None else world.now().replace(year=world.now().year + 1)
    row = Switch(f"sender:{sender}", kind, world.now(), "w", "connect", until, '{"failures": 5, "opened": 1}')
    world.store.transact(lambda tx: tx.put(row), tag="test")


def time_is_over(world: World) -> None:
    """The breaker lets a probe through."""
    row = world.store.read(lambda reader: reader.get(Switch, "sender:fake"))
    assert row is not None
    world.store.transact(lambda tx: tx.put(replace(row, until_at=tx.now())), tag="test")
    world.pass_s(1)


def remove(world: World, sender: str = "fake") -> None:
    world.store.transact(lambda tx: tx.delete(Switch(f"sender:{sender}", "", world.began, "", "")), tag="test")


def backup(world: World, **abilities: object) -> FakeSender:
    return world.sender(name="backup", **abilities)


def go(world: World, own: FakeSender, other: FakeSender, terms: Terms = BOTH, *, window: int = 10_000) -> list[str]:
    """Plan and deliver once; why each batch ended."""
    owner = world.owner(own, terms, fallback=other)
    return [owner.deliver(world.render(reference)).reason for reference in world.plan(terms, window)]


def callers(world: World) -> list[str]:
    """By whom each call was made."""
    return [action.sender for action in world.log.actions if action.what == "called"]


def test_a_lane_goes_by_its_own_sender_while_that_can_send(world: World) -> None:
    world.campaign([2, 2])
    go(world, world.sender(), backup(world))
    assert callers(world) == ["fake", "fake"]


def test_what_was_not_sent_moves_when_the_breaker_opens_and_each_is_sent_once(world: World) -> None:
    world.campaign([2] * 8)
    own, other = world.sender([DOWN] * health.FAILURES_TO_OPEN), backup(world)
    for _ in range(40):
        go(world, own, other, window=1)
        if not world.plan_due():
            world.pass_s(0.5)
        if all(world.batch(number).state == "done" for number in range(8)):
            break
    assert callers(world)[: health.FAILURES_TO_OPEN] == ["fake"] * health.FAILURES_TO_OPEN
    assert "backup" in callers(world)
    assert list(world.log.times_accepted().values()) == [1] * 16
    providers = {attempt.provider: attempt.verdict for number in range(8) for attempt in world.attempts(number)}
    assert providers["backup"] == "accepted"
    assert {row.provider for row in world.outbound()} <= {"fake", "backup"}
    assert len(world.outbound()) == 16


def test_it_comes_back_by_a_probe_of_one_letter(world: World) -> None:
    world.campaign([3, 3, 3, 3])
    own, other = world.sender(), backup(world)
    put(world, "open", for_s=60)
    go(world, own, other, window=1)
    assert callers(world) == ["backup"]

    # The breaker's time is over: the next request is the probe, and others go by the fallback meanwhile.
    time_is_over(world)
    meanwhile: list[str] = []

    def others(_: object) -> None:
        meanwhile.extend(go(world, world.sender(), other, window=1))

    own.script.append(Scripted(Reply(Verdict.ACCEPTED), before=others))
    go(world, own, other, window=1)
    assert meanwhile == ["done"]
    sizes = [(action.sender, len(action.ordinals)) for action in world.log.actions if action.what == "called"]
    assert sizes == [("backup", 3), ("fake", 1), ("backup", 3), ("fake", 2)]
    go(world, own, other)
    assert callers(world)[-1] == "fake"
    assert list(world.log.times_accepted().values()) == [1] * 12


def test_a_failed_probe_moves_its_letter_too(world: World) -> None:
    world.campaign([3])
    put(world, "open", for_s=60)
    time_is_over(world)
    other = backup(world)
    assert go(world, world.sender([DOWN]), other) == ["connect"]
    world.pass_s(4)
    assert go(world, world.sender(), other) == ["done"]
    assert callers(world) == ["fake", "backup"]
    assert list(world.log.times_accepted().values()) == [1] * 3


def test_a_doubt_stays_with_whom_was_asked(world: World) -> None:
    """Its letters may have arrived: they never move, whoever can send."""
    world.campaign([2, 2])
    go(world, world.sender([LOST]), backup(world), window=1)
    put(world, "open", for_s=60)
    other = backup(world)
    for _ in range(3):
        go(world, world.sender(), other)
        sweep_lane(world.store, world.key, BOTH, Policy("hold", "rows"), world._id)
        world.pass_s(60)
    assert sorted(world.kinds(number) for number in (0, 1)) == ["aa", "dd"]
    assert callers(world) == ["fake", "backup"]


def test_a_doubt_at_the_fallback_is_asked_again_there_when_the_lanes_own_is_back(world: World) -> None:
    keys = {"idempotency_window_s": 3600.0}
    both = replace(BOTH, fallback=replace(OTHER, asks_again_s=3600.0))
    world.campaign([2, 2])
    put(world, "open", for_s=60)
    lost = Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(0, 1))
    go(world, world.sender(), backup(world, script=[lost], **keys), both, window=1)
    remove(world)
    world.pass_s(120)
    sweep_lane(world.store, world.key, both, Policy("hold", "rows"), world._id)
    go(world, world.sender(), backup(world, **keys), both)
    assert sorted(world.kinds(number) for number in (0, 1)) == ["aa", "aa"]
    assert sorted(callers(world)) == ["backup", "backup", "fake"]
    assert "repeated" in world.log.words()
    assert list(world.log.times_accepted().values()) == [1] * 4


def test_a_doubt_at_one_that_cannot_be_asked_waits_for_it(world: World) -> None:
    keys = {"idempotency_window_s": 3600.0}
    both = replace(BOTH, asks_again_s=3600.0)
    world.campaign([2])
    go(world, world.sender([Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=(0, 1))], **keys), backup(world), both)
    put(world, "open", for_s=60)
    world.pass_s(120)
    assert world.plan(both) == []
    remove(world)
    go(world, world.sender(**keys), backup(world), both)
    assert world.kinds() == "aa"
    assert callers(world) == ["fake", "fake"]


@pytest.mark.parametrize(
    ("kind", "moves"), [("open", True), ("probing", True), ("halted", True), ("throttled", False), ("failing", False)]
)
def test_what_moves_a_lane(world: World, kind: str, moves: bool) -> None:
    """Who is asked to slow down slows down, and does not send the same elsewhere."""
    put(world, kind, for_s=60)
    found = world.store.read(lambda reader: route(reader, BOTH, reader.now()))
    assert found is (OTHER if moves else BOTH)


@pytest.mark.parametrize("scope", ["all", "lane:bulk", "sender:outbox"])
def test_what_a_person_stopped_stands_still(world: World, scope: str) -> None:
    """`stop` means: nothing more goes out. Not: it goes out elsewhere."""
    world.campaign([2])
    terms = replace(BOTH, sender="outbox", scopes=("lane:bulk", "sender:outbox"))
    put(world, "open", "outbox", for_s=60)
    assert stop_sending(world.store, scope, "", "ann")
    assert world.plan(terms) == []
    assert end_stop(world.store, scope)
    assert len(world.plan(terms)) == 1


def test_two_that_cannot_send_wait(world: World) -> None:
    world.campaign([2])
    put(world, "open", for_s=60)
    put(world, "open", "backup", for_s=60)
    assert world.plan(BOTH) == []
    remove(world, "backup")
    assert len(world.plan(BOTH)) == 1


def test_each_sender_keeps_its_own_limits(world: World) -> None:
    world.campaign([50])
    full = Limit("sender:fake", "rate", "rate", per_s=100.0, burst=100, level=100.0, level_at=world.now())
    slow = Limit("sender:backup", "rate", "rate", per_s=1.0, burst=5, level=5.0, level_at=world.now())
    world.limit(full, slow)
    put(world, "open", for_s=60)
    go(world, world.sender(), backup(world))
    assert 1 <= len(world.log.accepted) <= 5
    levels = {
        scope: world.store.read(lambda reader, scope=scope: reader.get(Limit, scope, "rate")).level
        for scope in ("sender:fake", "sender:backup")
    }
    assert levels["sender:fake"] == 100.0
    assert levels["sender:backup"] is not None
    assert levels["sender:backup"] < 2.0


def test_a_breaker_that_opens_inside_a_batch_moves_its_rest(world: World) -> None:
    world.campaign([6])
    own = world.sender(
        [Scripted(Reply(Verdict.ACCEPTED)), Scripted(Reply(Verdict.NOT_SENT, "credentials", halts_sender=True))],
        recipients=2,
    )
    other = backup(world)
    go(world, own, other)
    world.pass_s(1)
    go(world, own, other)
    assert [(action.sender, action.ordinals) for action in world.log.actions if action.what == "called"] == [
        ("fake", (0, 1)),
        ("fake", (2, 3)),
        ("backup", (2, 3, 4, 5)),
    ]
    assert {row.ordinal: row.provider for row in world.outbound()} == {
        0: "fake", 1: "fake", 2: "backup", 3: "backup", 4: "backup", 5: "backup"
    }  # fmt: skip
    assert world.campaign_row(CAMPAIGN).state == "running"


def test_a_long_batch_comes_back_in_its_middle(world: World) -> None:
    """By SMTP a batch is hundreds of requests: it must not stay with the fallback until its end."""
    world.campaign([6])
    put(world, "open", for_s=60)
    own = world.sender(recipients=1)
    over = Scripted(Reply(Verdict.ACCEPTED), after=lambda _: time_is_over(world))
    go(world, own, backup(world, script=[Scripted(Reply(Verdict.ACCEPTED)), over], recipients=1))
    assert callers(world) == ["backup"] * 2
    go(world, own, backup(world))
    assert callers(world) == ["backup"] * 2 + ["fake"] * 4
    assert list(world.log.times_accepted().values()) == [1] * 6


def test_a_long_batch_stays_with_the_fallback_while_another_is_the_probe(world: World) -> None:
    world.campaign([3])
    put(world, "probing", for_s=60)
    go(world, world.sender(recipients=1), backup(world, recipients=1))
    assert callers(world) == ["backup"] * 3
