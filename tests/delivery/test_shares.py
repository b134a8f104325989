"""Limits of mailbox groups: only the share that must wait waits, and the others of the batch go."""

from dataclasses import replace
from datetime import datetime, timedelta

import pytest

from schemas.ids import address_key
from schemas.outcomes import Outcome
from schemas.tables import Batch, Limit, Permit, Recipient
from sendonce.config.limits import most_at
from sendonce.delivery.limits import limits_of, outlook
from sendonce.delivery.terms import Move, Terms
from sendonce.mailboxes import DomainGroups
from sendonce.senders.base import Reply, Verdict
from sendonce.stores.base import Tx
from tests.delivery.world import TERMS, World
from tests.fakes import Scripted

GROUPED = replace(TERMS, groups=DomainGroups({"slow": ["slow.example"], "scarce": ["scarce.example"]}))
WARMING = replace(TERMS, scopes=("lane:bulk", "sender:fake", "warmup:fake"))
DAY = timedelta(days=1)


def slow(per_s: float, burst: int) -> Limit:
    return Limit("domain:slow", "rate", "rate", per_s=per_s, burst=burst)


def scarce(most: int, window_s: float = 60.0) -> Limit:
    return Limit("domain:scarce", f"cap:{window_s:g}", "cap", most=most, window_s=window_s)


def warm_up(start: datetime, *per_day: int) -> Limit:
    plan = f"[{','.join(map(str, per_day))}]"
    return Limit("warmup:fake", "cap:86400", "cap", most=per_day[-1], window_s=86400.0, starts_at=start, plan=plan)


def campaign(world: World, *batches: str) -> None:
    """Batches of recipients, a letter each: s at slow.example, c at scarce.example, o at one.example."""
    domains = {"s": "slow.example", "c": "scarce.example", "o": "one.example"}
    world.campaign([len(batch) for batch in batches])

    people: list[Recipient] = []
    for number, batch in enumerate(batches):
        for person in world.people(world.batch(number)):
            email = f"r{number}-{person.ordinal}@{domains[batch[person.ordinal]]}"
            people.append(replace(person, email=email, address_key=address_key(world.key, email)))
    world.store.transact(lambda tx: tx.put(*people), tag="test")


def run(world: World, for_s: float, terms: Terms = GROUPED, step_s: float = 0.5) -> list[Batch]:
    """Rounds as a job makes them, until everything is over or the time is; the batches that were planned."""
    end = world.clock.at + timedelta(seconds=for_s)
    planned = []
    while world.clock.at < end:
        for reference in world.plan(terms):
            planned.append(world.batch(reference.batch_no))
            world.owner(world.sender(recipients=100, mixes_forms=True), terms).deliver(world.render(reference))
        world.pass_s(step_s)
    return planned


def arrivals(world: World, domain: str) -> list[datetime]:
    """When letters for mailboxes of the domain were accepted."""
    emails = {
        (batch.batch_no, person.ordinal): person.email
        for batch in world.store.read(lambda reader: reader.scan(Batch))
        for person in world.people(batch)
    }
    return [
        action.at
        for action in world.log.actions
        if action.what == "accepted"
        for ordinal in action.ordinals
        if emails[action.batch_no, ordinal].endswith(f"@{domain}")
    ]


def take_all(world: World, scope: str) -> None:
    """Somebody else draws whatever the scope's bucket holds."""

    def work(tx: Tx) -> None:
        (limit,) = limits_of(tx, [scope])
        tx.put(replace(limit, level=0.0, level_at=tx.now()))

    world.store.transact(work, tag="test")


def most_in_any(moments: list[datetime], window_s: float) -> int:
    span = timedelta(seconds=window_s)
    return max((sum(start <= at < start + span for at in moments) for start in moments), default=0)


