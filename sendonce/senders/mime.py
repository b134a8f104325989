"""One letter as an RFC 5322 message. The same letter and attempt always give the same bytes.

Headers are encoded by the standard library; bodies stay readable (8bit) where every line may travel as it is,
and are base64 otherwise. No date, boundary or id is taken from the clock or from chance: a repeated attempt must
repeat its bytes.
"""

import base64
import re
from datetime import UTC, datetime
from email.header import Header
from email.utils import format_datetime, formataddr, parseaddr
from functools import lru_cache

from schemas.ids import attempt_time_ms
from sendonce.addresses import BadAddress, sender_address

# RFC 5322 2.1.1: a line has at most 998 characters besides its end.
LINE_MAX = 998
# Control characters have no place in a header, and a folded line may not be made by a value (RFC 5322 2.2).
_CONTROL = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
HALF_A_PAIR = "the letter holds half a surrogate pair, which cannot be written as UTF-8"
_SEPARATOR = re.compile(rb"^>*From ", re.MULTILINE)


class NotAnAddress(ValueError):
    """A From or Reply-To that is not one address: a fault of the settings, not of the letter."""


class NotUnicode(ValueError):
    """Text that no encoding takes."""


def message(
    *,
    from_address: str,
    reply_to: str,
    to: str,
    subject: str,
    text: str,
    html: str,
    message_id: str,
    attempt_id: str,
    extra: tuple[tuple[str, str], ...] = (),
    unsubscribe_url: str = "",
    eight_bit: bool = True,
) -> bytes:
    """A whole message with LF line ends, its last line ended.

    `to` is one address as it goes on the wire. `text` or `html` may be empty, not both. eight_bit: whether bodies may
    hold bytes beyond ASCII, which a server without 8BITMIME (RFC 6152) does not take. ValueError for a header value
    with a control character: no message with a header of somebody else's making is ever built. NotAnAddress for a
    `from_address` or `reply_to` that is not one address; NotUnicode for half a surrogate pair. Both are ValueErrors.
    """
    try:
        head = Head(from_address, reply_to).lines(to, subject, message_id, attempt_id, extra, unsubscribe_url)
        return head + _body(text, html, message_id, eight_bit)
    except UnicodeEncodeError:
        raise NotUnicode(HALF_A_PAIR) from None


class Head:
    """The header lines of letters from one address."""

    def __init__(self, from_address: str, reply_to: str) -> None:
        self._from = _from_header("From", from_address)
        self._domain = _domain(from_address)
        self._reply_to = _from_header("Reply-To", reply_to) if reply_to else ""

    def lines(
        self,
        to: str,
        subject: str,
        message_id: str,
        attempt_id: str,
        extra: tuple[tuple[str, str], ...],
        unsubscribe_url: str,
    ) -> bytes:
        """All but what describes the body. ValueError for a control character in a value."""
        lines = [
            self._from,
            f"To: {_plain('To', to)}",
            f"Subject: {_unstructured('Subject', subject)}",
            f"Date: {_date(attempt_id)}",
            f"Message-ID: <{message_id}@{self._domain}>",
        ]
        if self._reply_to:
            lines.append(self._reply_to)
        if unsubscribe_url:
            lines.append(f"List-Unsubscribe: <{_plain('List-Unsubscribe', unsubscribe_url)}>")
            if unsubscribe_url.startswith("https:"):  # RFC 8058 3.1: one click needs an https URI
                lines.append("List-Unsubscribe-Post: List-Unsubscribe=One-Click")
        lines.extend(f"{name}: {_plain(name, value)}" for name, value in extra)
        lines.append("MIME-Version: 1.0")
        return "\n".join(lines).encode() + b"\n"


def _body(text: str, html: str, message_id: str, eight_bit: bool) -> bytes:
    if not (text and html):
        return _part(b"html", html, eight_bit) if html else _part(b"plain", text, eight_bit)
    opening, between, closing = boundaries(message_id.encode(), eight_bit)
    return b"".join((opening, _part(b"plain", text, eight_bit), between, _part(b"html", html, eight_bit), closing))


def boundaries(message_id: bytes, eight_bit: bool = True) -> tuple[bytes, bytes, bytes]:
    """What stands before, between and behind the two parts of a letter that has both.

    The whole is labelled as its parts are (RFC 2045 6.4): who carries 7 bits only must see that it has to convert.
    """
    boundary = b"=_" + message_id
    kind = b'Content-Type: multipart/alternative; boundary="' + boundary + b'"\n'
    label = b"Content-Transfer-Encoding: " + (b"8bit" if eight_bit else b"7bit") + b"\n"
    return kind + label + b"\n--" + boundary + b"\n", b"\n--" + boundary + b"\n", b"\n--" + boundary + b"--\n"


def _part(subtype: bytes, content: str, eight_bit: bool) -> bytes:
    body = content.encode()
    if not body.endswith(b"\n"):
        body += b"\n"
    if may_travel(body) and (eight_bit or body.isascii()):
        return part_head(subtype, b"8bit" if eight_bit else b"7bit") + body
    return part_head(subtype, b"base64") + base64.encodebytes(body)


def part_head(subtype: bytes, encoding: bytes) -> bytes:
    """The headers of a part, with the blank line behind them."""
    return b"Content-Type: text/" + subtype + b"; charset=utf-8\nContent-Transfer-Encoding: " + encoding + b"\n\n"


def may_travel(body: bytes) -> bool:
    """Whether a body may go as it is: LF line ends alone, no long line, nothing that an mbox takes for a separator."""
    if b"\r" in body or b"\x00" in body or max(map(len, body.split(b"\n"))) > LINE_MAX:
        return False
    return b"From " not in body or not _SEPARATOR.search(body)


def _plain(name: str, value: str) -> str:
    if _CONTROL.search(value):
        raise ValueError(f"the header {name} has a control character")
    return value


def _unstructured(name: str, value: str) -> str:
    """A header of free text. What looks like an encoded word is encoded too, so that readers show it as it is."""
    _plain(name, value)
    if value.isascii() and "=?" not in value and len(value) + len(name) + 2 <= 78:
        return value
    return Header(value, "utf-8", header_name=name).encode(linesep="\n")


@lru_cache(maxsize=256)
def _from_header(name: str, address: str) -> str:
    """`Name <address>` with the name quoted or encoded (RFC 2047). The same few values recur for every letter."""
    try:
        shown, plain = parseaddr(sender_address(_plain(name, address), strict=False))
    except BadAddress as fault:
        raise NotAnAddress(f"the header {name} {fault.reason}") from None
    if shown.isascii() and "=?" not in shown:
        return f"{name}: {formataddr((shown, plain))}"
    return f"{name}: {Header(shown, 'utf-8', header_name=name).encode(linesep=chr(10))} <{plain}>"


@lru_cache(maxsize=256)
def _domain(address: str) -> str:
    return parseaddr(sender_address(address, strict=False))[1].rpartition("@")[2]


@lru_cache(maxsize=256)
def _date(attempt_id: str) -> str:
    return format_datetime(datetime.fromtimestamp(attempt_time_ms(attempt_id) // 1000, UTC))
