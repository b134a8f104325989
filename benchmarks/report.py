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

# What is asked of the newsletter on SQLite, by the log that is kept.
RATIO = {"rows": 0.5, "packed": 0.6}
FAR_RATIO = 0.6
ROWS = {"rows": 1.02, "packed": 0.02}
LOAD_ROWS_PER_S = 30_000
USED = 0.98
# Of a critical send, published to arrived, in milliseconds at the 99th percentile; and bulk recipients a second beside.
IDLE_MS, LOADED_MS, AIM_MS, BULK_PER_S = 500, 1000, 400, 8000


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


# -- the page ------------------------------------------------------------------------------------------------------


def page(found: Row) -> str:
    about, load_ = found["about"], found["load"]
    parts = [
        "# Benchmarks",
        f"Generated by `make bench` on {about['date']} at commit {about['commit']}; not edited by hand. "
        "`make bench` measures again in some minutes, `make bench BENCH_ARGS=--large` in an hour.",
        "Absolute figures are this machine's: "
        f"{about['cpus']} CPUs ({about['processor']}), {about['memory_gb']} GB, {about['system']}, Python "
        f"{about['python']}, Beam {about['beam']}; a synced write takes {about['commit_ms']} ms; load "
        "average before: "
        f"{about['load_before']}. Ratios carry over to others.",
        "## Throughput",
        "**Pipeline**: `sendonce run` with the shipped newsletter on SQLite: plan, render, claim, "
        "permit, request, and "
        "an outcome for each recipient, every commit on the disk. **Raw loop**: the same letters in "
        "the same requests "
        "to the same sink, one after the other, with no Beam and no store; what it does not do is "
        "remember. Both in one "
        "run, in turn, each in its own process; medians. **Ratio**: pipeline ÷ raw loop. With "
        "`sendgrid` a fake SendGrid "
        "on loopback takes up to 1,000 recipients of one form letter a request; with `outbox` a file "
        "takes a batch, and "
        "is synced. The log `rows` keeps a row for each message, `packed` a byte.",
        table(
            ("sender", "log", "recipients", "pipeline/s", "raw/s", "ratio", "target", "each run", "sink busy"),
            [
                (
                    row["sender"],
                    row["outbound_log"],
                    number(row["recipients"]),
                    number(row["recipients_per_s"]),
                    number(row["raw_recipients_per_s"]),
                    f"**{row['ratio']:.2f}**",
                    f"≥ {RATIO[row['outbound_log']]} {mark(row['ratio'] >= RATIO[row['outbound_log']])}",
                    " ".join(f"{ratio:.2f}" for ratio in row["ratios"]),
                    f"{row['sink_busy']:.0%}",
                )
                for row in (*found["throughput"], *found["large"])
            ],
        ),
        *far(found["far"]),
        *messages(found["mime"]),
        "## Requests, rows, memory",
        "The newsletter has different form letters by language, name, points and picks; no batch "
        "spans two time zones. "
        "Requests should be at most 1,000 + 250 x form letters for a million recipients; rows are "
        "those that a run adds "
        "to the store. A small campaign needs more of both for each recipient, as every time zone "
        "has a batch of its own.",
        table(
            (
                "sender",
                "log",
                "recipients",
                "form letters",
                "requests",
                "a million",
                "target",
                "rows a message",
                "target",
                "peak MB",
            ),
            [
                (
                    row["sender"],
                    row["outbound_log"],
                    number(row["recipients"]),
                    row["form_letters"],
                    number(row["requests"]),
                    number(per_million(row)),
                    f"≤ {number(most_requests(row))} {mark(per_million(row) <= most_requests(row))}",
                    row["store_rows_per_message"],
                    f"≤ {ROWS[row['outbound_log']]} {mark(row['store_rows_per_message'] <= ROWS[row['outbound_log']])}",
                    row["peak_rss_mb"],
                )
                for row in (*found["throughput"], *found["large"])
            ],
        ),
        *memory(found["large"]),
        *batch_sizes(found["batch_sizes"]),
        "## Load",
        f"`sendonce load` of {number(load_['rows'])} rows ({load_['file_mb']} MB of CSV) in one process: "
        f"**{number(load_['rows_per_s'])} rows/s**, {number(load_['rows_per_cpu_s'])} a CPU second, "
        f"{load_['peak_mb']} MB "
        f"(target ≥ {number(LOAD_ROWS_PER_S)} {mark(load_['rows_per_s'] >= LOAD_ROWS_PER_S)}).",
        "## Claims and permits",
        "One request of one recipient through the protocol to a sender that accepts at once: two transactions, both "
        "on the disk.",
        table(
            ("limits", "ms a request", "of that CPU", "against none"),
            [
                (
                    name.replace("_", " "),
                    cost["ms"],
                    cost["cpu_ms"],
                    f"{cost['cpu_ms'] / found['claims']['no_limit']['cpu_ms']:.2f} times",
                )
                for name, cost in found["claims"].items()
            ],
        ),
        "## Use of a limit",
        "A rate while work waits for it, from the first permit on, in requests as large as the limit "
        "lets them be. Used: "
        "permits granted ÷ (burst + rate x seconds), which nothing can exceed. Over: the most by "
        "which any window held "
        "more than its limit.",
        table(
            ("rate", "burst", "seconds", "processes", "granted", "used", "target", "over"),
            [
                (
                    f"{row['scope_per_s']:g}/s",
                    row["burst"],
                    f"{row['seconds']:g}",
                    row["processes"],
                    number(row["granted"]),
                    f"**{row['used_ratio']:.1%}**",
                    f"≥ {USED:.0%} {mark(row['used_ratio'] >= USED)}",
                    f"{row['max_over_limit']:g} {mark(row['max_over_limit'] == 0)}",
                )
                for row in found["limits"]
            ],
        ),
        *latencies(found.get("latency")),
    ]
    return "\n\n".join(parts) + "\n"


