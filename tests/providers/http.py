"""An HTTP/1.1 server on loopback, written over sockets so that it can do what no honest server does.

A handler gets each request when its first byte has arrived, may read it or not, and does with the connection what it
wants: see `Fate`.
"""

import contextlib
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

REASONS = {
    200: "OK",
    202: "Accepted",
    302: "Found",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
}
FAULTS = frozenset(
    {
        "close_before_read",  # the connection ends while the request is unread
        "reset_before_read",  # the same with SO_LINGER 0: the client sees a reset
        "close_after_read",  # the whole request was read, and may have been acted upon
        "reset_after_read",
        "stall",  # read, never answered
        "stall_before_read",  # never even read
        "trickle",  # the reply comes byte by byte, 50 ms apart
        "trickle_body",  # the same from the body on
        "half_status",  # `HTTP/1.1 20`, then the end
        "garbage",  # a line that is not HTTP, then the end
        "status_only",  # the status line, then the end before the headers do
        "headers_cut",  # the status line and the headers, then the end inside the last header line
        "broken_body",  # fewer bytes than announced
        "broken_chunks",  # announced as chunks, which they are not
        "interim",  # 100 and 103 before the reply
        "interim_only",  # 100, then the end
        "close_when_idle",  # a whole reply, then the end without a word about it
        "twice",  # the reply is sent two times
    }
)


# Faults of a reply, by whether a whole status line comes.
BEFORE_STATUS = (
    "close_before_read",
    "reset_before_read",
    "close_after_read",
    "reset_after_read",
    "stall",
    "trickle",
    "half_status",
    "garbage",
    "interim_only",
)
AFTER_STATUS = ("status_only", "headers_cut", "broken_body", "broken_chunks", "interim", "twice")


def patience_s(fault: str) -> float:
    """A time-out for a call that meets a fault: short where nothing else ends it, else as long as any machine needs."""
    return 0.5 if fault in ("stall", "trickle") else 10.0


@dataclass(frozen=True)
class Fate:
    """What becomes of one request. `accepts`: whether the provider acts on it (None: as the status says)."""

    status: int = 202
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    fault: str = ""
    delay_s: float = 0.0
    accepts: bool | None = None

    def __post_init__(self) -> None:
        assert not self.fault or self.fault in FAULTS, self.fault

    @property
    def accepted(self) -> bool:
        if self.accepts is not None:
            return self.accepts
        return 200 <= self.status < 300 and self.fault not in ("close_before_read", "reset_before_read")


