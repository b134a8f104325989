"""The delivery core under random faults keeps its invariants; without any one of its guards it does not."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from schemas.outcomes import Outcome
from schemas.tables import Batch
from sendonce.delivery import batches, reopening, retrying
from tests.bugs import BUGS, Put, bug
from tests.simulator.judging import judged
from tests.simulator.running import Call, run, run_and_tell
from tests.simulator.setups import Setup
from tests.simulator.shrinking import SIMPLER, Shrinker, command_of
from tests.simulator.world import World

SEEDS = range(40)
MANY_SEEDS = range(300)


def played(seed: int, **changes: Any) -> World:
    """A world after a history that kept every invariant and left nobody open."""
    world = World(seed, **changes)
    world.play()
    findings = judged(world)
    assert [str(violation) for violation in findings.violations] == [], f"seed {seed}"
    assert findings.outcomes["open"] == findings.outcomes["in_doubt"] == 0
    assert sum(findings.outcomes.values()) == findings.recipients
    return world


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_keeps_every_invariant(seed: int) -> None:
    played(seed)


def test_a_breaker_that_opens_at_every_failure_lets_one_request_out_at_a_time() -> None:
    worlds = [played(seed, failures_to_open=1, fallback=False) for seed in range(60)]
    assert sum(world.watch.probes for world in worlds) >= 5


def test_seeds_retry_and_keep_every_invariant() -> None:
    """Retries race claims, kills, pauses, cancels and each other; whoever was accepted is never opened (I10)."""
    worlds = [played(seed, retries=True) for seed in range(100, 140)]
    assert sum(world.people.rounds for world in worlds) >= 10


def test_seeds_fail_over_and_keep_every_invariant() -> None:
    """The first provider goes away and comes back; what it may have taken never moves, whoever dies meanwhile."""
    many: dict[str, Any] = {"fallback": True, "batches": 5, "batch_size": 4, "starts_s": None, "ends_s": None}
    ways = [
        played(seed, failures_to_open=1 + seed % 3, per_call=1 + seed % 3, **many).ways() for seed in range(200, 240)
    ]
    assert sum(by_fallback > 0 for by_fallback, _ in ways) >= 10
    assert sum(by_own_again > 0 for _, by_own_again in ways) >= 10


def test_every_kind_of_fault_happens() -> None:
    """What the simulator claims to do it does, in few seeds."""
    seen = set()
    for seed in range(300):
        world = World(seed)
        world.play()
        seen |= {event.fault for event in world.course.events if event.fault}
        seen |= {f"{event.fault} {event.what}" for event in world.course.events if event.what in POINTS}
    assert FAULTS - seen == set()


POINTS = ("S0", "S1", "S2", "S3", "S4", "S5", "S6", "S7")
FAULTS = {f"{what} {point}" for what in ("kill", "pause") for point in POINTS} | {
    *("drop S5", "drop S6"),
    *("abort", "unavailable", "reply lost", "kill", "pause", "away", "jump", "drain"),
    *("again", "twice", "lose", "poison", "other letters"),
    *("unknown, not taken", "cannot connect", "throttled until", "throttled", "refused", "credentials"),
    *("some refused", "some not sent", "some unknown", "mixed"),
}


def test_a_seed_repeats_itself_also_in_another_process() -> None:
    """Nothing of a history hangs on the process: not on the order of a set, not on a clock."""
    command = [sys.executable, "-m", "tests.simulator", "--seeds", "1", "--first", "11", "--replay", "--processes", "1"]
    told = [
        subprocess.run(command, env={**os.environ, "PYTHONHASHSEED": salt}, capture_output=True, text=True, check=True)
        for salt in ("1", "2")
    ]
    assert told[0].stderr == told[1].stderr
    assert run(Call(11)).trace == told[0].stderr.split()[-1]
    assert "provider" in told[0].stderr
    assert run(Call(12)).trace != run(Call(11)).trace


def test_leaving_out_a_step_changes_no_other_step_before_it() -> None:
    world = World(11)
    world.play()
    last = next(event.name for event in reversed(world.course.events) if not event.fault)
    shorter = World(11, without=[last])
    shorter.play()
    names = [event.name for event in world.course.events]
    assert [event.name for event in shorter.course.events] == [name for name in names if name.partition("/")[0] != last]


def no_care(put: Put) -> None:
    """A retry opens whoever has a final outcome, refused or not."""

    def final_in(batch: Batch, part: int | None = None) -> dict[int, Outcome]:
        ordinals = [ordinal for ordinal, code in enumerate(batch.outcomes) if Outcome(code).final]
        return {o: Outcome.PROVIDER_REFUSED for o in ordinals if part is None or reopening.slice_of(o) == part}

    def reopened(batch: Batch, ordinals: Any, round_no: int, due_at: Any) -> Batch:
        codes = bytearray(batch.outcomes)
        for ordinal in ordinals:
            codes[ordinal] = Outcome.OPEN
        opened = batches.recount(replace(batch, outcomes=bytes(codes), round=round_no))
        return batches.waiting(opened, due_at, None)

    put(reopening, "refused_in", final_in)
    put(retrying, "refused_in", final_in)
    put(reopening, "_maybe_reached", lambda *_: frozenset())
    put(batches, "reopened", reopened)


# Where doubts are resent and no provider de-duplicates, a request that starts too late makes a duplicate.
NO_SAFETY_NET: dict[str, Any] = {"window_s": None, "in_doubt": "resend", "limits": ()}


@pytest.mark.parametrize(
    ("missing", "changes", "breaks"),
    [
        ("no_fence", {}, set()),
        ("no_intent", {}, {"I2", "I3"}),
        ("no_deadline", NO_SAFETY_NET, {"I4"}),
        ("no_permit", {}, {"I7"}),
        (no_care, {"retries": True}, {"I10"}),
    ],
)
def test_without_one_of_its_guards_the_core_breaks(missing: Any, changes: dict[str, Any], breaks: set[str]) -> None:
    broken: set[str] = set()
    for seed in MANY_SEEDS:
        with bug(missing):
            found = run(Call(seed, changes=changes)).broken
        if found:
            assert run(Call(seed, changes=changes)).broken == set()
        broken |= found
        if broken >= breaks and broken:
            return
    pytest.fail(f"{MANY_SEEDS} show {broken or 'nothing'}, not {breaks}")


def test_a_failing_seed_is_shrunk_to_a_short_history_that_fails_alike() -> None:
    with bug("no_deadline"):
        told = next(told for seed in MANY_SEEDS if (told := run(Call(seed))).broken)
        call = Shrinker(told).shrunk()
        short, world, _ = run_and_tell(call)
        assert short.broken & told.broken
        assert run(call).trace == short.trace
    steps = [event for event in world.course.events if not event.fault]
    faults = [event for event in world.course.events if event.fault]
    assert len(steps) <= 6
    assert len(faults) <= 4
    assert f"--first {call.seed}" in command_of(call, "no_deadline")


@pytest.mark.parametrize("missing", BUGS)
def test_the_command_line_finds_each_bug_and_says_how_to_repeat_it(missing: str) -> None:
    command = [sys.executable, "-m", "tests.simulator", "--bug", missing, "--json", "--processes", "1"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert json.loads(found.stdout.splitlines()[-1])["violations"] == 1
    again = found.stderr.splitlines()[-1].removeprefix("python ")
    repeated = subprocess.run(f"{sys.executable} {again}", shell=True, capture_output=True, text=True, check=False)
    assert repeated.returncode == 1


def test_the_command_line_counts_seeds_and_histories() -> None:
    command = [sys.executable, "-m", "tests.simulator", "--seeds", "30", "--first", "5", "--json", "--processes", "2"]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(found.stdout.splitlines()[-1])
    assert (told["seeds"], told["histories"], told["violations"]) == (30, 30, 0)
    assert told["seconds"] >= 0
    assert told["faults"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--bug", "no_luck"), "invalid choice"),
        (("--set", "colour=1"), "'colour' is no field of a world"),
        (("--set", "batches=many"), "'many' is no JSON"),
        (("--set", "limits=[1]"), "limits can only be taken away"),
    ],
)
def test_a_wrong_call_is_named(arguments: tuple[str, ...], said: str) -> None:
    command = [sys.executable, "-m", "tests.simulator", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert said in done.stderr


def test_every_field_of_a_world_can_be_made_simpler() -> None:
    assert set(SIMPLER) <= set(Setup.__dataclass_fields__)