def far(rows: list[Row]) -> list[str]:
    """The senders whose providers take their time."""
    return [
        "## SMTP, SES, webhook",
        "The same two sides with providers that answer as ones far away do: a mail server of ours to each dot, fakes "
        "of SES (with its signatures checked) and of a webhook's receiver (signatures and keys) to each call. The raw "
        "loop sends side by side, too: as many requests at a time as the lane, by the same client, over as many "
        "connections. A **call** is a transaction of one letter, a `SendBulkEmail` of up to 50, a POST of up to 100. "
        "**At most**: what so many connections could bring, were they never idle. Where the raw loop comes near it, "
        "both wait for the provider; where it does not, for one core that renders, packs and signs. The lane's "
        "`window_s` is 20, since nothing waits beside it.",
        table(
            (
                "sender",
                "answers after",
                "connections",
                "at a time",
                "batch",
                "recipients",
                "calls",
                "at most/s",
                "pipeline/s",
                "raw/s",
                "ratio",
                "target",
                "each run",
                "sink busy",
            ),
            [
                (
                    row["sender"],
                    f"{row['answers_after_ms']} ms",
                    row["connections"],
                    row["side_by_side"],
                    number(row["batch_size"]),
                    number(row["recipients"]),
                    number(row["calls"]),
                    number(most_per_s(row)),
                    number(row["recipients_per_s"]),
                    number(row["raw_recipients_per_s"]),
                    f"**{row['ratio']:.2f}**",
                    f"≥ {FAR_RATIO} {mark(row['ratio'] >= FAR_RATIO)}",
                    " ".join(f"{ratio:.2f}" for ratio in row["ratios"]),
                    f"{row['sink_busy']:.0%}",
                )
                for row in rows
            ],
        ),
    ]


def most_per_s(row: Row) -> float:
    """Recipients a second that a provider's connections could bring, were they never idle."""
    return float(row["letters"] / row["calls"] * row["connections"] * 1000 / row["answers_after_ms"])


def messages(row: Row) -> list[str]:
    return [
        "## Messages",
        f"The newsletter as a MIME message of {number(row['bytes'])} bytes, in microseconds of CPU for each "
        "recipient. Sendonce encodes a form letter once and fills in what is each recipient's own; letters without a "
        "form are assembled for each. Both give the same bytes. Beside: Python's `EmailMessage` with the same subject, "
        "texts and headers.",
        table(
            ("from the form letter", "assembled for each", "EmailMessage", "times as fast"),
            [(row["compiled_us"], row["plain_us"], row["email_us"], f"**{row['times_as_fast']}**")],
        ),
    ]


