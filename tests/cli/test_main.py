import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sendonce.cli.main import _COMMANDS, cli, run
from sendonce.control.export import COLUMNS
from sendonce.stores.base import Store
from tests.cli.conftest import Call

NAMES = [name for section in _COMMANDS.values() for name in section]
ROOT = Path(__file__).parents[2]


def leaves() -> list[tuple[str, click.Command]]:
    context = click.Context(cli)
    found = []
    for name in NAMES:
        command = cli.get_command(context, name)
        assert command is not None
        inner = getattr(command, "commands", None)
        found += [(f"{name} {sub}", each) for sub, each in inner.items()] if inner else [(name, command)]
    return found


def process(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=environment, timeout=60, **options
    )


@pytest.mark.parametrize(("name", "command"), leaves(), ids=[name for name, _ in leaves()])
def test_every_command_explains_itself_and_answers_machines(name: str, command: click.Command) -> None:
    assert command.help
    assert {"as_json", "store", "config"} <= {parameter.name for parameter in command.params}


@pytest.mark.parametrize("name", ["", *(name for name, _ in leaves())])
def test_help_fits_80_columns(sendonce: Call, name: str) -> None:
    answer = sendonce(*name.split(), "--help")

    assert answer.code == 0
    assert answer.widest <= 80


@pytest.mark.parametrize("name", ["doubts", "templates", "config"])
def test_help_of_a_group_cuts_no_sentence_off(sendonce: Call, name: str) -> None:
    assert "..." not in sendonce(name, "--help").out.split("Commands:")[1]


@pytest.mark.parametrize(
    ("name", "json"),
    [
        ("export", "The same as --format ndjson: a line of JSON for each recipient."),
        ("status", "One JSON document on standard output; with --watch one a line."),
        ("lanes", "One JSON document on standard output; with --watch one a line."),
        ("list", "One JSON document on standard output, for machines."),
    ],
)
def test_help_says_once_what_json_gives(sendonce: Call, name: str, json: str) -> None:
    said = " ".join(sendonce(name, "--help").out.split())
    assert f"--json {json}" in said
    assert "ndjson" not in said.replace("[csv|ndjson]", "").replace(json, "")
    assert "line of JSON" not in said.replace(json, "")


def test_help_of_export_names_every_column(sendonce: Call) -> None:
    told = " ".join(sendonce("export", "--help").out.split()).split("outcome: ")[1].split(". ")[0]
    assert told == ", ".join(COLUMNS)


def test_help_names_every_command(sendonce: Call) -> None:
    words = sendonce("--help").out.split()

    assert [name for name in NAMES if name not in words] == []


def test_version(sendonce: Call) -> None:
    assert sendonce("--version").out.startswith("sendonce 0.")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["stats"], "there is no command 'stats'; did you mean status?"),
        (["zzz"], "`sendonce --help` lists them"),
        (["status", "--jsno"], "No such option '--jsno'"),
        (["submit"], "Missing argument 'CAMPAIGN'"),
        (["run", "--lanes", "bulk,slow"], "there is no lane 'slow'; lanes are critical, high, bulk"),
        (["run", "--lanes", ""], "--lanes names no lane; lanes are critical, high, bulk"),
        (["run", "--triggers", "nowhere.json"], "'nowhere.json' does not exist"),
        (["status", "--store", "mysql://x"], "store: must be a store URL"),
        (["status", "--config", "nowhere.yaml"], "nowhere.yaml: no such file; `sendonce init` writes one"),
    ],
)
def test_a_wrong_call_exits_with_2_and_says_what_is_wrong(sendonce: Call, arguments: list[str], said: str) -> None:
    answer = sendonce(*arguments)

    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err


def test_a_wrong_call_tells_machines_in_json(sendonce: Call, store: Store) -> None:
    answer = sendonce("submit", "sprnig", "--json")

    assert answer.code == 2
    assert answer.json["error"]["reason"] == "unknown_campaign"
    assert "'sprnig'" in answer.json["error"]["message"]


def test_a_missing_store_says_how_to_make_one(sendonce: Call) -> None:
    answer = sendonce("list")

    assert answer.code == 2
    assert "there is no store at" in answer.err
    assert "run `sendonce init`" in answer.err


def test_a_store_that_is_there_and_cannot_be_used_is_no_wrong_call(sendonce: Call, folder: Path) -> None:
    (folder / "torn.db").write_text("no database at all, and long enough to be taken for one" * 20)

    missing = sendonce("status", "--store", "sqlite:///empty.db", "--json")
    torn = sendonce("status", "--store", "sqlite:///torn.db", "--json")

    assert (missing.code, missing.json["error"]["reason"]) == (2, "no_store")
    assert (torn.code, torn.json["error"]["reason"]) == (1, "store_refused")


def test_a_fault_that_nobody_foresaw_is_not_hidden(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setattr(cli, "main", lambda *_, **__: 1 / 0)

    with pytest.raises(ZeroDivisionError):
        run(["list"])


def test_status_loads_neither_beam_nor_pandas_nor_a_renderer(folder: Path) -> None:
    code = (
        "import sys; from sendonce.cli.main import run; run(['init']); run(['status']); run(['list'])\n"
        "heavy = {'apache_beam', 'pandas', 'numpy', 'jinja2', 'babel'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = process("-c", code, cwd=folder)

    assert done.returncode == 0, done.stderr


def test_a_reader_that_leaves_early_makes_no_traceback(folder: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    code = (
        "import sys; from sendonce.cli.main import run, cli; import click\n"
        "@cli.command('flood')\n"
        "def flood():\n"
        "    while True: click.echo('x' * 10_000)\n"
        "cli.get_command = lambda context, name: flood\n"
        "sys.exit(run(['flood']))"
    )
    reader, writer = os.pipe()
    child = subprocess.Popen([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, env=environment)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    _, said = child.communicate(timeout=30)

    assert (child.returncode, said) == (1, b"")


def test_ctrl_c_names_the_command_that_goes_on(sendonce: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "main", interrupted)

    answer = sendonce("load", "spring", "r.csv", "-t", "newsletter")

    assert answer.code == 1
    assert "`sendonce load spring r.csv -t newsletter` goes on from here." in answer.err


def test_python_m_is_the_command(folder: Path) -> None:
    done = process("-m", "sendonce.cli", "--version", cwd=folder)

    assert (done.returncode, done.stdout[:9]) == (0, "sendonce ")


@pytest.mark.parametrize("arguments", ["list --json", "status nope --json", "list"])
@pytest.mark.parametrize("closing", [">&-", ">&- 2>&-", ">/dev/full"])
def test_a_command_that_cannot_answer_ends_without_a_traceback(
    folder: Path, store: Store, arguments: str, closing: str
) -> None:
    """Somebody closed standard output before the command started, or its disk is full."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = f"{sys.executable} -m sendonce.cli {arguments} {closing}"

    done = subprocess.run(["sh", "-c", line], cwd=folder, env=environment, capture_output=True, text=True, timeout=60)

    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
    assert done.returncode in (0, 1, 2)
    if "nope" in arguments:
        assert done.returncode == 2
