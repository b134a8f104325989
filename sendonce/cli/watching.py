"""Campaigns as they go, on standard error: bars on a terminal, a line now and then elsewhere."""

import threading
import time
from collections import deque
from contextlib import suppress
from datetime import datetime
from types import TracebackType
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from schemas.tables import Campaign
from sendonce.cli.looks import Looks
from sendonce.cli.output import duration, err, joined, kind_text, moment, number, percent
from sendonce.cli.senders import awaited_text, ending_text, health_text
from sendonce.control.campaigns import CANCELLING, RUNNING
from sendonce.control.in_flight import InFlight, awaited, in_flight, unfinished_of
from sendonce.control.progress import Counts, estimate, quick_count
from sendonce.control.schedule import starts_later
from sendonce.control.sender_health import SenderHealth, unwell_senders
from sendonce.stores.base import Reader, Store, StoreError

_LOOK_S: Final = 0.25
# Where only a line is said now and then: each look adds up every batch of the campaigns that run.
_QUIET_LOOK_S: Final = 1.0
_LINE_S: Final = 10.0
# A store that does not answer must not hold up the end.
_LAST_LOOK_S: Final = 2.0
# What is waited for is said again so often, so that nobody takes a run that waits for one that hangs.
_AGAIN_S: Final = 60.0
# The speed shown is that of the last seconds: long enough to be steady, short enough to tell the truth.
_SPEED_OVER_S: Final = 6.0
_SHOWN: Final = 8
# Shorter waits are part of the pace.
_WORTH_SAYING_S: Final = 0.9
_WAITS: Final = {
    "limit": "a limit is used up",
    "scheduled": "a campaign starts then",
    "lease": "work that another process holds, or held when it was killed",
    "doubt": "a request in doubt is asked about again",
    "retry": "what was not sent is tried again",
    "throttled": "the provider asked to slow down",
    "breaker_open": "the provider fails",
}


class Watch:
    """Follows one campaign, or those of a job's lanes that run while it is open. Reads only; a busy store is asked
    later.

    lanes: the job's, all if there are none. Their senders are told of, too, when they are what work waits for.
    job_id, stop: those of a job that may take long to stop: when it is asked to, what it has in flight is told of.
    """

    def __init__(
        self,
        store: Store,
        campaign_id: str | None = None,
        lanes: tuple[str, ...] = (),
        job_id: str = "",
        stop: threading.Event | None = None,
    ) -> None:
        self._store = store
        self._lanes = lanes
        self._only = campaign_id
        self._job_id = job_id
        self._stop = stop or threading.Event()
        self._stop_told = not job_id
        self._flights: list[InFlight] = []
        self._at: datetime | None = None
        self._awaited: list[str] = []
        self._awaited_said: tuple[list[str], float] = ([], 0.0)
        self._over = threading.Event()
        self._looks = Looks()
        self._thread = threading.Thread(target=self._follow, name="watch", daemon=True)
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        self._runs: set[str] = set()
        # What the last line of each campaign said: the same is not said again.
        self._said: dict[str, tuple[int, dict[str, int]]] = {}
        self._waits = ""
        self._waits_said: object = ""
        self._live = Live(console=err(), refresh_per_second=8) if err().is_terminal else None

    def __enter__(self) -> "Watch":
        if self._live:
            self._live.start()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(_LAST_LOOK_S)
        if self._live:
            self._live.stop()

    def round(self, found: Any) -> None:
        """What a run tells between its rounds (`pipelines.local.Round`): shown when it has to wait for something."""
        left = found.left
        waits = wait_text(left) if found.sleep_s >= _WORTH_SAYING_S else ""
        said: object = waits
        if waits and left.due_for in ("retry", "throttled", "breaker_open"):
            unwell = self._unwell()
            waits = "\n".join([waits, *(health_text(health) for health in unwell)])
            # One more failure in a row is no news; that it is another one is, or that they opened the breaker.
            failing = left.due_for == "retry" and unwell and all(health.state == "failing" for health in unwell)
            said = [(health.sender, health.reason) for health in unwell] if failing else waits
        if waits and said != self._waits_said:
            self._waits_said = said
            if not self._live:
                err().print(Text(waits, "yellow"))
        self._waits = waits

    def _unwell(self) -> list[SenderHealth]:
        with suppress(StoreError):
            return self._store.read(lambda reader: unwell_senders(reader, self._lanes))
        return []

    def _follow(self) -> None:
        said_s = time.monotonic()
        last = False
        while not last:
            last = self._over.wait(_LOOK_S if self._live else _QUIET_LOOK_S)
            with suppress(StoreError):
                found = self._store.read(self._look, stale_s=0.0 if last else self._looks.stale_s())
                speeds = {name: self._speed(name, counts.done) for name, counts in found.items()}
                self._tell_stop()
                if self._live:
                    bars: list[RenderableType] = [_bars(name, found[name], speeds[name]) for name in found]
                    waits = [*self._awaited, *([self._waits] if self._waits else [])]
                    self._live.update(Group(*bars, *(Text(line, "yellow") for line in waits)))
                elif last or time.monotonic() - said_s >= _LINE_S:
                    said_s = time.monotonic()
                    self._say(found, speeds)

    def _tell_stop(self) -> None:
        """Once, after a job was asked to stop: what it still waits for."""
        if self._stop_told or not self._stop.is_set() or self._at is None:
            return
        self._stop_told = True
        mine = [flight for flight in self._flights if flight.worker_id == self._job_id]
        if mine:
            err().print(Text(ending_text(mine, self._at), "yellow"))

    def _say_awaited(self) -> None:
        before, said_s = self._awaited_said
        if self._awaited and (self._awaited != before or time.monotonic() - said_s >= _AGAIN_S):
            self._awaited_said = self._awaited, time.monotonic()
            for line in self._awaited:
                err().print(Text(line, "yellow"))

    def _say(self, found: dict[str, Counts], speeds: dict[str, float | None]) -> None:
        self._say_awaited()
        for name, counts in found.items():
            told = counts.recipients, counts.outcomes
            if self._said.get(name) != told:
                self._said[name] = told
                err().print(_line(name, counts, speeds[name]))
            if name not in self._runs:  # that was its last line
                self._seen.pop(name, None)

    def _look(self, reader: Reader) -> dict[str, Counts]:
        self._at = now = reader.now()
        campaigns = [row for row in unfinished_of(reader) if self._follows(row)]
        self._flights = in_flight(reader, campaigns)
        self._awaited = [awaited_text(one) for one in awaited(self._flights, now)]
        if self._only is not None:
            names = [self._only]
            self._runs = {self._only}
        else:
            states = (RUNNING, CANCELLING)
            rows = [row for state in states for row in reader.scan(Campaign, state, index="campaigns_by_state")]
            begun = [row for row in rows if starts_later(row, now) is None]
            running = [row.campaign_id for row in begun if not self._lanes or row.priority in self._lanes]
            self._runs = set(running)
            over = [name for name in self._seen if name not in self._runs]
            # A line is said of what has just ended, and then no more; its bar stays while there is room.
            names = ([*running, *over] if self._live else [*over, *running])[:_SHOWN]
        return {name: quick_count(reader, name) for name in names}

    def _follows(self, campaign: Campaign) -> bool:
        if self._only is not None:
            return campaign.campaign_id == self._only
        return not self._lanes or campaign.priority in self._lanes

    def _speed(self, name: str, done: int) -> float | None:
        looks = self._seen.setdefault(name, deque())
        now = time.monotonic()
        looks.append((now, done))
        while now - looks[0][0] > _SPEED_OVER_S:
            looks.popleft()
        passed_s, passed = now - looks[0][0], done - looks[0][1]
        return passed / passed_s if passed > 0 and passed_s > 0 else None


