"""What rendering hands to sending: form letters, one row of slot values per recipient, and refusals.

A letter is packed (`form` points to a form letter, `values` fill its slots in order) or whole
(`form` is None and its three texts are its own). Filling a packed letter gives, byte for byte, what plain
rendering gives: see `FormLetter.fill`.
"""

import re
import zlib
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Optional

import orjson

from schemas.records import quick


@dataclass(frozen=True)
class FormLetter:
    """Texts with slots. Slot `i` stands in them as `slot_key(prefix, i)`; each of 0 … slots-1 at least once."""

    prefix: str
    slots: int
    subject: str
    text: str
    html: str

    def fill(self, values: list[str]) -> tuple[str, str, str]:
        """The subject, text and HTML of one letter. No value holds the prefix, so the order of replacing is free."""
        subject, text, html = self._pieces
        return _joined(subject, values), _joined(text, values), _joined(html, values)

    @cached_property
    def _pieces(self) -> tuple[list[str], list[str], list[str]]:
        """Each part as texts (even places) and slot numbers (odd places): filling a thousand letters cuts it once."""
        key = re.compile(f"-{re.escape(self.prefix)}-([0-9]{{4}})-")
        return key.split(self.subject), key.split(self.text), key.split(self.html)


def _joined(pieces: list[str], values: list[str]) -> str:
    written = pieces.copy()
    for place in range(1, len(pieces), 2):
        written[place] = values[int(pieces[place])]
    return "".join(written)


def slot_key(prefix: str, number: int) -> str:
    """The name under which slot `number` stands in a form letter: fixed width, letters, digits and hyphens.

    Fixed width, closed by a hyphen: no key is the start of another, whatever order a provider replaces in.
    """
    return f"-{prefix}-{number:04d}-"


@quick
@dataclass(frozen=True)
class Letter:
    """One recipient's letter. `to` is the address as it goes on the wire (A-label domain)."""

    ordinal: int
    message_id: str
    to: str
    unsubscribe_url: str
    form: Optional[int] = None
    values: list[str] = field(default_factory=list)
    subject: str = ""
    text: str = ""
    html: str = ""


@dataclass(frozen=True)
class Refusal:
    """A recipient who gets no letter: an `Outcome` byte and a detail without personal data."""

    ordinal: int
    message_id: str
    outcome: int
    detail: str


@dataclass(frozen=True)
class Letters:
    """A rendered batch, whole or the asked ordinals of it, in the order of ordinals."""

    from_address: str
    reply_to: str
    forms: list[FormLetter]
    letters: list[Letter]
    refusals: list[Refusal]

    def texts(self, letter: Letter) -> tuple[str, str, str]:
        """Subject, text and HTML of a letter, packed or whole."""
        if letter.form is None:
            return letter.subject, letter.text, letter.html
        return self.forms[letter.form].fill(letter.values)


def dump(letters: Letters) -> bytes:
    """Compressed bytes of a rendered batch (zlib level 1 over JSON: 172 KiB to 14 KiB for 1,000 letters)."""
    return zlib.compress(encoded(letters), 1)


def encoded(letters: Letters) -> bytes:
    """The JSON bytes of a rendered batch. TypeError for a text that UTF-8 cannot carry (a lone surrogate)."""
    return orjson.dumps(plain(letters))


def plain(letters: Letters) -> dict[str, object]:
    """The JSON form of a rendered batch. Letters are lists, not objects: there are a thousand of them."""
    return {
        "from": letters.from_address,
        "reply_to": letters.reply_to,
        "forms": [asdict(form) for form in letters.forms],
        "letters": [
            (
                letter.ordinal,
                letter.message_id,
                letter.to,
                letter.unsubscribe_url,
                letter.form,
                letter.values,
                letter.subject,
                letter.text,
                letter.html,
            )
            for letter in letters.letters
        ],
        "refusals": [
            (refusal.ordinal, refusal.message_id, refusal.outcome, refusal.detail) for refusal in letters.refusals
        ],
    }


def load(body: bytes) -> Letters:
    """The inverse of `dump`. ValueError for bytes that are not a rendered batch."""
    try:
        raw = orjson.loads(zlib.decompress(body))
        return Letters(
            raw["from"],
            raw["reply_to"],
            [FormLetter(**form) for form in raw["forms"]],
            [Letter(*letter) for letter in raw["letters"]],
            [Refusal(*refusal) for refusal in raw["refusals"]],
        )
    except (zlib.error, KeyError, TypeError) as fault:
        raise ValueError("not a rendered batch") from fault
