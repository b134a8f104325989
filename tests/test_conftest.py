"""The guards in conftest.py guard: a hidden skip fails in CI, and a logged address fails anywhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).with_name("conftest.py")
HEAD = "import logging\nimport pytest\n\n"
TESTS = {
    "test_skips": """
def test_in_the_test():
    pytest.skip('not today')

@pytest.mark.skipif(True, reason='not today')
def test_by_a_mark():
    pass

@pytest.mark.needs('no_such.part')
def test_need_that_is_missing():
    raise OSError

@pytest.mark.needs('json')
def test_need_that_is_there():
    pytest.skip('not today')
""",
    "test_module": "pytest.skip('not today', allow_module_level=True)",
    "test_import": "pytest.importorskip('no_such_module_today', reason='not today')",
    "test_logs": """
@pytest.mark.parametrize('word', ['batch 3', 'ann@one.example'], ids=['harmless', 'address'])
def test_log(word):
    logging.getLogger('sendonce.stores').error('sent %s', word)
""",
}


def outcomes(folder: Path, *, ci: bool) -> tuple[int, set[str]]:
    """Exit code and what pytest says of each test and module, under our conftest."""
    (folder / "conftest.py").write_text(CONFTEST.read_text())
    for name, text in TESTS.items():
        (folder / f"{name}.py").write_text(HEAD + text)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-rA", "-p", "no:cacheprovider", "--rootdir", folder, folder],
        env={**os.environ, "CI": "true" if ci else "", "PYTEST_ADDOPTS": "--continue-on-collection-errors"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    lines = re.findall(r"^(PASSED|FAILED|ERROR) ([^\s]+)|^(SKIPPED) .*\.py:\d+: (.*)$", done.stdout, re.MULTILINE)
    return done.returncode, {" ".join(part for part in line if part) for line in lines}


@pytest.fixture(scope="module")
def in_ci(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, set[str]]:
    return outcomes(tmp_path_factory.mktemp("ci"), ci=True)


@pytest.fixture(scope="module")
def at_home(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, set[str]]:
    return outcomes(tmp_path_factory.mktemp("home"), ci=False)


def test_a_skip_that_nobody_declared_fails_in_ci(in_ci: tuple[int, set[str]]) -> None:
    code, said = in_ci
    assert code == 1
    assert said == {
        "FAILED test_skips.py::test_in_the_test",
        "ERROR test_skips.py::test_by_a_mark",
        "FAILED test_skips.py::test_need_that_is_there",
        "SKIPPED needs no_such.part",
        "ERROR test_module.py",
        "ERROR test_import.py",
        "PASSED test_logs.py::test_log[harmless]",
        "PASSED test_logs.py::test_log[address]",
        "ERROR test_logs.py::test_log[address]",
    }


def test_at_home_a_skip_is_a_skip(at_home: tuple[int, set[str]]) -> None:
    _, said = at_home
    assert {"SKIPPED needs no_such.part", "SKIPPED not today"} <= said
    assert not any("skips" in line or "module" in line or "import" in line for line in said)


def test_a_logged_address_fails_the_test_that_logged_it(at_home: tuple[int, set[str]]) -> None:
    code, said = at_home
    assert code == 1
    assert {line for line in said if line.startswith("ERROR")} == {"ERROR test_logs.py::test_log[address]"}
