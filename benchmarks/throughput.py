"""What the protocol costs: the whole pipeline beside the raw loop, in one run.

    python -m benchmarks.throughput --recipients 100000 --sender sendgrid --json

The raw loop renders, packs, serialises and sends the same requests to the same place, without Beam and without a
store (the recipients are read beforehand, off the clock): what a simple program would do that remembers nothing. The
pipeline is `sendonce run`: it plans, claims, limits, records every outcome, and its requests go side by side, as many
as the lane's `parallel`. Pipeline and raw loop run in turn, each in a process of its own, three times; both figures
are medians. The letters go to a fake provider on loopback, in its own process, outside both, or into a folder. That
both sides handed over the same letters in the same requests, byte for byte as many, is checked in each run; so is that
the sink was not what they waited for.

With `sendgrid` and `outbox` the sink answers at once, and the raw loop sends one request after the other. With `smtp`,
`ses` and `webhook` it answers like a provider far away, and the raw loop, too, sends side by side (`WAYS`),
over as many connections.

Last line, one JSON object: recipients, recipients_per_s, raw_recipients_per_s, ratio, peak_rss_mb (of the pipeline),
requests, form_letters (different ones, in the whole campaign), store_rows_per_message, load_rows_per_s, outbound_log.
"""

import argparse
import json
import os
import resource
import shutil
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import sendonce.config as configuration
from benchmarks.sinks import PROVIDERS, SECRETS, Arrived, Sink, sink_of
from pipelines.process import settle_process
from schemas.ids import attempt_id
from schemas.tables import TABLES, Batch
from sendonce.control.campaigns import submit
from sendonce.control.load import LoadOptions, load
from sendonce.control.sample import DOMAINS, write_sample
from sendonce.delivery.lanes import running_lanes
from sendonce.delivery.letters import compiled_for, render
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.requests import next_letters
from sendonce.rendering.catalogue import TemplateSource, find_template
from sendonce.senders.base import Prepared, Request, Sender, Verdict
from sendonce.stores.base import ANY_SHARD, Store
from sendonce.stores.opening import init_store, open_store, store_key

CAMPAIGN = "bench"
FROM = "Shop <news@shop.example>"
# A store for tests, which a receiver on this machine needs, must say who may get letters.
EVERYBODY = [f"@{domain}" for domain in DOMAINS]
# Of the time that a run took, what its sink may have been busy on one core without being what the run waited for.
SINK_BUSY_MOST = 0.8


@dataclass(frozen=True)
class Ways:
    """How the two sides work: parallel, requests that the lane sends side by side; raw, those of the raw loop.

    batch_size: recipients of a batch. times: of the lane. None, nothing: the lane's own.
    """

    parallel: int = 4
    raw: int = 1
    batch_size: int | None = None
    times: Mapping[str, float] = field(default_factory=dict)


# At a provider far away many requests must be on their way, of many batches; and a round of `sendonce run`, at whose
# end its last batches are waited for, should be long beside a batch. A lane that is alone can be given so much at once.
_AT_ONCE = {"window_s": 20.0}
WAYS = {
    "smtp": Ways(16, 16, 250, _AT_ONCE),
    "ses": Ways(24, 24, 1000, _AT_ONCE),
    "webhook": Ways(8, 8, 1000, _AT_ONCE),
}


def prepare(
    folder: Path,
    recipients: int,
    sender: str,
    outbound_log: str,
    settings: dict[str, Any],
    batch_size: int | None,
    *,
    template: TemplateSource | None = None,
    parallel: int = 4,
    times: Mapping[str, float] | None = None,
    start: bool = True,
) -> float:
    """A store with one sealed campaign of the newsletter (or `template`), submitted if `start`; gives rows loaded a
    second."""
    private = bool(settings.get("allow_private"))  # refused in a store for production
    store = init_store(f"sqlite:///{folder}/store.db", "test" if private else "production")
    bulk = {
        "sender": sender,
        "outbound_log": outbound_log,
        "parallel": parallel,
        **({"batch_size": batch_size} if batch_size else {}),
        **({"times": dict(times)} if times else {}),
    }
    guard = {"recipients_allowed": EVERYBODY} if private else {}
    config = configuration.Config.model_validate(
        {"from": FROM, "senders": {sender: settings}, "lanes": {"bulk": bulk}, **guard}
    )
    configuration.apply_config(store, config, "benchmark")
    write_sample(folder / "list.csv", recipients)
    options = LoadOptions(
        batch_size=config.lanes["bulk"].batch_size,
        from_address=FROM,
        unsubscribe_base_url="https://shop.example/u",
        rejects_folder=folder,
    )
    started_s = time.perf_counter()
    template = template or find_template("newsletter")
    report = load(
        store, campaign_id=CAMPAIGN, path=folder / "list.csv", template=template, options=options, by="benchmark"
    )
    seconds = time.perf_counter() - started_s
    if start:
        submit(store, CAMPAIGN, "benchmark")
    store.close()
    return report.rows_read / seconds


