"""`sendonce outcome CAMPAIGN RECIPIENT`, `sendonce export CAMPAIGN`."""

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, TextIO

import click
from rich.table import Table
from rich.text import Text

from sendonce.cli.output import counted, err, kind_text, moment, out, print_json, table
from sendonce.cli.session import Session, with_session, with_session_whose_json_is
from sendonce.cli.words import reason_words
from sendonce.control.campaigns import get_campaign
from sendonce.control.export import export_csv, export_ndjson
from sendonce.control.outcomes import Carried, RecipientOutcome, outcomes_of, recipient_outcomes
from sendonce.control.rounds import Reopened, reopened_of
from sendonce.control.stream_names import STREAM


@click.command()
@click.argument("campaign")
@click.argument("recipient")
@with_session
def outcome(session: Session, campaign: str, recipient: str) -> None:
    """What became of one RECIPIENT (its recipient_id) of CAMPAIGN, and which requests carried it.

    In a stream, of each send of that day to the recipient, the newest last.
    """
    found = outcomes_of(session.store, campaign, recipient)
    newest = found[-1]
    place = newest.outcome.batch, newest.outcome.ordinal
    rounds = session.store.read(lambda reader: reopened_of(reader, campaign, *place))
    if session.as_json:
        whole = {"campaign": campaign, **_as_json(newest), "rounds": [one.as_json() for one in rounds]}
        if newest.outcome.idempotency_key is not None:
            whole["sends"] = [_as_json(one) for one in found]
        print_json(whole)
        return
    for number, one in enumerate(found):
        if number:
            out().print()
        _show(one, rounds)


def _as_json(found: Carried) -> dict[str, Any]:
    requests = [
        {
            "attempt_id": attempt.attempt_id,
            "verdict": attempt.verdict,
            "reason": attempt.reason,
            "started_at": attempt.started_at,
            "finished_at": attempt.finished_at,
            "provider": attempt.provider,
            "provider_ref": attempt.provider_ref,
            "evidence": attempt.evidence,
        }
        for attempt in found.attempts
    ]
    return {**found.outcome.as_json(), "requests": requests}


def _show(found: Carried, rounds: list[Reopened]) -> None:
    out().print(_facts(found.outcome))
    if rounds:
        rounds_table = table("round", "opened again", "by", "was refused because", right=("round",))
        for one in rounds:
            rounds_table.add_row(str(one.number), moment(one.at), one.by, reason_words(one.was))
        out().print()
        out().print(rounds_table)
    if found.attempts:
        requests_table = table("request", "verdict", "finished", "provider")
        for attempt in found.attempts:
            verdict = f"{attempt.verdict} {attempt.reason or ''}".strip()
            requests_table.add_row(attempt.attempt_id, verdict, moment(attempt.finished_at), attempt.provider)
        out().print()
        out().print(requests_table)


def _facts(found: RecipientOutcome) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim")
    grid.add_column(overflow="fold")
    grid.add_row("outcome", kind_text(found.outcome))
    if found.reason:
        grid.add_row("reason", f"{reason_words(found.reason)} ({found.reason})")
    if found.detail:
        grid.add_row("detail", found.detail)
    grid.add_row("when", moment(found.at))
    grid.add_row("message id", found.message_id)
    if found.idempotency_key is not None:
        grid.add_row("send", Text(found.idempotency_key))
    grid.add_row("batch", f"{found.batch}, place {found.ordinal}")
    if found.attempt_id:
        grid.add_row("attempt", found.attempt_id)
    if found.provider_ref:
        grid.add_row("provider's name", found.provider_ref)
    return grid


@click.command()
@click.argument("campaign")
@click.option("--format", "layout", type=click.Choice(["csv", "ndjson"]), default="csv", show_default=True)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Write here, not to standard output."
)
@click.option("--with-address", is_flag=True, help="Add the addresses. Left out otherwise: they are personal data.")
@with_session_whose_json_is("The same as --format ndjson: a line of JSON for each recipient.")
def export(session: Session, campaign: str, layout: str, output: Path | None, with_address: bool) -> None:
    """Every recipient's outcome: recipient_id, message_id, outcome, reason, at, attempt_id, provider_ref, batch,
    detail.

    Ids are written as they were loaded; import the file as text into a spreadsheet. The detail is what is known of a
    refusal beyond its reason. A stream's have the idempotency_key of their send; the addresses of sends that are final
    were wiped.
    """
    lines = recipient_outcomes(session.store, campaign)
    streams = get_campaign(session.store, campaign).kind == STREAM
    write = export_ndjson if session.as_json or layout == "ndjson" else export_csv
    with _opened(output) as stream:
        count = write(lines, stream, with_address=with_address, with_key=streams)
        stream.flush()
    if streams and with_address:
        err().print("Addresses of sends that are final are wiped: they are left empty.", style="yellow")
    if output:
        err().print(f"{counted(count, 'recipient')} written to {output}")


def _opened(output: Path | None) -> AbstractContextManager[TextIO]:
    return output.open("w", encoding="utf-8", newline="") if output else nullcontext(sys.stdout)
