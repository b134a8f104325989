"""What people see of lanes and limits is what the protocol does with them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.tables import Limit, Permit, Switch
from sendonce.config import apply_config, load_config
from sendonce.control.stops import stop_sending
from sendonce.delivery.lane_report import ScopeUse
from sendonce.delivery.lane_use import lane_uses
from sendonce.senders.base import name_in
from tests.delivery.world import TERMS, World
from tests.fakes import Action, FakeSender

OUTBOX = replace(TERMS, sender="outbox", provider="outbox/0a1b2c3d", scopes=("lane:bulk", "sender:outbox"))
BACKUP = replace(OUTBOX, sender="backup", provider="backup", scopes=("lane:bulk", "sender:backup"))
RATE = Limit("lane:bulk", "rate", "rate", per_s=10.0, burst=20)
CAP = Limit("sender:outbox", "cap:3600", "cap", most=50, window_s=3600.0)
WITH_FALLBACK = {
    "senders": {"outbox": {"adapter": "outbox"}, "backup": {"adapter": "outbox", "path": "backup"}},
    "lanes": {"bulk": {"sender": "outbox", "fallback": "backup"}},
}


def scopes(world: World) -> dict[str, ScopeUse]:
    return {use.scope: use for use in lane_uses(world.store)[1]}


def send(world: World, batches: int) -> None:
    for _ in range(batches):
        world.deliver(FakeAccount(world.log, name="outbox"), OUTBOX)


class FakeAccount(FakeSender):
    """Identified as adapters are whose place may change."""

    @property
    def identity(self) -> str:
        return f"{self.name}/0a1b2c3d"


def fail_over(world: World, kind: str = "open", sender: str = "outbox") -> None:
    """Give bulk a second sender, and make one that cannot send."""
    apply_config(world.store, load_config(None, {}).model_validate(WITH_FALLBACK), "test")
    until = None if kind == "halted" else world.now() + timedelta(minutes=5)
    row = Switch(f"sender:{sender}", kind, world.now(), "w", "connect", until, '{"failures": 5, "opened": 1}')
    world.store.transact(lambda tx: tx.put(row), tag="test")


def calls(world: World, sender: str) -> list[Action]:
    return [action for action in world.log.actions if action.what == "called" and action.sender == sender]


def by_backup(world: World) -> None:
    """Deliver a batch as a lane does whose own sender cannot send."""
    owner = world.owner(
        FakeAccount(world.log, name="outbox"), replace(OUTBOX, fallback=BACKUP), fallback=world.sender(name="backup")
    )
    (reference,) = world.plan(replace(OUTBOX, fallback=BACKUP), 1)
    owner.deliver(world.render(reference))


def test_lanes_and_senders_without_limits_are_there_too(world: World) -> None:
    world.campaign([3], state="ready")

    assert list(scopes(world)) == ["lane:critical", "lane:high", "lane:bulk", "sender:outbox"]
    assert all(not use.limits and not use.waiting and use.per_s == 0 for use in scopes(world).values())


def test_what_is_free_is_what_the_next_request_gets(world: World) -> None:
    world.campaign([15, 15])
    world.limit(RATE, CAP)
    send(world, 1)

    found = scopes(world)
    (rate,), (cap,) = found["lane:bulk"].limits, found["sender:outbox"].limits

    assert (rate.free, rate.most, rate.text, rate.next_at) == (5, 20, "10/s, burst 20", None)
    assert (cap.free, cap.used, cap.most, cap.text) == (35, 15, 50, "50/hour")


def test_speed_is_that_of_the_last_minute_and_no_older(world: World) -> None:
    world.campaign([30, 30])
    send(world, 2)

    assert scopes(world)["lane:bulk"].per_s == pytest.approx(1.0)
    assert scopes(world)["sender:outbox"].per_s == pytest.approx(1.0)
    assert scopes(world)["lane:high"].per_s == 0

    world.clock.at += timedelta(seconds=61)
    assert scopes(world)["lane:bulk"].per_s == 0


def test_whoever_waits_for_a_full_cap_is_told_which_and_until_when(world: World) -> None:
    world.campaign([50, 50])
    world.limit(CAP)
    send(world, 1)

    found = scopes(world)
    (waiting,) = found["lane:bulk"].waiting

    assert (waiting.reason, waiting.recipients, waiting.scope) == ("limit", 50, "sender:outbox")
    assert waiting.what == "50/hour"
    assert waiting.until == found["sender:outbox"].limits[0].next_at
    assert found["sender:outbox"].waiting == [waiting]
    assert waiting.until is not None
    world.clock.at = waiting.until
    assert scopes(world)["sender:outbox"].limits[0].next_at is None
    assert world.plan(OUTBOX)


def test_a_stop_comes_before_a_full_limit(world: World) -> None:
    world.campaign([50, 50])
    world.limit(CAP)
    send(world, 1)
    stop_sending(world.store, "sender:outbox", "odd letters", "me")

    found = scopes(world)

    assert [(w.reason, w.scope, w.until) for w in found["lane:bulk"].waiting] == [("stopped", "sender:outbox", None)]
    assert [stop.reason for stop in found["sender:outbox"].stops] == ["odd letters"]
    assert found["lane:bulk"].stops == []


@pytest.mark.parametrize("state", ["paused", "halted"])
def test_recipients_of_a_paused_campaign_wait_for_a_person(world: World, state: str) -> None:
    world.campaign([4])
    world.set_state(state)

    assert [(w.reason, w.recipients, w.until) for w in scopes(world)["lane:bulk"].waiting] == [(state, 4, None)]


def test_what_the_provider_throttled_is_shown(world: World) -> None:
    world.campaign([4])
    world.limit(replace(RATE, slow=0.5))

    assert [use.slow for use in scopes(world)["lane:bulk"].limits] == [0.5]


def test_a_rate_is_shown_as_it_was_written(world: World) -> None:
    world.campaign([4])
    config = load_config(None, {})
    bulk = config.lanes["bulk"].model_validate(
        {**config.lanes["bulk"].model_dump(), "limits": [{"rate": "900/min"}, {"cap": "10/5s"}]}
    )
    apply_config(world.store, config.model_copy(update={"lanes": {**config.lanes, "bulk": bulk}}), "test")

    assert [use.text for use in scopes(world)["lane:bulk"].limits] == ["10/5s", "900/min, burst 15"]


def test_scopes_of_other_kinds_appear_by_themselves(world: World) -> None:
    world.campaign([4, 4])
    world.limit(Limit("domain:google", "cap:86400", "cap", most=9, window_s=86400.0))
    now = world.now()
    world.store.transact(lambda tx: tx.put(Permit("domain:google", now, "01A", 6, now)), tag="test")
    away = replace(world.batch(0), wait_reason="domain:google", due_at=now + timedelta(hours=1))
    world.store.transact(lambda tx: tx.put(away), tag="test")

    found = scopes(world)["domain:google"]

    assert (found.limits[0].free, found.limits[0].used) == (3, 6)
    assert found.per_s == pytest.approx(0.1)
    assert [(w.recipients, w.what, w.until) for w in found.waiting] == [(4, "9/day", now + timedelta(hours=1))]
    assert list(scopes(world))[-1] == "domain:google"


@pytest.mark.parametrize(
    ("days", "text", "most", "free"),
    [
        (-1, "nothing before {0:%Y-%m-%d %H:%M} UTC", 0, 0),
        (0, "day 1 of 3", 10, 10),
        (2.5, "day 3 of 3", 40, 40),
        (3, "over", None, None),
    ],
)
def test_a_warm_up_shows_the_step_of_now(
    world: World, days: float, text: str, most: int | None, free: int | None
) -> None:
    starts = world.clock.at + timedelta(days=2)
    world.campaign([4])
    plan = Limit("warmup:outbox", "cap:86400", "cap", most=40, window_s=86400.0, starts_at=starts, plan="[10,20,40]")
    world.limit(plan)
    world.clock.at = starts + timedelta(days=days)

    (use,) = scopes(world)["warmup:outbox"].limits

    assert (use.text, use.most, use.free) == (text.format(starts), most, free)
    assert [w.recipients for w in scopes(world)["lane:bulk"].waiting] == ([4] if days < 0 else [])


def test_a_lane_names_its_fallback_and_by_whom_it_goes(world: World) -> None:
    world.campaign([4])
    fail_over(world, "failing")
    bulk, high = scopes(world)["lane:bulk"], scopes(world)["lane:high"]
    assert (bulk.sender, bulk.fallback, bulk.sender_now) == ("outbox", "backup", "outbox")
    assert (high.sender, high.fallback, high.sender_now) == ("outbox", None, "outbox")


@pytest.mark.parametrize("kind", ["open", "probing", "halted"])
def test_nobody_waits_for_a_sender_while_letters_go_by_its_fallback(world: World, kind: str) -> None:
    world.campaign([4, 4])
    fail_over(world, kind)

    found = scopes(world)

    assert found["lane:bulk"].sender_now == "backup"
    assert found["lane:bulk"].waiting == []
    assert found["lane:bulk"].stops == []
    assert [stop.what for stop in found["sender:outbox"].stops] == ["sender:outbox"]
    assert (found["sender:outbox"].open, found["sender:backup"].open) == (0, 8)


def test_what_went_by_a_fallback_counts_as_its_speed(world: World) -> None:
    world.campaign([30, 60])
    send(world, 1)
    fail_over(world)
    by_backup(world)

    found = scopes(world)

    assert sorted(found[f"sender:{name}"].per_s or 0.0 for name in ("outbox", "backup")) == [0.5, 1.0]
    assert found["sender:backup"].per_s == pytest.approx(found["lane:bulk"].per_s - found["sender:outbox"].per_s)  # type: ignore[operator]
    assert found["lane:bulk"].per_s == pytest.approx(1.5)
    assert found["sender:outbox"].per_s == pytest.approx(sum(len(one.ordinals) for one in calls(world, "outbox")) / 60)


def test_the_limit_of_the_fallback_is_what_its_lane_waits_for(world: World) -> None:
    world.campaign([50, 50])
    fail_over(world)
    full = replace(CAP, most=1)
    world.limit(full, replace(CAP, scope="sender:backup"))
    world.store.transact(lambda tx: tx.put(Permit("sender:outbox", tx.now(), "01A", 1, tx.now())), tag="test")
    assert scopes(world)["lane:bulk"].waiting == [], "its own sender's cap is used up, and counts no more"
    by_backup(world)

    (waiting,) = scopes(world)["lane:bulk"].waiting

    assert (waiting.reason, waiting.recipients, waiting.scope) == ("limit", 50, "sender:backup")
    assert scopes(world)["sender:backup"].waiting == [waiting]


def test_a_lane_of_which_no_sender_can_send_waits_for_its_own(world: World) -> None:
    world.campaign([4])
    fail_over(world)
    fail_over(world, sender="backup")

    found = scopes(world)

    assert found["lane:bulk"].sender_now == "outbox"
    assert [(w.reason, w.scope) for w in found["lane:bulk"].waiting] == [("breaker_open", "sender:outbox")]


def test_an_account_is_its_senders_by_name(world: World) -> None:
    long = "a" * 64
    assert name_in("mail", ["mail", "mail-2"]) == "mail"
    assert name_in("mail-2/0a1b2c3d", ["mail", "mail-2"]) == "mail-2"
    assert name_in(f"{long[:50]}/0a1b2c3d", ["mail", long]) == long
    assert name_in("gone/0a1b2c3d", ["mail"]) is None
    assert name_in(long[:50], [long]) is None