class _OffTheClock:
    """A store for reading whose time does not count."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.seconds = 0.0

    def read(self, work: Any) -> Any:
        started_s = time.perf_counter()
        try:
            return self._store.read(work)
        finally:
            self.seconds += time.perf_counter() - started_s


def raw_loop(url: str, side_by_side: int) -> dict[str, float]:
    """Every batch rendered, packed, serialised and sent, so many requests at a time, and nothing else."""
    store = open_store(url)
    key, lane = store_key(store), running_lanes(store, ("bulk",))["bulk"]
    batches = store.read(lambda reader: reader.tally(Batch, ANY_SHARD, CAMPAIGN, sums=("size",)))
    references = plan_lane(store, lane.terms, sum(int(row["size"]) for row in batches)).references
    compiled = lru_cache(lambda template_hash: compiled_for(store, template_hash))
    recipients: Any = _OffTheClock(store)
    forms: set[int] = set()
    requests = sent = 0
    hand_over = _SideBySide(lane.sender, side_by_side)
    settle_process()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    for reference in references:
        rendered = render(recipients, key, reference, compiled)
        assert rendered is not None
        letters, _ = rendered
        forms.update(hash((form.subject, form.text, form.html)) for form in letters.forms)
        left = {letter.ordinal for letter in letters.letters}
        while chosen := next_letters(letters, left, lane.sender.capabilities, lane.sender.capabilities.recipients):
            attempt = attempt_id(time.time_ns() // 1_000_000, os.urandom(10))
            request = Request(CAMPAIGN, reference.batch_no, attempt, letters, chosen)
            hand_over.send(lane.sender.prepare(request))
            left.difference_update(letter.ordinal for letter in chosen)
            requests += 1
            sent += len(chosen)
    hand_over.end()
    seconds, cpu_s = time.perf_counter() - started_s - recipients.seconds, time.process_time() - cpu_s
    return {"seconds": seconds, "cpu_s": cpu_s, "requests": requests, "form_letters": len(forms), "sent": sent}


class _SideBySide:
    """Sends so many requests at a time; whoever hands one over waits until there is room. One at a time: it sends."""

    def __init__(self, sender: Sender, most: int) -> None:
        self._sender = sender
        self._threads = ThreadPoolExecutor(most) if most > 1 else None
        self._room = threading.Semaphore(most)
        self._handed_over: list[Future[None]] = []

    def send(self, prepared: Prepared) -> None:
        self._room.acquire()
        if self._threads is None:
            self._send(prepared)
        else:
            self._handed_over.append(self._threads.submit(self._send, prepared))

    def end(self) -> None:
        """Wait for what is under way. Raises what sending raised."""
        for one in self._handed_over:
            one.result()

    def _send(self, prepared: Prepared) -> None:
        try:
            reply = self._sender.send(prepared, 30.0)
            assert reply.verdict is Verdict.ACCEPTED, reply.reason
            assert not reply.exceptions
        finally:
            self._room.release()


def pipeline(url: str) -> dict[str, float]:
    """The bounded run, as `sendonce run` does it."""
    from pipelines.local import quiet_beam, run_bounded

    quiet_beam()
    settle_process()
    started_s, cpu_s = time.perf_counter(), time.process_time()
    report = run_bounded(url, lanes=("bulk",))
    seconds, cpu_s = time.perf_counter() - started_s, time.process_time() - cpu_s
    assert report.unfinished == 0, report
    return {"seconds": seconds, "cpu_s": cpu_s, "rounds": report.rounds}


def in_own_process(what: str, folder: Path, side_by_side: int) -> dict[str, float]:
    """Run one side on a copy of the prepared store, in a process of its own; adds its peak memory in MB."""
    copy = folder / "run"
    shutil.rmtree(copy, ignore_errors=True)
    copy.mkdir()
    shutil.copy(folder / "store.db", copy / "store.db")
    command = [sys.executable, "-m", "benchmarks.throughput", "--side", what, "--store", f"sqlite:///{copy}/store.db"]
    command += ["--side-by-side", str(side_by_side)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **SECRETS})
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    if what == "pipeline":
        found["rows"] = rows_in(copy / "store.db") - rows_in(folder / "store.db")
    shutil.rmtree(copy)
    return found


def rows_in(path: Path) -> int:
    with sqlite3.connect(path) as connection:
        names = [table.name for table in TABLES.values()]
        return sum(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names)


def side(what: str, folder: Path, sink: Sink, side_by_side: int) -> tuple[dict[str, float], Arrived]:
    """Run one side, and see what it handed over. The sink may not have been busy all the time."""
    busy_s = sink.busy_s()
    found = in_own_process(what, folder, side_by_side)
    found["sink_busy"] = (sink.busy_s() - busy_s) / found["seconds"]
    assert found["sink_busy"] < SINK_BUSY_MOST, f"the sink was what the {what} waited for: {found}"
    return found, sink.arrived()


def measure(
    recipients: int, sender: str, outbound_log: str, runs: int, folder: Path, batch_size: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The figures, under the names that this page promises, and what else is known of the runs."""
    raws, wholes = [], []
    ways = WAYS.get(sender, Ways())
    batch_size = batch_size or ways.batch_size
    with sink_of(sender, folder) as sink:
        account = sink.settings()
        load_rows_per_s = prepare(
            folder,
            recipients,
            sender,
            outbound_log,
            account,
            batch_size,
            parallel=ways.parallel,
            times=ways.times,
        )
        for number in range(runs):
            raw, raw_arrived = side("raw", folder, sink, ways.raw)
            whole, whole_arrived = side("pipeline", folder, sink, ways.parallel)
            assert raw_arrived == whole_arrived, f"not the same requests: {raw_arrived}, {whole_arrived}"
            assert raw["sent"] == raw_arrived.recipients
            assert raw["requests"] <= raw_arrived.requests  # one may take several calls, or a transaction a letter
            raws.append(raw)
            wholes.append(whole)
            told = f"run {number + 1}: raw {_took(raw)}, pipeline {_took(whole)}"
            print(f"{told}, sink busy {raw['sink_busy']:.0%} and {whole['sink_busy']:.0%}", file=sys.stderr)
    raw_s = statistics.median(run["seconds"] for run in raws)
    whole_s = statistics.median(run["seconds"] for run in wholes)
    figures = {
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
    more = {
        "sender": sender,
        "runs": runs,
        "letters": raw_arrived.recipients,
        "request_mb": round(raw_arrived.bytes / 1e6, 1),
        "ratios": [round(raw["seconds"] / whole["seconds"], 3) for raw, whole in zip(raws, wholes, strict=True)],
        "sink_busy": round(max(run["sink_busy"] for run in (*raws, *wholes)), 2),
        "rounds": int(wholes[-1]["rounds"]),
        "batch_size": batch_size,
        "calls": raw_arrived.requests,
        "answers_after_ms": PROVIDERS[sender].answers_after_ms if sender in PROVIDERS else 0,
        "connections": account.get("parallel", ways.raw),
        "side_by_side": ways.raw,
    }
    return figures, more


def _took(found: Mapping[str, float]) -> str:
    return f"{found['seconds']:.1f} s ({found['cpu_s']:.1f} of CPU)"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipients", type=int, default=20_000)
    parser.add_argument("--sender", choices=("outbox", *PROVIDERS), default="sendgrid")
    parser.add_argument("--outbound-log", choices=("rows", "packed"), default="rows")
    parser.add_argument("--batch-size", type=int, help="recipients of a batch (default: the bulk lane's default)")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    parser.add_argument("--side", choices=("raw", "pipeline"), help=argparse.SUPPRESS)
    parser.add_argument("--store", help=argparse.SUPPRESS)
    parser.add_argument("--side-by-side", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.side:
        found = raw_loop(options.store, options.side_by_side) if options.side == "raw" else pipeline(options.store)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**found, "peak_rss_mb": peak_mb}))
        return
    os.environ.update(SECRETS)
    with tempfile.TemporaryDirectory() as folder:
        figures, _ = measure(
            options.recipients,
            options.sender,
            options.outbound_log,
            options.runs,
            Path(folder),
            options.batch_size,
        )
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
