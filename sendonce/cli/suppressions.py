"""`sendonce suppressions import | add | remove | list | why`: to whom nothing is sent."""

from pathlib import Path

import click

from schemas.tables import Suppression
from sendonce.cli.output import counted, err, moment, number, out, print_json, table
from sendonce.cli.session import Session, with_session
from sendonce.control import suppressions as control
from sendonce.control.suppressions import EVERYWHERE, REASONS


@click.group()
def suppressions() -> None:
    """Addresses that get nothing, everywhere or on one list.

    In force from the next request on, also for campaigns that run. Addresses are kept as keys, so nothing here prints
    one; `why ADDRESS` looks one up.
    """


_list = click.option("--list", "list_name", default=EVERYWHERE, metavar="NAME", help="One list only. [* all letters]")
_reason = click.option("--reason", type=click.Choice(list(REASONS)), default="manual", show_default=True)


@suppressions.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@_list
@_reason
@click.option("--column", metavar="NAME", help="The column of addresses. [email, address, …]")
@click.option("--encoding", metavar="NAME", help="Like cp1252. UTF-8 or UTF-16 by mark if not given.")
@with_session
def import_(
    session: Session, file: Path, list_name: str, reason: str, column: str | None, encoding: str | None
) -> None:
    """Suppress every address in FILE: plain lines, or CSV, NDJSON, Parquet with a column of addresses.

    A column `reason` (unsubscribed, bounced, complained, manual, erased; hard_bounce and the like are understood) goes
    before --reason. Importing again changes nothing. Rows without an address are counted, by reason and line.
    """
    # The readers of tables take a second to load, and only this command needs them.
    from sendonce.control.suppression_import import import_suppressions

    with err().status("Reading …") as line:
        report = import_suppressions(
            session.store,
            file,
            by=session.by,
            list_name=list_name,
            reason=reason,
            column=column,
            encoding=encoding,
            progress=lambda found: line.update(f"Reading … {counted(found.rows_read, 'row')}"),
        )
    if session.as_json:
        print_json(
            {
                "list": report.list_name,
                "rows_read": report.rows_read,
                "added": report.added,
                "already": report.already,
                "rejected": report.rejected,
                "rejected_by_reason": dict(sorted(report.rejected_by_reason.items())),
                "first_rejected_lines": report.lines,
                "unknown_reasons": report.unknown_reasons,
            }
        )
        return
    already = counted(report.already, "was", "were")
    out().print(f"{number(report.added)} suppressed ({_where(report.list_name)}), {already} already.")
    for what, rows in sorted(report.rejected_by_reason.items()):
        out().print(f"  not taken: {what}: {number(rows)}", style="yellow", markup=False)
    if report.lines:
        more = " …" if report.rejected > len(report.lines) else ""
        out().print(f"  lines: {', '.join(map(str, report.lines))}{more}", style="dim")
    if report.unknown_reasons:
        unknown = counted(report.unknown_reasons, "row has", "rows have")
        out().print(f"  {unknown} a reason that is not known, taken as {reason}", style="dim")


@suppressions.command()
@click.argument("address")
@_list
@_reason
@click.option("--note", metavar="TEXT", help="Kept with it.")
@with_session
def add(session: Session, address: str, list_name: str, reason: str, note: str | None) -> None:
    """Suppress ADDRESS. Who is suppressed already stays so, with the first reason."""
    added = control.add(session.store, address, list_name=list_name, reason=reason, by=session.by, note=note)
    if session.as_json:
        print_json({"added": added, "list": list_name, "reason": reason if added else None})
    else:
        out().print(f"Suppressed ({_where(list_name)})." if added else "It was suppressed already; nothing changed.")


@suppressions.command()
@click.argument("address")
@_list
@with_session
def remove(session: Session, address: str, list_name: str) -> None:
    """Send to ADDRESS again. Nobody who unsubscribed or complained should be, unless they asked for it."""
    found = control.remove(session.store, address, list_name=list_name)
    left = control.why(session.store, address)
    if session.as_json:
        removed = None if found is None else _as_json(found)
        print_json({"removed": removed, "left": [_as_json(row) for row in left]})
        return
    if found is None:
        out().print(f"It was not suppressed ({_where(list_name)}); nothing changed.")
    else:
        out().print(f"No longer suppressed ({_where(list_name)}); it was {control.reason_of(found)}.")
    for row in left:
        out().print(f"  still suppressed ({_where(row.list_name)}): {control.reason_of(row)}", style="yellow")


@suppressions.command(name="list")
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="How many of the newest to show.")
@with_session
def list_(session: Session, limit: int) -> None:
    """How many are suppressed, by list and reason, and the newest by their keys. Addresses are never shown."""
    counts = control.summary(session.store)
    rows = control.newest(session.store, limit) if limit else []
    if session.as_json:
        print_json(
            {
                "counts": [{"list": name, "reason": reason, "addresses": times} for name, reason, times in counts],
                "newest": [_as_json(row) for row in rows],
            }
        )
        return
    if not counts:
        out().print("Nobody is suppressed.")
        return
    made = table("list", "reason", "addresses", right=("addresses",))
    for name, reason, times in counts:
        made.add_row(name, reason, number(times))
    out().print(made)
    if rows:
        newest = table("address key", "list", "reason", "since")
        for row in rows:
            newest.add_row(
                row.address_key, row.list_name, control.reason_of(row), f"{row.created_at:%Y-%m-%d %H:%M} UTC"
            )
        out().print()
        out().print(newest)


@suppressions.command()
@click.argument("address")
@with_session
def why(session: Session, address: str) -> None:
    """Whether ADDRESS is suppressed: since when, why, by whom, by which campaign."""
    rows = control.why(session.store, address)
    if session.as_json:
        print_json({"suppressed": bool(rows), "suppressions": [_as_json(row) for row in rows]})
        return
    if not rows:
        out().print("It is not suppressed.")
        return
    for row in rows:
        out().print(f"{control.reason_of(row)} ({_where(row.list_name)}) since {moment(row.created_at)}", markup=False)
        out().print(f"  by {row.created_by}, {row.source}", markup=False)
        if row.campaign_id:
            out().print(f"  campaign {row.campaign_id}", markup=False)
        if row.note:
            out().print(f"  {row.note}", markup=False)


def _where(list_name: str) -> str:
    return "all letters" if list_name == EVERYWHERE else f"list {list_name}"


def _as_json(row: Suppression) -> dict[str, object]:
    return {
        "address_key": row.address_key,
        "list": row.list_name,
        "reason": control.reason_of(row),
        "since": row.created_at,
        "by": row.created_by,
        "source": row.source,
        "campaign": row.campaign_id,
        "note": row.note,
    }
