"""`sendonce demo`: a made-up campaign through the real pipeline into a folder, every outcome counted."""

import shutil
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click
import orjson

from schemas.outcomes import KINDS
from schemas.tables import Campaign
from sendonce.cli.beam import local_runner
from sendonce.cli.letterbox import Letterbox, look_into
from sendonce.cli.output import counted, duration, err, kind_text, number, out, table
from sendonce.cli.run import stop_signals
from sendonce.cli.session import Session, Unfinished, with_session
from sendonce.cli.status import reasons_table
from sendonce.cli.watching import Watch
from sendonce.config import Config, OutboxSettings, Unsubscribe, apply_config, load_config
from sendonce.control import campaigns
from sendonce.control.completion import settle_campaign
from sendonce.control.load import LoadOptions, LoadReport, load
from sendonce.control.progress import Counts, count, count_reasons
from sendonce.rendering.catalogue import find_template
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store

_FOLDER: Final = Path(".sendonce/demo")
_RECIPIENTS_MAX: Final = 5_000_000


@dataclass(frozen=True)
class _Result:
    """The whole demo: what was loaded, what became of it, what lies in the outbox. seconds: of sending, this time."""

    load: LoadReport
    counts: Counts
    reasons: dict[str, int]
    letters: Letterbox
    seconds: float

    @property
    def unaccounted(self) -> int:
        """Recipients of the snapshot without an outcome; open ones too, for the demo has ended."""
        return self.load.recipients - self.counts.recipients + self.counts.outcomes["open"]

    def as_json(self) -> dict[str, object]:
        return {
            "recipients": self.load.recipients,
            "rows_rejected": self.load.rows_rejected,
            "rows_duplicate": self.load.rows_duplicate,
            **{kind: self.counts.outcomes[kind] for kind in KINDS if kind != "open"},
            "unaccounted": self.unaccounted,
            "duplicates": self.letters.duplicates,
            "seconds": round(self.seconds, 3),
        }


@click.command()
@click.option(
    "--recipients",
    type=click.IntRange(1, _RECIPIENTS_MAX),
    default=20_000,
    show_default=True,
    help="How many rows the made-up list has.",
)
@click.option("--fresh", is_flag=True, help="Throw away what an earlier demo left, and start anew.")
@with_session
def demo(session: Session, recipients: int, fresh: bool) -> None:
    """Make a campaign of made-up people, send it into a folder, and count what became of everyone.

    Everything lies in .sendonce/demo/: a store, the list, the letters. Nothing leaves this machine. A second run finds
    everything done and sends nothing. With --json the last line is one JSON object.
    """
    if fresh:
        shutil.rmtree(_FOLDER, ignore_errors=True)
    store, config = _store(session)
    name = f"demo-{recipients}"
    report = _load(session, store, config, name, recipients)
    before = store.read(lambda reader: count(reader, name))
    seconds = _send(session, store, name) if before.unsettled else 0.0
    settle_campaign(store, name)
    counts, reasons = store.read(lambda reader: (count(reader, name), count_reasons(reader, name)))
    letters = look_into((_FOLDER / "outbox").absolute() / name)
    result = _Result(report, counts, reasons, letters, seconds)
    if session.as_json:
        click.echo(orjson.dumps(result.as_json()).decode())
    else:
        _tell(name, result, sent=counts.done - before.done)
    if result.unaccounted or result.letters.duplicates or counts.outcomes["in_doubt"]:
        raise Unfinished


def _store(session: Session) -> tuple[Store, Config]:
    """The demo's own store, with the default lanes and an outbox of its own."""
    outbox = OutboxSettings(name="outbox", adapter="outbox", path=str((_FOLDER / "outbox").absolute()))
    config = load_config(None, {}).model_copy(
        update={
            "senders": {"outbox": outbox},
            "unsubscribe": Unsubscribe(base_url="https://shop.example/u"),
            "from_address": "Example Shop <news@shop.example>",
        }
    )
    store = init_store(f"sqlite:///{(_FOLDER / 'sendonce.db').absolute()}")
    apply_config(store, config, session.by)
    return store, config


