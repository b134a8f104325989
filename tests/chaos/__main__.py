"""Kills sending processes again and again and judges what is left.

    python -m tests.chaos --recipients 5000 --kills 30 --processes 2 --store sqlite --sender outbox --seed 1 --json
    python -m tests.chaos --store spanner --sender sendgrid --live --processes 3 --outages 6
    python -m tests.chaos --sender smtp --fallback ses
    python -m tests.chaos --sender smtp --points S4,M1

Real `sendonce run` processes share one store. Each is started to die: by its own hand at a failpoint (S0 to S8, M1),
or by `kill -9` at a random moment (--points: at these failpoints alone). Then another takes its place, until every
campaign has ended. The checker judges the store and what the provider wrote down; a canary is searched for in whatever
was written besides.

--store spanner: on Google's emulator. --sender: any but the outbox is a fake of that provider in a process that nobody
kills. It loses replies in every phase, is late, refuses some recipients and is busy (--calm: none of that). webhook and
resend know a repeat by its key; what others leave in doubt is looked up there and decided, as a person would.
--fallback: the lane has a second sender, and the first one's provider goes away again and again. Letters must have gone
by the fallback, and by the first one after that, and none by both. --live: the processes are `sendonce run
--subscription` on the Pub/Sub emulator, and campaigns begin by `start` triggers, published several times and out of
order: each must have been followed, and none may be left. --outages: besides, the store and Pub/Sub fall silent for 5
to 20 s, connections to the store end, calls and answers are lost on the way. --bug: every process lacks one guard of
the protocol (`tests/bugs.py`), so this must end with 1.

Standard error tells how it goes; with --json the last line of standard output is one JSON object. Exit code 0: all
kills were done, everything ended, nothing is wrong; or the gcloud SDK has no emulator, said in one line. 1: otherwise;
the folder with the evidence is kept and named. A seed repeats the recipients, the kills and their order; when processes
meet is up to the machine.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import FrameType

from sendonce import failpoints
from tests import emulated
from tests.bugs import BUGS
from tests.chaos.failover import Failover
from tests.chaos.ground import ROOT, CommandFailed, Ground, Load, load_for
from tests.chaos.outages import Outages
from tests.chaos.place import Place, SpannerPlace, SqlitePlace
from tests.chaos.provider import KINDS, OutboxProvider, Provider, Providers, ServedProvider
from tests.chaos.run import Run, Verdict
from tests.chaos.triggers import Publisher, Starts
from tests.providers.proxy import Proxy

BUGGED = Path(__file__).parent / "bugged"


def main() -> int:
    options = _options()
    wanted = ["spanner"] * (options.store == "spanner") + ["pubsub"] * options.live
    if missing := [text for text in map(emulated.missing, wanted) if text]:
        print(f"skipped: {'; '.join(missing)}", file=sys.stderr)
        return 0
    signal.signal(signal.SIGTERM, _stop)
    folder = Path(tempfile.mkdtemp(prefix="sendonce-chaos-"))
    load = load_for(
        options.recipients, options.kills, slow=options.store == "spanner", fails_over=bool(options.fallback)
    )
    print(f"seed {options.seed}, folder {folder}, {vars(load)}", file=sys.stderr)
    started_s = time.monotonic()
    try:
        with ExitStack() as stack:
            verdict = _run(options, folder, load, stack)
    except (CommandFailed, KeyboardInterrupt) as fault:
        print(f"\n{fault or 'stopped'}\nThe evidence is in {folder}", file=sys.stderr)
        return 1
    _tell(verdict, time.monotonic() - started_s, as_json=options.json)
    if verdict.good:
        shutil.rmtree(folder)
        return 0
    print(f"The evidence is in {folder}", file=sys.stderr)
    return 1


def _run(options: argparse.Namespace, folder: Path, load: Load, stack: ExitStack) -> Verdict:
    chance = random.Random(options.seed)
    spanner = stack.enter_context(emulated.emulator("spanner")) if options.store == "spanner" else None
    pubsub = stack.enter_context(emulated.emulator("pubsub")) if options.live else None
    proxy = stack.enter_context(Proxy(spanner.address)) if spanner and options.outages else None
    place: Place = SqlitePlace(folder / ".sendonce" / "sendonce.db")
    if spanner is not None:
        place = SpannerPlace(spanner.address, proxy.address if proxy else spanner.address)
    providers = _providers(options, folder, chance)
    environment = {"PUBSUB_EMULATOR_HOST": pubsub.address} if pubsub else {}
    if options.bug is not None:
        environment |= {"CHAOS_BUG": options.bug, "PYTHONPATH": f"{BUGGED}{os.pathsep}{ROOT}"}
    ground = Ground(folder, load, chance, place, providers, environment)
    stack.callback(providers.stop)
    providers.start()
    ground.make()
    publisher = Publisher(pubsub.address, Starts(ground.campaigns), chance) if pubsub else None
    outages = Outages(options.outages, chance, spanner=spanner, proxy=proxy, pubsub=pubsub)
    failover = None
    if providers.fallback is not None:
        assert isinstance(providers.own, ServedProvider)
        failover = Failover(providers.own, providers.fallback, place, chance)
    run = Run(
        ground,
        chance,
        kills=options.kills,
        processes=options.processes,
        publisher=publisher,
        outages=outages,
        failover=failover,
        points=options.points,
        slow=spanner is not None,
    )
    limit_s = 120 + 20 * options.kills + 60 * options.outages + 4 * load.recipients / load.rate
    return run.to_the_end(limit_s=options.limit_s or (2 if spanner else 1) * limit_s)


def _providers(options: argparse.Namespace, folder: Path, chance: random.Random) -> Providers:
    """Who takes letters. The first one's provider can go away if there is a fallback."""

    def made(kind: str, may_vanish: bool) -> Provider:
        if kind == "outbox":
            return OutboxProvider(folder / ".sendonce" / "outbox", folder / "seen")
        return ServedProvider(kind, folder / f"{kind}.jsonl", chance, calm=options.calm, may_vanish=may_vanish)

    own = made(options.sender, may_vanish=options.fallback is not None)
    if options.fallback is None:
        return Providers(own)
    return Providers(own, made(options.fallback, may_vanish=False))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recipients", type=_at_least(1), default=5000, help="of all campaigns together")
    parser.add_argument("--kills", type=_at_least(0), default=30)
    parser.add_argument("--points", type=_points, default=(), help="failpoints to die at, like S4,M1 (default: all)")
    parser.add_argument("--processes", type=_at_least(1), default=2, help="`sendonce run` processes side by side")
    parser.add_argument("--store", choices=("sqlite", "spanner"), default="sqlite")
    parser.add_argument("--sender", choices=KINDS, default="outbox")
    parser.add_argument("--fallback", choices=KINDS, help="the lane's second sender; the first one's provider fails")
    parser.add_argument("--calm", action="store_true", help="providers make no faults of their own")
    parser.add_argument("--live", action="store_true", help="jobs on a Pub/Sub subscription, started by triggers")
    parser.add_argument(
        "--outages", type=_at_least(0), default=0, help="of the store and of Pub/Sub, besides the kills"
    )
    parser.add_argument("--bug", choices=BUGS, help="take this guard of the protocol away from every process")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=0.0, help="give up after so many seconds")
    parser.add_argument("--json", action="store_true", help="one JSON object as the last line")
    options = parser.parse_args()
    if options.fallback and options.sender in ("outbox", options.fallback):
        parser.error("--fallback: is for another --sender, and one that can fail, which the outbox cannot")
    return options


def _points(text: str) -> tuple[str, ...]:
    points = tuple(text.split(","))
    if unknown := sorted(set(points) - set(failpoints.POINTS)):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no failpoint; there are {', '.join(failpoints.POINTS)}")
    return points


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
