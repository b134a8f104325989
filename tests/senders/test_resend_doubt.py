"""A request to Resend in doubt, through the delivery core: asked again under the same key, or left to the next rung."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.elements import Reference
from sendonce.delivery import batches
from sendonce.delivery.terms import Terms
from sendonce.failpoints import FailpointRaised, armed
from sendonce.senders.resend import Resend
from tests.control.made import Clock
from tests.delivery.world import TERMS, World
from tests.providers.http import Fate
from tests.providers.resend import FakeResend, error
from tests.senders.resend_account import sender_for

HOUR_S = 3600.0


class Scene:
    def __init__(self, world: World, sender: Resend, fake: FakeResend) -> None:
        self.world, self.sender, self.fake = world, sender, fake

    @property
    def terms(self) -> Terms:
        window_s = self.sender.capabilities.idempotency_window_s
        return replace(TERMS, provider=self.sender.identity, asks_again_s=window_s)

    def deliver(self) -> None:
        self.world.deliver(self.sender, self.terms)  # type: ignore[arg-type]

    def planned(self) -> list[Reference]:
        return self.world.plan(self.terms)

    def sweep(self) -> str:
        self.world.sweep(self.terms)
        return self.world.batch().state


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    with there_in(tmp_path) as make:
        yield make


@contextmanager
def there_in(folder: Path) -> Iterator[Callable[..., Scene]]:
    clock = Clock(datetime(2026, 1, 15, 9, tzinfo=UTC))
    world = World(folder, clock)
    world.campaign([4])
    opened: list[object] = []

    def make(*script: Fate) -> Scene:
        def now_s() -> float:
            return clock.at.timestamp()

        fake = FakeResend(*script, now_s=now_s)
        fake.__enter__()
        sender = sender_for(fake.url, now_s=now_s)
        opened.extend([fake, sender])
        return Scene(world, sender.__enter__(), fake)

    try:
        yield make
    finally:
        for one in reversed(opened):
            one.__exit__(None, None, None)  # type: ignore[attr-defined]
        world.close()


CUT = Fate(200, fault="close_after_read")


def test_a_reply_cut_after_acceptance_is_asked_for_again_and_nobody_gets_two(there: Callable[..., Scene]) -> None:
    scene = there(CUT)
    scene.deliver()
    assert scene.world.kinds() == "dddd"
    assert len(scene.fake.letters()) == 4

    scene.world.pass_s(30)
    scene.deliver()

    first, second = scene.fake.attempts
    assert (first.key, first.sha256, first.replayed) == (second.key, second.sha256, not second.replayed)
    assert scene.world.kinds() == "aaaa"
    assert len(scene.fake.letters()) == 4
    assert scene.world.batch().state == batches.DONE


def test_a_request_that_never_arrived_is_asked_for_again_and_arrives(there: Callable[..., Scene]) -> None:
    scene = there(Fate(fault="close_before_read"))
    scene.deliver()
    assert scene.fake.letters() == []
    scene.world.pass_s(30)
    scene.deliver()
    assert scene.world.kinds() == "aaaa"
    assert len(scene.fake.letters()) == 4


def test_killed_after_acceptance_the_next_owner_asks_again(there: Callable[..., Scene]) -> None:
    scene = there()
    with armed("S5:raise"), pytest.raises(FailpointRaised):
        scene.deliver()
    scene.world.pass_s(scene.terms.times.lease_s + 1)
    assert scene.sweep() == batches.IN_DOUBT
    scene.deliver()
    assert scene.world.kinds() == "aaaa"
    assert len(scene.fake.letters()) == 4


def test_whoever_was_refused_in_the_lost_reply_is_refused(there: Callable[..., Scene]) -> None:
    scene = there(CUT)
    person = scene.world.people(scene.world.batch())[2]
    scene.fake.misbehave("refuse_recipient", person.email)
    scene.deliver()
    scene.world.pass_s(30)
    scene.deliver()
    assert scene.world.kinds() == "aara"
    assert len(scene.fake.letters()) == 3


def test_up_to_an_hour_before_the_key_is_forgotten_it_is_asked_for(there: Callable[..., Scene]) -> None:
    scene = there(CUT)
    scene.deliver()
    scene.world.pass_s(23 * HOUR_S - scene.terms.times.longest_call_s - 1)
    scene.deliver()
    assert scene.world.kinds() == "aaaa"
    assert len(scene.fake.letters()) == 4


@pytest.mark.parametrize("after_s", [23 * HOUR_S, 24 * HOUR_S + 1, 48 * HOUR_S])
def test_when_the_window_is_over_nothing_is_repeated(there: Callable[..., Scene], after_s: float) -> None:
    """A repeat would be a second letter for all four."""
    scene = there(CUT)
    scene.deliver()
    scene.world.pass_s(after_s)
    assert scene.planned() == []
    assert scene.sweep() == batches.HELD
    assert len(scene.fake.attempts) == 1
    assert scene.world.kinds() == "dddd"


def test_other_bytes_are_never_sent_under_the_key(there: Callable[..., Scene]) -> None:
    """A row was changed in between: the next rung of the ladder settles it."""
    scene = there(CUT)
    scene.deliver()
    person = replace(scene.world.people(scene.world.batch())[0], email="moved@one.example")
    scene.world.store.transact(lambda tx: tx.put(person), tag="test")
    scene.world.pass_s(30)
    scene.deliver()
    assert scene.planned() == []
    assert len(scene.fake.attempts) == 1
    assert scene.sweep() == batches.HELD


def test_another_account_is_never_asked(there: Callable[..., Scene]) -> None:
    scene = there(CUT)
    scene.deliver()
    scene.world.pass_s(30)
    with sender_for(scene.fake.url, key="re_of_another_team") as other:
        assert Scene(scene.world, other, scene.fake).planned() == []


def test_a_key_in_progress_stays_in_doubt_until_the_first_call_has_ended(there: Callable[..., Scene]) -> None:
    scene = there(CUT, Fate(409, {"Content-Type": "application/json"}, IN_PROGRESS))
    scene.deliver()
    scene.world.pass_s(30)
    scene.deliver()
    assert scene.world.kinds() == "dddd"
    scene.world.pass_s(2)
    assert scene.planned() == []
    scene.world.pass_s(10)
    scene.deliver()
    assert scene.world.kinds() == "aaaa"
    assert len(scene.fake.letters()) == 4


IN_PROGRESS = error(409, "concurrent_idempotent_requests", "In progress.").body
OTHER_BYTES = error(409, "invalid_idempotent_request", "Other payload.").body


def test_a_key_that_the_provider_knows_by_other_bytes_goes_to_the_next_rung(there: Callable[..., Scene]) -> None:
    scene = there(CUT, Fate(409, {"Content-Type": "application/json"}, OTHER_BYTES))
    scene.deliver()
    scene.world.pass_s(30)
    scene.deliver()
    scene.world.pass_s(30)
    assert scene.planned() == []
    assert scene.sweep() == batches.HELD
    assert len(scene.fake.attempts) == 2


def test_not_sent_at_a_repeat_says_nothing_of_the_first_try(there: Callable[..., Scene]) -> None:
    scene = there(CUT, Fate(429, {"Retry-After": "1"}))
    scene.deliver()
    scene.world.pass_s(30)
    scene.deliver()
    assert scene.world.kinds() == "dddd"
    scene.world.pass_s(60)
    scene.deliver()
    assert scene.world.kinds() == "aaaa"
    assert len(scene.fake.letters()) == 4
