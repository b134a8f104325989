"""Letters as JSON to an https endpoint of the user's own. docs/webhook.md is the contract with its receiver.

An attempt is exactly one call, and its Idempotency-Key is the attempt's id, so a receiver that keeps keys takes every
request once. Body and key are the same in a repeat; the signature's timestamp is that of the call, in headers beside
them, so that a receiver can refuse old calls and still takes a repeat.

The endpoint is somebody's choice, so the name in it may mean anything: each address is judged right before it is
connected to, no redirect is followed, and sizes and time are bounded.
"""

import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import orjson

from schemas.ids import attempt_time_ms
from schemas.letters import Letter, Letters
from schemas.outcomes import Outcome
from sendonce.addresses import BadAddress, fits_a_header, hides_a_line_break, sender_address
from sendonce.config import ConfigFault, WebhookSettings
from sendonce.failpoints import DROP_REPLY, failpoint
from sendonce.senders.base import Capabilities, Prepared, Reached, Reply, Request, Unsendable, Verdict
from sendonce.senders.faulty_letters import longer_than, not_text
from sendonce.senders.http import HttpPoster
from sendonce.senders.one_click import ONE_CLICK
from sendonce.senders.public_hosts import is_public
from sendonce.senders.request_sizes import RequestSizes
from sendonce.senders.webhook_replies import judge
from sendonce.senders.webhook_signature import BadSecret, key_of, signed

log = logging.getLogger(__name__)

# A result of each of 1,000 messages, with its reason.
REPLY_MAX_BYTES: Final = 1024 * 1024
# Room for what stands in a body besides its messages.
HEAD_BYTES: Final = 2048
# RFC 8058 3.1.


def make(settings: WebhookSettings, secrets: Mapping[str, str]) -> "Webhook":
    """The endpoint as it is configured. ConfigFault for a secret that is none."""
    return Webhook(settings, secrets["secret"])


class Webhook:
    """An endpoint that takes letters. Safe for threads.

    secret: `whsec_…` itself. now_s: Unix seconds, for signatures and for what the receiver means by a time. clock: for
    time-outs. ssl_context: whom to trust, if not the usual authorities.
    """

    def __init__(
        self,
        settings: WebhookSettings,
        secret: str,
        *,
        now_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = settings.name
        self.capabilities = Capabilities(
            recipients=settings.recipients,
            mixes_forms=True,
            idempotency_window_s=settings.idempotency_window_s or None,
            parallel=settings.parallel,
        )
        try:
            self._key = key_of(secret)
        except BadSecret as fault:
            raise ConfigFault(
                f"sender {settings.name}: its secret {fault}; make one with: "
                "python -c \"import base64, os; print('whsec_' + base64.b64encode(os.urandom(32)).decode())\""
            ) from None
        self._settings = settings
        self._sizes = RequestSizes(settings.recipients, settings.max_request_bytes)
        parts = urlsplit(settings.url)
        self._path = parts.path or "/"
        self._poster = HttpPoster(
            f"{parts.scheme}://{parts.netloc}",
            connections=settings.parallel,
            ssl_context=ssl_context,
            clock=clock,
            may_connect=(lambda address: True) if settings.allow_private else is_public,
            reply_max_bytes=REPLY_MAX_BYTES,
        )
        self._now_s = now_s

    @property
    def identity(self) -> str:
        """The name and a hash of the address: another receiver knows none of the keys."""
        place = hashlib.sha256(self._settings.url.encode()).hexdigest()[:8]
        return f"{self.name[:50]}/{place}"

    def prepare(self, request: Request) -> Prepared:
        """The body of the call. Unsendable names a letter that cannot be carried."""
        messages = [_message(request.letters, letter) for letter in request.chosen]
        try:
            body = orjson.dumps(_whole(request, messages))
        except TypeError:
            raise Unsendable(not_text(request), Outcome.RENDER_BAD_VARIABLE, "a value is not Unicode text") from None
        most = self._settings.max_request_bytes
        if len(body) > most and (ordinal := longer_than(most - HEAD_BYTES, request, messages)) is not None:
            raise Unsendable(ordinal, Outcome.RENDER_TOO_LARGE, "the letter is larger than max_request_bytes")
        return Prepared(request, body, hashlib.sha256(body).hexdigest())

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        """Make the call once, under the key of its attempt. A body that is too large is not sent at all."""
        request, size = prepared.request, len(prepared.body)
        if size > self._settings.max_request_bytes:
            too_large = Reply(Verdict.REFUSED, "too_large", Outcome.RENDER_TOO_LARGE)
            return self._learned(self._sizes.refused_whole(too_large, len(request.chosen), size, for_size=True))
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "sendonce",
            "Idempotency-Key": request.attempt_id,
            **signed(self._key, request.attempt_id, int(self._now_s()), prepared.body),
        }
        answer = self._poster.post(self._path, headers, prepared.body, timeout_s)
        judged = judge(answer, request.chosen, now_s=self._now_s(), http_503=self._settings.http_503)
        reply = judged.reply
        if judged.whole:
            reply = self._sizes.refused_whole(reply, len(request.chosen), size, for_size=answer.status == 413)
        elif reply.verdict in (Verdict.ACCEPTED, Verdict.REFUSED):
            self._sizes.taken(len(request.chosen), size)
        if reply.halts_sender:
            log.warning("sender %s is halted (%s)", self.name, reply.reason)
        if reply.verdict is Verdict.ACCEPTED and failpoint("S5") == DROP_REPLY:
            reply = Reply(Verdict.UNKNOWN, "reply_lost")
        return self._learned(reply)

    def reach(self, timeout_s: float) -> Reached:
        """Connect, and leave again."""
        return self._poster.reach(timeout_s)

    def close(self) -> None:
        """Drop connections, after the calls that are under way."""
        self._poster.close()

    def _learned(self, reply: Reply) -> Reply:
        self.capabilities = replace(self.capabilities, recipients=self._sizes.now)
        return reply