def test_only_the_share_that_has_no_permit_waits(world: World) -> None:
    campaign(world, "ocococo")
    world.limit(scarce(2))
    sender = world.sender(recipients=100, mixes_forms=True)
    delivery = world.owner(sender, GROUPED).deliver(world.render(world.plan_one(GROUPED)))
    assert world.kinds() == "aaaaaoa"
    batch = world.batch()
    assert (delivery.move, delivery.reason) == (Move.ENDED, "limit")
    assert (batch.state, batch.wait_reason) == ("pending", "domain:scarce")
    # The two that went may arrive as long as their request may last; then the window of 60 s begins.
    assert batch.due_at - world.clock.at == pytest.approx(timedelta(seconds=60), abs=timedelta(seconds=1))


def test_the_first_request_carries_everyone_who_may_go(world: World) -> None:
    """One cut, one request: the others are not sent one by one around those who wait."""
    campaign(world, "ccooooooc")
    world.limit(scarce(1))
    run(world, 1)
    (called,) = [action for action in world.log.actions if action.what == "called"]
    assert called.ordinals == (0, 2, 3, 4, 5, 6, 7)


def test_a_batch_of_one_group_waits_without_a_request(world: World) -> None:
    campaign(world, "c", "cc")
    world.limit(scarce(1))
    run(world, 5)
    assert sum(kinds.count("a") for kinds in (world.kinds(0), world.kinds(1))) == 1
    assert len(arrivals(world, "scarce.example")) == 1


@pytest.mark.parametrize("batches", [("scscosos" * 4,), ("ss", "so", "cc", "os") * 3, ("s" * 10, "c" * 5)])
def test_every_limit_holds_and_everybody_gets_a_letter(world: World, batches: tuple[str, ...]) -> None:
    campaign(world, *batches)
    world.limit(slow(2, 4), scarce(3, 20))
    run(world, 400)
    wanted = "".join(batches)
    assert sum(world.kinds(number).count("a") for number in range(len(batches))) == len(wanted)
    for window_s in (1, 3, 10):
        assert most_in_any(arrivals(world, "slow.example"), window_s) <= 4 + 2 * (window_s + 2)
    assert most_in_any(arrivals(world, "scarce.example"), 20) <= 3


def test_a_group_is_used_while_work_for_it_waits(world: World) -> None:
    """600 permits in a minute, 98 in 100 used: nobody waits longer than the limit asks."""
    campaign(world, *["s" * 20] * 40)
    world.limit(slow(10, 10))
    began = world.clock.at
    run(world, 60, step_s=0.25)
    moments = [at for at in arrivals(world, "slow.example") if at - began <= timedelta(seconds=60)]
    assert len(moments) >= 0.98 * (10 * 60)
    assert most_in_any(moments, 60) <= 10 + 10 * 62


def test_batches_of_a_group_stand_in_line_and_are_not_rendered_for_nothing(world: World) -> None:
    """Forty batches wait for one a second: each comes when its turn may have come, not every time one goes."""
    campaign(world, *["s"] * 40)
    world.limit(slow(1, 1))
    planned = run(world, 60)
    assert sum(world.kinds(number) == "a" for number in range(40)) == 40
    assert len(planned) < 40 * 4


def test_a_higher_limit_frees_those_who_stand_in_line(world: World) -> None:
    campaign(world, *["c"] * 6)
    world.limit(scarce(1, 86400))
    run(world, 5)
    assert len(arrivals(world, "scarce.example")) == 1
    world.limit(scarce(100, 86400))
    run(world, 5)
    assert len(arrivals(world, "scarce.example")) == 6


def test_a_group_that_waits_keeps_nobody_else_waiting(world: World) -> None:
    """Batches of the group come first in line, and the plan's window is small: the others still go at once."""
    campaign(world, *["cccc"] * 50, "oooo")
    world.limit(scarce(1, 86400))
    for _ in range(20):
        for reference in world.plan(GROUPED, 8):
            world.owner(world.sender(recipients=100), GROUPED).deliver(world.render(reference))
        world.pass_s(0.5)
    assert world.kinds(50) == "aaaa"


