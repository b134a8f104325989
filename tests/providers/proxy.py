"""A TCP proxy on loopback that can lose what a server says: before it hears the call, or after it has answered.

It knows of HTTP/2 just enough for gRPC: where a frame begins, and that a reply ends with HEADERS that end a stream
(RFC 9113, 4.1 and 8.1).
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Iterator

BEFORE, AFTER = "before", "after"
_HEADERS, _END_STREAM = 0x1, 0x1


class Proxy:
    """Passes everything on to `target` (host:port) until it is told to lose something. Enter it to start it."""

    def __init__(self, target: str) -> None:
        host, port = target.split(":")
        self._target = (host, int(port))
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=64)
        self._port = int(self._socket.getsockname()[1])
        self.address = f"127.0.0.1:{self._port}"
        self._links: set[_Link] = set()
        self._lock = threading.Lock()
        self._mark: tuple[bytes, str] | None = None
        self._refusing = False
        self.lost = 0

    def __enter__(self) -> "Proxy":
        threading.Thread(target=self._accept, args=(self._socket,), name="proxy", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every connection and refuse others, until `open`."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.cut()

    def open(self) -> None:
        """Listen again, at the same port."""
        self._socket = socket.create_server(("127.0.0.1", self._port), backlog=64)
        self.__enter__()

    def lose(self, mark: bytes, when: str) -> None:
        """Of the next call that holds these bytes: BEFORE loses the call, the server never hears of it; AFTER lets the
        server do it and loses its answer. Either way the connection ends."""
        with self._lock:
            self._mark = (mark, when)

    def cut(self) -> None:
        """End every connection, whatever is on its way."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.end()

    @contextlib.contextmanager
    def away(self) -> Iterator[None]:
        """Nobody reaches the server inside the block."""
        self._refusing = True
        self.cut()
        try:
            yield
        finally:
            self._refusing = False

    def _accept(self, listening: socket.socket) -> None:
        while True:
            try:
                client, _ = listening.accept()
            except OSError:
                return
            if self._refusing:
                _reset(client)
                continue
            try:
                server = socket.create_connection(self._target)
            except OSError:
                _reset(client)
                continue
            link = _Link(client, server, self._hears, self._over)
            with self._lock:
                self._links.add(link)
            link.start()

    def _hears(self, data: bytes) -> str:
        """What to do about something that a client says: nothing, or lose it before or after the server's answer."""
        with self._lock:
            if self._mark is None or self._mark[0] not in data:
                return ""
            when, self._mark = self._mark[1], None
            self.lost += 1
            return when

    def _over(self, link: "_Link") -> None:
        with self._lock:
            self._links.discard(link)


class _Link:
    """One client's connection and the one to the server that serves it."""

    def __init__(
        self,
        client: socket.socket,
        server: socket.socket,
        hears: Callable[[bytes], str],
        over: Callable[["_Link"], None],
    ) -> None:
        self._client, self._server = client, server
        self._hears, self._over = hears, over
        self._deaf = threading.Event()
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def start(self) -> None:
        for work in (self._up, self._down):
            threading.Thread(target=work, name="proxy-link", daemon=True).start()

    def end(self) -> None:
        for sock in (self._client, self._server):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._over(self)

    def _up(self) -> None:
        with contextlib.suppress(OSError):
            while data := self._client.recv(65536):
                when = self._hears(data)
                if when == BEFORE:
                    break
                if when == AFTER:
                    self._deaf.set()
                self._server.sendall(data)
        if not self._deaf.is_set():
            self.end()

    def _down(self) -> None:
        frames = _Frames()
        with contextlib.suppress(OSError):
            while data := self._server.recv(65536):
                ended = frames.ends_a_reply(data)
                if not self._deaf.is_set():
                    self._client.sendall(data)
                elif ended:
                    break
        self.end()


class _Frames:
    """Follows a server's HTTP/2 stream of bytes from its beginning."""

    def __init__(self) -> None:
        self._buffer = b""
        self._skip = 0

    def ends_a_reply(self, data: bytes) -> bool:
        """Whether a reply ends in these bytes."""
        found = False
        self._buffer += data
        while True:
            skipped = min(self._skip, len(self._buffer))
            self._buffer, self._skip = self._buffer[skipped:], self._skip - skipped
            if self._skip or len(self._buffer) < 9:
                return found
            length = int.from_bytes(self._buffer[:3], "big")
            kind, flags = self._buffer[3], self._buffer[4]
            found = found or (kind == _HEADERS and bool(flags & _END_STREAM))
            self._skip = 9 + length


def _reset(sock: socket.socket) -> None:
    """End a connection so that the other side notices at once."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
