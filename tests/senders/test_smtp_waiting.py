"""What people are told while a mail server takes long to answer, and how a run ends that waits for it."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.providers.smtp import FakeSmtp, Fault
from tests.senders.whole_campaigns import Command, command_line, submitted

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.needs("aiosmtplib")]


@pytest.fixture
def sendonce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return command_line(tmp_path, monkeypatch, capsys, COLUMNS="80")


def until(holds: Callable[[], bool]) -> None:
    ends_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < ends_s
        time.sleep(0.05)


@dataclass(frozen=True)
class Waiting:
    """A run whose one letter was taken and is not answered before `answer` is set."""

    run: "subprocess.Popen[str]"
    answer: threading.Event
    folder: Path

    def said(self) -> str:
        return " ".join((self.folder / "run.err").read_text().split())


def ignores_ctrl_c() -> None:
    """As a shell that is not at a terminal has its background processes do."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def waiting(folder: Path, sendonce: Command, *options: str) -> Iterator[Waiting]:
    asked, answer = threading.Event(), threading.Event()

    def look(phase: str, argument: str) -> Fault | None:
        if phase == "dot":
            asked.set()
            answer.wait(120)
        return None

    with FakeSmtp(rule=look) as fake, (folder / "run.err").open("w") as err:
        sender = f"adapter: smtp, host: 127.0.0.1, port: {fake.port}, tls: never"
        times = "times: {request_timeout_s: 1, permit_ttl_s: 1, margin_s: 0.5, lease_s: 3, answer_s: 300}"
        submitted(folder, sendonce, sender, 1, lane=times)
        run = subprocess.Popen(
            [sys.executable, "-m", "sendonce.cli", "run", *options],
            stdout=subprocess.PIPE,
            stderr=err,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            cwd=folder,
            preexec_fn=ignores_ctrl_c,
            text=True,
        )
        try:
            assert asked.wait(60)
            yield Waiting(run, answer, folder)
        finally:
            answer.set()
            run.kill()
            run.communicate()


def test_who_awaits_an_answer_is_told_and_so_is_what_a_stop_waits_for(tmp_path: Path, sendonce: Command) -> None:
    def status() -> dict[str, object]:
        found: dict[str, object] = json.loads(sendonce("status", "spring", "--json")[1])
        return found

    def job() -> tuple[str, int]:
        (found,) = json.loads(sendonce("jobs", "--json")[1])
        return found["state"], found["pid"]

    with waiting(tmp_path, sendonce) as slow:
        until(lambda: bool(status()["awaiting_answers"]))

        found = status()
        (one,) = found["awaiting_answers"]  # type: ignore[misc]
        assert {name: one[name] for name in ("lane", "sender", "requests", "letters", "answer_s")} == {
            "lane": "bulk",
            "sender": "mail",
            "requests": 1,
            "letters": 1,
            "answer_s": 300.0,
        }
        assert (found["eta_minutes"], found["jobs"]) == (None, 1)
        words = "sender mail: 1 letter awaits an answer since "
        for command in (("status", "spring"), ("lanes",)):
            said = " ".join(sendonce(*command)[1].split())
            assert words in said
            assert "(for up to 300 s: times.answer_s)" in said
        assert job() == ("running", slow.run.pid)

        slow.run.send_signal(signal.SIGTERM)
        until(lambda: job()[0] == "stopping")
        until(lambda: "In flight: 1 letter by sender mail; the answer may take " in slow.said())
        assert "Once more stops at once, and leaves it in doubt." in slow.said()
        said = " ".join(sendonce("status", "spring")[1].split())
        assert "The job of the lane bulk is stopping" in said
        assert "No job of the lane" not in said

        slow.answer.set()
        assert slow.run.wait(60) == 0
        assert job()[0] == "ended"
    assert status()["sent_count"] == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_run_that_waits_at_once(
    tmp_path: Path, sendonce: Command, number: signal.Signals
) -> None:
    """It waited for the answer all the same, for minutes."""
    with waiting(tmp_path, sendonce, "--json") as slow:
        slow.run.send_signal(number)
        until(lambda: "Stopping: " in slow.said())
        slow.run.send_signal(number)
        out, _ = slow.run.communicate(timeout=30)
        assert not slow.answer.is_set()
        assert slow.run.returncode == 1
        assert json.loads(out)["error"]["reason"] == "stopped"
        assert "Stopped at once: what was in flight comes into doubt when its lease ends." in slow.said()
