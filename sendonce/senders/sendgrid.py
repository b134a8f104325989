"""SendGrid's v3 Mail Send: form letters as substitutions, up to 1,000 recipients a call; other letters one call each.

The official library gives the host and the headers. Its own transport is not used: it has no time-out, keeps no
connection, cannot tell how far a failed call came, and formats whole payloads for a debug line.

One request may take several calls: letters that go alone, an address that stands twice, and what follows a 400 or a
413: the named recipient is refused and the others go again, or halves tell whom SendGrid will not take. They all belong
to the one attempt and share its time. No letter is in a second call unless SendGrid refused the first one whole.
"""

import hashlib
import logging
import math
import ssl
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import sendgrid

from schemas.letters import Letter
from sendonce.config import SendGridSettings
from sendonce.failpoints import DROP_REPLY, failpoint
from sendonce.senders.base import Capabilities, Prepared, Reached, Reply, Request, Verdict
from sendonce.senders.http import HttpPoster
from sendonce.senders.replies import joined
from sendonce.senders.sendgrid_body import RECIPIENTS_MAX, Bodies, Call
from sendonce.senders.sendgrid_replies import Judgement, judge
from sendonce.senders.side_by_side import SideBySide

log = logging.getLogger(__name__)

_PATH: Final = "/v3/mail/send"
# From so many letters on, an attempt in which SendGrid refuses everything without naming anybody blames the account.
_ENOUGH: Final = 8
_LATE: Final = Judgement(Verdict.NOT_SENT, "no_time_left")


def make(settings: SendGridSettings, secrets: Mapping[str, str]) -> "SendGrid":
    """The account as it is configured."""
    return SendGrid(settings, secrets["api_key"])


@dataclass(frozen=True)
class SendGridPrepared(Prepared):
    """The calls of a request before any was made. `body` holds their bodies one after the other, in this order."""

    calls: Sequence[Call]
    bodies: Bodies


