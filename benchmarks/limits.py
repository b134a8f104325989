"""How much of a rate limit is used while work waits for it: `python -m benchmarks.limits --processes 2 --json`.

A lane with a rate sends a campaign that is larger than the rate passes in the time, from one or more processes that
share the store. All letters have one form, so that each request is as large as the limit lets it be: what is hardest
to fit into a bucket. Counted are permits, by the store time of their grant: from the first one on, a bucket of `burst`
that fills at `scope_per_s` passes at most burst + scope_per_s x seconds. `used_ratio` is the share of that which was
granted; `max_over_limit` is the most that any window held above the bucket's bound, so never above 0.

Last line, one JSON object: scope_per_s, burst, seconds, granted, used_ratio, processes, max_over_limit.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sendonce.config as configuration
from schemas.ordinals import unpack
from schemas.tables import Attempt, Job
from sendonce.control.campaigns import submit
from sendonce.control.load import LoadOptions, load
from sendonce.rendering.catalogue import source_of
from sendonce.stores.base import ANY_SHARD
from sendonce.stores.opening import init_store, open_store

CAMPAIGN = "bench"
LETTER = {
    "template.yaml": "priority: bulk\nvariables:\n  name: {type: text, required: true, example: Ann}\n"
    "locales: [en]\ndefault_locale: en\n",
    "subject.j2": "Hello {{ name }}",
    "body.txt.j2": "Dear {{ name }},\n\ngood day.\n\n{{ unsubscribe_url }}\n",
    "body.html.j2": '<p>Dear {{ name }},</p><p>good day.</p><p><a href="{{ unsubscribe_url }}">Unsubscribe</a></p>\n',
}
# Measured longer than asked for, so that the last request of the measured time is over; the campaign has work for more.
AFTER_S = 2
START_WITHIN_S = 120


def prepare(folder: Path, per_s: float, burst: int, seconds: float) -> str:
    """A store whose bulk lane has the rate, with a submitted campaign that outlasts the measurement; its URL."""
    url = f"sqlite:///{folder}/store.db"
    settings = {
        "senders": {"outbox": {"adapter": "outbox", "path": str(folder / "outbox")}},
        "lanes": {"bulk": {"limits": [{"rate": f"{per_s:g}/s", "burst": burst}]}},
    }
    store = init_store(url, "production")
    configuration.apply_config(store, configuration.Config.model_validate(settings), "benchmark")
    people = write_list(folder / "list.csv", int(burst + per_s * (seconds + 5 * AFTER_S)) + 1000)
    options = LoadOptions(
        from_address="Shop <news@shop.example>",
        unsubscribe_base_url="https://shop.example/u",
        rejects_folder=folder,
    )
    letter = source_of("letter", LETTER)
    load(store, campaign_id=CAMPAIGN, path=people, template=letter, options=options, by="benchmark")
    submit(store, CAMPAIGN, "benchmark")
    store.close()
    return url


def write_list(path: Path, people: int) -> Path:
    """A list of so many recipients with short names."""
    with open(path, "w", encoding="utf-8", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(("recipient_id", "email", "name"))
        writer.writerows((f"p{number}", f"p{number}@one.example", f"Ann {number}") for number in range(people))
    return path


def send_until_told(url: str) -> None:
    """One sending process: the bounded run, until standard input ends."""
    from pipelines.local import quiet_beam, run_bounded

    quiet_beam()
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=listen, daemon=True).start()
    run_bounded(url, lanes=("bulk",), stop=stop)


def wait_for_first_grant(url: str) -> None:
    store = open_store(url)
    try:
        for _ in range(START_WITHIN_S * 10):
            if store.read(lambda reader: reader.scan(Attempt, ANY_SHARD, CAMPAIGN)):
                return
            time.sleep(0.1)
    finally:
        store.close()
    raise AssertionError(f"no request within {START_WITHIN_S} s")


def grants_in(url: str) -> list[tuple[datetime, int]]:
    """When how many permits were granted, in order, of the requests that are over."""
    store = open_store(url)
    try:
        attempts = store.read(lambda reader: reader.scan(Attempt, ANY_SHARD, CAMPAIGN))
        ended = store.read(lambda reader: [job.state for job in reader.scan(Job)])
    finally:
        store.close()
    assert set(ended) == {"ended"}, ended
    assert all(attempt.verdict == "accepted" for attempt in attempts)
    return sorted((attempt.started_at, len(unpack(attempt.ordinals))) for attempt in attempts)


def over_limit(grants: Sequence[tuple[datetime, int]], per_s: float, burst: int) -> float:
    """The most by which any window from one grant to another exceeds burst + per_s x its length; 0 when none does."""
    level, before, over = float(burst), None, 0.0
    for at, n in grants:
        passed_s = (at - before).total_seconds() if before is not None else 0.0
        level, before = min(float(burst), level + passed_s * per_s) - n, at
        over = max(over, -level)
    return over


def measure(per_s: float, burst: int, seconds: float, processes: int, folder: Path) -> dict[str, Any]:
    url = prepare(folder, per_s, burst, seconds)
    command = [sys.executable, "-m", "benchmarks.limits", "--side", url]
    senders = [subprocess.Popen(command, stdin=subprocess.PIPE) for _ in range(processes)]
    try:
        wait_for_first_grant(url)
        time.sleep(seconds + AFTER_S)
    finally:
        for sender in senders:
            assert sender.stdin is not None
            sender.stdin.close()
        for sender in senders:
            assert sender.wait(60) == 0
    grants = grants_in(url)
    first = grants[0][0]
    inside = [(at, n) for at, n in grants if at <= first + timedelta(seconds=seconds)]
    assert grants[-1][0] > first + timedelta(seconds=seconds), "the work ran out, or the time was too short"
    granted = sum(n for _, n in inside)
    return {
        "scope_per_s": per_s,
        "burst": burst,
        "seconds": seconds,
        "granted": granted,
        "used_ratio": round(granted / (burst + per_s * seconds), 4),
        "processes": processes,
        "max_over_limit": round(max(0.0, over_limit(grants, per_s, burst)), 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--per-s", type=float, default=500.0)
    parser.add_argument("--burst", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    parser.add_argument("--side", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        send_until_told(options.side)
        return
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(measure(options.per_s, options.burst, options.seconds, options.processes, Path(folder))))


if __name__ == "__main__":
    main()
