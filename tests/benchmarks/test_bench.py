"""What `make bench` promises to those who read its figures: names, what is compared, what is counted."""

import json
import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from benchmarks import latency, limits, page, plots, report, sinks

ROOT = Path(__file__).resolve().parents[2]
NAMES = [
    "recipients",
    "recipients_per_s",
    "raw_recipients_per_s",
    "ratio",
    "peak_rss_mb",
    "requests",
    "form_letters",
    "store_rows_per_message",
    "load_rows_per_s",
    "outbound_log",
]


@pytest.mark.parametrize(("sender", "log"), [("sendgrid", "packed"), ("outbox", "rows"), ("smtp", "rows")])
def test_the_last_line_is_one_object_with_the_promised_names(sender: str, log: str) -> None:
    """The run itself asserts that both sides handed over the same letters in the same requests."""
    command = [sys.executable, "-m", "benchmarks.throughput", "--recipients", "300", "--runs", "1", "--json"]
    done = subprocess.run(
        [*command, "--sender", sender, "--outbound-log", log], capture_output=True, text=True, cwd=ROOT, timeout=100
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert list(found) == NAMES
    assert (found["recipients"], found["outbound_log"]) == (300, log)
    assert 0 < found["form_letters"] <= 300
    assert found["requests"] >= (found["form_letters"] if sender == "sendgrid" else 1)
    assert found["store_rows_per_message"] >= (0.9 if log == "rows" else 0.0)
    assert found["ratio"] == pytest.approx(found["recipients_per_s"] / found["raw_recipients_per_s"], rel=0.1)


def seconds(*moments: tuple[float, int]) -> list[tuple[datetime, int]]:
    start = datetime(2026, 1, 15, tzinfo=UTC)
    return [(start + timedelta(seconds=at), n) for at, n in moments]


def test_a_bucket_that_is_kept_is_not_over() -> None:
    assert limits.over_limit(seconds((0, 10), (1, 10), (2, 10)), 10.0, 10) == 0.0
    assert limits.over_limit(seconds((0, 4), (100, 10)), 1.0, 10) == 0.0


def test_a_bucket_that_is_overdrawn_is_over_by_as_much() -> None:
    assert limits.over_limit(seconds((0, 10), (0.5, 10)), 10.0, 10) == pytest.approx(5.0)
    assert limits.over_limit(seconds((0, 11)), 10.0, 10) == pytest.approx(1.0)


def test_a_folder_is_counted_by_letters_and_emptied(tmp_path: Path) -> None:
    (tmp_path / "spring").mkdir()
    (tmp_path / "spring" / "batch-0.mbox").write_bytes(
        b"From x\nX-Sendonce-Ordinal: 0\n\nFrom x\nX-Sendonce-Ordinal: 1\n"
    )
    folder = sinks.Folder(tmp_path)
    first = folder.arrived()
    assert (first.requests, first.recipients) == (1, 2)
    assert folder.arrived() == sinks.Arrived(0, 0, 0, folder.arrived().content)
    assert first.content != folder.arrived().content


FIGURES = {
    "recipients": 1000,
    "recipients_per_s": 500,
    "raw_recipients_per_s": 1000,
    "ratio": 0.5,
    "peak_rss_mb": 200,
    "requests": 40,
    "form_letters": 30,
    "store_rows_per_message": 1.05,
    "load_rows_per_s": 40_000,
    "outbound_log": "rows",
    "sender": "sendgrid",
    "runs": 1,
    "letters": 998,
    "request_mb": 1.0,
    "ratios": [0.5],
    "sink_busy": 0.1,
    "rounds": 1,
    "batch_size": 5000,
    "calls": 40,
    "answers_after_ms": 0,
    "connections": 1,
    "side_by_side": 1,
}
FAR = {
    **FIGURES,
    "sender": "ses",
    "calls": 50,
    "ratio": 0.59,
    "answers_after_ms": 100,
    "connections": 16,
    "side_by_side": 24,
}
MIME = {
    "letters": 9,
    "bytes": 8000,
    "compiled_us": 20.0,
    "plain_us": 33.0,
    "email_us": 900.0,
    "times_as_fast": 45.0,
}
LIMIT = {
    "scope_per_s": 500.0,
    "burst": 500,
    "seconds": 60.0,
    "granted": 30_400,
    "used_ratio": 0.9967,
    "processes": 1,
    "max_over_limit": 0.0,
}


def found(**changes: object) -> dict[str, object]:
    return {
        "about": report.about(),
        "throughput": [{**FIGURES, **changes}],
        "far": [FAR],
        "mime": MIME,
        "large": [{**FIGURES, "peak_rss_mb": 250}, {**FIGURES, "peak_rss_mb": 300}],
        "batch_sizes": [{**FIGURES, "batch_size": 5000}],
        "load": {"rows": 100, "file_mb": 0.1, "rows_per_s": 40_000, "rows_per_cpu_s": 45_000, "peak_mb": 60},
        "claims": {"no_limit": {"ms": 4.0, "cpu_ms": 2.0}, "rate": {"ms": 4.2, "cpu_ms": 2.2}},
        "limits": [LIMIT],
    }


def test_the_page_says_results_beside_targets_and_names_no_machine() -> None:
    text = page.page(found())
    assert "≥ 0.5 ✓" in text
    assert "≤ 1.02 ✗" in text
    assert "+20.0%" in text
    assert "99.7%" in text
    host = os.uname().nodename
    assert not re.search(rf"\b{re.escape(host)}\b", text)
    assert str(ROOT) not in text


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({}, ""),
        ({"letters": 1200}, "letters"),
        ({"requests": 3}, "requests"),
        ({"store_rows_per_message": 3.5}, "rows"),
        ({"store_rows_per_message": 0.5}, "rows"),
        ({"ratio": 0.001}, "ratio"),
    ],
)
def test_a_figure_that_speed_has_no_part_in_fails_a_check(changes: dict[str, object], word: str) -> None:
    problems = report.wrong(found(**changes))
    assert len(problems) == bool(word)
    assert all(word in problem for problem in problems)


