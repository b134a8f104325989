"""CSV: records out of physical lines, checked before pandas reads them.

RFC 4180, and what spreadsheets make of it: any of four delimiters, any line end, a comma too many at the end of each
row, a quote inside an unquoted value. A parser alone goes from an unclosed quote to the next quote anywhere and so
swallows people, and it does not tell lines. So each record is delimited here, by line, and pandas gets only records
that are whole and have the right number of values; the numbers must then agree.
"""

import csv
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pandas as pd

from sendonce.control.columns import Columns, has_required, resolve
from sendonce.control.csv_syntax import Syntax
from sendonce.control.load_faults import LoadFault
from sendonce.control.raw_rows import (
    CHUNK_CHARACTERS,
    CHUNK_ROWS,
    FIELDS,
    RECORD_MAX,
    Chunk,
    FileOptions,
    Lines,
    RawRow,
    Reject,
)

DELIMITERS: Final = (",", ";", "\t", "|")


class CsvReader:
    """Reads the header at once (LoadFault if it does not fit), the records when asked."""

    def __init__(self, path: Path, lines: Lines, options: FileOptions, encoding: str) -> None:
        self._path = path
        self._lines = lines
        header = _header(path, lines)
        self._quote = _quote(header, options)
        self._delimiter = _delimiter(header, self._quote, options)
        try:
            names = _split(header, self._delimiter, self._quote)
        except csv.Error:
            raise LoadFault(
                "the column names are badly quoted", f"{path}, line {lines.number}", "close each quote in that line"
            ) from None
        self._columns = resolve(names, options.column_map, f"{path}, line {lines.number}")
        self._nothing = f"{self._delimiter}{self._quote} \t"
        self._syntax = Syntax(self._delimiter, self._quote, self._columns.width)
        self.settings: dict[str, Any] = {"encoding": encoding, "delimiter": self._delimiter, "quote": self._quote}

    def chunks(self) -> Iterator[Chunk]:
        """LoadFault where a quoted value over several lines holds what may be another person's row."""
        self._start()
        is_row, next_line = self._syntax.is_row, self._lines.next
        while line := next_line():
            text = line.rstrip("\r\n")
            if is_row(text) and len(line) < RECORD_MAX:
                self._keep(text, self._lines.number)
            else:
                self._take(line)
            if len(self._texts) + len(self._chunk.rejects) >= CHUNK_ROWS or self._characters >= CHUNK_CHARACTERS:
                yield self._finish()
        yield self._finish()

    def _start(self) -> None:
        self._chunk = Chunk()
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._characters = 0

    def _take(self, line: str) -> None:
        """A line that is no row by itself."""
        number = self._lines.number
        if self._lines.skip_rest(line):
            self._reject(number, "line_too_long", f"more than {RECORD_MAX} characters")
            return
        text = line.rstrip("\r\n")
        bare = self._syntax.without_quoted(text)
        if bare is None:
            whole = self._over_lines(line, number)
            if whole is None:
                return
            text, bare = whole
        self._fit(text, bare, number)

    def _fit(self, text: str, bare: str, number: int) -> None:
        """Take one whole record if its number of values is right. `bare` is the text without its quoted values."""
        width = self._columns.width
        surplus = bare.count(self._delimiter) + 1 - width
        if surplus > 0 and text.endswith(self._delimiter * surplus):
            text, surplus = text[:-surplus], 0
        if surplus == 0 or not text.strip(self._nothing):
            self._keep(text, number)
            return
        last = self._lines.number
        reach = f", up to line {last}" if last > number else ""
        if surplus < 0:
            self._reject(number, "too_few_values", f"{width + surplus} of {width}{reach}")
        else:
            self._reject(number, "too_many_values", f"{width + surplus} for {width} columns{reach}")

    def _keep(self, text: str, number: int) -> None:
        """Put a record of the right number of values, or of none at all, into the chunk."""
        if not text or (text[0] in self._nothing and not text.strip(self._nothing)):
            self._chunk.blank += 1
        elif "\0" in text:
            self._reject(number, "control_character", "holds a NUL")
        elif "\ufffd" in text:
            self._reject(number, "damaged_text", "holds U+FFFD: its characters were lost in an earlier export")
        else:
            self._texts.append(text)
            self._starts.append(number)
            self._characters += len(text)

    def _over_lines(self, first: str, number: int) -> tuple[str, str] | None:
        """The record that starts in a line which is none by itself, or None after rejecting that line.

        If a quote is never closed, or closed in the middle of a value, then it was opened by mistake: only its own line
        is given up, and reading goes on with the next one.
        """
        if not self._syntax.ends_open(first.rstrip("\r\n")):
            self._reject(number, "bad_quoting", "text behind a closing quote; double the quotes inside a quoted value")
            return None
        taken = [first]
        size = len(first)
        closed = False
        while not closed and size < RECORD_MAX:
            line = self._lines.next()
            if not line:
                break
            taken.append(line)
            size += len(line)
            closed, goes_on = self._syntax.continues(line.rstrip("\r\n"))
            if not closed and not goes_on:
                break
        if not closed:
            self._lines.put_back(taken[1:])
            self._reject(number, "unclosed_quote", "a quoted value starts in this line and does not end")
            return None
        for offset, place, inside in self._syntax.insides([line.rstrip("\r\n") for line in taken]):
            if self._holds_a_row(inside, place, first=offset == 0):
                swallowed = f"line {number + offset}, which looks like a row itself" if offset else "the next value"
                raise LoadFault(
                    f"the quote opened in line {number} swallows {swallowed}",
                    f"{self._path}, line {number}",
                    "close the quote, or double it if it is part of the value; put a value that is right on one line",
                )
        text = "".join(taken).rstrip("\r\n")
        bare = self._syntax.without_quoted(text)
        assert bare is not None, "a record that closes its quotes is whole"
        return text, bare

    def _holds_a_row(self, inside: str, place: int, *, first: bool) -> bool:
        """Whether one line of a quoted value may be another row, or the rest of its own, that a stray quote took in.

        `place` is the column where the text starts. An @ from the address's column on is enough, for no text of a
        person may come to stand in another's letter; so is a whole row without an address. An address that is broken
        counts as well. Only the texts of a JSON document, in doubled quotes, are beyond suspicion.
        """
        email = (self._columns.places["email"] or 0) - place
        values = self._syntax.without_texts(inside).split(self._delimiter)
        if email < 0 or len(values) == 1:
            return False
        if any("@" in value for value in values[max(email, int(first)) :]):
            return True
        return not first and len(values) >= self._columns.width and not values[email].strip()

    def _reject(self, number: int, reason: str, detail: str) -> None:
        self._chunk.rejects.append(Reject(number, "", reason, detail))

    def _finish(self) -> Chunk:
        """The chunk so far, its records read by pandas."""
        chunk, texts, starts = self._chunk, self._texts, self._starts
        self._start()
        if not texts:
            return chunk
        table = pd.read_csv(
            io.StringIO("\n".join(texts)),
            sep=self._delimiter,
            quotechar=self._quote or '"',
            quoting=csv.QUOTE_MINIMAL if self._quote else csv.QUOTE_NONE,
            header=None,
            names=range(self._columns.width),
            index_col=False,
            dtype=object,  # text as it is; pandas' own text type costs twice the time
            keep_default_na=False,
            na_filter=False,
            skip_blank_lines=False,
            low_memory=False,
            engine="c",
        )
        if len(table) != len(texts):
            raise LoadFault(
                f"{len(texts)} records were read as {len(table)}",
                f"{self._path}, lines {starts[0]} to {starts[-1]}",
                "look for a quote that is out of place",
            )
        chunk.rows = _rows(table, starts, self._columns)
        return chunk


