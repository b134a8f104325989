"""One POST over HTTP/1.1, and what is known for certain about how far it came.

The exception classes of HTTP libraries do not tell whether a server may have acted: the same one is raised for "reply
lost" and for "never read". So this module counts for itself, at the socket: whether a byte of the request was handed
over, and whether a complete status line came back. httpcore frames the messages; nothing is retried, no redirect is
followed, and no proxy is read from the environment.

The connections are kept here too, each in the hands of one call at a time: the pool of httpcore 1.0.9 looks into
connections that other threads are just taking up, and closed 24 of 800 of them under a request.
"""

import queue
import re
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

import httpcore

from sendonce.config.urls import base_url_problem
from sendonce.failpoints import failpoint
from sendonce.senders.base import Reached
from sendonce.senders.certificates import of_certificate

# Servers and balancers close connections that are idle for a minute or so; one that is used just then makes a doubt.
IDLE_S: Final = 20.0
# Of a reply, headers included. A provider's reply is a few hundred bytes; what is longer comes from something else.
REPLY_MAX_BYTES: Final = 64 * 1024
# Once the status line is there the verdict stands: the rest of the reply may not hold the sender for long.
REST_S: Final = 5.0
_SLICE: Final = 64 * 1024

_STATUS_LINE: Final = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: [^\r\n]*)?\r?\n")
_BLANK_LINE: Final = re.compile(rb"\n\r?\n")
_FAILURES: Final = (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError, OSError)


@dataclass(frozen=True)
class Answer:
    """How one POST ended.

    status: of the reply, 1xx skipped; None when no complete status line came. written: whether a byte of the request
    may have left. reason: why there is no status: `dns`, `private_address`, `connect`, `tls`, `pool` (nothing written),
    `timeout`, `closed`, `garbled`; of a certificate `tls_expired`, `tls_host`, `tls_untrusted`. headers (names in lower
    case) and body: as much of them as came.
    """

    status: int | None
    written: bool
    reason: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


