from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sendonce.stores.base import Store
from sendonce.stores.opening import init_store, open_store
from tests.control.lists import Loads
from tests.control.made import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock(datetime(2026, 1, 15, 9, 0, tzinfo=UTC))


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    init_store(url).close()
    opened = open_store(url, clock=clock)
    yield opened
    opened.close()


@pytest.fixture
def loads(store: Store, tmp_path: Path) -> Loads:
    return Loads(store, tmp_path)
