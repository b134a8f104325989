"""From a history that breaks an invariant to a short one that breaks it too.

A step or a fault that is left out changes no other's draws, so what is left keeps its meaning. First the last steps go,
then ever smaller parts of what happened, then what the world need not have.
"""

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from tests.simulator.running import Call, Told, run_and_tell
from tests.simulator.setups import Setup

MOST_RUNS = 600
# What a world is the simpler for.
SIMPLER: dict[str, list[Any]] = {
    "batches": [1, 2],
    "batch_size": [1, 3],
    "fallback": [False],
    "groups": [False],
    "limits": [()],
    "retries": [False],
    "stops": [""],
    "starts_s": [None],
    "ends_s": [None],
    "events": [False],
    "skewed": [False],
    "jumps": [False],
    "aborts": [0],
    "mixes_forms": [True],
    "per_call": [100],
    "outbound_log": ["rows"],
}


class Shrinker:
    """Looks for a shorter call that breaks one of the same invariants, in at most MOST_RUNS runs."""

    def __init__(self, told: Told, most_runs: int = MOST_RUNS) -> None:
        self._broken = told.broken
        self._runs = most_runs
        self.call = told.call

    def shrunk(self) -> Call:
        before: Call | None = None
        while self.call != before and self._runs > 0:
            before = self.call
            self._fewer_steps()
            self._simpler_world()
            self._less()
        return self.call

    def _breaks(self, call: Call) -> bool:
        """Whether a call breaks what the first one did; then it is the one to go on with."""
        if self._runs <= 0:
            return False
        self._runs -= 1
        if not run_and_tell(call)[0].broken & self._broken:
            return False
        self.call = call
        return True

    def _fewer_steps(self) -> None:
        low, high = 0, self.call.steps
        while low < high:
            middle = (low + high) // 2
            if self._breaks(replace(self.call, steps=middle)):
                high = middle
            else:
                low = middle + 1

    def _simpler_world(self) -> None:
        _, world, _ = run_and_tell(self.call)
        setup: Setup = world.setup
        for name, values in SIMPLER.items():
            for value in values:
                if value == getattr(setup, name):
                    break
                if self._breaks(replace(self.call, changes={**self.call.changes, name: value})):
                    break

    def _less(self) -> None:
        """Leave out as much of what happens as can be, in ever smaller parts; whole steps first."""
        for wanted in (_steps, _faults):
            size = max(1, len(wanted(self.call)) // 2)
            while True:
                for part in list(_parts(wanted(self.call), size)):
                    self._breaks(replace(self.call, without=(*self.call.without, *part)))
                if size == 1:
                    break
                size //= 2
        self._without_the_needless()

    def _without_the_needless(self) -> None:
        """What was left out and would not have happened anyway need not be named."""
        for name in self.call.without:
            step = name.partition("/")[0]
            inside = any(step == other or step.startswith(f"{other}.") for other in self.call.without if other != name)
            if inside or int(step.partition(".")[0]) > self.call.steps:
                self.call = replace(self.call, without=tuple(x for x in self.call.without if x != name))


def _steps(call: Call) -> list[str]:
    """The steps that the call takes, the last first."""
    _, world, _ = run_and_tell(call)
    return _names([event.name for event in world.course.events if not event.fault], call)


def _faults(call: Call) -> list[str]:
    _, world, _ = run_and_tell(call)
    return _names([event.name for event in world.course.events if event.fault], call)


def _names(names: list[str], call: Call) -> list[str]:
    return [name for name in reversed(names) if name not in call.without]


def _parts(names: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), size):
        yield names[start : start + size]


def command_of(call: Call, with_bug: str | None) -> str:
    """The call of the command line that repeats a history."""
    words = [f"python -m tests.simulator --seeds 1 --first {call.seed} --steps {call.steps}"]
    if call.without:
        words.append(f"--without {','.join(call.without)}")
    words += [f"--set {shlex.quote(f'{name}={json.dumps(value)}')}" for name, value in call.changes.items()]
    if with_bug is not None:
        words.append(f"--bug {with_bug}")
    return " ".join(words)
