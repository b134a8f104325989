"""Failpoints: what a test asks for happens, at the asked time and nowhere else; a typing error is never silence."""

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sendonce.failpoints import DROP_REPLY, POINTS, FailpointRaised, Failpoints, Fault, armed, failpoint, parse

ROOT = Path(__file__).parents[1]


def run_python(code: str, spec: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "SENDONCE_FAILPOINT": spec},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def test_off_by_default() -> None:
    assert [failpoint(name) for name in POINTS] == [None] * len(POINTS)


def test_reads_every_action_with_and_without_a_number() -> None:
    assert parse("S3:kill9; S5:drop_reply:2;S6:pause(31.5);S7:raise:4;") == [
        Fault("S3", "kill9"),
        Fault("S5", "drop_reply", nth=2),
        Fault("S6", "pause", 31.5),
        Fault("S7", "raise", nth=4),
    ]
    assert parse("") == []


@pytest.mark.parametrize(
    ("spec", "wrong"),
    [
        ("S3", "'S3'"),
        ("S3:explode", "'S3:explode'"),
        ("S3:kill9:0", "'S3:kill9:0'"),
        ("S3:kill9:-1", "'S3:kill9:-1'"),
        ("S3:pause", "'S3:pause'"),
        ("S3:pause()", "'S3:pause()'"),
        ("S3:pause(1e9)", "'S3:pause(1e9)'"),
        ("S3:raise:1:2", "'S3:raise:1:2'"),
        ("S1:raise;S9:raise", "'S9:raise' names no failpoint; there are S0 (trigger read)"),
        ("s3:kill9", "'s3:kill9' names no failpoint"),
    ],
)
def test_a_malformed_text_names_the_part_that_is_wrong(spec: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="SENDONCE_FAILPOINT") as fault:
        parse(spec)
    assert wrong in str(fault.value)


def test_a_malformed_text_stops_a_process_at_its_start() -> None:
    done = run_python("import sendonce.failpoints; print('went on')", "S3:kil9")
    assert done.returncode != 0
    assert "'S3:kil9'" in done.stderr
    assert "went on" not in done.stdout


def test_kill9_ends_the_process_at_the_nth_time_and_not_before() -> None:
    code = (
        "from sendonce.failpoints import failpoint\n"
        "for i in range(5):\n failpoint('S2'); failpoint('S3'); print(i, flush=True)"
    )
    done = run_python(code, "S3:kill9:3")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1"]


def test_kill9_without_a_number_strikes_the_first_time() -> None:
    done = run_python("from sendonce.failpoints import failpoint\nfailpoint('S5')\nprint('alive')", "S5:kill9")
    assert done.returncode == -signal.SIGKILL
    assert done.stdout == ""


def test_raise_happens_every_time_unless_numbered() -> None:
    with armed("S7:raise"):
        for _ in range(2):
            with pytest.raises(FailpointRaised, match="S7"):
                failpoint("S7")
        assert failpoint("S6") is None
    with armed("S7:raise:2"):
        assert failpoint("S7") is None
        with pytest.raises(FailpointRaised):
            failpoint("S7")
        assert failpoint("S7") is None


def test_drop_reply_is_handed_to_the_caller() -> None:
    with armed("S5:drop_reply:2"):
        assert [failpoint("S5"), failpoint("S5"), failpoint("S5")] == [None, DROP_REPLY, None]


def test_pause_sleeps_that_long_and_goes_on() -> None:
    slept: list[float] = []
    points = Failpoints(parse("S6:pause(31.5):2"), sleep=slept.append)
    assert points.reach("S6") is None
    assert slept == []
    assert points.reach("S6") is None
    assert slept == [31.5]


def test_several_faults_at_one_point_act_in_order() -> None:
    slept: list[float] = []
    points = Failpoints(parse("S5:pause(1);S5:drop_reply"), sleep=slept.append)
    assert points.reach("S5") == DROP_REPLY
    assert slept == [1.0]


def test_armed_ends_with_its_block_and_counts_anew() -> None:
    for _ in range(2):
        with armed("S3:raise:1"), pytest.raises(FailpointRaised):
            failpoint("S3")
        assert failpoint("S3") is None


def test_the_nth_time_is_counted_once_over_all_threads() -> None:
    killed: list[int] = []
    points = Failpoints(parse("S3:kill9:500"), kill=lambda: killed.append(1))
    threads = [threading.Thread(target=lambda: [points.reach("S3") for _ in range(250)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert killed == [1]


def test_a_name_that_no_table_has_is_an_error_when_armed() -> None:
    with armed("S3:drop_reply"), pytest.raises(KeyError):
        failpoint("S99")


def test_the_protocol_reaches_every_point_and_no_other() -> None:
    used = {
        name
        for folder in ("sendonce", "transforms", "pipelines")
        for module in (ROOT / folder).rglob("*.py")
        for name in re.findall(r'failpoint\("(\w+)"\)', module.read_text())
    }
    assert used == set(POINTS)
