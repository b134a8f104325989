"""What one line of a CSV file is, and how a record that spans lines goes on."""

import re
from collections.abc import Iterator


class Syntax:
    """What a line is by itself, by RFC 4180 with a given delimiter, quote ("" for none) and number of values."""

    def __init__(self, delimiter: str, quote: str, width: int) -> None:
        self._delimiter = delimiter
        self._quote = quote
        d, q = re.escape(delimiter), re.escape(quote)
        if not quote:
            self.is_row = re.compile(rf"(?:[^{d}]*+{d}){{{width - 1}}}[^{d}]*+").fullmatch
            return
        inside = rf"[^{q}]*+(?:{q}{q}[^{q}]*+)*+"
        value = rf"(?:{q}{inside}{q}|(?!{q})[^{d}]*+)"
        # Whether a text is a whole record with the right number of values. Nearly all lines are.
        self.is_row = re.compile(rf"(?:{value}{d}){{{width - 1}}}{value}").fullmatch
        self._quoted = re.compile(rf"(?:\A|(?<={d})){q}{inside}{q}(?={d}|\Z)")
        self._opens = re.compile(rf"((?:{value}{d})*+){q}({inside})")
        self._closes = re.compile(rf"({inside}){q}(?:{d}{value})*+")
        self._goes_on = re.compile(rf"({inside})(?:{q}((?:{d}{value})*+){d}{q}({inside}))?")
        # A text of a JSON document. One that starts with the delimiter may be two blank values of a row.
        self._text = re.compile(rf"(?<![^\s:,\[{{]){q}{q}(?!{d})[^{q}]*+{q}{q}(?=[\s:,}}\]]|\Z)")

    def without_quoted(self, text: str) -> str | None:
        """The text without its quoted values; None if it is no whole record."""
        if not self._quote or self._quote not in text:
            return text
        bare = self._quoted.sub("", text)
        if bare.startswith(self._quote) or self._delimiter + self._quote in bare:
            return None
        return bare

    def ends_open(self, text: str) -> bool:
        """Whether a quoted value starts in the line and does not end in it."""
        return self._opens.fullmatch(text) is not None

    def continues(self, text: str) -> tuple[bool, bool]:
        """For a line that starts inside a quoted value: whether the record ends with it; else whether it may go on."""
        if self._quote not in text:
            return False, True
        if self._closes.fullmatch(text):
            return True, False
        return False, self._goes_on.fullmatch(text) is not None

    def insides(self, lines: list[str]) -> Iterator[tuple[int, int, str]]:
        """What each line of a whole record holds inside quoted values that do not both start and end in it.

        With the line's number, from 0, and the column where the text starts: where its value was opened in this line,
        that value's; else 0, as for a row of its own.
        """
        opened = self._opens.fullmatch(lines[0])
        assert opened is not None, "a record over lines starts with a line that ends open"
        place = self._values(opened[1])
        yield 0, place, opened[2]
        for number, line in enumerate(lines[1:], 1):
            ended = self._closes.fullmatch(line)
            if ended is not None:
                yield number, 0, ended[1]
                return
            goes_on = self._goes_on.fullmatch(line)
            assert goes_on is not None, "a record over lines closes its quotes"
            yield number, 0, goes_on[1]
            if goes_on[3] is not None:
                place += self._values(goes_on[2]) + 1
                yield number, place, goes_on[3]

    def without_texts(self, text: str) -> str:
        """The inside of a quoted value without the texts of a JSON document in it."""
        return self._text.sub("", text)

    def _values(self, text: str) -> int:
        """How many delimiters stand outside quoted values."""
        return self._quoted.sub("", text).count(self._delimiter)
