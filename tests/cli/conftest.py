import json
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from sendonce.cli.main import run
from sendonce.stores.base import Store
from sendonce.stores.opening import shared_store

LINE_MAX = 80


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def widest(self) -> int:
        return max((len(line) for line in self.out.splitlines()), default=0)


Call = Callable[..., Answer]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, which the command is called in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", str(LINE_MAX))
    return tmp_path


@pytest.fixture
def sendonce(folder: Path, capsys: pytest.CaptureFixture[str]) -> Call:
    """Calls a command as a shell would; `sendonce("status", "--json").json`."""

    def call(*arguments: str) -> Answer:
        capsys.readouterr()
        code = run(list(arguments))
        said = capsys.readouterr()
        return Answer(code, said.out, said.err)

    return call


@pytest.fixture
def store(sendonce: Call) -> Store:
    """The store of the folder, made by `sendonce init`."""
    assert sendonce("init").code == 0
    return shared_store("sqlite:///.sendonce/sendonce.db")


def hears_ctrl_c() -> None:
    """For `preexec_fn`: a process started from a shell's background ignores SIGINT, and so would its children."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