@dataclass(frozen=True)
class Received:
    """One request as it arrived; `body` is empty and `headers` are too when it was not read."""

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Connection:
    """One client's connection: read requests from it, answer them by a fate."""

    def __init__(self, sock: socket.socket, stopping: threading.Event) -> None:
        self.sock = sock
        self._stopping = stopping
        self._buffer = b""

    def wait(self) -> bool:
        """Wait for the first byte of a request; False when the client has gone or the server stops."""
        if self._buffer:
            return True
        while not self._stopping.is_set():
            if isinstance(self.sock, ssl.SSLSocket) and self.sock.pending():
                return True
            if select.select([self.sock], [], [], 0.2)[0]:
                if isinstance(self.sock, ssl.SSLSocket):
                    self._buffer = self.sock.recv(65536)
                    return bool(self._buffer)
                return bool(self.sock.recv(1, socket.MSG_PEEK))
        return False

    def read(self) -> Received | None:
        """The whole request; None when the client went away in the middle of it."""
        head, end = self._until(b"\r\n\r\n")
        if not end:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        size = int(headers.get("content-length", "0"))
        parts, missing = [self._buffer[:size]], size - len(self._buffer)
        self._buffer = self._buffer[size:]
        while missing > 0:
            part = self.sock.recv(min(missing, 1 << 20))
            if not part:
                return None
            parts.append(part)
            missing -= len(part)
        method, target, _ = first.split(" ")
        return Received(method, target, headers, b"".join(parts))

    def _until(self, mark: bytes) -> tuple[bytes, bytes]:
        while mark not in self._buffer:
            part = self.sock.recv(65536)
            if not part:
                return b"", b""
            self._buffer += part
        head, found, self._buffer = self._buffer.partition(mark)
        return head, found

    def answer(self, fate: Fate) -> bool:
        """Do to the client what the fate says. True when the connection goes on."""
        if fate.delay_s:
            self._stopping.wait(fate.delay_s)
        reply = _reply(fate)
        status_line = reply.partition(b"\r\n")[0] + b"\r\n"
        head = reply.partition(b"\r\n\r\n")[0]
        match fate.fault:
            case "close_before_read" | "close_after_read":
                return False
            case "reset_before_read" | "reset_after_read":
                self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
            case "stall" | "stall_before_read":
                self._wait_until_the_client_leaves()
                return False
            case "trickle":
                self._trickle(reply)
            case "trickle_body":
                self.sock.sendall(head + b"\r\n\r\n")
                self._trickle(reply[len(head) + 4 :])
            case "half_status":
                self.sock.sendall(status_line[:11])
                return False
            case "garbage":
                self.sock.sendall(b"220 mail.provider.example ESMTP\r\n")
                return False
            case "status_only":
                self.sock.sendall(status_line)
                return False
            case "headers_cut":
                self.sock.sendall(head[:-3])
                return False
            case "broken_body":
                self.sock.sendall(head.replace(b"Content-Length: ", b"Content-Length: 1000") + b"\r\n\r\n" + fate.body)
                return False
            case "broken_chunks":
                self.sock.sendall(status_line + b"Transfer-Encoding: chunked\r\n\r\nno chunk\r\n")
                return False
            case "interim":
                self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" + reply)
            case "interim_only":
                self.sock.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
                return False
            case "close_when_idle":
                self.sock.sendall(reply)
                return False
            case "twice":
                self.sock.sendall(reply * 2)
            case _:
                self.sock.sendall(reply)
        return True

    def _trickle(self, data: bytes) -> None:
        for byte in data:
            self.sock.sendall(bytes([byte]))
            if self._stopping.wait(0.05):
                return

    def _wait_until_the_client_leaves(self) -> None:
        poller = select.poll()
        poller.register(self.sock, select.POLLRDHUP | select.POLLHUP | select.POLLERR)
        while not self._stopping.is_set() and not poller.poll(100):
            pass


def _reply(fate: Fate) -> bytes:
    lines = [f"HTTP/1.1 {fate.status} {REASONS.get(fate.status, 'Status')}", f"Content-Length: {len(fate.body)}"]
    lines += [f"{name}: {value}" for name, value in fate.headers.items()]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + fate.body


class Server:
    """Listens on loopback while it is entered; a thread for each connection runs `handle` for each request.

    handle: gets the connection when a request begins; returns whether the connection goes on.
    """

    def __init__(self, handle: Callable[[Connection], bool], port: int = 0, tls: ssl.SSLContext | None = None) -> None:
        self._handle = handle
        self._tls = tls
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._socket = socket.create_server(("127.0.0.1", port), backlog=128)
        self._socket.settimeout(0.2)
        self.port: int = self._socket.getsockname()[1]
        self.connections = 0

    @property
    def url(self) -> str:
        return f"http{'s' if self._tls else ''}://127.0.0.1:{self.port}"

    def __enter__(self) -> "Server":
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for sock in [self._socket, *self._open.copy()]:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for thread in self._threads:
            thread.join(5)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            with contextlib.suppress(OSError):
                sock, _ = self._socket.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.connections += 1
                self._start(self._serve, sock)

    def _serve(self, sock: socket.socket) -> None:
        with contextlib.suppress(OSError):
            if self._tls is not None:
                sock.settimeout(5)
                sock = self._tls.wrap_socket(sock, server_side=True)
            sock.settimeout(None)
            self._open.add(sock)
            connection = Connection(sock, self._stopping)
            while connection.wait() and self._handle(connection):
                pass
        self._open.discard(sock)
        sock.close()


def wait_until(done: Callable[[], bool], within_s: float = 5.0) -> None:
    """Wait for something that another thread does. AssertionError when it is not so in time."""
    end_s = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.005)