class SendGrid:
    """An account at SendGrid. Safe for threads.

    api_key: the key itself. now_s: Unix seconds, to read what SendGrid means by a time. clock: for time-outs.
    ssl_context: whom to trust, if not the usual authorities.
    """

    def __init__(
        self,
        settings: SendGridSettings,
        api_key: str,
        *,
        now_s: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.name = settings.name
        self.capabilities = Capabilities(
            recipients=RECIPIENTS_MAX, mixes_forms=False, parallel=settings.parallel, calls=5 * settings.parallel
        )
        self._settings = settings
        client = sendgrid.SendGridAPIClient(api_key, host=settings.base_url).client
        self._headers = {**client.request_headers, "Content-Type": "application/json"}
        self._poster = HttpPoster(client.host, connections=settings.parallel, ssl_context=ssl_context, clock=clock)
        self._now_s = now_s
        self._clock = clock
        self._side_by_side = SideBySide(settings.parallel, settings.name)

    @property
    def identity(self) -> str:
        """The name: SendGrid knows no keys of requests, so nothing is ever repeated."""
        return self.name

    def prepare(self, request: Request) -> SendGridPrepared:
        """The calls that will be made if SendGrid takes each of them. Unsendable names a letter that none can carry."""
        bodies = Bodies(request, self._settings)
        calls = bodies.calls()
        body = calls[0].body if len(calls) == 1 else b"".join(call.body for call in calls)
        return SendGridPrepared(request, body, hashlib.sha256(body).hexdigest(), calls, bodies)

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        """Make the calls, and those that follow from refusals, within `timeout_s`. Nothing is sent twice."""
        assert isinstance(prepared, SendGridPrepared)
        attempt = _Attempt(self._post, prepared, self._clock, timeout_s)
        self._side_by_side.work(attempt.work, len(prepared.calls))
        return attempt.reply(self.name)

    def reach(self, timeout_s: float) -> Reached:
        """Connect, and leave again."""
        return self._poster.reach(timeout_s)

    def close(self) -> None:
        """Drop connections, after the calls that are under way."""
        self._side_by_side.close()
        self._poster.close()

    def _post(self, call: Call, timeout_s: float) -> tuple[Judgement, str]:
        answer = self._poster.post(_PATH, self._headers, call.body, timeout_s)
        judgement = judge(answer, len(call.letters), now_s=self._now_s(), http_503=self._settings.http_503)
        if judgement.verdict is Verdict.ACCEPTED and failpoint("S5") == DROP_REPLY:
            return Judgement(Verdict.UNKNOWN, "reply_lost"), ""
        return judgement, answer.headers.get("x-message-id", "")


class _Attempt:
    """The calls of one request and what became of each letter. `work` may run in several threads at once."""

    def __init__(
        self,
        post: Callable[[Call, float], tuple[Judgement, str]],
        prepared: SendGridPrepared,
        clock: Callable[[], float],
        timeout_s: float,
    ) -> None:
        self._post = post
        self._bodies = prepared.bodies
        self._clock = clock
        self._ends_s = clock() + timeout_s
        self._waiting = deque(prepared.calls)
        self._changing = threading.Lock()
        self._found: dict[int, Judgement] = {}
        self._blind: set[int] = set()
        self._refs: list[str] = []
        self._accepted = 0
        self._refused_blindly = 0
        self._stop: Judgement | None = None
        n = len(prepared.request.chosen)
        self._hopeless_after = 2 * math.ceil(math.log2(n)) + 1 if n >= _ENOUGH else math.inf

    def work(self) -> None:
        """Make calls until none waits."""
        while True:
            try:
                call = self._waiting.popleft()
            except IndexError:
                return
            self._deliver(call)

    def _deliver(self, call: Call) -> None:
        """Make a call, and others for its letters while SendGrid refuses some of them."""
        judgement = self._make(call)
        while judgement.refused:
            for place, (outcome, detail) in judgement.refused.items():
                self._note([call.letters[place]], replace(judgement, outcome=outcome, detail=detail, refused={}))
            rest = [letter for place, letter in enumerate(call.letters) if place not in judgement.refused]
            if not rest:
                return
            call = self._bodies.again(call, rest)
            judgement = self._make(call)
        if judgement.divide and len(call.letters) > 1:
            self._divide(call, judgement)
        else:
            self._note(call.letters, judgement)

    def _divide(self, call: Call, refusal: Judgement) -> None:
        """Find whom SendGrid will not take, in halves: for one of n at most 2 * ceil(log2 n) more calls.

        When the first half was taken whole, the second holds the fault and is divided without being tried; but nobody
        is refused whose own call was not.
        """
        middle = len(call.letters) // 2
        first, second = (self._bodies.again(call, part) for part in (call.letters[:middle], call.letters[middle:]))
        self._deliver(first)
        taken = all(self._was_taken(letter) for letter in first.letters)
        if taken and len(second.letters) > 1 and refusal.reason == "http_400" and self._may_go_on() is None:
            self._divide(second, refusal)
        else:
            self._deliver(second)

    def _make(self, call: Call) -> Judgement:
        stopped = self._may_go_on()
        if stopped is not None:
            return stopped
        judgement, ref = self._post(call, max(0.001, self._ends_s - self._clock()))
        with self._changing:
            if judgement.verdict is Verdict.ACCEPTED:
                self._accepted += 1
                self._refs.append(ref)
            elif judgement.verdict is not Verdict.REFUSED:
                self._stop = self._stop or judgement
            elif judgement.divide:
                self._refused_blindly += 1
                if not self._accepted and self._refused_blindly >= self._hopeless_after:
                    self._stop = self._stop or replace(
                        judgement, verdict=Verdict.NOT_SENT, reason="refused_all", outcome=0, divide=False, halts=True
                    )
                    return self._stop
        return judgement

    def _may_go_on(self) -> Judgement | None:
        """None, or why no further call is made: after anything but yes or no, the rest waits for a later attempt."""
        if self._stop is not None:
            stop = self._stop
            return stop if stop.verdict is Verdict.NOT_SENT else replace(stop, verdict=Verdict.NOT_SENT)
        return _LATE if self._clock() >= self._ends_s else None

    def _note(self, letters: Sequence[Letter], judgement: Judgement) -> None:
        with self._changing:
            for letter in letters:
                self._found[letter.ordinal] = judgement

    def _was_taken(self, letter: Letter) -> bool:
        return self._found[letter.ordinal].verdict is Verdict.ACCEPTED

    def reply(self, name: str) -> Reply:
        """One reply for all letters: the commonest result, and the others by ordinal."""
        stop = self._stop
        if stop is not None and stop.reason == "refused_all":
            self._found = {
                ordinal: stop if one.verdict is Verdict.REFUSED and one.divide else one
                for ordinal, one in self._found.items()
            }
        results = {ordinal: (one.verdict, one.outcome, one.detail) for ordinal, one in self._found.items()}
        ((verdict, outcome), _), *_ = Counter((one.verdict, one.outcome) for one in self._found.values()).most_common(1)
        reason = stop or next((one for one in self._found.values() if one.verdict is not Verdict.ACCEPTED), None)
        if stop is not None and stop.halts:
            log.warning("sender %s is halted (%s): %s", name, stop.reason, stop.detail or "SendGrid says no more")
        return Reply(
            verdict,
            reason.reason if reason is not None else "",
            outcome,
            provider_ref=joined(self._refs),
            retry_after_s=stop.retry_after_s if stop is not None else None,
            halts_sender=stop is not None and stop.halts,
            throttled=stop is not None and stop.throttled,
            exceptions={o: result for o, result in results.items() if result[:2] != (verdict, outcome)},
        )
