"""`sendonce dead-letters list | show`: what could not be processed, and why."""

import base64
from itertools import islice
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from schemas.tables import DeadLetterRow
from sendonce.cli.output import ago, counted, moment, out, print_json, print_json_list, table
from sendonce.cli.session import Session, WrongCall, with_session
from sendonce.control.dead_letters import find_dead_letter, list_dead_letters
from sendonce.moments import utc_text

_STAGES = ("trigger", "plan", "render", "send")
_SHOWN = 100
_ID_SHOWN = 10


@click.group(name="dead-letters")
def dead_letters() -> None:
    """What could not be processed, and why: bad triggers, letters that cannot be made, and the like.

    Whoever did not get a letter for such a reason has it as the outcome too. To look at only; nothing changes.
    """


@dead_letters.command(name="list")
@click.option("--campaign", metavar="CAMPAIGN", help="Only of this campaign.")
@click.option("--stage", type=click.Choice(_STAGES), help="Only of this step.")
@click.option("--limit", type=click.IntRange(1), help=f"At most so many. [{_SHOWN}; all with --json]")
@click.option("--after", metavar="ID", help="Those that come after this one in the list.")
@with_session
def list_(session: Session, campaign: str | None, stage: str | None, limit: int | None, after: str | None) -> None:
    """Dead letters, newest first. No bodies, no addresses."""
    last = find_dead_letter(session.store, after) if after is not None else None
    rows = list_dead_letters(session.store, campaign_id=campaign, stage=stage, after=last)
    if session.as_json:
        print_json_list(_as_json(row) for row in islice(rows, limit))
        return
    found = list(islice(rows, limit or _SHOWN))
    if not found:
        out().print("No dead letters." if last is None else "No more dead letters.")
        return
    now = session.store.read(lambda reader: reader.now())
    made = table("id", "stage", "reason", "campaign", "batch", "at", right=("batch",))
    for row in found:
        made.add_row(
            row.dead_letter_id[:_ID_SHOWN],
            row.stage,
            row.reason,
            row.campaign_id or "-",
            "-" if row.batch_no is None else str(row.batch_no),
            ago(row.at, now),
        )
    out().print(made)
    if next(rows, None) is not None:
        options = "".join(f" --{name} {value}" for name, value in (("campaign", campaign), ("stage", stage)) if value)
        options += f" --limit {limit}" if limit else ""
        last_id = found[-1].dead_letter_id[:_ID_SHOWN]
        out().print(f"\nMore: `sendonce dead-letters list{options} --after {last_id}`", style="dim", markup=False)
    out().print("\n`sendonce dead-letters show ID` says more.", style="dim")


@dead_letters.command()
@click.argument("dead_letter", metavar="ID")
@click.option("--body", is_flag=True, help="Its raw body too: it may hold people's data.")
@with_session
def show(session: Session, dead_letter: str, body: bool) -> None:
    """One dead letter. ID may be cut short, as `list` shows it."""
    row = find_dead_letter(session.store, dead_letter)
    if body and row.body is None:
        raise WrongCall("this dead letter has no body; only triggers keep theirs, for seven days", "no_body")
    if session.as_json:
        print_json({**_as_json(row), **(_body_as_json(row.body) if body and row.body is not None else {})})
        return
    out().print(_facts(row))
    if body and row.body is not None:
        out().print()
        out().print(Text(_visible(row.body)))


def _facts(row: DeadLetterRow) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    facts = [
        ("id", row.dead_letter_id),
        ("stage", row.stage),
        ("reason", row.reason),
        ("detail", row.detail),
        ("campaign", row.campaign_id),
        ("batch", row.batch_no),
        ("ordinal", row.ordinal),
        ("message", row.message_id),
        ("at", moment(row.at)),
        (
            "body",
            None if row.body is None else f"{counted(len(row.body), 'byte')}, kept until {moment(row.expires_at)}",
        ),
    ]
    for name, value in facts:
        if value is not None:
            grid.add_row(name, Text(str(value)))
    return grid


def _visible(body: bytes) -> str:
    """A body as text in which nothing can move a terminal's cursor."""
    text = body.decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)


def _body_as_json(body: bytes) -> dict[str, Any]:
    try:
        return {"body": body.decode("utf-8"), "body_base64": None}
    except UnicodeDecodeError:
        return {"body": None, "body_base64": base64.b64encode(body).decode()}


def _as_json(row: DeadLetterRow) -> dict[str, Any]:
    return {
        "id": row.dead_letter_id,
        "stage": row.stage,
        "reason": row.reason,
        "detail": row.detail,
        "campaign": row.campaign_id,
        "batch": row.batch_no,
        "ordinal": row.ordinal,
        "message_id": row.message_id,
        "at": utc_text(row.at),
        "state": row.state,
    }
