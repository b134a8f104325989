"""From letters to what a mail server gets of each: an envelope and a message, ready for the wire."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from email.utils import parseaddr
from functools import lru_cache
from typing import Final

from schemas.letters import Letter, Letters
from schemas.outcomes import Outcome
from sendonce.addresses import BadAddress, needs_smtputf8, sender_address
from sendonce.senders import mime, mime_forms
from sendonce.senders.base import Request, Unsendable
from sendonce.senders.smtp_wire import stuffed

# What would end a path or a command (RFC 5321 4.1.2; quoted local parts are refused when lists are loaded).
_NOT_IN_A_PATH: Final = re.compile(r"[\x00-\x20\x7f-\x9f<>\u2028\u2029]")
# A header line of 998 characters that nothing may fold, without its name and brackets.
_URL_MAX: Final = mime.LINE_MAX - len("List-Unsubscribe: <>")


@dataclass(frozen=True)
class WireLetter:
    """One transaction. data: the message up to its dot, lines ended by CRLF and dots doubled.

    eight_bit: some byte of it is not ASCII. utf8: the address needs SMTPUTF8.
    """

    letter: Letter
    to: bytes
    data: bytes
    eight_bit: bool
    utf8: bool

    @property
    def ordinal(self) -> int:
        return self.letter.ordinal


def wire_letters(request: Request) -> list[WireLetter]:
    """The chosen letters, in order. Unsendable names one that no server can be given."""
    return [_wire_letter(request, letter) for letter in request.chosen]


def body_of(letters: Sequence[WireLetter]) -> bytes:
    """Everything that a request would write, envelopes included: what is hashed before it is sent."""
    return b"".join(part for letter in letters for part in (letter.to, b"\r\n", letter.data))


def seven_bit(request: Request, letter: Letter) -> bytes:
    """A letter's data for a server without 8BITMIME (RFC 6152): the same texts, in base64 where they need it."""
    subject, text, html = request.letters.texts(letter)
    letters = request.letters
    return stuffed(
        mime.message(
            from_address=letters.from_address,
            reply_to=letters.reply_to,
            to=letter.to,
            subject=subject,
            text=text,
            html=html,
            message_id=letter.message_id,
            attempt_id=request.attempt_id,
            extra=_extra(request),
            unsubscribe_url=letter.unsubscribe_url,
            eight_bit=False,
        )
    )


@lru_cache(maxsize=256)
def envelope_from(from_address: str) -> str:
    """The address that letters come from, without its name."""
    return parseaddr(sender_address(from_address, strict=False))[1]


def _wire_letter(request: Request, letter: Letter) -> WireLetter:
    ordinal = letter.ordinal
    if not letter.to or _NOT_IN_A_PATH.search(letter.to):
        raise Unsendable(ordinal, Outcome.ADDRESS_INVALID, "the address cannot stand in an SMTP command")
    if len(letter.unsubscribe_url) > _URL_MAX:
        raise Unsendable(ordinal, Outcome.RENDER_ERROR, "the unsubscribe link is longer than a header line may be")
    try:
        raw = _message(request, letter)
        to = letter.to.encode()
        envelope_from(request.letters.from_address)
    except (mime.NotAnAddress, mime.NotUnicode, BadAddress) as fault:
        raise Unsendable(ordinal, Outcome.RENDER_ERROR, str(fault)) from None
    except UnicodeEncodeError:
        raise Unsendable(ordinal, Outcome.ADDRESS_INVALID, "the address is not Unicode text") from None
    except ValueError as fault:
        raise Unsendable(ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, str(fault)) from None
    return WireLetter(letter, to, stuffed(raw), not raw.isascii(), needs_smtputf8(letter.to))


def _message(request: Request, letter: Letter) -> bytes:
    letters: Letters = request.letters
    if letter.form is not None:
        form = mime_forms.compiled(letters.forms[letter.form], letters.from_address, letters.reply_to)
        return form.fill(
            letter.values,
            to=letter.to,
            message_id=letter.message_id,
            attempt_id=request.attempt_id,
            extra=_extra(request),
            unsubscribe_url=letter.unsubscribe_url,
        )
    return mime.message(
        from_address=letters.from_address,
        reply_to=letters.reply_to,
        to=letter.to,
        subject=letter.subject,
        text=letter.text,
        html=letter.html,
        message_id=letter.message_id,
        attempt_id=request.attempt_id,
        extra=_extra(request),
        unsubscribe_url=letter.unsubscribe_url,
    )


def _extra(request: Request) -> tuple[tuple[str, str], ...]:
    """What a person needs who looks a doubt up in a mail log; it means nothing to anybody else."""
    return (("X-Sendonce-Attempt", request.attempt_id),)
