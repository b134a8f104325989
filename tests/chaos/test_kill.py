"""The kill test itself, small: real processes die and are replaced, and it says so in the agreed form."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def chaos(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.chaos", *arguments],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.timeout(300)
def test_a_few_kills_lose_nothing_and_send_nothing_twice(tmp_path: Path) -> None:
    done = chaos("--recipients", "240", "--kills", "3", "--seed", "3", "--json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout.splitlines()[-1])
    assert numbers.pop("seconds") > 0
    assert numbers == {
        "kills": 3,
        "recipients": 240,
        "accepted_once": 238,
        "duplicates": 0,
        "lost": 0,
        "phantoms": 0,
        "unaccounted": 0,
        "limit_violations": 0,
        "in_doubt": 0,
        "assumed": 0,
        "decisions": 0,
        "outages": 0,
        "triggers": 0,
        "lost_triggers": 0,
        "other_problems": 0,
    }
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--recipients", "0"), "'0' is not a whole number of 1 or more"),
        (("--store", "postgres"), "invalid choice"),
        (("--kills", "x"), "'x' is not a whole number"),
        (("--points", "S4,X9"), "'X9' is no failpoint"),
        (("--fallback", "smtp"), "which the outbox cannot"),
        (("--sender", "ses", "--fallback", "ses"), "another --sender"),
    ],
)
def test_a_wrong_call_is_named(arguments: tuple[str, ...], said: str, tmp_path: Path) -> None:
    done = chaos(*arguments, folder=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr
