"""`sendonce load CAMPAIGN FILE --template T`."""

from dataclasses import asdict
from pathlib import Path

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.text import Text

from sendonce.cli.output import counted, default_language_text, duration, err, number, out, print_json, table
from sendonce.cli.session import Session, WrongCall, with_session
from sendonce.config import LANE_NAMES
from sendonce.control.expiry import NEVER, read_end
from sendonce.control.load import LoadOptions, LoadProgress, LoadReport
from sendonce.control.load import load as load_campaign
from sendonce.control.suppressions import checked_list
from sendonce.rendering.catalogue import TemplateSource, find_template, manifest_of
from sendonce.rendering.check import without_way_out

_NAMES_SHOWN = 10
_COLUMNS = ("recipient_id", "email", "locale", "timezone", "template_variables")


@click.command()
@click.argument("campaign")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--template", "-t", required=True, metavar="NAME", help="A template's name, or the path of its folder.")
@click.option("--format", "layout", type=click.Choice(["csv", "ndjson", "parquet"]), help="Found out if not given.")
@click.option("--delimiter", metavar="CHAR", help="Found out if not given.")
@click.option("--quote", metavar="CHAR", help="Found out if not given.")
@click.option("--encoding", metavar="NAME", help="Like cp1252. UTF-8 or UTF-16 by mark if not given.")
@click.option("--column", "columns", multiple=True, metavar="OURS=THEIRS", help="A column with another name in FILE.")
@click.option("--strict", is_flag=True, help="Reject rows with an unknown locale or time zone.")
@click.option("--locale", metavar="TAG", help="For rows without one. [the template's]")
@click.option("--timezone", metavar="ZONE", help="For rows without one. [the template's]")
@click.option("--priority", type=click.Choice(LANE_NAMES), help="The lane. [the template's]")
@click.option("--from", "from_address", metavar="ADDRESS", help="[the template's, then the settings']")
@click.option(
    "--list",
    "list_name",
    metavar="NAME",
    help="Suppressions of this list hold, too; its links unsubscribe from it. [bulk letters: bulk]",
)
@click.option("--expires", metavar="TIME", help="Send nothing from then on. Like `submit --expires`.")
@with_session
def load(
    session: Session,
    campaign: str,
    file: Path,
    template: str,
    layout: str | None,
    delimiter: str | None,
    quote: str | None,
    encoding: str | None,
    columns: tuple[str, ...],
    strict: bool,
    locale: str | None,
    timezone: str | None,
    priority: str | None,
    from_address: str | None,
    list_name: str | None,
    expires: str | None,
) -> None:
    """Read a recipients FILE (CSV, NDJSON, Parquet) and seal it as CAMPAIGN.

    Columns: recipient_id, email, locale, timezone, template_variables (a JSON object); any other column is a text
    variable of its name. Nothing is sent before `sendonce submit`. Loading the same again changes nothing.
    """
    source = find_template(template, session.config.template_folders())
    lane = priority or manifest_of(source).priority
    options = LoadOptions(
        format=layout,
        delimiter=delimiter,
        quote=quote,
        encoding=encoding,
        column_map=_column_map(columns),
        strict=strict,
        default_locale=locale,
        default_timezone=timezone,
        batch_size=session.config.lanes[lane].batch_size,  # type: ignore[index]
        priority=priority,
        from_address=from_address or manifest_of(source).from_address or session.config.from_address or None,
        unsubscribe_base_url=_unsubscribe(session, source, lane),
        list_name=checked_list(list_name) if list_name else "",
        expires_at=end if (end := read_end(expires) if expires else NEVER) != NEVER else None,
        rejects_folder=session.rejects_folder,
    )
    with _Bar() as bar:
        report = load_campaign(
            session.store,
            campaign_id=campaign,
            path=file,
            template=source,
            options=options,
            by=session.by,
            progress=bar.show,
        )
    if session.as_json:
        print_json(asdict(report))
    else:
        _tell(report)