def test_permits_of_a_share_go_back_when_nothing_was_sent(world: World) -> None:
    campaign(world, "csco")
    world.limit(scarce(3), slow(5, 5))
    sender = world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))], recipients=100, mixes_forms=True)
    world.deliver(sender, GROUPED)
    assert world.store.read(lambda reader: reader.scan(Permit)) == []
    assert world.store.read(lambda reader: outlook(reader, limits_of(reader, ["domain:slow"]), 0, reader.now())) == 5


def test_a_refused_recipient_uses_its_permit(world: World) -> None:
    campaign(world, "cco")
    world.limit(scarce(2))
    reply = Reply(Verdict.ACCEPTED, exceptions={0: (Verdict.REFUSED, int(Outcome.PROVIDER_REFUSED), "")})
    world.deliver(world.sender([Scripted(reply)], recipients=100, mixes_forms=True), GROUPED)
    assert world.kinds() == "raa"
    (permit,) = world.store.read(lambda reader: reader.scan(Permit, "domain:scarce"))
    assert permit.n == 2


def test_a_repeat_needs_permits_of_its_shares_too(world: World) -> None:
    campaign(world, "sss", "sss")
    world.limit(slow(3, 6))
    asks = replace(GROUPED, asks_again_s=float("inf"))
    sender = world.sender(
        [Scripted(Reply(Verdict.UNKNOWN, "timeout"))], recipients=100, idempotency_window_s=float("inf")
    )
    world.owner(sender, asks).deliver(world.render(world.plan_one(asks)))
    assert world.kinds(0) + world.kinds(1) in ("dddooo", "oooddd")
    take_all(world, "domain:slow")
    doubt = world.plan_one(asks)
    assert world.owner(sender, asks).deliver(world.render(doubt)).reason == "limit"
    world.pass_s(1.1)
    world.owner(sender, asks).deliver(world.render(world.plan_one(asks)))
    assert "aaa" in (world.kinds(0), world.kinds(1))


# -- Warm-up ------------------------------------------------------------------------------------------------------


def test_a_warm_up_lets_each_day_through_what_its_plan_says_and_never_more_in_any_day(world: World) -> None:
    start = world.clock.at + timedelta(hours=3)
    world.campaign([10] * 4)
    world.limit(warm_up(start, 3, 5, 9))
    run(world, 4 * 86400, WARMING, step_s=900)
    moments = [action.at for action in world.log.actions if action.what == "accepted" for _ in action.ordinals]
    assert len(moments) == 40
    assert moments[0] >= start
    by_day = [sum(start + n * DAY <= at < start + (n + 1) * DAY for at in moments) for n in range(4)]
    assert by_day[0] == 3
    assert by_day[1] == 5
    assert by_day[2] == 9
    assert by_day[3] == 40 - 17  # the plan is over: no limit of its kind
    for at in moments:
        if at < start + 3 * DAY:
            allowed = (3, 5, 9)[(at - start) // DAY]
            assert sum(at - DAY < other <= at for other in moments) <= allowed


def test_the_plan_of_a_warm_up_by_day(world: World) -> None:
    start = world.clock.at
    limit = warm_up(start, 3, 5)
    moments = (-0.001, 0, 86399.9, 86400, 2 * 86400 - 0.1, 2 * 86400)
    assert [most_at(limit, start + timedelta(seconds=at)) for at in moments] == [0, 3, 3, 5, 5, None]


def test_before_a_warm_up_starts_its_work_waits_for_the_start(world: World) -> None:
    start = world.clock.at + timedelta(days=2)
    world.campaign([2])
    world.limit(warm_up(start, 3))
    assert world.plan(WARMING) == []
    world.pass_s(2 * 86400)
    run(world, 1, WARMING)
    assert world.kinds() == "aa"
