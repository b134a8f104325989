"""Places in the protocol at which a test can make this process die, stall, fail or lose a reply.

Off by default, and then a call costs one comparison. The environment turns them on, when the process starts:

    SENDONCE_FAILPOINT=POINT:ACTION[:NTH][;POINT:ACTION[:NTH]]…

    POINT        a name of `POINTS`: S0 to S8, N1, M1
    kill9        SIGKILL to this process: nothing is flushed, nothing is closed
    pause(S)     sleep S seconds, then go on
    raise        raise `FailpointRaised`
    drop_reply   `failpoint` returns "drop_reply"; the caller then acts as if the provider's reply never came
    NTH          act only the NTH time that this process reaches the point, counted from 1.
                 Without it every time (for kill9 that is the first)

Examples: `S3:kill9`, `S5:drop_reply:2`, `S6:pause(31.5)`, `S3:raise:1;S7:kill9:4`.

A malformed text is a ValueError when this module is imported, so that a test never believes in a fault that did not
happen. It names the part that is wrong and what is allowed.
"""

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

VARIABLE: Final = "SENDONCE_FAILPOINT"
DROP_REPLY: Final = "drop_reply"

POINTS: Final[dict[str, str]] = {
    "S0": "trigger read",
    "S1": "trigger stored",
    "S2": "planned",
    "S3": "intent committed",
    "S4": "request written",
    "S5": "provider accepted",
    "S6": "reply read",
    "S7": "outcome committed",
    "S8": "bundle committed",
    "N1": "notices published",
    "M1": "recipient named to a mail server",
}

_PART = re.compile(
    r"(?P<point>\w+):(?P<action>kill9|raise|drop_reply|pause\((?P<seconds>\d+(?:\.\d+)?)\))(:(?P<nth>[1-9]\d*))?"
)


class FailpointRaised(Exception):
    """What the action `raise` raises. Nothing of ours catches it by name."""


@dataclass(frozen=True)
class Fault:
    """One part of the text. `nth` None: every time. `pause_s` counts for the action `pause` alone."""

    point: str
    action: str
    pause_s: float = 0.0
    nth: int | None = None


def parse(text: str) -> list[Fault]:
    """The faults of a SENDONCE_FAILPOINT text, in its order; none for an empty text. ValueError if it is malformed."""
    return [_fault(part.strip()) for part in text.split(";") if part.strip()]


def _fault(part: str) -> Fault:
    found = _PART.fullmatch(part)
    if found is None:
        raise ValueError(
            f"{VARIABLE}: cannot read {part!r}; write POINT:kill9|pause(SECONDS)|raise|drop_reply[:NTH], "
            "for example S3:kill9:2"
        )
    point, action, seconds, nth = found.group("point", "action", "seconds", "nth")
    if point not in POINTS:
        known = ", ".join(f"{name} ({meaning})" for name, meaning in POINTS.items())
        raise ValueError(f"{VARIABLE}: {part!r} names no failpoint; there are {known}")
    return Fault(point, action.partition("(")[0], float(seconds or 0), int(nth) if nth else None)


class Failpoints:
    """Counts how often each point is reached in this process, by all its threads together, and acts."""

    def __init__(
        self,
        faults: list[Fault],
        *,
        sleep: Callable[[float], None] = time.sleep,
        kill: Callable[[], None] = lambda: os.kill(os.getpid(), signal.SIGKILL),
    ) -> None:
        self._faults = faults
        self._sleep = sleep
        self._kill = kill
        self._reached = dict.fromkeys(POINTS, 0)
        self._counting = threading.Lock()

    def reach(self, name: str) -> str | None:
        """Act out the faults of this point that are due now. KeyError for a name that `POINTS` does not have."""
        with self._counting:
            self._reached[name] += 1
            count = self._reached[name]
        reply = None
        for fault in self._faults:
            if fault.point != name or fault.nth not in (None, count):
                continue
            if fault.action == "kill9":
                self._kill()
            elif fault.action == "pause":
                self._sleep(fault.pause_s)
            elif fault.action == "raise":
                raise FailpointRaised(f"failpoint {name} ({POINTS[name]}), time {count} in this process")
            else:
                reply = DROP_REPLY
        return reply


def _from_environment() -> Failpoints | None:
    faults = parse(os.environ.get(VARIABLE, ""))
    return Failpoints(faults) if faults else None


_armed: Failpoints | None = _from_environment()


def failpoint(name: str) -> str | None:
    """Mark a point of the protocol. Returns "drop_reply" if that fault is due here, else None."""
    if _armed is None:
        return None
    return _armed.reach(name)


@contextmanager
def armed(text: str) -> Iterator[None]:
    """For tests in one process: the faults of `text` are on inside the block, with fresh counts."""
    global _armed
    before = _armed
    _armed = Failpoints(parse(text))
    try:
        yield
    finally:
        _armed = before
