"""`sendonce doctor`."""

import click
from rich.table import Table
from rich.text import Text

from sendonce.cli.output import out, print_json
from sendonce.cli.session import Session, Unfinished, with_session
from sendonce.control.doctor import examine

_MARKS = {"ok": ("ok", "green"), "warn": ("warn", "yellow"), "fail": ("fail", "bold red")}


@click.command()
@click.option("--offline", is_flag=True, help="Do not connect to the providers of senders, nor to Pub/Sub.")
@with_session
def doctor(session: Session, offline: bool) -> None:
    """Look over this installation and say what to mend. Exit code 1 if something must be mended.

    Connects to the provider of each sender that a lane uses, and logs in at a mail server; sends nothing.
    """
    findings = examine(lambda: session.config, offline=offline)
    if session.as_json:
        print_json(
            [
                {"level": finding.level, "what": finding.what, "found": finding.found, "mend": finding.mend or None}
                for finding in findings
            ]
        )
    else:
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        for finding in findings:
            grid.add_row(Text(*_MARKS[finding.level]), finding.what, Text(finding.found))
            if finding.mend:
                grid.add_row("", "", Text(f"→ {finding.mend}", "yellow"))
        out().print(grid)
    if any(finding.level == "fail" for finding in findings):
        raise Unfinished