def _message(letters: Letters, letter: Letter) -> dict[str, Any]:
    subject, text, html = letters.texts(letter)
    if not fits_a_header(subject) or hides_a_line_break(subject):
        raise Unsendable(letter.ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, "the subject has a control character")
    return {
        "message_id": letter.message_id,
        "to": letter.to,
        "subject": subject,
        "text": text,
        "html": html,
        "headers": _headers(letter),
    }


def _whole(request: Request, messages: list[dict[str, Any]]) -> dict[str, Any]:
    """The body. All of it comes from the request, so a repeat says the same."""
    at = datetime.fromtimestamp(attempt_time_ms(request.attempt_id) / 1000, UTC)
    letters, first = request.letters, request.chosen[0].ordinal
    return {
        "type": "letters.send",
        "timestamp": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "data": {
            "campaign_id": request.campaign_id,
            "batch_no": request.batch_no,
            "attempt_id": request.attempt_id,
            "from": _party("from", letters.from_address, first),
            "reply_to": _party("reply-to", letters.reply_to, first) if letters.reply_to else "",
            "messages": messages,
        },
    }


def _headers(letter: Letter) -> dict[str, str]:
    """The headers that the letter must have besides the usual ones (RFC 2369, RFC 8058)."""
    url = letter.unsubscribe_url
    if not url:
        return {}
    if not url.isascii() or not fits_a_header(url) or set(url) & set("<> "):
        raise Unsendable(
            letter.ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, "the unsubscribe link cannot be written in a header"
        )
    one_click = {"List-Unsubscribe-Post": ONE_CLICK} if url.startswith("https:") else {}
    return {"List-Unsubscribe": f"<{url}>", **one_click}


def _party(name: str, address: str, ordinal: int) -> str:
    try:
        return _written(address)
    except BadAddress as fault:
        raise Unsendable(ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, f"the {name} address {fault.reason}") from None


@lru_cache(maxsize=256)
def _written(address: str) -> str:
    return sender_address(address)