def _load(session: Session, store: Store, config: Config, name: str, recipients: int) -> LoadReport:
    from sendonce.control.sample import write_sample

    source = find_template("newsletter", config.template_folders())
    path = _FOLDER / f"{name}.csv"
    with err().status(f"Making up {counted(recipients, 'person', 'people')} …"):
        if not path.exists():
            # Of a demo that was loaded already, the same list again.
            there = store.read(lambda reader: reader.get(Campaign, name))
            write_sample(path, recipients, today=(there.created_at if there else datetime.now(UTC)).date())
    with err().status("Loading and sealing the campaign …"):
        report = load(
            store,
            campaign_id=name,
            path=path,
            template=source,
            options=LoadOptions(
                from_address=config.from_address,
                unsubscribe_base_url="https://shop.example/u",
                batch_size=config.lanes["bulk"].batch_size,
                rejects_folder=_FOLDER / "rejects",
            ),
            by=session.by,
        )
    if not session.as_json:
        rows = f"{counted(report.rows_duplicate, 'duplicate')} and {counted(report.rows_rejected, 'bad row')} left out"
        out().print(
            f"{counted(report.recipients, 'recipient')} in {counted(report.batches, 'batch', 'batches')}; {rows}."
        )
    return report


def _send(session: Session, store: Store, name: str) -> float:
    campaigns.submit(store, name, session.by)
    started_s = time.monotonic()
    with stop_signals() as stop, Watch(store, name) as watch:
        report = local_runner().run_bounded(store.url, stop=stop, progress=watch.round)
    if report.ended == "stopped":
        raise KeyboardInterrupt
    return time.monotonic() - started_s


def _command() -> str:
    """How the command is called here: by its name where the shell would find this one, else by its path."""
    mine = Path(sys.argv[0])
    found = shutil.which(mine.name)
    if mine.name != "sendonce" or (found and Path(found).resolve() == mine.resolve()):
        return "sendonce"
    try:
        return str(mine.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(mine)


def _tell(name: str, result: _Result, *, sent: int) -> None:
    if sent:
        speed = sent / result.seconds if result.seconds else None
        out().print(f"{counted(sent, 'recipient')} in {duration(result.seconds)} ({number(speed)}/s).\n")
    else:
        out().print("Everything was sent by an earlier run: nothing more is sent. `--fresh` starts anew.\n")
    made = table("outcome", "recipients", right=("recipients",))
    for kind, found in result.counts.outcomes.items():
        if kind != "open":
            made.add_row(kind_text(kind, found), number(found), style="" if found else "dim")
    made.add_row("unaccounted", number(result.unaccounted), style="bold red" if result.unaccounted else "dim")
    made.add_section()
    made.add_row("all", number(result.load.recipients), style="bold")
    out().print(made)
    if result.reasons:
        out().print()
        out().print(reasons_table(result.reasons))
        out().print("The made-up list holds a few unfit values on purpose: only they get no letter.", style="dim")
    letters = result.letters
    twice = "none twice" if not letters.duplicates else f"[bold red]{number(letters.duplicates)} twice[/]"
    out().print(f"\n{counted(letters.letters, 'letter')} in {counted(letters.files, 'file')}, {twice}:")
    out().print(f"  {_FOLDER / 'outbox' / name}/*.mbox", markup=False)
    store = f"--store sqlite:///{_FOLDER / 'sendonce.db'}"
    out().print("\nTry next:", style="bold")
    command = _command()
    for words in (f"status {name} {store}", f"export {name} {store}", "preview newsletter --locale ar"):
        out().print(f"  {command} {words}", markup=False, soft_wrap=True)
    out().print(f"  {command} init    (your own: a store and settings in this folder)", markup=False, soft_wrap=True)
