"""When and where processes die, and the processes that do."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

POINTS = ("S2", "S3", "S4", "S5", "S6", "S7", "S8")
# A live job takes triggers, and does not wait for its bundles.
LIVE_POINTS = ("S0", "S1", "S2", "S3", "S4", "S5", "S6", "S7")
# Reached by one sender alone: the recipient of a letter is named, and the letter is still to follow.
POINTS_OF = {"smtp": ("M1",)}
# A round plans once per lane, and closes its bundles when all its work is done; a trigger is rare; the other points are
# reached with each request.
NTH = {"S0": (1, 2), "S1": (1, 2), "S2": (2, 5), "S8": (1, 1), "M1": (2, 30)}
NTH_ELSE = (1, 3)
# A process that works so long without reaching its failpoint is killed from outside, before it eats up all the work.
PATIENCE_S = {"S8": 20.0}
PATIENCE_ELSE_S = 6.0
RANDOM_AFTER_S = 3.0
SHARE_MIN = 0.6


@dataclass(frozen=True)
class Kill:
    """At the nth time that a process reaches `point`; or, with no point, `after_s` seconds after it got to work."""

    point: str
    nth: int = 1
    after_s: float = 0.0

    @property
    def where(self) -> str:
        return self.point or "any time"

    @property
    def failpoint(self) -> str:
        """The value of SENDONCE_FAILPOINT; empty for a kill from outside."""
        return f"{self.point}:kill9:{self.nth}" if self.point else ""


def points_of(senders: Sequence[str], *, live: bool) -> tuple[str, ...]:
    """The failpoints that jobs which send by these reach."""
    more = tuple(point for sender in senders for point in POINTS_OF.get(sender, ()))
    return (*(LIVE_POINTS if live else POINTS), *more)


def plan_kills(
    chance: random.Random, number: int, points: tuple[str, ...] = POINTS, *, any_time: bool = True
) -> list[Kill]:
    """Every failpoint and "any time" equally often (as far as the number allows), in a random order."""
    kinds = [*points, *([""] if any_time else [])]
    chance.shuffle(kinds)
    kills = [
        Kill(point, chance.randint(*NTH.get(point, NTH_ELSE)))
        if point
        else Kill("", after_s=chance.uniform(0, RANDOM_AFTER_S))
        for point in (kinds[index % len(kinds)] for index in range(number))
    ]
    chance.shuffle(kills)
    return kills


def must_hurry(left: int, total: int, kills_left: int, kills: int) -> bool:
    """Whether the work runs out before the kills do: less than `SHARE_MIN` of its share is left for each.

    On a busy machine a process needs longer to start or to reach its failpoint, and the others go on with the work.
    """
    return left * kills < SHARE_MIN * total * kills_left


# Of the processes that a killed job leaves behind, so many are left to end by themselves, as they must.
LEFT_ALONE = 0.3
# A job whose lanes' process has died at its failpoint starts that one again; some jobs die before, some after.
RESTARTED_S = 4.0
_LANES_DIED = b"was ended by SIGKILL"


class Worker:
    """One `sendonce run` process, live with `arguments` that say so, and the process that it starts for its bulk lane.

    Killed with signal 9 and by their own ids only. A failpoint may kill the lane's process alone: `due` says when the
    job follows it.
    """

    def __init__(
        self,
        folder: Path,
        number: int,
        environment: Mapping[str, str],
        kill: Kill | None,
        chance: random.Random,
        arguments: Sequence[str] = (),
    ) -> None:
        self.number = number
        self.kill = kill
        self._chance = chance
        self._lanes: set[int] = set()
        self._lanes_died_s: float | None = None
        self._follows_s = chance.uniform(0, RESTARTED_S)
        self.log = folder / "logs" / f"run-{number:03d}.log"
        self.at_work_since: float | None = None
        faults = {"SENDONCE_FAILPOINT": kill.failpoint} if kill and kill.failpoint else {}
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "sendonce.cli", "run", *arguments],
                cwd=folder,
                env={**environment, **faults},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def was_killed(self) -> bool:
        return self.process.returncode == -signal.SIGKILL

    def lanes_died(self) -> bool:
        """Whether the process of its bulk lane died at the failpoint; it says so in its log."""
        if self._lanes_died_s is None and _LANES_DIED in self.log.read_bytes():
            self._lanes_died_s = time.monotonic()
        return self._lanes_died_s is not None

    @property
    def was_turned_away(self) -> bool:
        """Whether it ended because what it needs did not answer when it started, and said so."""
        words = self.tail()
        return self.process.returncode == 1 and ("does not answer" in words or "could not be reached" in words)

    @property
    def waits_for_a_person(self) -> bool:
        """Whether it ended because only doubts are left that a person must decide, and said so."""
        return self.process.returncode == 1 and "doubts wait for a person" in " ".join(self.tail().split())

    def due(self, *, hurry: bool, patience: float = 1.0) -> bool:
        """Whether a kill from outside is due now; in a hurry, as soon as the process works. patience: how many times
        longer than usual it is waited for that the process reaches its failpoint."""
        if self.kill is None or self.at_work_since is None:
            return False
        point = self.kill.point
        if self.lanes_died():
            assert self._lanes_died_s is not None
            return time.monotonic() - self._lanes_died_s >= self._follows_s
        after_s = patience * PATIENCE_S.get(point, PATIENCE_ELSE_S) if point else self.kill.after_s
        return hurry or time.monotonic() - self.at_work_since >= after_s

    def die(self) -> None:
        """kill -9, and wait until the process is gone. The one of its lane dies with it, or is left to itself."""
        if self.alive:
            self._lanes |= _children(self.process.pid)
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait()
        if self._chance.random() >= LEFT_ALONE:
            self.leave_nothing()

    def leave_nothing(self) -> None:
        """kill -9 to the process of its lane, if that still runs."""
        for pid in filter(_is_lanes, self._lanes):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def stop(self, patience_s: float) -> None:
        """Ask it to end as a person would, and wait for that. TimeoutExpired when it does not."""
        self._lanes |= _children(self.process.pid)
        self.process.terminate()
        self.process.wait(patience_s)

    def tail(self, lines: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def _children(parent: int) -> set[int]:
    """The processes that a process has started, as Linux tells them."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            _, _, rest = stat.read_text().rpartition(")")
            if int(rest.split()[1]) == parent:
                found.add(int(stat.parent.name))
    return found


def _is_lanes(pid: int) -> bool:
    with suppress(OSError):
        return b"pipelines.lane_worker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
