"""What one POST can prove: every way of failing is really done, over sockets, and judged by phase and status line."""

import re
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sendonce.failpoints import FailpointRaised, armed
from sendonce.senders import http
from sendonce.senders.http import Answer, HttpPoster, base_url_problem, final_status, headers_in
from tests.providers.certificates import self_signed, serving, trusting
from tests.providers.http import Connection, Fate, Received, Server, wait_until

BODY = b'{"letters": 3}'


class Provider:
    """Answers requests by a script, then with 202; keeps what it read."""

    def __init__(self, *script: Fate, tls: ssl.SSLContext | None = None) -> None:
        self.script = deque(script)
        self.read: list[Received] = []
        self.server = Server(self._handle, tls=tls)

    def _handle(self, connection: Connection) -> bool:
        fate = self.script.popleft() if self.script else Fate()
        if not fate.fault.endswith("before_read"):
            received = connection.read()
            if received is None:
                return False
            self.read.append(received)
        return connection.answer(fate)


@contextmanager
def provider(*script: Fate, tls: ssl.SSLContext | None = None) -> Iterator[Provider]:
    made = Provider(*script, tls=tls)
    with made.server:
        yield made


@contextmanager
def poster(
    url: str, connections: int = 1, trust: ssl.SSLContext | None = None, clock: Callable[[], float] = time.monotonic
) -> Iterator[HttpPoster]:
    made = HttpPoster(url, connections=connections, ssl_context=trust, clock=clock)
    try:
        yield made
    finally:
        made.close()


def post(maker: HttpPoster, timeout_s: float = 5.0, body: bytes = BODY) -> Answer:
    return maker.post("/v3/mail/send", {"Content-Type": "application/json"}, body, timeout_s)


def outcome(fate: Fate, timeout_s: float = 5.0, body: bytes = BODY) -> Answer:
    with provider(fate) as there, poster(there.server.url) as client:
        return post(client, timeout_s, body)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


# -- nothing was written --------------------------------------------------------------------------------------------


def test_refused() -> None:
    with poster(f"http://127.0.0.1:{free_port()}") as client:
        assert post(client) == Answer(None, written=False, reason="connect")


def test_a_host_that_does_not_exist() -> None:
    with poster("https://no-such-host.invalid") as client:
        answer = post(client)
    assert (answer.status, answer.written, answer.reason) == (None, False, "dns")


def test_a_resolver_that_does_not_answer_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: gone.wait(20) and [])
    started_s = time.monotonic()
    with poster("https://slow-dns.example") as client:
        answer = post(client, timeout_s=0.3)
    gone.set()
    assert (answer.written, answer.reason) == (False, "dns")
    assert time.monotonic() - started_s < 2