def _header(path: Path, lines: Lines) -> str:
    """The first line with something in it."""
    while line := lines.next():
        if lines.skip_rest(line):
            raise LoadFault(
                f"the line is longer than {RECORD_MAX} characters",
                f"{path}, line {lines.number}",
                "is it a list of people?",
            )
        if line.strip():
            return line.rstrip("\r\n")
    raise LoadFault("the recipients file holds only blank lines", str(path), "export the list again")


def _quote(header: str, options: FileOptions) -> str:
    if options.quote is None:
        # Some exports write every value in single quotes; the header shows it.
        return "'" if len(header) > 1 and header[0] == header[-1] == "'" else '"'
    if len(options.quote) > 1 or options.quote in ("\n", "\r"):
        raise LoadFault(f"a quote is one character, not {options.quote!r}", "", "give one, or none for no quoting")
    return options.quote


def _delimiter(header: str, quote: str, options: FileOptions) -> str:
    """The delimiter under which the header names what is needed; the one with most columns if none does."""
    if options.delimiter is not None:
        if len(options.delimiter) != 1 or options.delimiter in ("\n", "\r", quote):
            raise LoadFault(
                f"a delimiter is one character, not {options.delimiter!r}", "", "for a tab give a tab itself"
            )
        return options.delimiter

    def fitness(delimiter: str) -> tuple[bool, int]:
        try:
            names = _split(header, delimiter, quote)
        except csv.Error:
            return False, header.count(delimiter) + 1
        return has_required(names, options.column_map), len(names)

    return max(DELIMITERS, key=fitness)


def _split(text: str, delimiter: str, quote: str) -> list[str]:
    if not quote:
        return text.split(delimiter)
    return next(csv.reader([text], delimiter=delimiter, quotechar=quote, strict=True), [])


def _rows(table: "pd.DataFrame", starts: list[int], columns: Columns) -> list[RawRow]:
    """The rows of a table of text. A blank variable is absent, so that the template's default can stand in."""
    nothing = [None] * len(starts)
    fields = [nothing if place is None else table[place].tolist() for place in map(columns.places.get, FIELDS)]
    if not columns.extras:
        extras: list[dict[str, Any]] = [{}] * len(starts)
    else:
        names = [name for name, _ in columns.extras]
        values = zip(*(table[place].tolist() for _, place in columns.extras), strict=True)
        extras = [{name: value for name, value in zip(names, row, strict=True) if value} for row in values]
    return list(zip(starts, *fields, extras, strict=True))
