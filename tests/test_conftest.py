"""The guards in conftest.py guard: a hidden skip fails in CI, and a logged address fails anywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")


def outcome(folder: Path, test: str, *, ci: bool) -> tuple[int, str]:
    """Exit code and output of pytest over one test file under our conftest."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    (folder / "test_it.py").write_text(f"import logging\nimport pytest\n\n{test}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder, folder],
        env={**os.environ, "CI": "true" if ci else ""},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.returncode, done.stdout


SKIPS = {
    "in the test": "def test_it():\n    pytest.skip('not today')",
    "by a mark": "@pytest.mark.skipif(True, reason='not today')\ndef test_it():\n    pass",
    "of the module": "pytest.skip('not today', allow_module_level=True)",
    "by importorskip": "pytest.importorskip('no_such_module_today', reason='not today')",
}


@pytest.mark.parametrize("test", SKIPS.values(), ids=SKIPS.keys())
def test_a_skip_that_nobody_declared_fails_in_ci(test: str, tmp_path: Path) -> None:
    code, text = outcome(tmp_path, test, ci=True)
    assert code != 0
    assert "not today" in text


def test_the_same_skip_is_only_a_skip_at_home(tmp_path: Path) -> None:
    code, text = outcome(tmp_path, SKIPS["in the test"], ci=False)
    assert (code, "1 skipped" in text) == (0, True)


def test_a_declared_need_that_is_missing_skips_in_ci_too(tmp_path: Path) -> None:
    code, text = outcome(tmp_path, "@pytest.mark.needs('no_such.part')\ndef test_it():\n    raise OSError", ci=True)
    assert (code, "1 skipped" in text) == (0, True)


def test_a_declared_need_that_is_there_runs_the_test_and_forbids_skips(tmp_path: Path) -> None:
    code, text = outcome(tmp_path, "@pytest.mark.needs('json')\ndef test_it():\n    pytest.skip('not today')", ci=True)
    assert (code, "1 failed" in text) == (1, True)


@pytest.mark.parametrize(
    ("line", "leaks"),
    [
        ("logging.getLogger('sendonce.stores').info('sent to %s', 'ann@one.example')", True),
        ("logging.getLogger('sendonce.stores').info('sent batch %s', 3)", False),
    ],
)
def test_a_logged_address_fails_the_test_that_logged_it(line: str, leaks: bool, tmp_path: Path) -> None:
    code, text = outcome(
        tmp_path, f"def test_it():\n    logging.getLogger('sendonce').setLevel('DEBUG')\n    {line}", ci=False
    )
    assert code == int(leaks), text
