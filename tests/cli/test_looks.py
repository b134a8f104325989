"""What may be old where somebody only watches, and what must not be."""

from collections.abc import Callable
from typing import Any

import pytest

from sendonce.cli import status as status_command
from sendonce.cli.looks import STALE_S, Looks
from sendonce.stores.base import Reader, Store
from sendonce.stores.sqlite import SQLiteStore
from tests.cli.conftest import Call
from tests.control.made import seal


def test_looks_start_with_the_present_and_never_go_back() -> None:
    now_s = 100.0
    looks = Looks(lambda: now_s)
    shown: list[float] = []
    for passed_s in (0.0, 0.5, 1.0, 5.0, 19.0, 21.0, 60.0, 3600.0):
        now_s = 100.0 + passed_s
        stale_s = looks.stale_s()
        assert 0 <= stale_s <= STALE_S
        shown.append(now_s - stale_s)
    assert shown[0] == 100.0
    assert shown == sorted(shown)
    assert len(set(shown)) == len(shown)
    assert shown[-1] == now_s - STALE_S


@pytest.fixture
def ages(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How old each read of the store was allowed to be."""
    found: list[float] = []
    real = SQLiteStore.read

    def read(self: SQLiteStore, work: Callable[[Reader], Any], *, stale_s: float = 0.0) -> Any:
        found.append(stale_s)
        return real(self, work, stale_s=stale_s)

    monkeypatch.setattr(SQLiteStore, "read", read)
    return found


@pytest.mark.parametrize("command", [("status", "spring"), ("list",), ("lanes",), ("doubts", "list"), ("doctor",)])
def test_who_asks_once_sees_the_present(
    sendonce: Call, store: Store, ages: list[float], command: tuple[str, ...]
) -> None:
    """`status` right after `submit` must show it."""
    seal(store, "spring", [3], state="running")
    sendonce(*command)
    assert set(ages) == {0.0}


def test_only_later_looks_of_a_watch_are_stale(
    sendonce: Call, store: Store, ages: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    seal(store, "spring", [3], state="completed")
    seal(store, "autumn", [3], state="running")
    ages.clear()
    assert sendonce("status", "spring", "--watch", "--json").code == 0
    assert set(ages) == {0.0}
    ages.clear()
    looked = 0

    def look_again(seconds: float) -> None:
        nonlocal looked
        looked += 1
        if looked == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(status_command.time, "sleep", look_again)
    sendonce("status", "autumn", "--watch", "--json")
    assert ages[0] == 0.0
    assert 0 < ages[-1] < STALE_S