def test_the_page_tells_ratios_of_far_providers_and_what_their_connections_could_bring() -> None:
    text = page.page(found())
    assert "**0.59** | ≥ 0.6 ✗" in text
    assert "| 3,194 | 500 | 1,000 |" in text  # 998 letters in 50 calls, 16 at a time, 10 a second
    assert "| 20.0 | 33.0 | 900.0 | **45.0** |" in text


def test_fewer_calls_than_form_letters_fail_a_check_of_ses() -> None:
    problems = report.wrong({**found(), "far": [{**FAR, "calls": 3, "store_rows_per_message": 1.0}]})
    assert problems == ["ses, rows: 3 calls for 30 form letters"]


LATENCY = {
    "idle_p50_ms": 90,
    "idle_p99_ms": 200,
    "loaded_p50_ms": 210,
    "loaded_p99_ms": 390,
    "two_process_p99_ms": 350,
    "bulk_per_s": 8100,
    "more": {
        "sends": 3,
        "per_s": 10.0,
        "two_process_p50_ms": 120,
        "two_process_bulk_per_s": 8300,
        "two_process_idle_p50_ms": 85,
        "two_process_idle_p99_ms": 180,
        "stalled_p50_ms": 95,
        "stalled_p99_ms": 240,
        "idle_ms": [80, 90, 200],
        "loaded_ms": [150, 210, 390],
        "two_process_ms": [100, 120, 350],
    },
}


def test_the_page_tells_latencies_beside_their_targets() -> None:
    heading, how, picture, rows = page.latencies(LATENCY)
    assert heading.startswith("## Latency")
    assert "3 critical sends at 10/s" in how
    assert "(latency.svg)" in picture
    assert "≤ 1000 ✓ (aim 400 ✓)" in rows
    assert "≤ 2 x idle ✓" in rows
    assert page.latencies({**LATENCY, "loaded_p99_ms": 1001})[3].count("✗") == 2
    assert page.latencies(None) == []


def test_the_same_figures_make_the_same_plot(tmp_path: Path) -> None:
    for name in ("one.svg", "two.svg"):
        plots.latency_plot(LATENCY["more"], tmp_path / name)  # type: ignore[arg-type]
    text = (tmp_path / "one.svg").read_text()
    assert text == (tmp_path / "two.svg").read_text()
    assert "beside bulk in the same job" in text


def test_a_quantile_is_one_of_the_latencies() -> None:
    part = latency.Part([float(ms) for ms in range(1, 101)], 0.0)
    assert (part.quantile(0.5), part.quantile(0.99)) == (51.0, 100.0)
    assert latency.Part([7.0], 0.0).quantile(0.99) == 7.0
