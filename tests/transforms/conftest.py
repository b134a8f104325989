from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.control.made import Clock
from tests.delivery.world import World


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 1, 15, 9, 0, tzinfo=UTC))


@pytest.fixture
def world(tmp_path: Path, clock: Clock) -> Iterator[World]:
    world = World(tmp_path, clock)
    yield world
    world.close()
