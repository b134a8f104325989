"""SMTP: each letter a transaction of its own, over kept connections, its phase known to the final dot.

A request is up to 20 letters, and no more than its sender's rate lets through in a second: so many are in doubt when
the process is killed. They go over one connection, and side by side over others that are free. Once something is
ambiguous, or the server asks to stop, no other letter is begun; those that were not are not sent, and provably so.

aiosmtplib connects (TLS, EHLO, AUTH); what follows is read at the wire, see `smtp_wire`. One thread runs an event loop
for all of a sender's requests.
"""

import asyncio
import hashlib
import logging
import ssl
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from schemas.outcomes import Outcome
from sendonce.config import SmtpSettings
from sendonce.senders.base import Capabilities, Prepared, Reached, Reply, Request, Verdict
from sendonce.senders.loops import LoopThread
from sendonce.senders.smtp_letters import WireLetter, body_of, envelope_from, wire_letters
from sendonce.senders.smtp_pool import CannotConnect, Connector, Pool
from sendonce.senders.smtp_replies import Judgement, Phase
from sendonce.senders.smtp_transaction import Transaction
from sendonce.senders.smtp_wire import Conversation

log = logging.getLogger(__name__)

# What one intent covers at most (DELIVERY 2): so many letters, or what the rate lets through in a second.
LETTERS_MAX: Final = 20
# From so many letters on, a request of which all were refused by policy blames the account.
_ENOUGH: Final = 8
# So many letters are worth a connection of their own.
_WORTH_A_CONNECTION: Final = 4
_REF_MAX: Final = 256
# A second's worth of letters takes so much of a second: the rest is for what stands between two requests, and permits,
# of which there is a second's worth each second, hold the rate.
_HASTE: Final = 0.9
_LATE: Final = Judgement(Verdict.NOT_SENT, "no_time_left")


def make(settings: SmtpSettings, secrets: Mapping[str, str]) -> "Smtp":
    """The account as it is configured."""
    return Smtp(settings, secrets)


@dataclass(frozen=True)
class SmtpPrepared(Prepared):
    """`body`: the data of all letters with their recipients, in this order."""

    wires: Sequence[WireLetter]


