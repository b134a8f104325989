"""Runs seeds, one or many, and says what each of them showed."""

import gc
import multiprocessing
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tests.bugs import bug
from tests.checker import Violation
from tests.simulator.judging import judged
from tests.simulator.telling import lines_of, trace_of
from tests.simulator.world import STEPS, World

CRASH = "crash"
# A world is a ring of objects: it goes when the collector comes, and that is cheaper for some at once.
COLLECTED_EVERY = 40


@dataclass(frozen=True)
class Call:
    """Everything that a history depends on. without: names of steps and faults that are left out."""

    seed: int
    steps: int = STEPS
    without: tuple[str, ...] = ()
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Told:
    """What one run showed. trace: the name of its history. faults: how often each happened."""

    call: Call
    trace: str
    violations: list[Violation]
    faults: Counter[str]

    @property
    def broken(self) -> frozenset[str]:
        return frozenset(violation.invariant for violation in self.violations)


def run(call: Call) -> Told:
    return _told(call, _played(call))


def run_and_tell(call: Call) -> tuple[Told, World, list[str]]:
    """The same, with the world as it was left and its history in words."""
    world, violations = _played(call)
    return _told(call, (world, violations)), world, lines_of(world)


def _told(call: Call, played: tuple[World, list[Violation]]) -> Told:
    world, violations = played
    return Told(call, trace_of(world), violations, world.course.counts())


def _played(call: Call) -> tuple[World, list[Violation]]:
    world = World(call.seed, without=call.without, **call.changes)
    try:
        world.play(call.steps)
        return world, judged(world).violations
    except Exception as fault:
        last = traceback.extract_tb(fault.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        return world, [Violation(CRASH, where, f"{type(fault).__name__}: {fault}")]


def run_many(
    calls: Iterable[Call], *, processes: int, with_bug: str | None = None, at_once: int = 20
) -> Iterator[Told]:
    """Every run as it ends. Whoever reads no further ends the rest."""
    with multiprocessing.Pool(processes, _begin, (with_bug,)) as pool:
        yield from pool.imap_unordered(_run_in_pool, calls, chunksize=at_once)


def _begin(with_bug: str | None) -> None:
    _for_ever.enter_context(bug(with_bug))
    gc.disable()
    gc.freeze()


_for_ever = ExitStack()
_runs = 0


def _run_in_pool(call: Call) -> Told:
    global _runs
    _runs += 1
    if _runs % COLLECTED_EVERY == 0:
        gc.collect()
    return run(call)
