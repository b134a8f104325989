"""Amazon SES by its API v2: form letters as inline templates, 50 recipients a call; other letters one call each.

botocore finds credentials and endpoint and signs; the call goes over our own HTTP, which knows how far it came and
never repeats one. One request may take several calls, side by side, and those that follow when SES refuses one whole:
its halves tell whom SES will not take. They all belong to the one attempt and share its time.
"""

import hashlib
import logging
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from sendonce.config import SesSettings
from sendonce.failpoints import DROP_REPLY, failpoint
from sendonce.senders.base import Capabilities, Prepared, Reached, Reply, Request, Verdict
from sendonce.senders.http import Answer, HttpPoster
from sendonce.senders.ses_account import Account, NotSigned, open_account
from sendonce.senders.ses_attempt import Attempt
from sendonce.senders.ses_body import BULK, RECIPIENTS_MAX, Bodies, Call
from sendonce.senders.ses_replies import Judgement, Result, judge
from sendonce.senders.side_by_side import SideBySide

log = logging.getLogger(__name__)


def make(settings: SesSettings, secrets: Mapping[str, str]) -> "Ses":
    """The account as it is configured. ConfigFault for credentials, a profile or a region that is missing here."""
    return Ses(settings, open_account(settings, secrets))


@dataclass(frozen=True)
class SesPrepared(Prepared):
    """The calls of a request before any was made. `body` holds their bodies one after the other, in this order."""

    calls: Sequence[Call]
    bodies: Bodies


class Ses:
    """An account at SES. Safe for threads.

    now_s: Unix seconds, for signatures. clock: for time-outs. ssl_context: whom to trust, if not the usual authorities.
    """

    def __init__(
        self,
        settings: SesSettings,
        account: Account,
        *,
        now_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = settings.name
        self.capabilities = Capabilities(
            recipients=RECIPIENTS_MAX * settings.parallel,
            mixes_forms=True,
            parallel=settings.parallel,
            calls=5 * settings.parallel,
        )
        self._settings = settings
        self._account = account
        self._poster = HttpPoster(account.url, connections=settings.parallel, ssl_context=ssl_context, clock=clock)
        self._now_s = now_s
        self._ahead_s = 0.0
        self._clock = clock
        self._side_by_side = SideBySide(settings.parallel, settings.name)

    @property
    def identity(self) -> str:
        """The name: SES knows no keys of requests, so nothing is ever repeated."""
        return self.name

    def prepare(self, request: Request) -> SesPrepared:
        """The calls that will be made if SES takes each of them. Unsendable names a letter that none can carry."""
        bodies = Bodies(request, self._settings)
        calls = bodies.calls()
        body = calls[0].body if len(calls) == 1 else b"".join(call.body for call in calls)
        return SesPrepared(request, body, hashlib.sha256(body).hexdigest(), calls, bodies)

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        """Make the calls, and those that follow from refusals, within `timeout_s`. Nothing is sent twice."""
        assert isinstance(prepared, SesPrepared)
        attempt = Attempt(self._post, prepared.bodies.again, prepared.calls, self._clock, timeout_s)
        self._side_by_side.work(attempt.work, len(prepared.calls))
        reply, why = attempt.reply()
        if reply.halts_sender:
            log.warning("sender %s is halted (%s): %s", self.name, reply.reason, why or "SES says no more")
        return reply

    def reach(self, timeout_s: float) -> Reached:
        """See that somebody can sign, connect, and leave again."""
        try:
            self._account.signed(BULK, b"", self._now_s())
        except NotSigned as fault:
            return Reached("no_credentials", f"nobody can sign at the moment ({fault})")
        return self._poster.reach(timeout_s)

    def close(self) -> None:
        """Drop connections, after the calls that are under way."""
        self._side_by_side.close()
        self._poster.close()

    def _post(self, call: Call, timeout_s: float) -> tuple[Judgement, str]:
        ends_s = self._clock() + timeout_s
        answer, judgement = self._once(call, ends_s)
        if judgement.stop is not None and judgement.stop.reason == "clock" and self._set_clock_by(answer):
            answer, judgement = self._once(call, ends_s)
        taken = any(result.verdict is Verdict.ACCEPTED for result in judgement.results)
        if taken and failpoint("S5") == DROP_REPLY:
            lost = Result(Verdict.UNKNOWN, "reply_lost")
            return Judgement([lost] * len(call.letters), stop=lost), ""
        return judgement, answer.headers.get("x-amzn-requestid", "")

    def _once(self, call: Call, ends_s: float) -> tuple[Answer, Judgement]:
        """Sign a call and make it. Without credentials, or time to make it in, nothing was sent."""
        try:
            headers = self._account.signed(call.path, call.body, self._now_s() + self._ahead_s)
        except NotSigned as fault:
            log.warning("sender %s cannot sign at the moment: %s", self.name, fault)
            answer = Answer(None, written=False, reason="no_credentials")
        else:
            left_s = ends_s - self._clock()
            late = Answer(None, written=False, reason="no_time_left")
            answer = self._poster.post(call.path, headers, call.body, left_s) if left_s > 0 else late
        return answer, judge(answer, len(call.letters), bulk=call.path == BULK, http_503=self._settings.http_503)

    def _set_clock_by(self, answer: Answer) -> bool:
        """Sign by the provider's clock from now on: this machine's is off. False when it does not tell the time."""
        try:
            told_s = parsedate_to_datetime(answer.headers.get("date", "")).timestamp()
        except ValueError:
            return False
        self._ahead_s = told_s - self._now_s()
        log.warning(
            "sender %s: this machine's clock is %.0f s off; signing by the provider's", self.name, self._ahead_s
        )
        return True