def wait_text(left: Any) -> str:
    """What the next work waits for, and until when. `left` is a `sendonce.delivery.outlook.Left`."""
    what = _WAITS.get(left.due_for, "")
    if not what or left.due_at is None:
        return ""
    if left.due_for == "limit" and left.full_limits:
        what = f"{'; '.join(left.full_limits)} is used up"
    return f"Waiting until {moment(left.due_at)}: {what}. Ctrl-C is safe, `sendonce run` goes on."


def outcome_line(outcomes: dict[str, int]) -> Text:
    """`19,950 accepted · 50 refused`: the kinds that occurred, in their order."""
    return joined(_kinds(outcomes), err().width)


def _kinds(outcomes: dict[str, int]) -> list[Text]:
    return [Text(f"{number(found)} ").append(kind_text(kind)) for kind, found in outcomes.items() if found]


def _bars(name: str, counts: Counts, speed: float | None) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True, max_width=20)
    grid.add_column(width=24)
    grid.add_column(justify="right", width=7)
    grid.add_column(no_wrap=True)
    bar = ProgressBar(
        total=max(1, counts.recipients), completed=counts.done, complete_style="blue", finished_style="green"
    )
    share = estimate(counts.recipients, counts.done, 0.0).percent
    grid.add_row(Text(name, "bold"), bar, percent(share), Text(_pace(counts, speed), "dim"))
    return Group(grid, Padding(joined(_kinds(counts.outcomes), err().width - 2), (0, 0, 0, 2)))


def _line(name: str, counts: Counts, speed: float | None) -> Text:
    done = f"{name}: {number(counts.done)} of {number(counts.recipients)}"
    pace = _pace(counts, speed)
    first, *others = _kinds(counts.outcomes) or [Text()]
    head = Text(f"{done}, {pace}; " if pace else f"{done}; ")
    return joined([head.append(first), *others], err().width)


def _pace(counts: Counts, speed: float | None) -> str:
    if not speed or not counts.unsettled:
        return ""
    return f"{number(speed)}/s, {duration(counts.unsettled / speed)} left"
