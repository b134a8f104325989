"""Plays the delivery core through thousands of random histories and judges each.

    python -m tests.simulator --seeds 10000 --first 1 --json
    python -m tests.simulator --bug no_fence
    python -m tests.simulator --seeds 1 --first 17 --steps 9 --without 3,5.1,7/2 --set batches=1

A seed decides the campaign, the lane, the provider, what everybody does and every fault (`setups.py`, `world.py`,
`people.py`, `faulty_store.py`, `provider.py`). It is the same in every process and on every machine. What a failing
seed breaks is told with a short history that breaks the same, and the call that repeats it.

--steps, --without, --set: the same seed with fewer steps, without some of the steps and faults that its history names,
or in another world. --bug: take one guard of the protocol away (`tests/bugs.py`); it ends at the first history that
shows it. --replay: tell the history of the first seed, whether it fails or not.

Standard error tells what is wrong; with --json the last line of standard output is one JSON object: seeds, histories
(how many of them differ), violations (seeds that break something), seconds, failing (these seeds, at most 100) and
faults (how often each happened). Exit code 0: nothing is wrong; 1: otherwise.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from tests.bugs import BUGS, bug
from tests.simulator.running import Call, Told, run_and_tell, run_many
from tests.simulator.setups import Setup
from tests.simulator.shrinking import Shrinker, command_of
from tests.simulator.world import STEPS

MOST_TOLD = 100


def main() -> int:
    options = _options()
    changes = dict(options.set)
    calls = [
        Call(seed, options.steps, options.without, changes)
        for seed in range(options.first, options.first + options.seeds)
    ]
    if options.replay:
        _tell_history(calls[0], options.bug)
    started_s = time.monotonic()
    traces, faults, failing, seeds = set(), Counter[str](), [], 0
    for told in _runs(calls, options):
        seeds += 1
        traces.add(told.trace)
        faults.update(told.faults)
        if told.violations:
            failing.append(told)
            if options.bug is not None:
                break
    seconds = round(time.monotonic() - started_s, 1)
    failing.sort(key=lambda told: told.call.seed)
    for told in failing[1:MOST_TOLD]:
        print(f"seed {told.call.seed}: {told.violations[0]}", file=sys.stderr)
    if failing:
        _tell_failing(failing[0], options.bug)
    _tell(seeds, len(traces), failing, seconds, faults, as_json=options.json)
    return 1 if failing else 0


def _runs(calls: list[Call], options: argparse.Namespace) -> Iterator[Told]:
    at_once = 4 if options.bug is not None else 20
    return run_many(calls, processes=options.processes, with_bug=options.bug, at_once=at_once)


def _tell_history(call: Call, with_bug: str | None) -> None:
    with bug(with_bug):
        told, world, lines = run_and_tell(call)
    print(world.setup, *lines, f"history {told.trace}", sep="\n", file=sys.stderr)


def _tell_failing(told: Told, with_bug: str | None) -> None:
    """A failing seed's violations, and a short history that breaks the same."""
    print(f"\nseed {told.call.seed} breaks {', '.join(sorted(told.broken))}", file=sys.stderr)
    with bug(with_bug):
        call = Shrinker(told).shrunk()
        short, world, lines = run_and_tell(call)
    print(world.setup, *lines, *map(str, short.violations), sep="\n", file=sys.stderr)
    print(f"\n{command_of(call, with_bug)}", file=sys.stderr)


def _tell(
    seeds: int, histories: int, failing: list[Told], seconds: float, faults: Counter[str], *, as_json: bool
) -> None:
    if as_json:
        found = {"seeds": seeds, "histories": histories, "violations": len(failing), "seconds": seconds}
        found |= {"failing": [told.call.seed for told in failing[:MOST_TOLD]], "faults": dict(faults.most_common())}
        print(json.dumps(found))
        return
    print(f"{seeds} seeds, {histories} different histories, {sum(faults.values())} faults, {seconds} s")
    print(f"{len(failing)} seeds break something" if failing else "nothing is wrong")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=500, help="how many (500)")
    parser.add_argument("--first", type=int, default=1, help="the first of them (1)")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="side by side (one for each core)")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"before the faults end ({STEPS})")
    parser.add_argument("--without", type=_names, default=(), help="steps and faults to leave out: 3,5.1,7/2")
    parser.add_argument(
        "--set", type=_field, action="append", default=[], help="a field of the world, as JSON: batches=1"
    )
    parser.add_argument("--bug", choices=BUGS, help="take this guard of the protocol away")
    parser.add_argument("--replay", action="store_true", help="tell the history of the first seed")
    parser.add_argument("--json", action="store_true", help="one JSON object on the last line")
    return parser.parse_args()


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def _field(text: str) -> tuple[str, Any]:
    name, _, value = text.partition("=")
    known = [field.name for field in fields(Setup)]
    if name not in known:
        raise argparse.ArgumentTypeError(f"{name!r} is no field of a world; there are {', '.join(known)}")
    try:
        found = json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is no JSON") from None
    if name == "limits" and found != []:
        raise argparse.ArgumentTypeError("limits can only be taken away: limits=[]")
    return name, tuple(found) if isinstance(found, list) else found


if __name__ == "__main__":
    sys.exit(main())
