"""`sendonce init`, `sendonce migrate`."""

from pathlib import Path

import click
import yaml

from sendonce.cli.output import counted, out, print_json
from sendonce.cli.session import Session, with_session
from sendonce.config import DEFAULT_FILE, apply_config, load_config
from sendonce.config.model import DEFAULT_STORE
from sendonce.config.starter import STARTER
from sendonce.folders import private_folder
from sendonce.stores.base import Store, StoreRefused
from sendonce.stores.opening import init_store, migrate_store, open_store, store_environment


@click.command()
@click.option(
    "--environment",
    type=click.Choice(["test", "production"]),
    help="What the store is for; test unless given. Written once, and never changed.",
)
@click.option(
    "--print-ddl", is_flag=True, help="Only print what a Spanner store is made of: gcloud commands, then its DDL."
)
@with_session
def init(session: Session, environment: str | None, print_ddl: bool) -> None:
    """Make the store, its key and a settings file; put lanes and senders into the store.

    What is there already stays: running it again is harmless. A store on Spanner (spanner://PROJECT/INSTANCE/DATABASE)
    is made in a database that is there; on the emulator the database and its instance are made too.
    """
    if print_ddl:
        _print_ddl(session.config.store)
        return
    path = session.config_file or Path(DEFAULT_FILE)
    wrote = _write_once(path, _starter(session.store_given, path))
    session.config_file = path
    try:
        config = session.config
        store = _made(config.store, environment or config.environment)
    except BaseException:
        if wrote:  # settings that name a store which could not be made would stand in the way of the next try
            path.unlink(missing_ok=True)
        raise
    private_folder(Path(".sendonce"))
    _write_once(Path(".sendonce/.gitignore"), "# Addresses, letters and the store's key lie here.\n*\n")
    changes = apply_config(store, config, session.by)
    found = store_environment(store)
    named = load_config(path, {}).store
    if session.as_json:
        print_json(
            {
                "store": store.url,
                "environment": found,
                "config": str(path),
                "config_written": wrote,
                "changes": len(changes),
            }
        )
        return
    out().print(f"store        {store.url} ({found})", soft_wrap=True)
    out().print(f"settings     {path}{' (new; look it over)' if wrote else ''}", soft_wrap=True)
    settings = counted(len(changes), "setting")
    if _absolute(named) != _absolute(config.store):
        words = f"the settings name another store, {named}: commands without --store or SENDONCE_STORE use that one"
        out().print(f"             {words}", style="yellow", markup=False, soft_wrap=True)
    out().print(f"lanes        {f'{settings} put into the store' if changes else 'in the store already'}")
    out().print("\nNext: `sendonce load CAMPAIGN FILE --template newsletter`, or `sendonce demo`.", style="dim")


def _print_ddl(url: str) -> None:
    """On standard output, so that it can go into a file: commands as comments, then statements."""
    from sendonce.stores.ddl import spanner_ddl
    from sendonce.stores.spanner_opening import gcloud_commands

    commands = gcloud_commands(url)
    click.echo("\n".join(f"-- {command}" for command in commands) + "\n")
    click.echo(";\n\n".join(spanner_ddl()) + ";")


def _starter(given: str | None, path: Path) -> str:
    """The settings to write, with the store that an option or the environment names, as it counts from their folder."""
    if not given:
        return STARTER
    if path.parent != Path():
        given = _absolute(given)
    line = yaml.safe_dump({"store": given}, allow_unicode=True, width=10**6)
    return STARTER.replace(f"store: {DEFAULT_STORE}\n", line)


def _absolute(url: str) -> str:
    """A store URL as one that says the same in every folder."""
    return f"sqlite:///{Path(url.removeprefix('sqlite:///')).absolute()}" if url.startswith("sqlite:///") else url


def _made(url: str, environment: str | None) -> Store:
    if environment is None:
        try:
            return open_store(url)
        except StoreRefused:  # there is none yet, or the next line says better what is wrong with it
            environment = "test"
    return init_store(url, environment)


def _write_once(path: Path, text: str) -> bool:
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    return True


@click.command()
@with_session
def migrate(session: Session) -> None:
    """Bring a store of an older version to this version's tables, step by step. Running it again is harmless."""
    before, after = migrate_store(session.config.store)
    if session.as_json:
        print_json({"from": before, "to": after})
    elif before == after:
        out().print(f"The store has version {after} already.")
    else:
        out().print(f"The store was at version {before} and is at {after} now.")
