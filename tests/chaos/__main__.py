"""Kills sending processes again and again and judges what is left.

    python -m tests.chaos --recipients 5000 --kills 30 --processes 2 --store sqlite --sender outbox --seed 1 --json

Real `sendonce run` processes share one SQLite file. Each is started to die: by its own hand at a failpoint (S2 to S8),
or by `kill -9` at a random moment. Then another takes its place, until every campaign has ended. The checker judges the
store and every version of every letter file; a canary is searched for in whatever was written besides.

Standard error tells how it goes; with --json the last line of standard output is one JSON object. Exit code 0: all
kills were done, everything ended, nothing is wrong. 1: otherwise; the folder with the evidence is kept and named.
A seed repeats the recipients, the kills and their order; when processes meet is up to the machine.
"""

import argparse
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType

from tests.chaos.ground import CommandFailed, Ground, load_for
from tests.chaos.run import Run, Verdict


def main() -> int:
    options = _options()
    signal.signal(signal.SIGTERM, _stop)
    folder = Path(tempfile.mkdtemp(prefix="sendonce-chaos-"))
    chance = random.Random(options.seed)
    load = load_for(options.recipients, options.kills)
    print(f"seed {options.seed}, folder {folder}, {vars(load)}", file=sys.stderr)
    started_s = time.monotonic()
    ground = Ground(folder, load, chance)
    try:
        ground.make()
        run = Run(ground, chance, kills=options.kills, processes=options.processes)
        verdict = run.to_the_end(limit_s=options.limit_s or 120 + 20 * options.kills + 4 * load.recipients / load.rate)
    except (CommandFailed, KeyboardInterrupt) as fault:
        print(f"\n{fault or 'stopped'}\nThe evidence is in {folder}", file=sys.stderr)
        return 1
    _tell(verdict, time.monotonic() - started_s, as_json=options.json)
    if verdict.good:
        shutil.rmtree(folder)
        return 0
    print(f"The evidence is in {folder}", file=sys.stderr)
    return 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipients", type=_at_least(1), default=5000, help="of all campaigns together")
    parser.add_argument("--kills", type=_at_least(0), default=30)
    parser.add_argument("--processes", type=_at_least(1), default=2, help="`sendonce run` processes side by side")
    parser.add_argument("--store", choices=("sqlite",), default="sqlite")
    parser.add_argument("--sender", choices=("outbox",), default="outbox")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=0.0, help="give up after so many seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    return parser.parse_args()


def _at_least(least: int):  # type: ignore[no-untyped-def]
    def number(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {least} or more")
        return int(text)

    return number


def _stop(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt(f"stopped by signal {number}")


def _tell(verdict: Verdict, seconds: float, *, as_json: bool) -> None:
    for problem in verdict.problems[:20]:
        print(problem, file=sys.stderr)
    if len(verdict.problems) > 20:
        print(f"… and {len(verdict.problems) - 20} more", file=sys.stderr)
    document = {**verdict.numbers, "seconds": round(seconds, 1)}
    if as_json:
        print(json.dumps(document))
    else:
        print("\n".join(f"{name:>17} {value}" for name, value in document.items()))


if __name__ == "__main__":
    sys.exit(main())
