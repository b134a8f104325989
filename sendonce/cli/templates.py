"""`sendonce templates list | push`, `sendonce check TEMPLATE`."""

from typing import Any

import click
from rich.table import Table
from rich.text import Text

from sendonce.cli.output import counted, out, print_json, table
from sendonce.cli.session import Failed, Session, Unfinished, with_session
from sendonce.control.pushed_templates import push_template
from sendonce.rendering.catalogue import (
    TemplateFault,
    find_template,
    manifest_of,
    template_names,
)
from sendonce.rendering.check import check_template


@click.group()
def templates() -> None:
    """Templates: a folder each, your own and those that ship."""


@templates.command(name="list")
@with_session
def list_(session: Session) -> None:
    """Every template there is."""
    folders = session.config.template_folders()
    lines = [_described(name, session) for name in template_names(folders)]
    if session.as_json:
        print_json(lines)
        return
    made = table("template", "priority", "locales", "hash")
    for line in lines:
        if line["fault"]:
            made.add_row(line["name"], Text(line["fault"], "red"))
        else:
            made.add_row(line["name"], line["priority"], ", ".join(line["locales"]), line["hash"][:12])
    out().print(made)


def _described(name: str, session: Session) -> dict[str, Any]:
    try:
        source = find_template(name, session.config.template_folders())
        manifest = manifest_of(source)
    except TemplateFault as fault:
        return {"name": name, "priority": None, "locales": [], "hash": None, "fault": f"{fault.problem}; {fault.mend}"}
    return {
        "name": name,
        "priority": manifest.priority,
        "locales": manifest.locales,
        "hash": source.template_hash,
        "fault": None,
    }


@templates.command()
@click.argument("names", metavar="TEMPLATE...", nargs=-1, required=True)
@with_session
def push(session: Session, names: tuple[str, ...]) -> None:
    """Put templates into the store.

    From now on, sends that name one use it as it is here. Sends that were taken before keep what they were pinned to.
    A campaign needs no push: `load` pins its own, and a push never changes what a campaign sends. A template with
    errors is not taken.
    """
    sources = [find_template(name, session.config.template_folders()) for name in names]
    bad = [source.name for source in sources if any(finding.level == "error" for finding in check_template(source))]
    if bad:
        raise Failed(
            f"{', '.join(bad)}: has errors, nothing was pushed; `sendonce check {bad[0]}` lists them", "template"
        )
    for source in sources:
        push_template(session.store, source, session.by)
    if session.as_json:
        print_json([{"name": source.name, "hash": source.template_hash} for source in sources])
    else:
        for source in sources:
            out().print(f"{source.name}  {source.template_hash[:12]}  in the store")


@click.command()
@click.argument("names", metavar="[TEMPLATE]...", nargs=-1)
@with_session
def check(session: Session, names: tuple[str, ...]) -> None:
    """Look for faults in templates (names or folders; all there are if none is named). Exit code 1 on errors.

    Undefined and unused variables, missing locales and parts, constructs that are not safe, a missing unsubscribe
    link in bulk, an over-long subject.
    """
    folders = session.config.template_folders()
    findings = [
        (source.name, finding)
        for source in (find_template(name, folders) for name in names or template_names(folders))
        for finding in check_template(source)
    ]
    errors = sum(finding.level == "error" for _, finding in findings)
    if session.as_json:
        print_json(
            [
                {
                    "template": name,
                    "level": finding.level,
                    "code": finding.code,
                    "path": finding.path,
                    "line": finding.line,
                    "message": finding.message,
                    "mend": finding.mend,
                }
                for name, finding in findings
            ]
        )
    elif not findings:
        out().print("No faults found.", style="green")
    else:
        for name, finding in findings:
            place = ", ".join(part for part in (finding.path, f"line {finding.line}" if finding.line else "") if part)
            style = "bold red" if finding.level == "error" else "yellow"
            grid = Table.grid(padding=(0, 2))
            grid.add_column(width=7, no_wrap=True)
            grid.add_column(overflow="fold")
            grid.add_row(
                Text(finding.level, style), Text.assemble((f"{name} ", "bold"), (place, "dim"), f"  {finding.code}")
            )
            grid.add_row("", Text(finding.message))
            grid.add_row("", Text(f"→ {finding.mend}", "dim"))
            out().print(grid)
        out().print(f"\n{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}")
    if errors:
        raise Unfinished