def test_nobody_accepts_in_time() -> None:
    """The backlog is full: the kernel lets further connections wait."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        port = listener.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for sock in waiting:
            sock.setblocking(False)
            sock.connect_ex(("127.0.0.1", port))
        with poster(f"http://127.0.0.1:{port}") as client:
            answer = post(client, timeout_s=0.4)
        for sock in waiting:
            sock.close()
    assert (answer.status, answer.written, answer.reason) == (None, False, "connect")


def test_a_certificate_that_nobody_vouches_for(tmp_path: Path) -> None:
    with provider(tls=serving(self_signed(tmp_path))) as there, poster(there.server.url) as client:
        assert post(client) == Answer(None, written=False, reason="tls_untrusted")
    assert there.read == []


def test_a_certificate_for_somebody_else(tmp_path: Path) -> None:
    pem = self_signed(tmp_path, "127.0.0.9")
    with provider(tls=serving(pem)) as there, poster(there.server.url, trust=trusting(pem)) as client:
        assert post(client) == Answer(None, written=False, reason="tls_host")


@pytest.mark.parametrize("days", [(-9, -2), (2, 9)])
def test_a_certificate_out_of_date(tmp_path: Path, days: tuple[int, int]) -> None:
    pem = self_signed(tmp_path, days=days)
    with provider(tls=serving(pem)) as there, poster(there.server.url, trust=trusting(pem)) as client:
        assert post(client) == Answer(None, written=False, reason="tls_expired")


def test_a_server_that_speaks_no_tls() -> None:
    with provider() as there, poster(there.server.url.replace("http:", "https:")) as client:
        assert post(client, timeout_s=5) == Answer(None, written=False, reason="tls")
    assert there.read == []


def test_a_server_that_is_silent_in_the_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, poster(f"https://127.0.0.1:{silent.getsockname()[1]}") as c:
        started_s = time.monotonic()
        assert post(c, timeout_s=0.4) == Answer(None, written=False, reason="tls")
        assert time.monotonic() - started_s < 2


def test_no_connection_of_the_pool_is_free_in_time() -> None:
    with provider(Fate(delay_s=0.8)) as there, poster(there.server.url, connections=1) as client:
        first = threading.Thread(target=post, args=(client,))
        first.start()
        wait_until(lambda: bool(there.read))
        assert post(client, timeout_s=0.2) == Answer(None, written=False, reason="pool")
        first.join()
    assert len(there.read) == 1


def test_the_time_was_over_before_the_first_byte() -> None:
    ticks = iter([0.0, 0.1, 0.2, 9.0, 9.0, 9.0, 9.0])
    with provider() as there, poster(there.server.url, clock=lambda: next(ticks)) as client:
        answer = post(client, timeout_s=5)
    assert (answer.status, answer.written, answer.reason) == (None, False, "timeout")
    assert there.read == []


# -- something was written, and no status line came -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "reasons"),
    [
        ("close_before_read", {"closed"}),
        ("reset_before_read", {"closed"}),
        ("close_after_read", {"closed"}),
        ("reset_after_read", {"closed"}),
        ("stall", {"timeout"}),
        ("trickle", {"timeout"}),
        ("half_status", {"garbled"}),
        ("garbage", {"garbled"}),
        ("interim_only", {"garbled", "closed"}),
    ],
)
def test_no_status_line_is_no_verdict(fault: str, reasons: set[str]) -> None:
    started_s = time.monotonic()
    answer = outcome(Fate(fault=fault), timeout_s=0.5)
    assert (answer.status, answer.written) == (None, True)
    assert answer.reason in reasons
    assert time.monotonic() - started_s < 2


def test_a_large_body_that_nobody_reads() -> None:
    """Only a part of the body fits into the buffers: even then the server may have acted."""
    started_s = time.monotonic()
    answer = outcome(Fate(fault="stall_before_read"), timeout_s=0.5, body=b"x" * 30_000_000)
    assert (answer.status, answer.written, answer.reason) == (None, True, "timeout")
    assert time.monotonic() - started_s < 2


def test_a_large_body_cut_off_while_it_is_written() -> None:
    answer = outcome(Fate(fault="close_before_read"), body=b"x" * 30_000_000)
    assert (answer.status, answer.written, answer.reason) == (None, True, "closed")


def test_over_tls_too(tmp_path: Path) -> None:
    pem = self_signed(tmp_path)
    script = [Fate(fault="close_after_read"), Fate(fault="half_status"), Fate(202, {"X-Message-Id": "m1"}), Fate()]
    with (
        provider(*script, tls=serving(pem)) as there,
        poster(there.server.url, trust=trusting(pem)) as client,
    ):
        answers = [post(client) for _ in script]
    assert [(answer.status, answer.written) for answer in answers] == [
        (None, True),
        (None, True),
        (202, True),
        (202, True),
    ]
    assert answers[2].headers["x-message-id"] == "m1"
    assert there.server.connections == 3


# -- a status line came: it decides ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 202, 302, 400, 401, 403, 413, 429, 500, 502, 503, 504])
def test_a_status_is_told_with_headers_and_body(status: int) -> None:
    answer = outcome(Fate(status, {"X-Message-Id": "m1", "Retry-After": "7"}, b"because"))
    assert (answer.status, answer.written, answer.reason, answer.body) == (status, True, "", b"because")
    assert (answer.headers["x-message-id"], answer.headers["retry-after"]) == ("m1", "7")


@pytest.mark.parametrize("fault", ["broken_body", "broken_chunks", "status_only", "headers_cut", "interim", "twice"])
@pytest.mark.parametrize("status", [202, 429])
def test_a_broken_rest_changes_nothing(fault: str, status: int) -> None:
    answer = outcome(Fate(status, {"X-Message-Id": "m1"}, b"{}", fault=fault))
    assert (answer.status, answer.reason) == (status, "")
    if fault in ("broken_body", "interim", "twice"):
        assert answer.headers["x-message-id"] == "m1"


def test_a_trickled_body_does_not_hold_the_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REST_S", 0.3)
    started_s = time.monotonic()
    answer = outcome(Fate(202, {"X-Message-Id": "m1"}, b"x" * 200, fault="trickle_body"), timeout_s=30)
    assert (answer.status, answer.headers["x-message-id"]) == (202, "m1")
    assert time.monotonic() - started_s < 2


def test_a_reply_of_ten_megabytes_is_read_up_to_64_kib_and_its_connection_dropped() -> None:
    with provider(Fate(202, body=b"x" * 10_000_000)) as there, poster(there.server.url) as client:
        answer = post(client)
        assert post(client).status == 202
    assert answer.status == 202
    assert 0 < len(answer.body) <= 64 * 1024
    assert there.server.connections == 2


def test_an_answer_in_html() -> None:
    page = b"<html><h1>502 Bad Gateway</h1></html>"
    answer = outcome(Fate(502, {"Content-Type": "text/html"}, page))
    assert (answer.status, answer.body) == (502, page)


def test_no_redirect_is_followed() -> None:
    with provider() as elsewhere, provider(Fate(302, {"Location": elsewhere.server.url + "/trap"})) as there:
        with poster(there.server.url) as client:
            assert post(client).status == 302
        assert elsewhere.server.connections == 0


def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    with provider() as proxy, provider() as there:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.server.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with poster(there.server.url) as client:
            assert post(client).status == 202
    assert (len(there.read), proxy.server.connections) == (1, 0)


# -- connections ----------------------------------------------------------------------------------------------------


def test_what_is_sent_is_what_was_given() -> None:
    with provider() as there, poster(there.server.url + "/proxy/") as client:
        post(client, body="Grüße".encode())
    (seen,) = there.read
    assert (seen.method, seen.target, seen.body) == ("POST", "/proxy/v3/mail/send", "Grüße".encode())
    assert seen.headers["host"] == f"127.0.0.1:{there.server.port}"
    assert seen.headers["content-type"] == "application/json"


def test_a_connection_is_kept_for_the_next_call() -> None:
    with provider() as there, poster(there.server.url) as client:
        assert [post(client).status for _ in range(5)] == [202] * 5
    assert there.server.connections == 1


def test_a_connection_that_the_server_closed_when_idle_makes_no_doubt() -> None:
    with provider(Fate(fault="close_when_idle"), Fate()) as there, poster(there.server.url) as client:
        assert post(client).status == 202
        time.sleep(0.05)
        assert post(client).status == 202
    assert (len(there.read), there.server.connections) == (2, 2)


def test_an_idle_connection_is_dropped_after_20_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert http.IDLE_S == 20.0
    monkeypatch.setattr(http, "IDLE_S", 0.1)
    with provider() as there, poster(there.server.url) as client:
        post(client)
        time.sleep(0.2)
        post(client)
    assert there.server.connections == 2


def test_a_reply_that_was_sent_twice_is_not_taken_for_the_next_calls() -> None:
    """A second 202 stands on the connection when the next request goes out: that one is not accepted by it.

    Nor is the answer to that one, when it comes at last, taken for the answer to the one after.
    """
    with (
        provider(Fate(202, fault="twice"), Fate(400, delay_s=0.2), Fate(429)) as there,
        poster(there.server.url) as client,
    ):
        statuses = [post(client).status for _ in range(3)]
    assert statuses[0] == 202
    # What stands on the connection may end it before the next request is read there; the third one is the second then.
    assert statuses[1:] in ([400, 429], [None, 429] if len(there.read) == 3 else [None, 400])


def test_threads_share_the_pool_and_get_their_own_answers() -> None:
    def answer(connection: Connection) -> bool:
        received = connection.read()
        return received is not None and connection.answer(Fate(202, {"X-Message-Id": received.body.decode()}))

    wrong: list[str] = []

    def work(client: HttpPoster, name: str) -> None:
        for number in range(30):
            body = f"{name}-{number}"
            if post(client, 10, body.encode()).headers.get("x-message-id") != body:
                wrong.append(body)

    with Server(answer) as server, poster(server.url, connections=3) as client:
        threads = [threading.Thread(target=work, args=(client, f"t{number}")) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert server.connections <= 3


def test_a_failpoint_stands_between_the_request_and_the_reply() -> None:
    with provider() as there, poster(there.server.url) as client:
        with armed("S4:raise:1"), pytest.raises(FailpointRaised):
            post(client)
        wait_until(lambda: len(there.read) == 1)
        assert post(client).status == 202
    assert there.server.connections == 2


# -- addresses ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["https://api.provider.example", "http://127.0.0.1:8080", "http://localhost:1", "http://[::1]:9/x"]
)
def test_a_good_base_url(url: str) -> None:
    assert base_url_problem(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "http://api.provider.example",
        "http://127.0.0.1.provider.example",
        "http://localhost.provider.example",
        "http://10.0.0.1",
        "ftp://127.0.0.1",
        "api.provider.example",
        "https://",
        "https://ann:secret@api.provider.example",
        "https://api.provider.example/?x=1",
        "https://api.provider.example/\r\nX: y",
        "https://api.provider.example:port",
        "https://[::1",
        "https://bücher.example",
    ],
)
def test_a_bad_base_url(url: str) -> None:
    assert base_url_problem(url)
    with pytest.raises(ValueError, match=re.escape(base_url_problem(url))):
        HttpPoster(url, connections=1)


# -- the status line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("received", "status"),
    [
        (b"", None),
        (b"HTTP/1.1 202", None),
        (b"HTTP/1.1 202 Accepted\r", None),
        (b"HTTP/1.1 202 Accepted\r\n", 202),
        (b"HTTP/1.0 202\n", 202),
        (b"HTTP/1.1 100 Continue\r\n", None),
        (b"HTTP/1.1 100 Continue\r\n\r\n", None),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Slow\r\n", 429),
        (b"HTTP/1.1 103 Hints\r\nA: HTTP/1.1 202 x\r\n\r\nHTTP/1.1 400 Bad\r\n", 400),
        (b"HTTP/1.1 101 Switching\r\n", 101),
        (b"HTTP/1.1 2020 Accepted\r\n", None),
        (b"HTTP/1.1 020 Accepted\r\n", None),
        (b"HTTP/2 202 Accepted\r\n", None),
        (b"\r\nHTTP/1.1 202 Accepted\r\n", None),
        (b"<html>HTTP/1.1 202 Accepted\r\n", None),
    ],
)
def test_the_status_is_that_of_the_first_complete_final_status_line(received: bytes, status: int | None) -> None:
    found = final_status(received)
    assert (found[0] if found else None) == status


def test_headers_are_read_as_far_as_they_came() -> None:
    reply = b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nno header\r\nX-RateLimit-Reset: 17684"
    assert headers_in(reply, reply.index(b"\n") + 1) == {"retry-after": "7"}
    assert headers_in(reply + b"67607\r\n\r\nA: b\r\n", reply.index(b"\n") + 1) == {
        "retry-after": "7",
        "x-ratelimit-reset": "1768467607",
    }
    assert headers_in(b"HTTP/1.1 202 Accepted\r\n\r\nA: b\r\n", 23) == {}
