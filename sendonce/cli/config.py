"""`sendonce config show | apply`."""

from typing import Any

import click
import orjson
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sendonce.cli.output import counted, err, out, print_json, table
from sendonce.cli.session import Session, with_session
from sendonce.config import ConfigChange, apply_config, config_changes
from sendonce.stores.base import StoreError


@click.group()
def config() -> None:
    """Settings: from options, the environment, `sendonce.yaml` and defaults, in this order."""


@config.command()
@with_session
def show(session: Session) -> None:
    """The settings in force.

    Says, too, whether the store's lanes and senders are the same.
    """
    import yaml

    settings = orjson.loads(session.config.model_dump_json(by_alias=True, exclude_none=True))
    for group in ("lanes", "senders"):
        for each in settings[group].values():
            del each["name"]
    try:
        differs = len(config_changes(session.store, session.config))
    except StoreError as fault:
        differs, problem = None, str(fault)
    else:
        problem = ""
    if session.as_json:
        file = None if session.config_file is None else str(session.config_file)
        print_json({"file": file, "settings": settings, "differs_from_store": differs})
        return
    out().print(f"# from {session.config_file or 'defaults; there is no sendonce.yaml'}", style="dim")
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True, width=80)
    out().print(text.rstrip(), markup=False)
    if problem:
        err().print(f"# {problem}", style="yellow", markup=False)
    elif differs:
        err().print(f"# the store differs in {counted(differs, 'place')}: `sendonce config apply`", style="yellow")


@config.command()
@click.option("--dry-run", is_flag=True, help="Show what would change.")
@with_session
def apply(session: Session, dry_run: bool) -> None:
    """Put lanes, limits, senders and topics into the store.

    Jobs read them there, also those that run already. A limit that stays keeps its level: applying twice does not
    let more through.
    """
    if dry_run:
        changes = config_changes(session.store, session.config)
    else:
        changes = apply_config(session.store, session.config, session.by)
    if session.as_json:
        print_json([_as_json(change) for change in changes])
        return
    if not changes:
        out().print("The store has these settings already.")
        return
    out().print(_changes(changes))
    if dry_run:
        out().print("Nothing was written.", style="dim")


def _changes(changes: list[ConfigChange]) -> RenderableType:
    """A line for each field that changes; what is new or goes, whole, below: it needs the room."""
    made, whole = table("", "what", "field", "before", "after"), Table.grid(padding=(0, 2))
    for name in ("action", "what"):
        whole.add_column(name, no_wrap=True)
    for column in made.columns[:3]:
        column.no_wrap = True
    for change in changes:
        action, what = change.action, change.what
        if not (change.before and change.after):
            whole.add_row(action, what, Text(_whole(change)))
            continue
        for field, before, after in change.fields():
            made.add_row(action, what, field, Text(before or "-"), Text(after or "-"))
            action = what = ""
    return Group(*(part for part in (made, whole) if part.row_count))


def _whole(change: ConfigChange) -> str:
    """What is new as it is, or what goes as it was."""
    if change.what.startswith(("limit ", "guard ", "letters ", "topic ")):
        return change.after or change.before
    side = 1 if change.after else 0
    return ", ".join(
        f"{name} {value}" for name, *values in change.fields() if (value := values[side]) not in ("", "false")
    )


def _as_json(change: ConfigChange) -> dict[str, Any]:
    fields = [
        {"field": field or None, "before": before or None, "after": after or None}
        for field, before, after in change.fields()
    ]
    return {"action": change.action, "what": change.what, "fields": fields}
