"""A mail server on loopback that remembers what it took, and can misbehave in every phase.

Written over sockets, so that it can do what no honest server does: see `Fault`. It takes commands in pieces of any
size, and answers pipelined ones in turn.
"""

import base64
import contextlib
import re
import select
import socket
import ssl
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

EXTENSIONS = ("PIPELINING", "8BITMIME", "SMTPUTF8", "SIZE 33554432", "ENHANCEDSTATUSCODES")
# In the order in which a letter meets them. `connect` is before the banner, `handshake` after the 220 of STARTTLS,
# `body` between 354 and the dot, `after` behind the reply to the dot.
PHASES = (
    "connect", "banner", "ehlo", "starttls", "handshake", "auth", "mail", "rcpt", "data", "body", "dot", "after",
)  # fmt: skip
ACTS = frozenset(
    {
        "close",  # the connection ends instead of an answer
        "reset",  # the same with SO_LINGER 0
        "silence",  # no answer, for as long as the client stays
        "reply",  # `reply` instead of the usual one
        "leave",  # `reply`, then the end
        "garbage",  # what is no reply, then more of it
        "half",  # the first two bytes of the usual answer, then the end
        "unended",  # the usual answer without its line end, then the end
        "slow",  # the usual answer, a byte at a time
        "late",  # the usual answer after `delay_s`
        "twice",  # the usual answer two times
        "lines",  # the usual answer over several lines
        "mixed",  # several lines that do not have one code
    }
)


@dataclass(frozen=True)
class Fault:
    """What happens at a phase. times: how often (None: always), after so many passed well.

    takes: whether the letter counts as taken though the dot was not answered as usual.
    """

    at: str
    act: str
    reply: str = ""
    delay_s: float = 0.0
    times: int | None = None
    after: int = 0
    takes: bool = False
    body_bytes: int = 0

    def __post_init__(self) -> None:
        assert self.at in PHASES, self.at
        assert self.act in ACTS, self.act


@dataclass(frozen=True)
class Taken:
    """A letter that the server took. data: as it came, CRLF line ends, dots single again. at: when."""

    to: str
    mail_from: str
    mail_options: tuple[str, ...]
    data: bytes
    connection: int
    tls: bool
    user: str
    at: datetime


Rule = Callable[[str, str], Fault | None]


class FakeSmtp:
    """The server while it is entered. A phase's fault comes from `rule(phase, argument)`, then from `faults`.

    tls: offers STARTTLS with this; implicit: speaks it from the first byte instead. users: who may log in; without, no
    AUTH is offered. refuses_bare_newlines: as servers do since SMTP smuggling.
    """

    def __init__(
        self,
        *faults: Fault,
        extensions: Iterable[str] = EXTENSIONS,
        tls: ssl.SSLContext | None = None,
        implicit: bool = False,
        users: dict[str, str] | None = None,
        auth: str = "PLAIN LOGIN",
        rule: Rule | None = None,
        refuses_bare_newlines: bool = True,
        knows_ehlo: bool = True,
    ) -> None:
        self.faults = list(faults)
        self.rule = rule
        self.extensions = tuple(extensions)
        self.tls, self.implicit, self.users, self.auth = tls, implicit, users, auth
        self.refuses_bare_newlines = refuses_bare_newlines
        self.knows_ehlo = knows_ehlo
        self.taken: list[Taken] = []
        self.commands: list[tuple[int, str]] = []
        self.connections = 0
        self.most_at_once = 0
        self.changing = threading.RLock()
        self.stopping = threading.Event()
        self._seen: Counter[str] = Counter()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._socket.getsockname()[1]

    def __enter__(self) -> "FakeSmtp":
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.refuse_connections()
        for thread in self._threads:
            thread.join(5)

    def refuse_connections(self) -> None:
        """Nobody answers any more."""
        self.drop()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def drop(self) -> None:
        """End every connection without a word."""
        for sock in self._open.copy():
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def fault_at(self, phase: str, argument: str = "") -> Fault | None:
        if self.rule is not None and (found := self.rule(phase, argument)) is not None:
            return found
        with self.changing:
            self._seen[phase] += 1
            for fault in self.faults:
                seen = self._seen[phase] - fault.after
                if fault.at == phase and seen > 0 and (fault.times is None or seen <= fault.times):
                    return fault
        return None

    def recipients(self) -> list[str]:
        return [letter.to for letter in self.taken]

    def verbs(self) -> list[str]:
        """The commands in order of arrival, without arguments."""
        return [command.split(" ")[0].split(":")[0].upper() for _, command in self.commands]

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self.stopping.is_set():
            try:
                sock, _ = self._socket.accept()
            except OSError:
                return
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.changing:
                self.connections += 1
                self._open.add(sock)
                self.most_at_once = max(self.most_at_once, len(self._open))
                number = self.connections
            self._start(self._serve, sock, number)

    def _serve(self, sock: socket.socket, number: int) -> None:
        session = _Session(self, sock, number)
        with contextlib.suppress(OSError, _Ended):
            session.serve()
        with self.changing:
            self._open.discard(sock)
        for one in {session.sock, sock}:
            one.close()


