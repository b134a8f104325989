"""What every test gets: a clean environment, steady Hypothesis, no skip that hides a fault, no address in a log."""

import importlib.util
import logging
import os
import re
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import hypothesis
import pytest

if TYPE_CHECKING:
    from tests.emulated import Emulator

IN_CI = bool(os.environ.get("CI"))

# CI runs the same examples each time, so that a red run means a change; at home each run looks at new ones.
hypothesis.settings.register_profile("home", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True, database=None)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if IN_CI else "home"))

# Every person in a test lives at *.example; a test that logs one of their addresses has found a leak.
_ADDRESS = re.compile(r"[^\s@<>\"']+@(?:[\w-]+\.)+example\b", re.IGNORECASE)
# By which variable a client finds each emulator.
_VARIABLES = {"pubsub": "PUBSUB_EMULATOR_HOST", "spanner": "SPANNER_EMULATOR_HOST"}
_OUR_LOGGERS = ("sendonce", "pipelines", "transforms", "schemas")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "needs(module, ...): skip where one of these modules cannot be found; in CI any other skip is a failure",
    )
    config.addinivalue_line(
        "markers",
        "toolchain(name): skip where a tool or its libraries are missing (`gcloud`, `node`, `go`, `smtp-server`)",
    )
    config.addinivalue_line(
        "markers",
        "emulator(name, ...): for tests that start their own (`spanner`, `pubsub`): skip where the gcloud SDK has none",
    )


def _missing(item: pytest.Item) -> list[str]:
    """The modules, emulators and toolchains that a test's markers name and that are not there."""
    named = [module for marker in item.iter_markers("needs") for module in marker.args]
    fixtures = getattr(item, "fixturenames", [])
    emulators = {name for marker in item.iter_markers("emulator") for name in marker.args}
    emulators.update(name for name in _VARIABLES if name in fixtures)
    toolchains = [name for marker in item.iter_markers("toolchain") for name in marker.args]
    return [
        *(module for module in named if not _is_there(module)),
        *filter(None, map(_no_emulator, sorted(emulators))),
        *filter(None, map(_no_toolchain, toolchains)),
    ]


def _no_toolchain(name: str) -> str:
    from tests import toolchains

    return toolchains.missing(name)


def _no_emulator(name: str) -> str:
    from tests import emulated

    return emulated.missing(name)


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package is missing
        return False


def pytest_runtest_setup(item: pytest.Item) -> None:
    missing = _missing(item)
    if missing:
        pytest.skip(f"needs {', '.join(missing)}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail") and not _missing(item):
        _fail(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if IN_CI and report.skipped:
        _fail(report)
    return report


def _fail(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr
    report.outcome = "failed"
    report.longrepr = f"Skipped in CI, where only a missing @pytest.mark.needs(...) may skip a test. {reason}"


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No SENDONCE_* setting of the person who runs the tests reaches them."""
    for name in [name for name in os.environ if name.startswith("SENDONCE_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def pubsub() -> Iterator["Emulator"]:
    """A Pub/Sub emulator for the tests of a module, whose clients find it; where there is none they are skipped."""
    yield from _started("pubsub")


@pytest.fixture(scope="module")
def spanner() -> Iterator["Emulator"]:
    """A Spanner emulator for the tests of a module, whose clients find it; where there is none they are skipped."""
    yield from _started("spanner")


def _started(name: str) -> Iterator["Emulator"]:
    from tests import emulated

    with emulated.emulator(name) as running, pytest.MonkeyPatch.context() as patch:
        patch.setenv(_VARIABLES[name], running.address)
        yield running


class _Watch(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.leaks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        text = logging.Formatter().format(record)
        if _ADDRESS.search(text):
            self.leaks.append(f"{record.name} {record.pathname}:{record.lineno}: {text}")


@pytest.fixture(autouse=True)
def _no_address_in_logs() -> Iterator[None]:
    """Addresses of people never reach a log, whatever the test is about."""
    watch = _Watch()
    loggers: list[Any] = [logging.getLogger(name) for name in _OUR_LOGGERS]
    for logger in loggers:
        logger.addHandler(watch)
    yield
    for logger in loggers:
        logger.removeHandler(watch)
    assert not watch.leaks, "a log line holds an address:\n" + "\n".join(watch.leaks)
