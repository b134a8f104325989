"""Resend's batch call: up to 100 whole letters, taken once under one Idempotency-Key.

An attempt is exactly one call, and its key is the attempt's id. So a request in doubt is asked again under the same key
with the same bytes, and Resend answers as it did the first time: https://resend.com/docs/dashboard/emails/idempotency-keys
(kept for 24 hours, at most 256 characters, unique per request). Whom Resend does not take it says by place, and the
others of the call are taken all the same ("permissive", https://resend.com/changelog/batch-validation-modes).
"""

import hashlib
import logging
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import orjson

from schemas.letters import Letter, Letters
from schemas.outcomes import Outcome
from sendonce.addresses import BadAddress, fits_a_header, hides_a_line_break, needs_smtputf8, sender_address
from sendonce.config import ResendSettings
from sendonce.failpoints import DROP_REPLY, failpoint
from sendonce.senders.base import Capabilities, Prepared, Reached, Reply, Request, Unsendable, Verdict
from sendonce.senders.faulty_letters import longer_than, not_text
from sendonce.senders.http import HttpPoster
from sendonce.senders.one_click import check_link, one_click_headers
from sendonce.senders.request_sizes import RequestSizes
from sendonce.senders.resend_replies import judge

log = logging.getLogger(__name__)

_PATH: Final = "/emails/batch"
# Resend keeps a key for 24 hours (see above). An hour is left for clocks that differ: a repeat that comes too late is a
# second letter.
KEY_KEPT_S: Final = 24 * 3600.0
CLOCKS_DIFFER_S: Final = 3600.0
# https://resend.com/docs/api-reference/emails/send-email: 40 MB of one email, attachments in base64 included.
LETTER_MAX_BYTES: Final = 40_000_000
# https://resend.com/docs/api-reference/emails/send-email: names and values of tags.
_TAG: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
# RFC 8058 3.1. The URI stands between angle brackets, so it holds none, and no space (RFC 2369 2).


def make(settings: ResendSettings, secrets: Mapping[str, str]) -> "Resend":
    """The account as it is configured."""
    return Resend(settings, secrets["api_key"])


class Resend:
    """An account at Resend. Safe for threads.

    api_key: the key itself. now_s: Unix seconds, to read what Resend means by a time. clock: for time-outs.
    ssl_context: whom to trust, if not the usual authorities.
    """

    def __init__(
        self,
        settings: ResendSettings,
        api_key: str,
        *,
        now_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = settings.name
        self.capabilities = Capabilities(
            recipients=settings.recipients,
            mixes_forms=True,
            idempotency_window_s=KEY_KEPT_S - CLOCKS_DIFFER_S,
            parallel=settings.parallel,
        )
        self._sizes = RequestSizes(settings.recipients)
        # Resend refuses calls without a User-Agent: https://resend.com/docs/api-reference/introduction
        self._headers = {
            "Authorization": f"Bearer {api_key}",
            "Content-Type": "application/json",
            "User-Agent": "sendonce",
            "x-batch-validation": "permissive",
        }
        self._account = hashlib.sha256(f"{settings.base_url}\n{api_key}".encode()).hexdigest()[:8]
        self._poster = HttpPoster(
            settings.base_url, connections=settings.parallel, ssl_context=ssl_context, clock=clock
        )
        self._now_s = now_s

    @property
    def identity(self) -> str:
        """The name and 32 bits of a hash of address and key: another key may be another team's, who know none of it."""
        return f"{self.name[:50]}/{self._account}"

    def prepare(self, request: Request) -> Prepared:
        """The body of the call. Unsendable names a letter that Resend cannot carry."""
        shared = _shared(request.letters, request.chosen[0].ordinal)
        emails = [_email(request, letter, shared) for letter in request.chosen]
        try:
            body = orjson.dumps(emails)
        except TypeError:
            raise Unsendable(not_text(request), Outcome.RENDER_BAD_VARIABLE, "a value is not Unicode text") from None
        if len(body) > LETTER_MAX_BYTES and (ordinal := longer_than(LETTER_MAX_BYTES, request, emails)) is not None:
            raise Unsendable(ordinal, Outcome.RENDER_TOO_LARGE, "the letter is larger than Resend takes")
        return Prepared(request, body, hashlib.sha256(body).hexdigest())

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        """Make the call once, under the key of its attempt."""
        request, n = prepared.request, len(prepared.request.chosen)
        headers = {**self._headers, "Idempotency-Key": request.attempt_id}
        answer = self._poster.post(_PATH, headers, prepared.body, timeout_s)
        judged = judge(answer, request.ordinals, now_s=self._now_s())
        reply = judged.reply
        if judged.whole:
            reply = self._sizes.refused_whole(reply, n, len(prepared.body), for_size=answer.status == 413)
        elif reply.verdict in (Verdict.ACCEPTED, Verdict.REFUSED):
            self._sizes.taken(n, len(prepared.body))
        self.capabilities = replace(self.capabilities, recipients=self._sizes.now)
        if reply.halts_sender:
            log.warning("sender %s is halted (%s): %s", self.name, reply.reason, judged.detail or "Resend says no more")
        if reply.verdict is Verdict.ACCEPTED and failpoint("S5") == DROP_REPLY:
            return Reply(Verdict.UNKNOWN, "reply_lost")
        return reply

    def reach(self, timeout_s: float) -> Reached:
        """Connect, and leave again."""
        return self._poster.reach(timeout_s)

    def close(self) -> None:
        """Drop connections, after the calls that are under way."""
        self._poster.close()


def _shared(letters: Letters, ordinal: int) -> dict[str, str]:
    """What all letters of a batch have in common."""
    shared = {"from": _party("from", letters.from_address, ordinal)}
    if letters.reply_to:
        shared["reply_to"] = _party("reply-to", letters.reply_to, ordinal)
    return shared


def _party(name: str, address: str, ordinal: int) -> str:
    try:
        return _written(address)
    except BadAddress as fault:
        raise Unsendable(ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, f"the {name} address {fault.reason}") from None


@lru_cache(maxsize=256)
def _written(address: str) -> str:
    return sender_address(address)


def _email(request: Request, letter: Letter, shared: Mapping[str, str]) -> dict[str, Any]:
    """One letter as Resend's email object. `text` is always said: left out, Resend would make one of the HTML."""
    if needs_smtputf8(letter.to):
        raise Unsendable(letter.ordinal, Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED, "Resend takes only ASCII before the @")
    subject, text, html = request.letters.texts(letter)
    if not fits_a_header(subject) or hides_a_line_break(subject):
        raise Unsendable(letter.ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, "the subject has a control character")
    made: dict[str, Any] = {**shared, "to": [letter.to], "subject": subject, "text": text}
    if html:
        made["html"] = html
    check_link(letter)
    if headers := one_click_headers(letter):
        made["headers"] = headers
    tags = {
        "campaign_id": request.campaign_id,
        "batch_no": str(request.batch_no),
        "attempt_id": request.attempt_id,
        "message_id": letter.message_id,
    }
    made["tags"] = [{"name": name, "value": value} for name, value in tags.items() if _TAG.fullmatch(value)]
    return made