class _Ended(Exception):
    """The connection is over."""


class _Session:
    """One client's connection."""

    def __init__(self, server: FakeSmtp, sock: socket.socket, number: int) -> None:
        self.server, self.sock, self.number = server, sock, number
        self.buffer = b""
        self.secure = False
        self.user = ""
        self.mail: tuple[str, tuple[str, ...]] | None = None
        self.to: str | None = None

    def serve(self) -> None:
        if self.server.implicit:
            self._secure()
        self._act("connect", "")
        self._answer("banner", "220 mail.fake.example ESMTP ready")
        while True:
            line = self._line().decode("utf-8", "replace")
            self.server.commands.append((self.number, line))
            verb, _, argument = line.partition(" ")
            handler = getattr(self, f"_on_{verb.lower()}", None)
            if handler is None:
                self._send("500 5.5.2 what is that?")
            else:
                handler(argument)

    # -- commands -----------------------------------------------------------------------------------------------

    def _on_ehlo(self, argument: str) -> None:
        if not self.server.knows_ehlo:
            self._send("502 5.5.1 not implemented")
            return
        lines = ["mail.fake.example", *self.server.extensions]
        if self.server.tls is not None and not self.secure:
            lines.append("STARTTLS")
        if self.server.users is not None:
            lines.append(f"AUTH {self.server.auth}")
        *first, last = lines
        self._answer("ehlo", "\r\n".join([*(f"250-{line}" for line in first), f"250 {last}"]))

    def _on_helo(self, argument: str) -> None:
        self._send("250 mail.fake.example")

    def _on_starttls(self, argument: str) -> None:
        self._answer("starttls", "220 2.0.0 go ahead")
        self._act("handshake", "")
        self._secure()

    def _on_auth(self, argument: str) -> None:
        method, _, first = argument.partition(" ")
        if method.upper() == "PLAIN":
            _, user, password = base64.b64decode(first).decode().split("\0")
        elif method.upper() == "LOGIN":
            user = self._asked("VXNlcm5hbWU6") if not first else base64.b64decode(first).decode()
            password = self._asked("UGFzc3dvcmQ6")
        else:
            self._answer("auth", "504 5.5.4 unknown method")
            return
        if (self.server.users or {}).get(user) != password:
            self._answer("auth", "535 5.7.8 wrong user or password")
            return
        self._answer("auth", "235 2.7.0 welcome")
        self.user = user

    def _asked(self, question: str) -> str:
        self._send(f"334 {question}")
        return base64.b64decode(self._line()).decode()

    def _on_mail(self, argument: str) -> None:
        found = re.fullmatch(r"FROM:<([^<>]*)>((?: \S+)*)", argument)
        if self.server.users is not None and not self.user:
            self._answer("mail", "530 5.7.0 log in first", argument)
        elif self.mail is not None:
            self._send("503 5.5.1 nested MAIL")
        elif found is None:
            self._send("501 5.5.4 syntax")
        elif self._answer("mail", "250 2.1.0 ok", found[1]):
            self.mail = found[1], tuple(found[2].split())

    def _on_rcpt(self, argument: str) -> None:
        found = re.fullmatch(r"TO:<([^<>]+)>", argument)
        if self.mail is None:
            self._send("503 5.5.1 MAIL first")
        elif found is None:
            self._send("501 5.5.4 syntax")
        elif not found[1].isascii() and "SMTPUTF8" not in self.mail[1]:
            self._send("553 5.6.7 SMTPUTF8 needed")
        elif self._answer("rcpt", "250 2.1.5 ok", found[1]):
            self.to = found[1]

    def _on_data(self, argument: str) -> None:
        if self.to is None:
            self._send("503 5.5.1 RCPT first" if self.mail is None else "554 5.5.1 no valid recipients")
        elif self._answer("data", "354 go ahead", self.to):
            self._body()

    def _body(self) -> None:
        assert self.mail is not None
        assert self.to is not None
        fault = self.server.fault_at("body", self.to)
        if fault is not None:
            while len(self.buffer) < fault.body_bytes:
                self._more()
            self._misbehave(fault, "")
        wire = self._until_dot()
        lines = wire.split(b"\r\n")[:-1]
        data = b"".join(line.removeprefix(b".") + b"\r\n" for line in lines)
        mail_from, options = self.mail
        letter = Taken(self.to, mail_from, options, data, self.number, self.secure, self.user, datetime.now(UTC))
        self.mail = self.to = None
        if self.server.refuses_bare_newlines and re.search(rb"(?<!\r)\n|\r(?!\n)", wire):
            self._send("550 5.6.11 bare <CR> or <LF>")
            return
        if max(map(len, data.split(b"\r\n"))) > 998:
            self._send("500 5.5.2 line too long")
            return
        if not data.isascii() and "BODY=8BITMIME" not in options:
            self._send("554 5.6.1 8 bits without BODY=8BITMIME")
            return
        fault = self.server.fault_at("dot", letter.to)
        said = f"250 2.0.0 Ok: queued as {len(self.server.taken):06X}A"
        usual = fault is None or fault.act in ("slow", "late", "twice", "lines", "half", "unended", "mixed")
        if usual or (fault is not None and fault.takes):
            with self.server.changing:
                self.server.taken.append(letter)
        if fault is not None:
            self._misbehave(fault, said)
        else:
            self._send(said)
        self._act("after", letter.to)

    def _on_rset(self, argument: str) -> None:
        self.mail = self.to = None
        self._send("250 2.0.0 ok")

    def _on_quit(self, argument: str) -> None:
        self._send("221 2.0.0 bye")
        raise _Ended

    # -- the wire -----------------------------------------------------------------------------------------------

    def _answer(self, phase: str, said: str, argument: str = "") -> bool:
        """Whether the client was told what it should be, and it was a yes."""
        fault = self.server.fault_at(phase, argument)
        if fault is None:
            self._send(said)
            return said[0] in "23"
        return self._misbehave(fault, said)

    def _act(self, phase: str, argument: str) -> None:
        fault = self.server.fault_at(phase, argument)
        if fault is not None:
            self._misbehave(fault, "")

    def _misbehave(self, fault: Fault, said: str) -> bool:
        """Do what the fault says. True if the client has its usual answer all the same."""
        if fault.delay_s:
            self.server.stopping.wait(fault.delay_s)
        match fault.act:
            case "close":
                raise _Ended
            case "reset":
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                raise _Ended
            case "silence":
                self._wait_until_the_client_leaves()
                raise _Ended
            case "reply":
                self._send(fault.reply)
                return False
            case "leave":
                self._send(fault.reply)
                raise _Ended
            case "garbage":
                self._send("HTTP/1.1 400 Bad Request\r\n\r\n<html>")
                return False
            case "half":
                self.sock.sendall(said.encode()[:2])
                raise _Ended
            case "unended":
                self.sock.sendall(said.encode())
                raise _Ended
            case "slow":
                for byte in said.encode() + b"\r\n":
                    self.sock.sendall(bytes([byte]))
                    self.server.stopping.wait(0.005)
            case "twice":
                self._send(said)
                self._send(said)
            case "lines":
                *first, last = said.split("\r\n")
                code = said[:3]
                self._send("\r\n".join([f"{code}-one", f"{code}-", f"{code}-three", *first, last]))
            case "mixed":
                self._send(f"{said[:3]}-yes\r\n554 no")
                return False
            case "late":
                self._send(said)
        return said[:1] in ("2", "3")

    def _send(self, said: str) -> None:
        self.sock.sendall(said.encode() + b"\r\n")

    def _line(self) -> bytes:
        while b"\r\n" not in self.buffer:
            self._more()
        line, _, self.buffer = self.buffer.partition(b"\r\n")
        return line

    def _until_dot(self) -> bytes:
        """A body, its dots still doubled, without the dot that ends it."""
        while not self.buffer.startswith(b".\r\n") and b"\r\n.\r\n" not in self.buffer:
            self._more()
        if self.buffer.startswith(b".\r\n"):
            self.buffer = self.buffer[3:]
            return b""
        body, _, self.buffer = self.buffer.partition(b"\r\n.\r\n")
        return body + b"\r\n"

    def _more(self) -> None:
        part = self.sock.recv(65536)
        if not part:
            raise _Ended
        self.buffer += part

    def _secure(self) -> None:
        assert self.server.tls is not None
        self.sock.settimeout(5)
        plain = self.sock
        self.sock = self.server.tls.wrap_socket(plain, server_side=True)
        self.sock.settimeout(None)
        with self.server.changing:
            self.server._open.discard(plain)
            self.server._open.add(self.sock)
        self.secure, self.buffer = True, b""

    def _wait_until_the_client_leaves(self) -> None:
        poller = select.poll()
        poller.register(self.sock, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        while not self.server.stopping.is_set() and not poller.poll(50):
            pass
