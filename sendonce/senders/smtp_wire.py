"""One SMTP conversation at its wire: what was written, and which whole replies came.

aiosmtplib opens connections (see `smtp_pool`), and then hands its transport over to this: its own protocol holds one
reply at a time, which pipelining does not allow, writes a body and its dot in one piece, and takes three characters
that `int` can read for a code. Here a letter is known to be unsent until its dot has been handed to the socket.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Final, cast

# RFC 5321 4.5.3.1.5 asks for 512 bytes a line; servers write more, and nobody needs this much.
REPLY_MAX_BYTES: Final = 32_768
_LINE: Final = re.compile(rb"([2-5][0-9][0-9])(?:([ -])([^\r\n]*))?\r?\n")
_DOT: Final = b".\r\n"


@dataclass(frozen=True)
class SmtpReply:
    """A whole reply. text: its lines without codes, one below the other."""

    code: int
    text: str


class Broken(Exception):
    """The conversation cannot go on. reason: `closed`, `timeout` or `garbled`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def take_reply(received: bytearray) -> SmtpReply | None:
    """Cut the first whole reply off; None while it is incomplete. Broken for what is no reply.

    All lines of a reply have one code (RFC 5321 4.2.1); one that changes its mind proves nothing.
    """
    end, code, lines = 0, b"", []
    while (newline := received.find(b"\n", end)) >= 0:
        found = _LINE.fullmatch(received, end, newline + 1)
        if found is None or (code and found[1] != code):
            raise Broken("garbled")
        code = bytes(found[1])
        lines.append(bytes(found[3] or b"").decode("utf-8", "replace"))
        end = newline + 1
        if found[2] != b"-":
            del received[:end]
            return SmtpReply(int(code), "\n".join(lines))
    if len(received) > REPLY_MAX_BYTES:
        raise Broken("garbled")
    return None


def stuffed(message: bytes) -> bytes:
    """A message with LF line ends as it goes after DATA, up to its dot: CRLF, and dots doubled (RFC 5321 4.5.2)."""
    wire = message.replace(b"\n", b"\r\n")
    if wire.startswith(b"."):
        wire = b"." + wire
    return wire.replace(b"\n.", b"\n..")


class Conversation(asyncio.Protocol):
    """A connection past EHLO, TLS and AUTH. All of it runs in one event loop.

    extensions: what the server offers, names in lower case. letters: how many transactions were begun on it.
    """

    def __init__(self, transport: asyncio.Transport, extensions: dict[str, str]) -> None:
        self.extensions = extensions
        self.letters = 0
        self._transport = transport
        self._received = bytearray()
        self._over = False
        self._full = False
        self._waiting: asyncio.Future[None] | None = None
        # Writing pauses while anything is left here: a body has left when writing may go on. (With a high mark of 0
        # asyncio's TLS pauses when nothing is left, too.)
        transport.set_write_buffer_limits(high=1, low=0)
        transport.set_protocol(self)
        self._over = transport.is_closing()

    @property
    def usable(self) -> bool:
        """Whether another transaction can begin: still there, and nothing came that nobody asked for."""
        return not self._over and not self._received and not self._transport.is_closing()

    def now(self) -> float:
        """The clock of all times here."""
        return asyncio.get_running_loop().time()

    def offers(self, extension: str) -> bool:
        return extension in self.extensions

    def write(self, *commands: bytes) -> None:
        """Send command lines, in one piece."""
        if not self._over:
            self._transport.write(b"".join(command + b"\r\n" for command in commands))

    async def reply(self, by: float) -> SmtpReply:
        """The next whole reply, until `by` (the loop's clock). Broken says why there is none."""
        while True:
            found = take_reply(self._received)
            if found is not None:
                return found
            if self._over:
                raise Broken("closed")
            await self._news(by)

    async def body(self, wire: bytes, by: float) -> SmtpReply | None:
        """Hand over a letter up to its dot. A reply that came before the dot, which only a refusal can be, or None.

        Broken: the dot has not left, nor ever will.
        """
        if self._received:
            raise Broken("garbled")
        self._transport.write(wire)
        while self._full and not self._over:
            await self._news(by)
        for _ in range(2):  # the loop polls, then hands on what it found: that the other side is gone, if it is
            await asyncio.sleep(0)
        if self._received:
            return await self.reply(by)
        if self._over or self._transport.is_closing():
            raise Broken("closed")
        return None

    def dot(self) -> None:
        """End the letter. From here on the server may have it."""
        self._transport.write(_DOT)

    def abort(self) -> None:
        """Leave without a word."""
        self._over = True
        self._transport.abort()

    async def quit(self, by: float) -> None:
        """Take leave as RFC 5321 4.1.1.10 asks, but do not insist."""
        try:
            if self.usable:
                self.write(b"QUIT")
                await self.reply(by)
        except Broken:
            pass
        finally:
            self.abort()

    async def _news(self, by: float) -> None:
        """Wait until something has happened to the connection. Broken at `by`."""
        self._waiting = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(by):
                await self._waiting
        except TimeoutError:
            raise Broken("timeout") from None
        finally:
            self._waiting = None

    def _wake(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    # -- as the event loop calls it -----------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if len(self._received) <= REPLY_MAX_BYTES:
            self._received += data
        self._wake()

    def eof_received(self) -> bool:
        self._over = True
        self._wake()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._over = True
        self._full = False
        self._wake()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake()