class HttpPoster:
    """Posts to one base URL over kept connections, at most `connections` at once. Safe for threads.

    base_url: https, or http for a loopback host; ValueError for anything else. ssl_context: whom to trust; default
    the system's and certifi's authorities. may_connect: asked for each IP address right before it is connected to, so
    that no name can mean one address when it is checked and another when it is used. reply_max_bytes: of a reply,
    headers included.
    """

    def __init__(
        self,
        base_url: str,
        *,
        connections: int,
        ssl_context: ssl.SSLContext | None = None,
        clock: Callable[[], float] = time.monotonic,
        may_connect: Callable[[str], bool] = lambda address: True,
        reply_max_bytes: int = REPLY_MAX_BYTES,
    ) -> None:
        if problem := base_url_problem(base_url):
            raise ValueError(problem)
        parts = urlsplit(base_url)
        self._base = parts.path.rstrip("/")
        self._host = parts.netloc
        self._origin = httpcore.Origin(
            parts.scheme.encode(), str(parts.hostname).encode(), parts.port or (443 if parts.scheme == "https" else 80)
        )
        self._clock = clock
        self._calls = _Calls()
        self._backend = _Backend(self._calls, may_connect, reply_max_bytes)
        self._ssl_context = ssl_context or (httpcore.default_ssl_context() if parts.scheme == "https" else None)
        self._free = threading.BoundedSemaphore(connections)
        self._idle: list[httpcore.HTTPConnection] = []
        self._changing = threading.Lock()

    def post(self, path: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Answer:
        """Make the call once, from connecting to the last byte that is read within `timeout_s`. Never repeats it."""
        request = httpcore.Request(
            b"POST",
            httpcore.URL(
                scheme=self._origin.scheme,
                host=self._origin.host,
                port=self._origin.port,
                target=(self._base + path).encode("ascii"),
            ),
            headers=[("Host", self._host), *headers.items(), ("Content-Length", str(len(body)))],
            content=body,
        )
        call = self._calls.begin(self._clock, timeout_s)
        try:
            if not self._free.acquire(timeout=timeout_s):
                return Answer(None, written=False, reason="pool")
            try:
                return call.answer(self._exchange(call, request))
            finally:
                self._free.release()
        finally:
            self._calls.end()

    def reach(self, timeout_s: float) -> Reached:
        """Connect as a call would, and leave without a word. `reason` as in `Answer`."""
        host, port = self._origin.host.decode(), self._origin.port
        call = self._calls.begin(self._clock, timeout_s)
        try:
            stream = self._backend.connect_tcp(host, port)
            if self._ssl_context is not None:
                stream = stream.start_tls(self._ssl_context, host)
            stream.close()
        except (*_FAILURES, TimeoutError):
            reason = call.reason or "connect"
            return Reached(reason, f"no connection to {host}:{port} ({reason})")
        finally:
            self._calls.end()
        secured = "" if self._ssl_context is None else ", by TLS"
        return Reached("", f"{host}:{port} can be reached{secured}; whether it takes the key shows at the first letter")

    def _exchange(self, call: "_Call", request: httpcore.Request) -> bytes:
        """Send the request over a connection of its own for this time; the body of the reply, as far as it came."""
        connection = self._take()
        body = bytearray()
        try:
            response = connection.handle_request(request)
            try:
                for part in response.iter_stream():
                    body += part
            finally:
                response.close()
        except _FAILURES as fault:
            call.reason = call.reason or _reason(fault, call)
        finally:
            self._put_back(connection, call)
        return bytes(body)

    def _take(self) -> httpcore.HTTPConnection:
        with self._changing:
            while self._idle:
                connection = self._idle.pop()
                if connection.is_idle() and not connection.has_expired():
                    return connection
                connection.close()
        return httpcore.HTTPConnection(
            self._origin,
            ssl_context=self._ssl_context,
            keepalive_expiry=IDLE_S,
            retries=0,
            network_backend=self._backend,
        )

    def _put_back(self, connection: httpcore.HTTPConnection, call: "_Call") -> None:
        """Keep a connection whose exchange ended well. On any other, nothing can be told apart any more."""
        if connection.is_idle() and call.has_status:
            with self._changing:
                self._idle.append(connection)
        else:
            connection.close()

    def close(self) -> None:
        """Drop the idle connections. A call that is under way goes on."""
        with self._changing:
            while self._idle:
                self._idle.pop().close()


# -- one call ------------------------------------------------------------------------------------------------------


class _Call:
    """What is known of one call. httpcore does all work of a call in the thread that makes it."""

    def __init__(self, clock: Callable[[], float], timeout_s: float) -> None:
        self._clock = clock
        self._deadline_s = clock() + timeout_s
        self._status: tuple[int, int] | None = None
        self.written = False
        self.waiting = False
        self.received = bytearray()
        self.reason = ""

    def left_s(self) -> float:
        """Seconds until the call must have ended. TimeoutError when they are over."""
        left_s = self._deadline_s - self._clock()
        if left_s <= 0:
            raise TimeoutError
        return left_s

    def receive(self, data: bytes) -> None:
        self.received += data
        if self._status is None:
            self._status = final_status(self.received)
            if self._status is not None:
                self._deadline_s = min(self._deadline_s, self._clock() + REST_S)

    @property
    def has_status(self) -> bool:
        """Whether a status line came during this call; a reply without one is left over from an earlier call."""
        return self._status is not None

    def answer(self, body: bytes) -> Answer:
        if self._status is None:
            return Answer(None, self.written, self.reason or "garbled")
        status, end = self._status
        return Answer(status, self.written, "", headers_in(self.received, end), body)


def final_status(received: bytes | bytearray) -> tuple[int, int] | None:
    """The first complete status line that is not interim (RFC 9110 15.2): the status, and where its line ends.

    101 is final too: nobody asked to switch protocols. None while the line, or what precedes it, is incomplete.
    """
    start = 0
    while found := _STATUS_LINE.match(received, start):
        status = int(found[1])
        if status >= 200 or status == 101:
            return status, found.end()
        blank = _BLANK_LINE.search(received, found.end() - 1)
        if blank is None:
            return None
        start = blank.end()
    return None


def headers_in(received: bytes | bytearray, start: int) -> dict[str, str]:
    """The complete header lines from `start` on, names in lower case. What is no header line is passed over."""
    blank = _BLANK_LINE.search(received, start - 1)
    lines = bytes(received[start : blank.start() + 1 if blank else None]).split(b"\n")[:-1]
    pairs = (line.decode("latin-1").partition(":") for line in lines)
    return {name.strip().lower(): value.strip() for name, colon, value in pairs if colon}


def _reason(fault: Exception, call: _Call) -> str:
    if isinstance(fault, httpcore.TimeoutException | TimeoutError):
        return "timeout"
    if isinstance(fault, httpcore.ProtocolError) and call.received:
        return "garbled"
    return "closed" if call.written else "connect"


class _Calls(threading.local):
    """The call that each thread makes just now."""

    current: _Call | None = None

    def begin(self, clock: Callable[[], float], timeout_s: float) -> _Call:
        self.current = _Call(clock, timeout_s)
        return self.current

    def end(self) -> None:
        self.current = None

    @property
    def mine(self) -> _Call:
        assert self.current is not None
        return self.current


# -- the network as httpcore sees it -------------------------------------------------------------------------------


class _Backend(httpcore.NetworkBackend):
    def __init__(self, calls: _Calls, may_connect: Callable[[str], bool], reply_max_bytes: int) -> None:
        self._calls = calls
        self._may_connect = may_connect
        self._reply_max_bytes = reply_max_bytes

    def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.NetworkStream:
        call = self._calls.mine
        try:
            addresses = _look_up(host, port, call.left_s())
        except OSError as fault:
            call.reason = "dns"
            raise httpcore.ConnectError(call.reason) from fault
        addresses = [found for found in addresses if self._may_connect(found[4][0])]
        if not addresses:
            call.reason = "private_address"
            raise httpcore.ConnectError(call.reason)
        for number, (family, kind, protocol, _, address) in enumerate(addresses):
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(call.left_s() / (len(addresses) - number))
                connection.connect(address)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return _Stream(connection, self._calls, self._reply_max_bytes)
            except OSError:
                connection.close()
        call.reason = "connect"
        raise httpcore.ConnectError(call.reason)


def _look_up(host: str, port: int, within_s: float) -> list[tuple[Any, ...]]:
    """The addresses of a host. OSError when there are none, or none are known in time.

    The system's resolver knows no time limit of ours and cannot be interrupted, so it is left behind in its thread.
    """
    found: queue.SimpleQueue[list[tuple[Any, ...]] | OSError | UnicodeError] = queue.SimpleQueue()

    def ask() -> None:
        try:
            found.put(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as fault:
            found.put(fault)

    threading.Thread(target=ask, name="look-up", daemon=True).start()
    try:
        answer = found.get(timeout=within_s)
    except queue.Empty:
        raise TimeoutError from None
    if isinstance(answer, Exception):
        raise OSError("no such host") from answer
    return answer


class _Stream(httpcore.NetworkStream):
    """A connection that tells the running call what passes over it, and ends every wait at the call's deadline.

    The time-outs that httpcore passes count for one read or write each, so a trickled reply would never end.
    """

    def __init__(self, connection: socket.socket, calls: _Calls, reply_max_bytes: int) -> None:
        self._connection = connection
        self._calls = calls
        self._reply_max_bytes = reply_max_bytes

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        call = self._calls.mine
        if not call.waiting:
            call.waiting = True
            failpoint("S4")
        if len(call.received) >= self._reply_max_bytes:
            raise httpcore.ReadError("the reply is too long")
        try:
            self._connection.settimeout(call.left_s())
            data = self._connection.recv(min(max_bytes, self._reply_max_bytes - len(call.received)))
        except TimeoutError as fault:
            raise httpcore.ReadTimeout from fault
        except OSError as fault:
            raise httpcore.ReadError from fault
        call.receive(data)
        return data

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        call = self._calls.mine
        rest = memoryview(buffer)
        try:
            while rest:
                self._connection.settimeout(call.left_s())
                call.written = True
                rest = rest[self._connection.send(rest[:_SLICE]) :]
        except TimeoutError as fault:
            raise httpcore.WriteTimeout from fault
        except OSError as fault:
            raise httpcore.WriteError from fault

    def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.NetworkStream:
        call = self._calls.mine
        try:
            self._connection.settimeout(call.left_s())
            secured = ssl_context.wrap_socket(self._connection, server_hostname=server_hostname)
        except (OSError, ValueError) as fault:
            self.close()
            call.reason = of_certificate(fault) or "tls"
            raise httpcore.ConnectError(call.reason) from fault
        return _Stream(secured, self._calls, self._reply_max_bytes)

    def close(self) -> None:
        self._connection.close()

    def get_extra_info(self, info: str) -> Any:
        """`is_readable` tells httpcore that an idle connection was closed by the server, or holds stray bytes."""
        if info == "is_readable":
            return _is_readable(self._connection)
        if info == "ssl_object" and isinstance(self._connection, ssl.SSLSocket):
            return self._connection
        return None


def _is_readable(connection: socket.socket) -> bool:
    if connection.fileno() < 0:
        return True
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    return bool(poller.poll(0))
