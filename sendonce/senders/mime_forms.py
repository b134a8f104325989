"""Messages from form letters: what all recipients share is encoded once, and each letter fills its own in.

`mime.message` says what a letter looks like; this gives the same bytes, and falls back on the same functions wherever
a letter's values decide (long lines, separators, subjects).
"""

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from schemas.letters import FormLetter
from sendonce.senders import mime

# What holds both parts of a form letter of the largest size that templates allow is some megabytes.
_FORMS_KEPT: Final = 32


@lru_cache(maxsize=_FORMS_KEPT)
def compiled(form: FormLetter, from_address: str, reply_to: str) -> "MimeForm":
    """The form letter, ready to be filled. Kept: its batches come in many requests. Errors as `mime.message`."""
    return MimeForm(form, from_address, reply_to)


class MimeForm:
    """A form letter whose shared parts are encoded. Safe for threads: filling changes nothing."""

    def __init__(self, form: FormLetter, from_address: str, reply_to: str) -> None:
        """NotAnAddress and NotUnicode for what is at fault in all of its letters, as `mime.message` raises them."""
        self._form = form
        self._head = mime.Head(from_address, reply_to)
        try:
            self._text = _Part.of(b"plain", form.text, form.prefix) if form.text else None
            self._html = _Part.of(b"html", form.html, form.prefix) if form.html else None
        except UnicodeEncodeError:
            raise mime.NotUnicode(mime.HALF_A_PAIR) from None
        self._subject = _pieces(form.subject, form.prefix)
        # What no part shows may be anything.
        self._shown = sorted({slot for part in (self._text, self._html) if part is not None for slot in part.slots})

    def fill(
        self,
        values: list[str],
        *,
        to: str,
        message_id: str,
        attempt_id: str,
        extra: tuple[tuple[str, str], ...] = (),
        unsubscribe_url: str = "",
    ) -> bytes:
        """The message of one letter, byte for byte what `mime.message` gives for its texts, errors included."""
        try:
            subject = _filled(self._subject, values)
            head = self._head.lines(to, subject, message_id, attempt_id, extra, unsubscribe_url)
            encoded = {slot: values[slot].encode() for slot in self._shown}
            text = self._text.fill(encoded) if self._text is not None else b""
            html = self._html.fill(encoded) if self._html is not None else b""
        except UnicodeEncodeError:
            raise mime.NotUnicode(mime.HALF_A_PAIR) from None
        if not (text and html):
            return head + (html or text or mime.part_head(b"plain", b"8bit") + b"\n")
        opening, between, closing = mime.boundaries(message_id.encode())
        return b"".join((head, opening, text, between, html, closing))


@dataclass(frozen=True)
class _Part:
    """One text of a form letter: encoded pieces at even places, slot numbers at odd ones.

    longest: bytes of its longest line without values. fixed: bytes of everything but values. suspect: whether shared
    text alone forbids the short way.
    """

    subtype: bytes
    pieces: list[bytes]
    slots: list[int]
    head: bytes
    fixed: int
    longest: int
    suspect: bool

    @classmethod
    def of(cls, subtype: bytes, content: str, prefix: str) -> "_Part":
        pieces = _pieces(content, prefix)
        texts = [piece.encode() for piece in pieces[::2]]
        shared = b"".join(texts)
        return cls(
            subtype,
            texts,
            [int(number) for number in pieces[1::2]],
            mime.part_head(subtype, b"8bit"),
            len(shared),
            max(map(len, shared.split(b"\n"))),
            b"\r" in shared or b"\x00" in shared,
        )

    def fill(self, values: Mapping[int, bytes]) -> bytes:
        """The part with its headers; empty when the whole part is."""
        pieces = self.pieces
        written = [pieces[0]]
        for slot, piece in zip(self.slots, pieces[1:], strict=True):
            written += (values[slot], piece)
        body = b"".join(written)
        if not body:
            return b""
        if not body.endswith(b"\n"):
            body += b"\n"
        if self._surely_travels(body) or mime.may_travel(body):
            return self.head + body
        return mime.part_head(self.subtype, b"base64") + base64.encodebytes(body)

    def _surely_travels(self, body: bytes) -> bool:
        """Whether no value can have made a line too long, even if all stand in the longest: then lines go uncounted."""
        return (
            not self.suspect
            and self.longest + len(body) - self.fixed <= mime.LINE_MAX
            and b"From " not in body
            and b"\r" not in body
            and b"\x00" not in body
        )


def _pieces(text: str, prefix: str) -> list[str]:
    """Texts at even places, slot numbers at odd ones, as `FormLetter.fill` cuts them."""
    return re.split(f"-{re.escape(prefix)}-([0-9]{{4}})-", text)


def _filled(pieces: list[str], values: list[str]) -> str:
    if len(pieces) == 1:
        return pieces[0]
    written = pieces.copy()
    for place in range(1, len(pieces), 2):
        written[place] = values[int(pieces[place])]
    return "".join(written)
