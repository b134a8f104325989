"""A mail server on loopback that takes every letter, quickly: for measuring who sends them.

    python -m tests.providers.smtp_sink --log FILE [--delay-ms N]

prints its address and serves until it is told to stop (SIGTERM, SIGINT). It speaks EHLO, MAIL, RCPT, DATA, RSET, NOOP
and QUIT with PIPELINING, 8BITMIME, SMTPUTF8 and SIZE; what breaks RFC 5321 is refused. The log is append-only JSON
lines, each written before the reply to its dot is: {"at", "message_ids" (one), "to", "recipients", "bytes", "sha256",
"accepted"}. The reply to a dot comes after N milliseconds, and what the client says meanwhile waits for it.
"""

import argparse
import asyncio
import hashlib
import os
import re
import signal
import sys
import time
from pathlib import Path

import orjson

_EHLO = b"\r\n".join(
    (b"250-mail.fake.example", b"250-PIPELINING", b"250-8BITMIME", b"250-SMTPUTF8", b"250 SIZE 33554432", b"")
)
_MAIL = re.compile(rb"MAIL FROM:<[^<>]*>((?: \S+)*)", re.IGNORECASE)
_RCPT = re.compile(rb"RCPT TO:<([^<>]+)>", re.IGNORECASE)
_NAME = re.compile(rb"^Message-ID: <([^@>]+)", re.MULTILINE)
_BARE = re.compile(rb"(?<!\r)\n|\r(?!\n)")
_END = b"\r\n.\r\n"
_LINE_MAX = 998


class Session(asyncio.Protocol):
    """One client's connection. log: an open file, to append to."""

    def __init__(self, log: int, delay_s: float) -> None:
        self._log = log
        self._delay_s = delay_s
        self._received = bytearray()
        self._options: list[bytes] | None = None
        self._to: list[bytes] = []
        self._in_body = False
        self._seen = 0
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._say(b"220 mail.fake.example ESMTP ready\r\n")

    def data_received(self, data: bytes) -> None:
        self._received += data
        self._go_on()

    def _go_on(self) -> None:
        while not self._busy and (self._body() if self._in_body else self._command()):
            pass

    def _say(self, reply: bytes) -> None:
        self._transport.write(reply)

    def _command(self) -> bool:
        end = self._received.find(b"\n")
        if end < 0:
            return False
        line = bytes(self._received[: end + 1]).rstrip(b"\r\n")
        del self._received[: end + 1]
        verb = line[:4].upper()
        if verb == b"MAIL":
            self._say(self._mail(line))
        elif verb == b"RCPT":
            self._say(self._rcpt(line))
        elif verb == b"DATA":
            self._in_body, self._seen = bool(self._to), 0
            self._say(b"354 go ahead\r\n" if self._to else b"503 5.5.1 RCPT first\r\n")
        elif verb == b"EHLO":
            self._say(_EHLO)
        elif verb in (b"RSET", b"NOOP"):
            self._reset()
            self._say(b"250 2.0.0 ok\r\n")
        elif verb == b"QUIT":
            self._say(b"221 2.0.0 bye\r\n")
            self._transport.close()
        else:
            self._say(b"500 5.5.2 what is that?\r\n")
        return True

    def _mail(self, line: bytes) -> bytes:
        found = _MAIL.fullmatch(line)
        if found is None or self._options is not None:
            return b"503 5.5.1 nested MAIL\r\n" if found else b"501 5.5.4 syntax\r\n"
        self._options = found[1].split()
        return b"250 2.1.0 ok\r\n"

    def _rcpt(self, line: bytes) -> bytes:
        found = _RCPT.fullmatch(line)
        if found is None or self._options is None:
            return b"503 5.5.1 MAIL first\r\n" if found else b"501 5.5.4 syntax\r\n"
        if not found[1].isascii() and b"SMTPUTF8" not in self._options:
            return b"553 5.6.7 SMTPUTF8 needed\r\n"
        self._to.append(found[1])
        return b"250 2.1.5 ok\r\n"

    def _body(self) -> bool:
        if self._received.startswith(b".\r\n"):
            end, after = 0, 3
        else:
            end = self._received.find(_END, max(0, self._seen - len(_END)))
            self._seen = len(self._received)
            if end < 0:
                return False
            end, after = end + 2, end + len(_END)
        wire = bytes(self._received[:end])
        del self._received[:after]
        self._in_body = False
        problem = self._problem(wire)
        if not problem:
            self._take(wire)
        self._reset()
        self._busy = True
        asyncio.get_running_loop().call_later(self._delay_s, self._answer, problem or b"250 2.0.0 Ok: queued\r\n")
        return False

    def _problem(self, wire: bytes) -> bytes:
        """Why a letter is not taken; empty if it is."""
        assert self._options is not None
        if _BARE.search(wire):
            return b"550 5.6.11 bare <CR> or <LF>\r\n"
        if max(map(len, wire.split(b"\r\n"))) > _LINE_MAX + 1:  # one dot may have been doubled
            return b"500 5.5.2 line too long\r\n"
        if not wire.isascii() and b"BODY=8BITMIME" not in self._options:
            return b"554 5.6.1 8 bits without BODY=8BITMIME\r\n"
        return b""

    def _take(self, wire: bytes) -> None:
        data = wire.replace(b"\r\n..", b"\r\n.")
        data = data[1:] if data.startswith(b"..") else data
        name = _NAME.search(data)
        line = {
            "at": time.time(),
            "message_ids": [name[1].decode() if name else ""] * len(self._to),
            "to": [to.decode() for to in self._to],
            "recipients": len(self._to),
            "bytes": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "accepted": True,
        }
        os.write(self._log, orjson.dumps(line) + b"\n")

    def _answer(self, reply: bytes) -> None:
        self._busy = False
        if not self._transport.is_closing():
            self._say(reply)
            self._go_on()

    def _reset(self) -> None:
        self._options = None
        self._to = []


async def serve(log: Path, delay_s: float) -> None:
    """Serve until told to stop."""
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    server = await loop.create_server(lambda: Session(handle, delay_s), "127.0.0.1", 0, backlog=128)
    print(f"smtp://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    await stopped.wait()
    server.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.providers.smtp_sink", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    options = parser.parse_args()
    asyncio.run(serve(options.log, options.delay_ms / 1000))
    return 0


if __name__ == "__main__":
    sys.exit(main())