def latencies(row: Row | None) -> list[str]:
    if row is None:
        return []
    more = row["more"]
    idle, loaded, apart = row["idle_p99_ms"], row["loaded_p99_ms"], row["two_process_p99_ms"]
    return [
        "## Latency of a code beside a newsletter",
        f"`sendonce run --subscription`: {more['sends']} critical sends at {more['per_s']:g}/s, each from its "
        "publishing to Pub/Sub (Google's emulator) until its request arrives at a fake SendGrid that answers after "
        f"{latency.PROVIDER_MS} ms; SQLite. Beside: a bulk campaign at full speed in the same job, or in a job of its "
        f"own. Bulk is a letter of 8 KB with a name and a condition, {latency.BULK_PARALLEL} requests side by side.",
        "![Share of sends by milliseconds](latency.svg)",
        table(
            ("", "p50 ms", "p99 ms", "target", "bulk/s beside"),
            [
                ("idle", row["idle_p50_ms"], f"**{idle}**", f"≤ {IDLE_MS} {mark(idle <= IDLE_MS)}", "-"),
                (
                    "beside bulk",
                    row["loaded_p50_ms"],
                    f"**{loaded}**",
                    f"≤ {LOADED_MS} {mark(loaded <= LOADED_MS)} (aim {AIM_MS} {mark(loaded <= AIM_MS)})",
                    f"{number(row['bulk_per_s'])} (≥ {number(BULK_PER_S)} {mark(row['bulk_per_s'] >= BULK_PER_S)})",
                ),
                (
                    "bulk in another job",
                    more["two_process_p50_ms"],
                    f"**{apart}**",
                    f"≤ 2 x idle {mark(apart <= 2 * idle)}",
                    number(more["two_process_bulk_per_s"]),
                ),
                (
                    "two jobs, before bulk begins",
                    more["two_process_idle_p50_ms"],
                    f"**{more['two_process_idle_p99_ms']}**",
                    "",
                    "-",
                ),
                (
                    "two jobs, bulk's provider stalls, breaker open",
                    more["stalled_p50_ms"],
                    f"**{more['stalled_p99_ms']}**",
                    f"≤ 2 x that {mark(more['stalled_p99_ms'] <= 2 * more['two_process_idle_p99_ms'])}",
                    "0",
                ),
            ],
        ),
    ]


def memory(large: list[Row]) -> list[str]:
    if len(large) < 2:
        return []
    small, great = large[0], large[-1]
    grown = great["peak_rss_mb"] / small["peak_rss_mb"] - 1
    return [
        f"Memory of the sending process at {number(great['recipients'])} recipients against "
        f"{number(small['recipients'])}: "
        f"**{grown:+.1%}** (target: within 10 % {mark(abs(grown) <= 0.1)})."
    ]


def batch_sizes(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    return [
        "## Size of a batch",
        "The lane's `batch_size`, with `sendgrid` and `rows`, one run each. A larger one makes fewer "
        "requests for each "
        "form letter. What a kill leaves in doubt is a request, so at most 1,000 recipients whatever the size.",
        table(
            ("batch_size", "recipients", "ratio", "requests", "rows a message", "peak MB"),
            [
                (
                    number(row["batch_size"]),
                    number(row["recipients"]),
                    f"{row['ratio']:.2f}",
                    number(row["requests"]),
                    row["store_rows_per_message"],
                    row["peak_rss_mb"],
                )
                for row in rows
            ],
        ),
    ]


def per_million(row: Row) -> int:
    return round(row["requests"] * 1e6 / row["recipients"])


def most_requests(row: Row) -> int:
    return 1000 + 250 * int(row["form_letters"])


def number(value: float) -> str:
    return f"{value:,.0f}"


def mark(holds: bool) -> str:
    return "✓" if holds else "✗"


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


def wrong(found: Row) -> list[str]:
    """Figures that speed has no part in and that are not as they must be, in words."""
    problems = []
    for row in (*found["throughput"], *found["far"]):
        what = f"{row['sender']}, {row['outbound_log']}"
        rows = row["store_rows_per_message"] - (1.0 if row["outbound_log"] == "rows" else 0.0)
        if not 0 < row["letters"] <= row["recipients"]:
            problems.append(f"{what}: {row['letters']} letters for {row['recipients']} recipients")
        if row["requests"] < row["form_letters"] and row["sender"] in ("sendgrid", "ses"):
            problems.append(f"{what}: {row['requests']} requests for {row['form_letters']} form letters")
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
