"""What a seed decides: each step of a history draws from a stream of its own, and every fault has a name.

So a history can be told again with some steps and faults left out while all others stay what they were. Names: `12` is
the twelfth step, `12.3` the third step that others took while the twelfth stood still, `12.3/4` the fourth chance of a
fault in that one.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Event:
    """A step that was taken, or a fault that happened in it. fault: its kind; empty for a step."""

    name: str
    at: datetime
    what: str
    fault: str = ""

    @property
    def step(self) -> str:
        return self.name.partition("/")[0]


@dataclass
class Step:
    name: str
    stream: random.Random
    chances: int = 0
    within: int = 0


@dataclass
class Course:
    """The decisions of one run. without: names of steps and faults to leave out. faults: whether any may happen."""

    seed: int
    now: Callable[[], datetime]
    without: Collection[str] = ()
    faults: bool = True
    events: list[Event] = field(default_factory=list)
    _steps: list[Step] = field(default_factory=list)
    _begun: int = 0

    @contextmanager
    def step(self) -> Iterator[bool]:
        """The next step, or the next one within the one that stands still. False: it is left out."""
        if self._steps:
            self._steps[-1].within += 1
            name = f"{self._steps[-1].name}.{self._steps[-1].within}"
        else:
            self._begun += 1
            name = str(self._begun)
        self._steps.append(Step(name, random.Random(f"{self.seed} {name}")))
        try:
            yield name not in self.without
        finally:
            self._steps.pop()

    @property
    def depth(self) -> int:
        return len(self._steps)

    @property
    def chance(self) -> random.Random:
        """Chance of the step that runs."""
        return self._steps[-1].stream

    def choose(self, *choices: tuple[str, int]) -> str:
        """One of the names by weight: what a step does."""
        picked = _picked(self.chance, choices)
        self.events.append(Event(self._steps[-1].name, self.now(), picked))
        return picked

    def fault(self, where: str, *choices: tuple[str, int]) -> str:
        """A fault by weight, or the first choice, which is none."""
        if not self.faults:
            return choices[0][0]
        step = self._steps[-1]
        step.chances += 1
        picked = _picked(step.stream, choices)
        if picked == choices[0][0]:
            return picked
        name = f"{step.name}/{step.chances}"
        if name in self.without:
            return choices[0][0]
        self.events.append(Event(name, self.now(), where, picked))
        return picked

    def happens(self, where: str, fault: str, percent: int) -> bool:
        return self.fault(where, ("", 100 - percent), (fault, percent)) == fault

    def counts(self) -> Counter[str]:
        """How often each fault happened, by what and where: `kill S3`."""
        return Counter(f"{event.fault} {event.what}" for event in self.events if event.fault)


def _picked(stream: random.Random, choices: tuple[tuple[str, int], ...]) -> str:
    at = stream.random() * sum([weight for _, weight in choices])
    for name, weight in choices:
        at -= weight
        if at < 0:
            return name
    return choices[0][0]


def digest(lines: Collection[str]) -> str:
    """One name for one history."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]
