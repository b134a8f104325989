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
) -> bytes:
    """A whole message with LF line ends, its last line ended.

    `to` is one address as it goes on the wire. `text` or `html` may be empty, not both. ValueError for a header value
    with a control character: no message with a header of somebody else's making is ever built. NotAnAddress for a
    `from_address` or `reply_to` that is not one address; NotUnicode for half a surrogate pair. Both are ValueErrors.
    """
    try:
        return _message(from_address, reply_to, to, subject, text, html, message_id, attempt_id, extra, unsubscribe_url)
    except UnicodeEncodeError:
        raise NotUnicode("the letter holds half a surrogate pair, which cannot be written as UTF-8") from None


def _message(
    from_address: str,
    reply_to: str,
    to: str,
    subject: str,
    text: str,
    html: str,
    message_id: str,
    attempt_id: str,
    extra: tuple[tuple[str, str], ...],
    unsubscribe_url: str,
) -> bytes:
    lines = [
        _from_header("From", from_address),
        f"To: {_plain('To', to)}",
        f"Subject: {_unstructured('Subject', subject)}",
        f"Date: {_date(attempt_id)}",
        f"Message-ID: <{message_id}@{_domain(from_address)}>",
    ]
    if reply_to:
        lines.append(_from_header("Reply-To", reply_to))
    if unsubscribe_url:
        lines.append(f"List-Unsubscribe: <{_plain('List-Unsubscribe', unsubscribe_url)}>")
        if unsubscribe_url.startswith("https:"):  # RFC 8058 3.1: one click needs an https URI
            lines.append("List-Unsubscribe-Post: List-Unsubscribe=One-Click")
    lines.extend(f"{name}: {_plain(name, value)}" for name, value in extra)
    lines.append("MIME-Version: 1.0")
    head = "\n".join(lines).encode() + b"\n"
    if text and html:
        boundary = f"=_{message_id}".encode()
        return b"".join(
            (
                head,
                b'Content-Type: multipart/alternative; boundary="',
                boundary,
                b'"\n\n--',
                boundary,
                b"\n",
                _part(b"plain", text),
                b"\n--",
                boundary,
                b"\n",
                _part(b"html", html),
                b"\n--",
                boundary,
                b"--\n",
            )
        )
    return head + (_part(b"html", html) if html else _part(b"plain", text))


def _part(subtype: bytes, content: str) -> bytes:
    body = content.encode()
    if not body.endswith(b"\n"):
        body += b"\n"
    encoding = b"8bit"
    if not _may_travel(body):
        encoding, body = b"base64", base64.encodebytes(body)
    return (
        b"Content-Type: text/" + subtype + b"; charset=utf-8\nContent-Transfer-Encoding: " + encoding + b"\n\n" + body
    )


def _may_travel(body: bytes) -> bool:
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
