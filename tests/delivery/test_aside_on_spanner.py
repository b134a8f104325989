"""Doubts beside their batches on the Spanner emulator: what SQLite's tests prove there holds here."""

from datetime import UTC, datetime
from itertools import count

import pytest

from schemas.tables import AsideDoubt
from sendonce.delivery.resolver import decide
from sendonce.stores.opening import init_store, store_key
from tests.control.made import Clock
from tests.delivery.test_aside import LOST
from tests.delivery.world import World
from tests.emulated import Emulator
from tests.fakes import ProviderLog

pytest.importorskip("google.cloud.spanner", reason="google-cloud-spanner is not installed")
_numbers = count(1)


class OnSpanner(World):
    """The same, with the store's own time."""

    def __init__(self) -> None:
        self.clock = Clock(datetime.now(UTC))
        self.began = self.clock.at
        self.store = init_store(f"spanner://sendonce-test/aside/store-{next(_numbers)}")
        self.key = store_key(self.store)
        self.log = ProviderLog(lambda: datetime.now(UTC))
        self.own_skew_s = 0.0
        self._ids = 0


def test_the_others_go_on_and_each_doubt_is_settled_by_itself(spanner: Emulator) -> None:
    world = OnSpanner()
    world.campaign([4])
    for _ in range(2):
        world.deliver(world.sender([LOST], recipients=1))
        world.sweep()
    beside = world.store.read(lambda reader: reader.scan(AsideDoubt))
    assert (world.kinds(), world.batch().state, [row.state for row in beside]) == ("ddoo", "pending", ["held"] * 2)

    first, second = world.doubts()
    assert decide(world.store, world.key, second, "resend", "ann", "", "rows", "d2") == "resend"
    world.deliver(world.sender(recipients=1))
    assert (world.kinds(), world.batch().state, world.batch().attempt_id) == ("daaa", "held", first.attempt_id)
    assert (world.batch().intent_at, world.batch().doubt_since) == (first.intent_at, first.since)

    assert decide(world.store, world.key, first, "assume", "ann", "", "rows", "d1") == "assume"
    world.sweep()
    assert (world.kinds(), world.campaign_row().state) == ("uaaa", "completed")
    assert world.store.read(lambda reader: reader.scan(AsideDoubt)) == []
