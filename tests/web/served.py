"""The unsubscribe server in a thread of its own, on loopback, and plain HTTP calls to it."""

import http.client
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import waitress

from sendonce.stores.base import Store
from sendonce.web.unsubscribe import BODY_MAX, UnsubscribeApp


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: str


class Served:
    def __init__(self, port: int) -> None:
        self.port = port

    def __call__(self, method: str, path: str, body: bytes | None = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            reply = connection.getresponse()
            return Answer(reply.status, dict(reply.getheaders()), reply.read().decode())
        finally:
            connection.close()

    def click(self, path: str, **headers: str) -> Answer:
        """What a mail program posts."""
        form = "application/x-www-form-urlencoded"
        return self("POST", path, b"List-Unsubscribe=One-Click", Content_Type=form, **headers)


@contextmanager
def served(store: Store) -> Iterator[Served]:
    server = waitress.create_server(
        UnsubscribeApp(store), host="127.0.0.1", port=0, threads=4, max_request_body_size=BODY_MAX, ident=None
    )
    over = threading.Event()

    def run() -> None:
        # Opened, served and closed by one thread: sockets closed by another make a `select` or a wake-up fail now and
        # then.
        while not over.is_set():
            server.asyncore.loop(timeout=0.02, map=server._map, count=1)
        server.task_dispatcher.shutdown()
        server.close()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield Served(server.effective_port)
    finally:
        over.set()
        thread.join(10)
        assert not thread.is_alive()
