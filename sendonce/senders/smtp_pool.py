"""Connections to a mail server: opened by aiosmtplib, kept, used again, at most so many at once."""

import asyncio
import logging
import socket
import ssl
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

import aiosmtplib

from sendonce.config import SmtpSettings
from sendonce.senders.base import Verdict
from sendonce.senders.certificates import of_certificate
from sendonce.senders.smtp_replies import Judgement, Phase, broke, judge
from sendonce.senders.smtp_wire import Conversation, SmtpReply

log = logging.getLogger(__name__)

# An idle connection is left after this time; servers, and what stands in between, drop them without a word.
IDLE_S: Final = 20.0
# How long the answer to QUIT is waited for.
LEAVE_S: Final = 1.0
# No connection beside the first is tried for so long after one failed: servers count, and block who insists.
ALONE_S: Final = 60.0
# In this order, one of them: each that a server refuses counts as a failed login there.
_METHODS: Final = ("plain", "login", "cram-md5")
# The method is not supported, or too weak: another one may do (RFC 4954 6).
_OTHER_METHOD: Final = frozenset({504, 534})
_NO_EHLO: Final = frozenset({500, 501, 502, 504})


class CannotConnect(Exception):
    """There is no connection, and so nothing was sent. judgement: on every letter that would have gone by it."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.detail)
        self.judgement = judgement


class Connector:
    """Opens conversations with one account: TLS, EHLO, AUTH."""

    def __init__(
        self, settings: SmtpSettings, secrets: Mapping[str, str], ssl_context: ssl.SSLContext | None = None
    ) -> None:
        self._settings = settings
        self._secrets = secrets
        self._ssl_context = ssl_context

    async def open(self, by: float) -> Conversation:
        """A conversation that is ready for MAIL before `by` (the loop's clock). CannotConnect says why not."""
        if self._ssl_context is None and self._settings.tls != "never":
            self._ssl_context = await asyncio.to_thread(ssl.create_default_context)
        client = aiosmtplib.SMTP(
            hostname=self._settings.host,
            port=self._settings.at_port,
            use_tls=self._settings.tls == "implicit",
            start_tls=False,
            tls_context=self._ssl_context,
            local_hostname=self._settings.ehlo_name,
            timeout=None,
        )
        opening = _Opening(client, self._settings.tls, self._secrets)
        try:
            async with asyncio.timeout_at(by):
                await opening.work()
            return Conversation(cast(asyncio.Transport, client.transport), dict(client.esmtp_extensions))
        except CannotConnect:
            client.close()
            raise
        except Exception as fault:
            client.close()
            raise CannotConnect(_judgement(opening.phase, fault)) from None
        except BaseException:
            client.close()
            raise


class _Opening:
    """The steps before MAIL, and how far they came."""

    def __init__(self, client: aiosmtplib.SMTP, tls: str, secrets: Mapping[str, str]) -> None:
        self._client = client
        self._tls = tls
        self._secrets = secrets
        self.phase = Phase.CONNECT

    async def work(self) -> None:
        await self._client.connect()
        await self._greet()
        offered = self._client.supports_extension("starttls")
        if self._tls == "required" and not offered:
            raise CannotConnect(_setting("tls_not_offered", Phase.STARTTLS))
        if self._tls == "required" or (self._tls == "if_offered" and offered):
            self.phase = Phase.STARTTLS
            await self._client.starttls()
            await self._greet()
        if "user" in self._secrets:
            self.phase = Phase.AUTH
            await self._log_in(self._secrets["user"], self._secrets["password"])

    async def _greet(self) -> None:
        self.phase = Phase.EHLO
        try:
            await self._client.ehlo()
        except aiosmtplib.SMTPHeloError as refused:
            if refused.code not in _NO_EHLO:
                raise
            await self._client.helo()

    async def _log_in(self, user: str, password: str) -> None:
        methods = [method for method in _METHODS if method in self._client.server_auth_methods]
        if not methods:
            raise CannotConnect(_setting("auth_not_offered", Phase.AUTH))
        for method in methods:
            try:
                await getattr(self._client, f"auth_{method.replace('-', '')}")(user, password)
                return
            except aiosmtplib.SMTPAuthenticationError as refused:
                if refused.code not in _OTHER_METHOD or method == methods[-1]:
                    raise


def _setting(reason: str, phase: Phase) -> Judgement:
    """What the settings ask for is not to be had there: a person must change one of them."""
    detail = f"{reason} at {phase.value}"
    return Judgement(Verdict.NOT_SENT, reason, detail=detail, stops=True, halts=True, broken=True)


def _judgement(phase: Phase, fault: Exception) -> Judgement:
    """Why there is no connection, in a word. Whatever it was, no letter was begun."""
    if isinstance(fault, aiosmtplib.SMTPResponseException):
        if 200 <= fault.code < 600:
            return judge(phase, SmtpReply(fault.code, fault.message))
        return broke(phase, "garbled")
    cause = fault.__cause__ if isinstance(fault, aiosmtplib.SMTPConnectError) else fault
    if isinstance(cause, TimeoutError):
        return broke(phase, "timeout")
    if isinstance(cause, socket.gaierror | UnicodeError):
        return broke(phase, "dns")
    if isinstance(cause, ssl.SSLError):
        return broke(phase, of_certificate(cause) or "tls")
    if isinstance(cause, aiosmtplib.SMTPServerDisconnected | ConnectionResetError):
        return broke(phase, "tls" if phase is Phase.STARTTLS else "closed")
    if isinstance(cause, OSError):
        return broke(phase, "connect" if phase is Phase.CONNECT else "closed")
    log.warning("no connection: %s at %s", type(fault).__name__, phase.value)
    return broke(phase, "connect")


class Pool:
    """Conversations of one account, at most `size` at once, used in one event loop.

    letters_each: transactions on one conversation before another takes its place.
    """

    def __init__(self, open_one: Callable[[float], Awaitable[Conversation]], size: int, letters_each: int) -> None:
        self._open = open_one
        self._letters_each = letters_each
        self._free = asyncio.Semaphore(size)
        self._idle: dict[Conversation, asyncio.TimerHandle] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._alone_until = 0.0

    async def take(self, by: float) -> tuple[Conversation, bool]:
        """A conversation, and whether it was kept from earlier. CannotConnect if there is none before `by`."""
        try:
            async with asyncio.timeout_at(by):
                await self._free.acquire()
        except TimeoutError:
            raise CannotConnect(broke(Phase.CONNECT, "pool")) from None
        return await self._taken(by)

    async def take_another(self, by: float) -> tuple[Conversation, bool] | None:
        """One more for a request that has its first, if that can be had without taking it from anybody."""
        if self._free.locked() or (not self._idle and asyncio.get_running_loop().time() < self._alone_until):
            return None
        await self._free.acquire()
        try:
            return await self._taken(by)
        except CannotConnect:
            self._alone_until = asyncio.get_running_loop().time() + ALONE_S
            return None

    async def _taken(self, by: float) -> tuple[Conversation, bool]:
        try:
            while self._idle:
                kept, timer = self._idle.popitem()
                timer.cancel()
                if kept.usable:
                    return kept, True
                kept.abort()
            return await self._open(by), False
        except BaseException:
            self._free.release()
            raise

    async def give_back(self, conversation: Conversation) -> None:
        """Keep it for later, or leave it: broken, or used often enough."""
        loop = asyncio.get_running_loop()
        try:
            if not conversation.usable:
                conversation.abort()
            elif conversation.letters < self._letters_each:
                self._idle[conversation] = loop.call_later(IDLE_S, self._expire, conversation)
            else:
                await conversation.quit(loop.time() + LEAVE_S)
        finally:
            self._free.release()

    def is_used_up(self, conversation: Conversation) -> bool:
        return not conversation.usable or conversation.letters >= self._letters_each

    def _expire(self, conversation: Conversation) -> None:
        task = asyncio.get_running_loop().create_task(self._leave(conversation))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, conversation: Conversation) -> None:
        """It counts as one of `size` until it has ended."""
        async with self._free:
            if self._idle.pop(conversation, None) is not None:
                await conversation.quit(asyncio.get_running_loop().time() + LEAVE_S)

    async def close(self) -> None:
        """Leave all that are idle."""
        by = asyncio.get_running_loop().time() + LEAVE_S
        idle = list(self._idle)
        for timer in self._idle.values():
            timer.cancel()
        self._idle.clear()
        await asyncio.gather(*(conversation.quit(by) for conversation in idle), *self._leaving)
