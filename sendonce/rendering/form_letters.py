"""Form letters: how a template's output is taken apart into text with slots and one row of values per recipient.

The code generator (`letter_code.py`) wraps every expression that is *written*, after escaping, and only where the
output streams. There the sheet takes the value and puts a `Slot` in its place; the template's own text stays as it
is. What is rendered into a buffer first (macros, call, set and filter blocks, `super()`, `self.x()`, imported
modules) is one value where its result is written, or text that is the same for everybody. So no value is ever looked
for in finished text, and nothing that a filter does to a buffer can lose one.

The sequence of texts and slots that one letter makes is the key of its form letter: two letters with the same
sequence differ in their values only. A `Slot` is no text, so that one that strayed into a buffer fails loudly and
the letter goes whole.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Optional

from schemas.letters import FormLetter, slot_key
from sendonce.rendering.limits import PART_BYTES, TooLarge

SLOTS_MAX: Final = 9_999

# What stands between words, line ends included; not the no-break spaces, which French sets before a colon.
_BLANKS: Final = re.compile("[ \\t\\n\\r\\v\\f\\x1c-\\x1f\\x85\\u2028\\u2029]+")
_BLANK_CHARACTERS: Final = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029"
_CONTROL: Final = re.compile("[\\x00-\\x08\\n-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
_WORD_END: Final = re.compile("[a-z0-9]*\\Z")
_WORD_START: Final = re.compile("[a-z0-9]*")


class HeaderControlCharacter(Exception):
    """A value for the subject holds a line end or another control character inside."""


class NotPacked(Exception):
    """This letter cannot be packed; it goes whole."""


class Slot:
    """Stands in a template's output where a value was written. No text on purpose."""

    __slots__ = ("after", "before")

    def __init__(self, before: str = "", after: str = "") -> None:
        self.before = before
        self.after = after


SLOT: Final = Slot()
_SLOTS: Final = {(before, after): Slot(before, after) for before in ("", " ") for after in ("", " ")}


def spaced(text: str) -> str:
    """Every run of white space, line ends included, as one space."""
    return _BLANKS.sub(" ", text)


def one_line(text: str) -> str:
    """A subject: runs of white space are one space, none at the ends."""
    return spaced(text).strip(" ")


def subject_value(text: Any) -> str:
    """A value for the subject as it is written. HeaderControlCharacter unless white space at its ends is all it has."""
    value = str(text)
    if not value.isprintable() and _CONTROL.search(value.strip(_BLANK_CHARACTERS)):
        raise HeaderControlCharacter
    return value


def subject_taker(values: list[str]) -> Callable[[Any], Any]:
    """What takes the subject's values when letters are packed: spaces at a value's ends stay outside its slot."""

    def take(text: Any) -> Any:
        if text.isprintable() and text[0] != " " and text[-1] != " " and "  " not in text:
            values.append(text)
            return SLOT
        text = subject_value(text)
        if not text.strip():
            return spaced(text)
        value = one_line(text)
        values.append(value)
        around = spaced(text)
        return _SLOTS[" " if around[0] == " " else "", " " if around[-1] == " " else ""]

    return take


def slot_prefix(template_hash: str) -> str:
    """The prefix of a template's slot keys: looks random, the same every time, so that a repeated request repeats

    its bytes. 16 characters of a hash, beginning with a letter.
    """
    digest = hashlib.sha256(f"slots\x00{template_hash}".encode()).digest()
    return "s" + "".join("abcdefghijklmnopqrstuvwxyz234567"[byte & 31] for byte in digest[:15])


@dataclass(frozen=True)
class Form:
    """A form letter and what packing into it needs. `letter` None: these letters go whole.

    seams: text of the form around slots, as a format for the values, where a value and its neighbours could make
    a slot key together; None where they cannot. size: its bytes without the values. bare: the slots of parts that
    have no text of their own; whether such a part is blank is up to its values.
    """

    letter: Optional[FormLetter]
    size: int = 0
    bare: Sequence[tuple[int, int]] = ()
    seams: Optional[str] = None

    def row(self, values: list[str]) -> list[str]:
        """The slot values of one letter as plain texts. NotPacked if filling the form could go wrong."""
        if self.letter is None or len(values) != self.letter.slots:
            raise NotPacked
        if not values:
            return []
        together = "\x00".join(values)
        row = together.split("\x00")
        if len(row) != len(values) or self.letter.prefix in together:
            raise NotPacked
        if any(not "".join(row[first:end]).strip() for first, end in self.bare):
            raise NotPacked
        if self.seams is not None and self.letter.prefix in self.seams % tuple(row):
            raise NotPacked
        return row


def build_form(prefix: str, subject: Sequence[Any], text: Sequence[Any], html: Sequence[Any]) -> Form:
    """The form letter of three sequences of texts and slots, numbered in one row over all three."""
    if sum(len(piece) for piece in (*subject, *text, *html) if isinstance(piece, str)) > 3 * PART_BYTES:
        raise TooLarge
    slots = 0
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    for pieces in (subject, text, html):
        written: list[str] = []
        first = slots
        for piece in pieces:
            if isinstance(piece, Slot):
                written += (piece.before, slot_key(prefix, slots), piece.after)
                slots += 1
            else:
                written.append(piece)
        parts.append("".join(written))
        if slots > first and not "".join([piece for piece in pieces if isinstance(piece, str)]).strip():
            spans.append((first, slots))
    fixed = [[piece for piece in pieces if isinstance(piece, str)] for pieces in (subject, text, html)]
    if slots > SLOTS_MAX or any(prefix in "".join(pieces) for pieces in fixed):
        return Form(None)
    # A letter with an empty subject or no body is refused; plain rendering says so.
    line, plain, markup = one_line(parts[0]), blank_to_empty(parts[1]), blank_to_empty(parts[2])
    if not line.strip() or not (plain or markup):
        return Form(None)
    letter = FormLetter(prefix, slots, line, plain, markup)
    size = sum(len(part.encode("utf-8", "surrogatepass")) for part in (line, plain, markup))
    return Form(letter, size, spans, _seams([*subject, "\x00", *text, "\x00", *html]))


def blank_to_empty(body: str) -> str:
    """A body of white space only is no body: providers refuse it."""
    return body if body.strip() else ""


def _seams(pieces: Iterable[Any]) -> Optional[str]:
    """The ends of the texts beside slots that could belong to a slot key; None if every slot stands free."""
    texts = [""]
    for piece in pieces:
        if isinstance(piece, Slot):
            texts[-1] += piece.before
            texts.append(piece.after)
        else:
            texts[-1] += piece
    beside = [_edges(text) for text in texts]
    if all(text.startswith("\x00") and text.endswith("\x00") for text in beside[1:-1]):
        first, last = beside[0], beside[-1]
        if first.endswith("\x00") and last.startswith("\x00"):
            return None
    return "%s".join(beside)


def _edges(text: str) -> str:
    """A text between two slots, short: what stands inside, away from both, cannot join with their values."""
    start, end = _WORD_START.match(text), _WORD_END.search(text)
    assert start is not None
    assert end is not None
    return text if start.group() == text else f"{start.group()}\x00{end.group()}"
