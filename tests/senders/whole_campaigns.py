"""What the tests of whole campaigns share: the command line in a folder, and a campaign that was submitted there."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sendonce.cli.main import run

Command = Callable[..., tuple[int, str, str]]


def command_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], **environment: str
) -> Command:
    """`sendonce` in this folder and environment: exit code, output, errors."""
    monkeypatch.chdir(folder)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    def call(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = run(list(arguments))
        said = capsys.readouterr()
        return code, said.out, said.err

    return call


def submitted(
    folder: Path,
    sendonce: Command,
    sender: str,
    count: int,
    *,
    lane: str = "batch_size: 100, parallel: 2",
    guard: str = "",
    environment: str = "production",
) -> None:
    """The campaign `spring` to so many people, by a sender with these settings (as in YAML's braces)."""
    (folder / "sendonce.yaml").write_text(
        "from: Shop <news@shop.example>\n"
        "unsubscribe: {base_url: https://shop.example/u}\n"
        f"senders: {{mail: {{{sender}}}}}\n{guard}"
        f"lanes: {{bulk: {{{lane}}}}}\n"
    )
    rows = [f"r{number},u{number}@one.example,Ann {number}" for number in range(count)]
    (folder / "people.csv").write_text("\n".join(["recipient_id,email,name", *rows]))
    for command in (
        ("init", "--environment", environment),
        ("config", "apply"),
        ("load", "spring", "people.csv", "-t", "newsletter"),
        ("submit", "spring", "--yes"),
    ):
        code, _, said = sendonce(*command)
        assert code == 0, said
