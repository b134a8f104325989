"""`sendonce dead-letters list | show | replay | drop`: what could not be processed, why, and what is done about it."""

import base64
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from itertools import chain, islice
from typing import Any, Optional

import click
from rich.table import Table
from rich.text import Text

from schemas.tables import DeadLetterRow
from sendonce.cli.ages import AGE
from sendonce.cli.dead_letters_settling import drop_letters, replay_letters
from sendonce.cli.output import age, counted, fitting_table, moment, out, print_json, print_json_list
from sendonce.cli.session import Session, WrongCall, with_session
from sendonce.cli.words import dead_letter_reasons, reason_words
from sendonce.control.dead_letters import OPEN, STAGES, STATES, Wanted, find_dead_letter, list_dead_letters
from sendonce.moments import utc_text, utc_text_or_none

_SHOWN = 100
_ID_SHOWN = 10


@dataclass(frozen=True)
class _Filters:
    """What an option of the same name says; None where it was not given."""

    campaign: Optional[str]
    stage: Optional[str]
    reason: Optional[str]
    older_than: Optional[timedelta]
    newer_than: Optional[timedelta]

    @property
    def given(self) -> bool:
        return self != _Filters(None, None, None, None, None)

    def wanted(self, session: Session, state: str) -> Wanted:
        now = session.store.read(lambda reader: reader.now())
        return Wanted(
            campaign_id=self.campaign,
            stage=self.stage,
            reason=self.reason,
            states=STATES if state == "all" else (state,),
            until=None if self.older_than is None else now - self.older_than,
            since=None if self.newer_than is None else now - self.newer_than,
        )

    def check_reason(self, found: object) -> None:
        """WrongCall if nothing was found and no dead letter can have the reason: it is mistyped."""
        known = dead_letter_reasons()
        if not found and self.reason is not None and self.reason not in known:
            raise WrongCall(f"there is no reason {self.reason!r}; known are {', '.join(known)}", "unknown_reason")

    def as_options(self) -> str:
        """As one would type it."""
        ages = (("older-than", self.older_than), ("newer-than", self.newer_than))
        chosen = (
            ("campaign", self.campaign),
            ("stage", self.stage),
            ("reason", self.reason),
            *((name, None if age is None else f"{age.total_seconds():.0f}s") for name, age in ages),
        )
        return "".join(f" --{name} {value}" for name, value in chosen if value)


def _filters(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--newer-than", type=AGE, help="Only those of the last so long: 90s, 30m, 2h, 3d, 2w."),
        click.option("--older-than", type=AGE, help="Only those from before then."),
        click.option("--reason", metavar="REASON", help="Only of this reason."),
        click.option("--stage", type=click.Choice(STAGES), help="Only of this step."),
        click.option("--campaign", metavar="CAMPAIGN", help="Only of this campaign."),
        click.argument("ids", metavar="[ID]...", nargs=-1),
    ):
        command = option(command)
    return command


_state = click.option("--state", type=click.Choice([*STATES, "all"]), help=f"Only these. [{OPEN}]")


@click.group(name="dead-letters")
def dead_letters() -> None:
    """What could not be processed, and why: bad triggers, letters that cannot be made, and the like.

    Whoever did not get a letter for such a reason has it as the outcome too. An ID may be cut short, as `list` shows
    it. Rows of a recipients file that `load` did not take are no dead letters: they are in the rejects file.
    """


