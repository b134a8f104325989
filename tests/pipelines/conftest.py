from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipelines.shop import Shop


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    shop = Shop(tmp_path)
    yield shop
    shop.store.close()
