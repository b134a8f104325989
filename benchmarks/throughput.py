"""What the protocol costs: the whole pipeline beside the raw loop, in one run.

    python -m benchmarks.throughput --recipients 100000 --sender sendgrid --json

The raw loop renders, packs, serialises and sends the same batches to the same place, without Beam and without a store's
transactions: the fastest that this machine can do for these letters. Pipeline and raw loop run in turn, each in a
process of its own, three times; both figures are medians. With `--sender sendgrid` the letters go to a fake SendGrid
on loopback, in its own process, outside both.

Last line, one JSON object: recipients, recipients_per_s, raw_recipients_per_s, ratio, peak_rss_mb (of the pipeline),
requests, form_letters, store_rows_per_message, load_rows_per_s, outbound_log.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import sendonce.config as configuration
from schemas.ids import attempt_id
from schemas.tables import TABLES, Batch
from sendonce.control.campaigns import submit
from sendonce.control.load import LoadOptions, load
from sendonce.control.sample import write_sample
from sendonce.delivery.lanes import running_lanes
from sendonce.delivery.letters import compiled_for, render
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.requests import next_letters
from sendonce.rendering.catalogue import find_template
from sendonce.senders.base import Request, Verdict
from sendonce.stores.base import ANY_SHARD
from sendonce.stores.opening import init_store, open_store, store_key

CAMPAIGN = "bench"
KEY = "SG.benchmark"


def prepare(folder: Path, recipients: int, sender: str, outbound_log: str, base_url: str) -> float:
    """A store with one sealed, submitted campaign; returns rows loaded a second."""
    senders: dict[str, Any] = {"outbox": {"adapter": "outbox", "path": str(folder / "outbox")}}
    if sender == "sendgrid":
        senders = {"sendgrid": {"adapter": "sendgrid", "base_url": base_url, "api_key": "env:BENCH_KEY"}}
    settings = {"senders": senders, "lanes": {"bulk": {"sender": sender, "outbound_log": outbound_log}}}
    store = init_store(f"sqlite:///{folder}/store.db", "production")
    configuration.apply_config(store, configuration.Config.model_validate(settings), "benchmark")
    write_sample(folder / "list.csv", recipients)
    options = LoadOptions(
        from_address="Shop <news@shop.example>",
        unsubscribe_base_url="https://shop.example/u",
        rejects_folder=folder,
    )
    started_s = time.perf_counter()
    template = find_template("newsletter")
    report = load(
        store, campaign_id=CAMPAIGN, path=folder / "list.csv", template=template, options=options, by="benchmark"
    )
    seconds = time.perf_counter() - started_s
    submit(store, CAMPAIGN, "benchmark")
    store.close()
    return report.rows_read / seconds


def raw_loop(url: str) -> dict[str, float]:
    """Every batch rendered, packed, serialised and sent, one after the other, and nothing else."""
    store = open_store(url)
    key, lane = store_key(store), running_lanes(store, ("bulk",))["bulk"]
    batches = store.read(lambda reader: reader.tally(Batch, ANY_SHARD, CAMPAIGN, sums=("size",)))
    references = plan_lane(store, lane.terms, sum(int(row["size"]) for row in batches))
    compiled = lru_cache(lambda template_hash: compiled_for(store, template_hash))
    requests = forms = sent = 0
    started_s = time.perf_counter()
    for reference in references:
        rendered = render(store, key, reference, compiled)
        assert rendered is not None
        letters, _ = rendered
        forms += len(letters.forms)
        left = {letter.ordinal for letter in letters.letters}
        while chosen := next_letters(letters, left, lane.sender.capabilities, 1000):
            attempt = attempt_id(time.time_ns() // 1_000_000, os.urandom(10))
            request = Request(CAMPAIGN, reference.batch_no, attempt, letters, chosen)
            reply = lane.sender.send(lane.sender.prepare(request), 30.0)
            assert reply.verdict is Verdict.ACCEPTED, reply.reason
            left.difference_update(letter.ordinal for letter in chosen)
            requests += 1
            sent += len(chosen)
    seconds = time.perf_counter() - started_s
    return {"seconds": seconds, "requests": requests, "form_letters": forms, "sent": sent}


def pipeline(url: str) -> dict[str, float]:
    """The bounded run, as `sendonce run` does it."""
    from pipelines.local import quiet_beam, run_bounded

    quiet_beam()
    started_s = time.perf_counter()
    report = run_bounded(url, lanes=("bulk",))
    seconds = time.perf_counter() - started_s
    assert report.unfinished == 0, report
    return {"seconds": seconds, "rounds": report.rounds}


def in_own_process(what: str, folder: Path) -> dict[str, float]:
    """Run one side on a copy of the prepared store, in a process of its own; adds its peak memory in MB."""
    copy = folder / "run"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.rmtree(folder / "outbox", ignore_errors=True)
    copy.mkdir()
    shutil.copy(folder / "store.db", copy / "store.db")
    command = [sys.executable, "-m", "benchmarks.throughput", "--side", what, "--store", f"sqlite:///{copy}/store.db"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, "BENCH_KEY": KEY})
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if what == "pipeline":
        found["rows"] = rows_in(copy / "store.db") - rows_in(folder / "store.db")
    return found


def rows_in(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        names = [table.name for table in TABLES.values()]
        return sum(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names)


@contextmanager
def sink(sender: str, folder: Path) -> Iterator[str]:
    """The base URL of a fake SendGrid in its own process; empty for the outbox, which needs none."""
    if sender != "sendgrid":
        yield ""
        return
    command = [sys.executable, "-m", "tests.providers.sendgrid", "--log", str(folder / "sendgrid.log"), "--key", KEY]
    server = subprocess.Popen([*command, "--checks", "none"], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        yield server.stdout.readline().split()[-1]
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(10)


def measure(recipients: int, sender: str, outbound_log: str, runs: int, folder: Path) -> dict[str, Any]:
    raws, wholes = [], []
    with sink(sender, folder) as base_url:
        load_rows_per_s = prepare(folder, recipients, sender, outbound_log, base_url)
        for number in range(runs):
            raws.append(in_own_process("raw", folder))
            wholes.append(in_own_process("pipeline", folder))
            print(
                f"run {number + 1}: raw {raws[-1]['seconds']:.1f} s, pipeline {wholes[-1]['seconds']:.1f} s",
                file=sys.stderr,
            )
    raw_s = statistics.median(run["seconds"] for run in raws)
    whole_s = statistics.median(run["seconds"] for run in wholes)
    return {
        "recipients": recipients,
        "recipients_per_s": round(recipients / whole_s),
        "raw_recipients_per_s": round(recipients / raw_s),
        "ratio": round(raw_s / whole_s, 3),
        "peak_rss_mb": round(max(run["peak_rss_mb"] for run in wholes)),
        "requests": int(raws[0]["requests"]),
        "form_letters": int(raws[0]["form_letters"]),
        "store_rows_per_message": round(max(run["rows"] for run in wholes) / recipients, 4),
        "load_rows_per_s": round(load_rows_per_s),
        "outbound_log": outbound_log,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipients", type=int, default=20_000)
    parser.add_argument("--sender", choices=("sendgrid", "outbox"), default="sendgrid")
    parser.add_argument("--outbound-log", choices=("rows", "packed"), default="rows")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    parser.add_argument("--side", choices=("raw", "pipeline"), help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        found = raw_loop(options.store) if options.side == "raw" else pipeline(options.store)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**found, "peak_rss_mb": peak_mb}))
        return
    with tempfile.TemporaryDirectory() as folder:
        result = measure(options.recipients, options.sender, options.outbound_log, options.runs, Path(folder))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
