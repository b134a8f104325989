"""Unsubscribing over HTTP, by RFC 8058: a POST acts, without cookie or session; a GET shows a page and changes nothing.

    GET, HEAD  …/TOKEN    200, a page with a button          404 for a token that is none of this store's
    POST       …/TOKEN    200, also the second time          400 unless it says List-Unsubscribe=One-Click
    GET, HEAD  /healthz   200 while the store answers        503

The token is the last part of the path, so it does not matter whether a proxy cuts the path of `base_url` off. No
address is in any page, header or log line.
"""

import logging
from collections.abc import Callable, Iterable
from email.message import EmailMessage, MIMEPart
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Final
from urllib.parse import parse_qs

from sendonce.control.unsubscribe import BadToken, letter_of, unsubscribe
from sendonce.stores.base import Store, StoreError
from sendonce.web import pages
from sendonce.web.pages import Page, language_for, page

BODY_MAX: Final = 16 << 10
_HEADERS: Final = [
    ("Cache-Control", "no-store"),
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src '{pages.STYLE_HASH}'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'",
    ),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("X-Robots-Tag", "noindex, nofollow"),
]
_log = logging.getLogger("sendonce.web")

Environ = dict[str, Any]
StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class UnsubscribeApp:
    """The WSGI application (PEP 3333). Safe for threads; every answer is made from the store as it is."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ.get("PATH_INFO", "")
        if path == "/healthz":
            return self._health(method, start_response)
        wish = environ.get("HTTP_ACCEPT_LANGUAGE", "")
        if method not in ("GET", "HEAD", "POST"):
            shown = page(pages.UNCHANGED, language_for(wish))
            return _answer(start_response, method, "405 Method Not Allowed", shown, ("Allow", "GET, HEAD, POST"))
        token = path.rpartition("/")[2]
        try:
            status, shown = self._act(environ, token, wish) if method == "POST" else self._show(token, wish)
        except BadToken:
            return _answer(start_response, method, "404 Not Found", page(pages.BAD_LINK, language_for(wish)))
        except Exception as fault:
            # Nothing of the request is said: its path is a token. A server's own report of a crash would hold it.
            _log.error("unsubscribe: %s", fault if isinstance(fault, StoreError) else type(fault).__name__)
            shown = page(pages.LATER, language_for(wish))
            return _answer(start_response, method, "503 Service Unavailable", shown, ("Retry-After", "60"))
        return _answer(start_response, method, status, shown)

    def _show(self, token: str, wish: str) -> tuple[str, Page]:
        letter = letter_of(self._store, token)
        return "200 OK", page(pages.ASK, language_for(wish, letter.locale), letter.from_name)

    def _act(self, environ: Environ, token: str, wish: str) -> tuple[str, Page]:
        letter = letter_of(self._store, token)
        language = language_for(wish, letter.locale)
        if not _is_one_click(environ):
            return "400 Bad Request", page(pages.UNCHANGED, language, letter.from_name)
        unsubscribe(self._store, token)
        return "200 OK", page(pages.DONE, language, letter.from_name)

    def _health(self, method: str, start_response: StartResponse) -> Iterable[bytes]:
        try:
            self._store.read(lambda reader: reader.now())
            status, body = "200 OK", b"ok\n"
        except StoreError as fault:
            _log.error("healthz: %s", fault)
            status, body = "503 Service Unavailable", b"the store does not answer\n"
        headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body))), *_HEADERS]
        start_response(status, headers)
        return [] if method == "HEAD" else [body]


def _is_one_click(environ: Environ) -> bool:
    """Whether a POST says `List-Unsubscribe=One-Click`, as a form of either kind (RFC 8058 3.2)."""
    body = environ["wsgi.input"].read(BODY_MAX)
    content_type = environ.get("CONTENT_TYPE", "")
    kind = content_type.partition(";")[0].strip().casefold()
    if kind == "application/x-www-form-urlencoded":
        try:
            # Some clients end a form with a line.
            fields = parse_qs(body.decode("ascii").rstrip("\r\n"), max_num_fields=20)
        except ValueError:
            return False
        return fields.get("List-Unsubscribe") == ["One-Click"]
    if kind == "multipart/form-data":
        head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
        form = BytesParser(EmailMessage, policy=HTTP).parsebytes(head + body)
        values = [_value(part) for part in form.iter_parts() if _name(part) == "List-Unsubscribe"]
        return values == [b"One-Click"]
    return False


def _name(part: MIMEPart) -> object:
    return part.get_param("name", header="Content-Disposition")


def _value(part: MIMEPart) -> bytes:
    value = part.get_payload(decode=True)
    return value.strip() if isinstance(value, bytes) else b""


def _answer(
    start_response: StartResponse, method: str, status: str, shown: Page, *more: tuple[str, str]
) -> Iterable[bytes]:
    headers = [
        ("Content-Type", "text/html; charset=utf-8"),
        ("Content-Length", str(len(shown.body))),
        ("Content-Language", shown.language),
        ("Vary", "Accept-Language"),
        *_HEADERS,
        *more,
    ]
    start_response(status, headers)
    return [] if method == "HEAD" else [shown.body]
