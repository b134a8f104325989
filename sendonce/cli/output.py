"""What people see: tables, bars, numbers in 80 columns, colour on a terminal only (NO_COLOR is kept by rich)."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import orjson
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

KIND_STYLES: Final = {
    "accepted": "green",
    "refused": "red",
    "skipped": "cyan",
    "suppressed": "cyan",
    "cancelled": "magenta",
    "assumed": "yellow",
    "in_doubt": "bold yellow",
    "open": "dim",
}
STATE_STYLES: Final = {
    "running": "bold blue",
    "scheduled": "blue",
    "completed": "bold green",
    "paused": "yellow",
    "halted": "bold red",
    "cancelling": "magenta",
    "cancelled": "magenta",
}


@cache
def out() -> Console:
    """Standard output: results."""
    return Console(highlight=False, emoji=False, markup=True)


@cache
def err() -> Console:
    """Standard error: progress, hints, faults."""
    return Console(stderr=True, highlight=False, emoji=False, markup=True)


def print_json(document: Any) -> None:
    """The one JSON document of a command."""
    try:
        text = orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    except TypeError:  # a path that is not UTF-8; the standard library escapes what orjson refuses
        text = json.dumps(document, indent=2, default=str)
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_json_list(items: Iterable[Any]) -> None:
    """The one JSON document of a command, a list of any length: written item by item."""
    between = "["
    for item in items:
        text = orjson.dumps(item, option=orjson.OPT_INDENT_2).decode()
        sys.stdout.write(f"{between}\n  " + text.replace("\n", "\n  "))
        between = ","
    sys.stdout.write("[]\n" if between == "[" else "\n]\n")
    sys.stdout.flush()


def table(*columns: str, right: tuple[str, ...] = (), title: str | None = None) -> Table:
    """A plain table: headers underlined by one rule, numbers to the right."""
    made = Table(box=None, pad_edge=False, header_style="dim", title=title, title_justify="left", title_style="bold")
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return made


def fitting_table(
    columns: Sequence[str], rows: Sequence[Sequence[str | Text]], *, give_way: Sequence[str], right: Sequence[str] = ()
) -> tuple[Table, list[str]]:
    """A table in which nothing is broken or cut, so that ids can be copied, and the columns that gave way for that.

    give_way: columns that may be left out, the first of them first. Only if that is not enough the first column folds.
    """
    cells = [[cell if isinstance(cell, Text) else Text(cell) for cell in row] for row in rows]
    widths = {
        name: max([cell_len(name), *(row[place].cell_len for row in cells)]) for place, name in enumerate(columns)
    }
    left_out: list[str] = []
    wide = sum(widths.values()) + 2 * (len(widths) - 1) <= out().width
    for name in give_way:
        if sum(widths.values()) + len(widths) - 1 <= out().width:
            break
        del widths[name]
        left_out.append(name)
    made = table(*widths, right=tuple(right))
    made.collapse_padding = not wide  # one space between columns, else two
    for column in made.columns[1:]:
        column.no_wrap = True
    for row in cells:
        made.add_row(*(cell for name, cell in zip(columns, row, strict=True) if name in widths))
    return made, left_out


def joined(pieces: Iterable[Text | str], width: int, style: str = "") -> Text:
    """`330 open · 20 accepted`: lines no wider than this are broken between pieces, never within one that fits."""
    made, used = Text(style=style), 0
    for piece in pieces:
        wide = piece.cell_len if isinstance(piece, Text) else cell_len(piece)
        fits = used + len(" · ") + wide <= width
        if used:
            made.append(" · " if fits else "\n")
        made.append(piece)
        used = used + len(" · ") + wide if used and fits else wide
    return made


def state_text(state: str, starts_at: datetime | None = None) -> Text:
    """starts_at: of a campaign that has not begun. One that only waits for its time is `scheduled` to people."""
    word = "scheduled" if state == "running" and starts_at is not None else state
    return Text(word, STATE_STYLES.get(word, ""))


def kind_text(kind: str, count: int | None = None) -> Text:
    """A kind of outcome in its colour; zero counts step back."""
    return Text(kind.replace("_", " "), "dim" if count == 0 else KIND_STYLES.get(kind, ""))


def number(value: float | None, digits: int = 0) -> str:
    """12,345 or -, for a number that is not known."""
    return "-" if value is None else f"{value:,.{digits}f}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number and its noun: 1 batch, 2 batches, 0 errors. `many` where an s at the end does not make the plural."""
    return f"{number(count)} {one if count == 1 else many or f'{one}s'}"


def default_language_text(recipients: dict[str, int]) -> str:
    """Those whose locales a template does not speak: `120 recipients (de 100, ja 20)`."""
    most = sorted(recipients.items(), key=lambda pair: -pair[1])[:8]
    shown = [f"{name} {number(times)}" for name, times in most]
    more = ["…"] if len(recipients) > 8 else []
    return f"{counted(sum(recipients.values()), 'recipient')} ({', '.join(shown + more)})"


def percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} %"


def duration(seconds: float | None) -> str:
    """8 s, 3 min 20 s, 5 h 12 min, 2 d 4 h; - if it is not known."""
    if seconds is None:
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def moment(at: datetime | None) -> str:
    """2026-01-15 09:00:00 UTC, or - for never."""
    return "-" if at is None else f"{at:%Y-%m-%d %H:%M:%S} UTC"


def ago(at: datetime | None, now: datetime) -> str:
    if at is None:
        return "-"
    passed = now - at
    return "now" if passed < timedelta(seconds=1) else f"{duration(passed.total_seconds())} ago"


def age(at: datetime, now: datetime) -> str:
    """How long ago, in one unit: 8 s, 3 min, 5 h, 2 d."""
    return " ".join(duration((now - at).total_seconds()).split()[:2])


def size(count: float) -> str:
    """Bytes for people: 812 B, 4.2 KiB, 1.3 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:,.0f} {unit}" if unit == "B" else f"{count:,.1f} {unit}"
        count /= 1024
    raise AssertionError  # pragma: no cover