class Smtp:
    """An account at a mail server. Safe for threads.

    secrets: `user` and `password`, or nothing. ssl_context: whom to trust, if not the usual authorities.
    """

    def __init__(
        self, settings: SmtpSettings, secrets: Mapping[str, str], *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self.name = settings.name
        per_s = _rate_of(settings)
        most = LETTERS_MAX if per_s is None else max(1, min(LETTERS_MAX, int(per_s)))
        self.capabilities = Capabilities(recipients=most, mixes_forms=True, parallel=settings.parallel)
        self._settings = settings
        connector = Connector(settings, secrets, ssl_context)
        self._pool = Pool(connector.open, settings.parallel, settings.letters_per_connection)
        self._pace = _Pace(0.0 if per_s is None else _HASTE / per_s)
        self._loop = LoopThread(f"sender-{settings.name}")

    @property
    def identity(self) -> str:
        """The name: mail servers know no keys of requests, so nothing is ever repeated."""
        return self.name

    def prepare(self, request: Request) -> SmtpPrepared:
        """Envelope and message of each letter. Unsendable names one that no server can be given.

        A server without 8BITMIME gets the same texts in base64.
        """
        wires = wire_letters(request)
        body = body_of(wires)
        return SmtpPrepared(request, body, hashlib.sha256(body).hexdigest(), wires)

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        """Make a transaction of each letter within `timeout_s`, nothing twice.

        Dots are written in its first half, so that the server has the other to answer.
        """
        return self._work(prepared, timeout_s, timeout_s / 2, 0.0)

    def send_and_wait(self, prepared: Prepared, timeout_s: float, answer_s: float) -> Reply:
        """The same, with dots until the end of `timeout_s`: each is given `answer_s` to be answered.

        RFC 5321 4.5.3.2.6 asks for 10 minutes, since a server that is left has the letter all the same.
        """
        return self._work(prepared, timeout_s, max(timeout_s / 2, min(timeout_s, answer_s)), answer_s)

    def _work(self, prepared: Prepared, timeout_s: float, dots_s: float, answer_s: float) -> Reply:
        assert isinstance(prepared, SmtpPrepared)
        attempt = _Attempt(prepared, self._pool, self._pace, self._settings)
        self._loop.run(lambda: attempt.work(timeout_s, dots_s, answer_s))
        return attempt.reply(self.name)

    def reach(self, timeout_s: float) -> Reached:
        """Connect, greet, secure and log in as before a letter, and leave again."""
        place = f"{self._settings.host}:{self._settings.at_port}"
        try:
            self._loop.run(lambda: self._greet(timeout_s))
        except CannotConnect as fault:
            told = fault.judgement.detail.replace("connect at connect", "connect")
            return Reached(fault.judgement.reason, f"no conversation with {place} ({told})")
        steps = {"required": "STARTTLS", "implicit": "TLS"}.get(self._settings.tls, "no TLS asked for")
        return Reached("", f"{place} answers: {steps}, {'logged in' if self._settings.user else 'no login'}")

    async def _greet(self, timeout_s: float) -> None:
        conversation, _ = await self._pool.take(asyncio.get_running_loop().time() + timeout_s)
        await self._pool.give_back(conversation)

    def close(self) -> None:
        """Drop connections, after the calls that are under way."""
        self._loop.close(self._pool.close)


def _rate_of(settings: SmtpSettings) -> float | None:
    rates = [limit.row("").per_s for limit in settings.limits if limit.rate is not None]
    return next((per_s for per_s in rates if per_s), None)


class _Pace:
    """Spreads the letters of one process: permits come for a whole request, servers count each second."""

    def __init__(self, gap_s: float) -> None:
        self._gap_s = gap_s
        self._next = 0.0

    async def turn(self, by: float) -> bool:
        """Wait for one letter's turn. False, and no turn taken, if it does not come before `by`."""
        loop = asyncio.get_running_loop()
        mine = max(loop.time(), self._next)
        if mine >= by:
            return False
        self._next = mine + self._gap_s
        if mine > loop.time():
            await asyncio.sleep(mine - loop.time())
        return True


class _Attempt:
    """The transactions of one request, and what became of each letter."""

    def __init__(self, prepared: SmtpPrepared, pool: Pool, pace: _Pace, settings: SmtpSettings) -> None:
        self._request = prepared.request
        self._waiting = deque(prepared.wires)
        self._pool = pool
        self._pace = pace
        letters = prepared.request.letters
        self._from = (settings.envelope_from or envelope_from(letters.from_address)).encode("ascii")
        self._found: dict[int, Judgement] = {}
        self._refs: list[str] = []
        self._stop: Judgement | None = None
        self._dot_by = 0.0
        self._ends = 0.0
        self._answer_s = 0.0

    async def work(self, timeout_s: float, dots_s: float, answer_s: float) -> None:
        """Deliver what can be delivered in time: dots within `dots_s`, answers by `timeout_s`, or `answer_s` later than
        their dots."""
        now = asyncio.get_running_loop().time()
        self._dot_by, self._ends, self._answer_s = now + dots_s, now + timeout_s, answer_s
        try:
            conversation, kept = await self._pool.take(self._dot_by)
        except CannotConnect as fault:
            self._stop = fault.judgement
            return
        helpers = (len(self._waiting) - 1) // _WORTH_A_CONNECTION
        done = await asyncio.gather(
            self._deliver(conversation, kept), *(self._help() for _ in range(helpers)), return_exceptions=True
        )
        if faults := [one for one in done if isinstance(one, BaseException)]:
            raise faults[0]

    async def _help(self) -> None:
        another = await self._pool.take_another(self._dot_by)
        if another is not None:
            await self._deliver(*another)

    async def _deliver(self, conversation: Conversation, kept: bool) -> None:
        """Letters over one conversation after the other, until none waits or something stops."""
        held: Conversation | None = conversation
        try:
            while self._waiting and self._stop is None:
                if held is None or self._pool.is_used_up(held):
                    used, held = held, None
                    if used is not None:
                        await self._pool.give_back(used)
                    held, kept = await self._pool.take(self._dot_by)
                if not await self._pace.turn(self._dot_by):
                    self._stop = self._stop or _LATE
                if self._waiting and self._stop is None:
                    await self._one(self._waiting.popleft(), held, kept)
                    kept = False
        except CannotConnect as fault:
            self._stop = self._stop or fault.judgement
        finally:
            if held is not None:
                await self._pool.give_back(held)

    async def _one(self, wire: WireLetter, conversation: Conversation, kept: bool) -> None:
        transaction = Transaction(conversation, self._request, wire, self._from)
        judgement = await transaction.work(self._dot_by, self._ends, self._answer_s)
        if _was_stale(transaction, judgement, conversation, kept):
            self._waiting.appendleft(wire)
            return
        self._found[wire.ordinal] = judgement
        if judgement.stops:
            self._stop = self._stop or judgement
        if transaction.name:
            self._refs.append(transaction.name)

    def reply(self, name: str) -> Reply:
        """One reply for all letters: the commonest result, and the others by ordinal."""
        stop = self._stop
        if self._all_by_policy():
            stop = Judgement(Verdict.NOT_SENT, "refused_all", detail="refused_all", stops=True, halts=True)
            self._found = {}
        left = _LATE if stop is None else replace(stop, verdict=Verdict.NOT_SENT, outcome=0)
        found = {ordinal: self._found.get(ordinal, left) for ordinal in self._request.ordinals}
        results = {ordinal: (one.verdict, one.outcome, one.detail) for ordinal, one in found.items()}
        ((verdict, outcome), _), *_ = Counter((one.verdict, one.outcome) for one in found.values()).most_common(1)
        reason = stop or next((one for one in found.values() if one.verdict is not Verdict.ACCEPTED), None)
        if stop is not None and stop.halts:
            log.warning("sender %s is halted (%s): %s", name, stop.reason, stop.detail)
        return Reply(
            verdict,
            reason.reason if reason is not None else "",
            outcome,
            provider_ref=_joined(self._refs),
            halts_sender=stop is not None and stop.halts,
            throttled=stop is not None and stop.throttled,
            answered=stop is None,
            put_off=stop is None and all(one.of_mailbox for one in found.values() if one.verdict is Verdict.NOT_SENT),
            exceptions={o: result for o, result in results.items() if result[:2] != (verdict, outcome)},
        )

    def _all_by_policy(self) -> bool:
        """Whether everybody was refused by policy: then it is us that the server refuses, whoever we write to."""
        found = [self._found.get(ordinal) for ordinal in self._request.ordinals]
        return len(found) >= _ENOUGH and all(
            one is not None and one.verdict is Verdict.REFUSED and one.outcome == Outcome.PROVIDER_POLICY
            for one in found
        )


def _was_stale(transaction: Transaction, judgement: Judgement, conversation: Conversation, kept: bool) -> bool:
    """Whether the server had left a conversation that it had taken letters by, before it saw this one.

    Servers end what was idle, or has brought enough, without a word or by 421. Nothing of this letter went out, and on
    a fresh conversation it is not asked again: each letter comes back here at most once for each that was kept.
    """
    if transaction.phase is not Phase.MAIL or judgement.verdict is not Verdict.NOT_SENT:
        return False
    return (judgement.reason == "closed" and conversation.letters > 1) or (judgement.reason == "smtp_421" and kept)


def _joined(refs: Sequence[str]) -> str | None:
    """The server's names of the letters that it took, as many as fit."""
    text = ""
    for ref in refs:
        if len(text) + len(ref) + 1 > _REF_MAX:
            break
        text += f" {ref}" if text else ref
    return text or None