@dead_letters.command(name="list")
@_filters
@_state
@click.option("--limit", type=click.IntRange(1), help=f"At most so many. [{_SHOWN}; all with --json]")
@click.option("--after", metavar="ID", help="Those that come after this one in the list.")
@with_session
def list_(
    session: Session, ids: tuple[str, ...], state: str | None, limit: int | None, after: str | None, **filters: Any
) -> None:
    """Dead letters, newest first. No bodies, no addresses."""
    chosen = _Filters(**filters)
    last = find_dead_letter(session.store, after) if after is not None else None
    if ids:
        wanted = chosen.wanted(session, state or "all")
        rows = iter(_named(session, ids, wanted, chosen))
    else:
        rows = list_dead_letters(session.store, chosen.wanted(session, state or OPEN), after=last)
    first = list(islice(rows, 1))
    if last is None:
        chosen.check_reason(first)
    rows = chain(first, rows)
    if session.as_json:
        print_json_list(_as_json(row) for row in islice(rows, limit))
        return
    found = list(islice(rows, limit or _SHOWN))
    if not found:
        out().print("No dead letters." if last is None else "No more dead letters.")
        return
    out().print(_listed(session, found, with_state=state not in (None, OPEN) or bool(ids)))
    if next(rows, None) is not None:
        options = chosen.as_options() + (f" --state {state}" if state else "") + (f" --limit {limit}" if limit else "")
        last_id = found[-1].dead_letter_id[:_ID_SHOWN]
        out().print(f"\nMore: `sendonce dead-letters list{options} --after {last_id}`", style="dim", markup=False)
    out().print("\n`sendonce dead-letters show ID` says more; `replay` and `drop` settle them.", style="dim")


def _listed(session: Session, found: list[DeadLetterRow], *, with_state: bool) -> Table:
    now = session.store.read(lambda reader: reader.now())
    columns = ["id", "stage", "reason", "campaign", "batch", "age", *(["state"] if with_state else [])]
    rows = [
        (
            row.dead_letter_id[:_ID_SHOWN],
            row.stage,
            row.reason,
            row.campaign_id or "-",
            "-" if row.batch_no is None else str(row.batch_no),
            age(row.at, now),
            *([row.state] if with_state else []),
        )
        for row in found
    ]
    return fitting_table(columns, rows, give_way=("batch", "stage", "age"), right=("batch", "age"))[0]


@dead_letters.command()
@_filters
@_state
@click.option("--limit", type=click.IntRange(1), default=_SHOWN, show_default=True, help="At most so many.")
@click.option("--body", is_flag=True, help="Raw bodies too: they may hold people's data.")
@with_session
def show(session: Session, ids: tuple[str, ...], state: str | None, limit: int, body: bool, **filters: Any) -> None:
    """Dead letters in full: the named ones, or those that the filters choose."""
    chosen = _Filters(**filters)
    if not ids and not chosen.given:
        raise WrongCall("say which: an ID of `sendonce dead-letters list`, or a filter like --campaign", "usage")
    if ids:
        found = _named(session, ids, chosen.wanted(session, state or "all"), chosen)
    else:
        rows = list_dead_letters(session.store, chosen.wanted(session, state or OPEN), limit=limit)
        found = [find_dead_letter(session.store, row.dead_letter_id) if body else row for row in rows]
    chosen.check_reason(found)
    one = len(ids) == 1 and len(found) == 1
    if body and one and found[0].body is None:
        raise WrongCall(f"this dead letter has no body: {_no_body(found[0])}", "no_body")
    if session.as_json:
        documents = [{**_as_json(row), **(_body_as_json(row.body) if body else {})} for row in found]
        print_json(documents[0] if one else documents)
        return
    if not found:
        out().print("No dead letters.")
    for number, row in enumerate(found):
        if number:
            out().print()
        out().print(_facts(row, with_body=body))
        if body and row.body is not None:
            out().print()
            out().print(Text(_visible(row.body)))


