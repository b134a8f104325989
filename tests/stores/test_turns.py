"""Whose turn it is to write: urgent work first, but not alone, and every turn is given once."""

import threading
import time
from collections.abc import Callable

import pytest

from sendonce.stores import turns
from sendonce.stores.turns import Turns, urgent


class Line:
    """Threads that each take a turn and note when they had it."""

    def __init__(self) -> None:
        self.turns, self.had = Turns(), list[str]()
        self._threads: list[threading.Thread] = []

    def ask(self, name: str, *, urgently: bool) -> None:
        """Ask for a turn in a thread of its own; returns when it stands in line."""

        def work() -> None:
            with urgent(urgently):
                assert self.turns.take(60)
                self.had.append(name)
                self.turns.give()

        before = self.standing
        thread = threading.Thread(target=work)
        thread.start()
        self._threads.append(thread)
        _until(lambda: self.standing > before)

    @property
    def standing(self) -> int:
        return sum(len(line) for line in self.turns._waiting)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


def _until(holds: Callable[[], bool]) -> None:
    end_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.001)


def test_urgent_work_goes_first_and_each_kind_in_its_order() -> None:
    line = Line()
    assert line.turns.take(0)
    for name in ("bulk 1", "bulk 2"):
        line.ask(name, urgently=False)
    for name in ("code 1", "code 2"):
        line.ask(name, urgently=True)
    line.turns.give()
    line.join()
    assert line.had == ["code 1", "code 2", "bulk 1", "bulk 2"]


def test_urgent_work_does_not_keep_others_out_for_ever() -> None:
    line = Line()
    assert line.turns.take(0)
    line.ask("bulk", urgently=False)
    for number in range(turns._URGENT_IN_A_ROW + 5):
        line.ask(f"code {number}", urgently=True)
    line.turns.give()
    line.join()
    assert line.had.index("bulk") == turns._URGENT_IN_A_ROW


def test_who_gives_up_leaves_the_line() -> None:
    line = Line()
    assert line.turns.take(0)
    assert not line.turns.take(0.01)
    assert line.standing == 0
    line.ask("later", urgently=False)
    line.turns.give()
    line.join()
    assert line.had == ["later"]
    assert line.turns.take(0)


def test_only_one_has_the_turn() -> None:
    shared, inside, most = Turns(), [0], [0]

    def work(so: bool) -> None:
        with urgent(so):
            for _ in range(50):
                assert shared.take(60)
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1
                shared.give()

    threads = [threading.Thread(target=work, args=(bool(number % 2),)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]


def test_urgency_ends_with_its_block() -> None:
    with urgent():
        with urgent(False):
            assert not turns._urgency.urgent
        assert turns._urgency.urgent
    assert not turns._urgency.urgent


def test_ctrl_c_while_waiting_leaves_no_turn_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = Turns()
    assert shared.take(0)

    def interrupted(self: threading.Event, timeout: float | None = None) -> bool:
        shared.give()  # the turn comes at the very moment
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(threading.Event, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            shared.take(60)
    assert shared.take(0)
