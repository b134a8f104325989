"""`make bench`: every benchmark once, at a size that takes some minutes, as docs/benchmarks.md and build/bench.json.

`--large` adds the runs that take an hour: 100,000 and a million recipients, once each, for memory. `--quick` is for
checks: it measures little, writes only into `--out`, and fails where a figure that does not depend on speed is wrong.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks import claims, latency, limits, mime, throughput
from benchmarks.page import page
from benchmarks.plots import latency_plot
from benchmarks.sinks import SECRETS
from tests.emulated import Missing

ROOT = Path(__file__).resolve().parents[1]
LOGS = ("rows", "packed")
SENDERS = ("sendgrid", "outbox")
# Senders whose fake providers answer as ones far away do.
FAR = ("smtp", "ses", "webhook")
Row = dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    recipients: int
    runs: int
    load_rows: int
    claims: int
    limit_s: float
    limit_processes: Sequence[int]
    sends: int
    bulk: int
    far_recipients: Sequence[int]
    mime_letters: int


NORMAL = Size(20_000, 3, 100_000, 500, 60.0, (1, 2), 300, 600_000, (8_000, 30_000, 20_000), 2000)
QUICK = Size(1_000, 1, 2_000, 20, 2.0, (1,), 10, 60_000, (300, 300, 300), 100)
LARGE = (100_000, 1_000_000)


def run_throughput(recipients: int, sender: str, log: str, runs: int, batch_size: int | None = None) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        figures, more = throughput.measure(recipients, sender, log, runs, Path(folder), batch_size)
    return {**figures, **more}


def run_limits(seconds: float, processes: int) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        return limits.measure(500.0, 500, seconds, processes, Path(folder))


def run_load(rows: int) -> Row:
    """In a process of its own, so that its memory is its own."""
    command = [sys.executable, "-m", "benchmarks.load", "--rows", str(rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(size: Size, *, large: bool, batch_sizes: Sequence[int]) -> Row:
    os.environ.update(SECRETS)
    found: Row = {"about": about(), "throughput": [], "far": [], "batch_sizes": [], "large": [], "limits": []}
    for sender in SENDERS:
        for log in LOGS:
            said(f"throughput: {size.recipients} recipients, {sender}, {log}")
            found["throughput"].append(run_throughput(size.recipients, sender, log, size.runs))
    for sender, recipients in zip(FAR, size.far_recipients, strict=True):
        said(f"throughput: {recipients} recipients, {sender}, rows")
        found["far"].append(run_throughput(recipients, sender, "rows", size.runs))
    said(f"messages: {size.mime_letters} letters")
    found["mime"] = mime.measure(size.mime_letters, size.runs)
    said(f"load: {size.load_rows} rows")
    found["load"] = run_load(size.load_rows)
    said("claims and permits")
    found["claims"] = claims.measure(size.claims)
    for processes in size.limit_processes:
        said(f"a rate for {size.limit_s:g} s, {processes} process(es)")
        found["limits"].append(run_limits(size.limit_s, processes))
    said(f"latency: {size.sends} critical sends beside {size.bulk} bulk recipients")
    try:
        found["latency"] = latency.measure(size.sends, size.bulk)
    except Missing as missing:
        said(f"no latency: {missing}")
    if large:
        for batch_size in batch_sizes:
            said(f"batches of {batch_size}")
            found["batch_sizes"].append(run_throughput(LARGE[0], "sendgrid", "rows", 1, batch_size))
        for recipients in LARGE:
            said(f"throughput: {recipients} recipients, sendgrid, rows, once")
            found["large"].append(run_throughput(recipients, "sendgrid", "rows", 1))
    return found


def about() -> Row:
    """Facts that figures depend on, without the name of any machine, person or folder."""
    commit = subprocess.run(["git", "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, cwd=ROOT)
    return {
        "commit": commit.stdout.strip() or "unknown",
        "date": datetime.now(UTC).date().isoformat(),
        "cpus": len(os.sched_getaffinity(0)),
        "processor": _processor(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": platform.system(),
        "python": platform.python_version(),
        "beam": version("apache-beam"),
        "commit_ms": round(_commit_ms(), 2),
        "load_before": round(os.getloadavg()[0], 1),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit_ms() -> float:
    """Milliseconds of one synced append: what each commit waits for at least."""
    with tempfile.NamedTemporaryFile() as file:
        started_s = time.perf_counter()
        for _ in range(100):
            os.write(file.fileno(), b"x" * 4096)
            os.fsync(file.fileno())
        return (time.perf_counter() - started_s) * 10


def said(words: str) -> None:
    print(f"== {words}", file=sys.stderr, flush=True)


def wrong(found: Row) -> list[str]:
    """Figures that speed has no part in and that are not as they must be, in words."""
    problems = []
    for row in (*found["throughput"], *found["far"]):
        what = f"{row['sender']}, {row['outbound_log']}"
        rows = row["store_rows_per_message"] - (1.0 if row["outbound_log"] == "rows" else 0.0)
        if not 0 < row["letters"] <= row["recipients"]:
            problems.append(f"{what}: {row['letters']} letters for {row['recipients']} recipients")
        # SendGrid's requests, and SES's calls, carry one form letter each.
        asked = {"sendgrid": "requests", "ses": "calls"}.get(row["sender"])
        if asked is not None and row[asked] < row["form_letters"]:
            problems.append(f"{what}: {row[asked]} {asked} for {row['form_letters']} form letters")
        if not 0 <= rows * row["recipients"] <= row["requests"] * 2 + row["recipients"] * 0.01 + 100:
            problems.append(f"{what}: {row['store_rows_per_message']} store rows a message")
        if row["ratio"] < 0.02:
            problems.append(f"{what}: the ratio is {row['ratio']}")
    if "latency" in found and found["latency"]["bulk_per_s"] <= 0:
        problems.append("no bulk letter arrived beside the critical sends")
    problems += [f"{row['max_over_limit']} over the limit" for row in found["limits"] if row["max_over_limit"] > 0]
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--large", action="store_true", help="also 100,000 and 1,000,000 recipients; takes an hour")
    parser.add_argument("--quick", action="store_true", help="measure little, for checks; docs/ is left alone")
    parser.add_argument("--out", type=Path, default=ROOT / "build", help="folder of bench.json (default: build)")
    options = parser.parse_args()
    found = measure(QUICK if options.quick else NORMAL, large=options.large, batch_sizes=(1000, 5000))
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "bench.json").write_text(json.dumps(found, indent=1) + "\n")
    target = options.out / "benchmarks.md" if options.quick else ROOT / "docs" / "benchmarks.md"
    target.write_text(page(found), encoding="utf-8")
    if "latency" in found:
        latency_plot(found["latency"]["more"], target.with_name("latency.svg"))
    problems = wrong(found)
    print("\n".join(problems) or f"{target.name} and bench.json are written")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