@dead_letters.command()
@_filters
@click.option("--dry-run", is_flag=True, help="Only say which.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_session
def replay(session: Session, ids: tuple[str, ...], dry_run: bool, yes: bool, **filters: Any) -> None:
    """Do again what failed, after its cause was mended.

    A trigger's stored body is applied again; whoever got no letter is opened again, in a round as of `sendonce retry`,
    if the reason is one that passes, or it is named by ID or --reason. Nobody is sent to twice. What is still wrong
    stays open and says why: exit code 1.
    """
    chosen = _Filters(**filters)
    found, options = _to_settle(session, ids, chosen)
    named = bool(ids) or chosen.reason is not None
    replay_letters(session, found, f"replay{options}", many=_many(ids, chosen), named=named, dry_run=dry_run, yes=yes)


@dead_letters.command()
@_filters
@click.option("--dry-run", is_flag=True, help="Only say which.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_session
def drop(session: Session, ids: tuple[str, ...], dry_run: bool, yes: bool, **filters: Any) -> None:
    """Settle dead letters that need nothing done: they leave the list, and their bodies are erased."""
    chosen = _Filters(**filters)
    found, options = _to_settle(session, ids, chosen)
    drop_letters(session, found, f"drop{options}", many=_many(ids, chosen), dry_run=dry_run, yes=yes)


def _many(ids: tuple[str, ...], chosen: _Filters) -> bool:
    return len(ids) != 1 or chosen.given


def _to_settle(session: Session, ids: tuple[str, ...], chosen: _Filters) -> tuple[list[DeadLetterRow], str]:
    """The letters that are meant, without bodies, and the options that chose them."""
    if not ids and not chosen.given:
        raise WrongCall("say which: an ID of `sendonce dead-letters list`, or a filter like --campaign", "usage")
    if ids:
        found = _named(session, ids, chosen.wanted(session, "all"), chosen)
    else:
        found = list(list_dead_letters(session.store, chosen.wanted(session, OPEN)))
    chosen.check_reason(found)
    return found, (f" {' '.join(ids)}" if ids else "") + chosen.as_options()


def _named(session: Session, ids: tuple[str, ...], wanted: Wanted, chosen: _Filters) -> list[DeadLetterRow]:
    """The dead letters with these ids, each once, those of them that the filters let pass."""
    rows = {row.dead_letter_id: row for row in (find_dead_letter(session.store, one) for one in ids)}
    return [
        row
        for row in rows.values()
        if wanted.has(row)
        and wanted.campaign_id in (None, row.campaign_id)
        and wanted.stage in (None, row.stage)
        and (wanted.until is None or row.at <= wanted.until)
        and (wanted.since is None or row.at >= wanted.since)
    ]


def _facts(row: DeadLetterRow, *, with_body: bool) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    words = reason_words(row.reason)
    facts = [
        ("id", row.dead_letter_id),
        ("stage", row.stage),
        ("reason", row.reason if words == row.reason else f"{words} ({row.reason})"),
        ("detail", row.detail),
        ("campaign", row.campaign_id),
        ("batch", row.batch_no),
        ("ordinal", row.ordinal),
        ("message", row.message_id),
        ("at", moment(row.at)),
        (
            "state",
            row.state if row.settled_at is None else f"{row.state} by {row.settled_by}, {moment(row.settled_at)}",
        ),
        (
            "body",
            _no_body(row)
            if row.body is None and row.stage == "trigger" and row.ordinal is None
            else None
            if row.body is None
            else f"{counted(len(row.body), 'byte')}, kept until {moment(row.expires_at)}"
            + ("" if with_body else "; `--body` shows it"),
        ),
    ]
    for name, value in facts:
        if value is not None:
            grid.add_row(name, Text(str(value)))
    return grid


def _no_body(row: DeadLetterRow) -> str:
    if row.stage != "trigger" or row.ordinal is not None:
        return "only triggers have one"
    return "erased when it was settled" if row.state != OPEN else "erased; bodies are kept for seven days"


def _visible(body: bytes) -> str:
    """A body as text in which nothing can move a terminal's cursor."""
    text = body.decode("utf-8", "backslashreplace")
    return "".join(one if one.isprintable() or one == "\n" else one.encode("unicode_escape").decode() for one in text)


def _body_as_json(body: bytes | None) -> dict[str, Any]:
    if body is None:
        return {"body": None, "body_base64": None}
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
        "settled_at": utc_text_or_none(row.settled_at),
        "settled_by": row.settled_by,
    }