def _column_map(columns: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in columns:
        ours, equals, theirs = text.partition("=")
        if not equals or not ours.strip() or not theirs:
            raise WrongCall(f"--column {text!r} is not OURS=THEIRS, like --column email=E-Mail", "column_map")
        if ours.strip() in found:
            raise WrongCall(f"--column names {ours.strip()} twice; keep one", "column_map")
        found[ours.strip()] = theirs
    return found


def _unsubscribe(session: Session, source: TemplateSource, lane: str) -> str:
    if lane == "bulk" and (bodies := without_way_out(source)):
        raise WrongCall(
            f"template {source.name} is to be sent in bulk, but {', '.join(bodies)} has no link to unsubscribe; "
            "write {{ unsubscribe_url }} as a link, or load it with another --priority",
            "no_unsubscribe",
        )
    if session.config.unsubscribe is not None:
        return session.config.unsubscribe.base_url
    if lane == "bulk":
        raise WrongCall(
            f"a bulk campaign ({source.name}) needs unsubscribe links; "
            "set `unsubscribe: {base_url: https://…}` in sendonce.yaml",
            "no_unsubscribe",
        )
    return ""


class _Bar:
    """A load's bar: bytes while it reads, recipients while it writes."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description:<7}"),
            BarColumn(bar_width=30),
            TaskProgressColumn(),
            TextColumn("{task.fields[words]}"),
            console=err(),
            transient=True,
            disable=not err().is_terminal,
        )
        self._task = self._progress.add_task("reading", total=None, words="")

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def show(self, found: LoadProgress) -> None:
        words = counted(found.rows_read, "row")
        if found.rows_rejected:
            words += f", {number(found.rows_rejected)} rejected"
        if found.rows_duplicate:
            words += f", {counted(found.rows_duplicate, 'duplicate')}"
        self._progress.update(
            self._task, description=found.stage, completed=found.done, total=max(1, found.total), words=words
        )


def _fit_warnings(report: LoadReport) -> list[str]:
    """What of the list and the template does not go together, for people."""
    warnings = []
    if report.default_language:
        warnings.append(f"{default_language_text(report.default_language)} get the template's default language")
    if report.unused_columns:
        warnings.append(f"the template uses {_names('column', report.unused_columns)} nowhere")
    if report.missing_variables:
        names = _names("variable", report.missing_variables)
        warnings.append(f"no row gives {names}, which the template requires: nobody would get a letter")
    return warnings


def _names(noun: str, names: list[str]) -> str:
    shown = ", ".join(name[:40] for name in names[:_NAMES_SHOWN])
    more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
    return f"{noun}{'s' if len(names) > 1 else ''} {shown}{more}"


def _tell(report: LoadReport) -> None:
    name = report.campaign_id
    if report.already_loaded:
        out().print(f"{name} was loaded from this file before; nothing changed.")
    made = table("", "rows", right=("rows",))
    made.add_row("read", number(report.rows_read))
    made.add_row("recipients", number(report.recipients), style="green")
    made.add_row("duplicates", number(report.rows_duplicate), style="" if report.rows_duplicate else "dim")
    made.add_row("rejected", number(report.rows_rejected), style="red" if report.rows_rejected else "dim")
    out().print(made)
    for reason, times in {**report.rejected_by_reason, **report.warnings}.items():
        label = "not taken" if reason in report.rejected_by_reason else "warning"
        out().print(f"  {label}: {reason}: {number(times)}", style="dim", markup=False)
    for warning in _fit_warnings(report):
        out().print(f"  warning: {warning}", style="yellow", markup=False)
    if report.rejects_file:
        out().print(f"Each row that was not taken: {report.rejects_file}", style="yellow", markup=False)
    batches = counted(report.batches, "batch", "batches")
    if not report.already_loaded:
        out().print(f"Sealed in {batches} after {duration(report.seconds)}.")
    if report.called_off:
        words = f"A trigger called {name} off before it was loaded: `sendonce submit {name}` will cancel it."
        out().print(Text(words, "yellow"))
        return
    out().print(f"Next: `sendonce rehearse {name}`, `sendonce submit {name}`, `sendonce run`.", style="dim")
