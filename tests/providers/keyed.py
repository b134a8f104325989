"""What fakes of providers with idempotency keys share: they remember attempts, keys and letters, and misbehave."""

import hashlib
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import orjson

from tests.providers.http import Connection, Fate, Received, Server


class Taken(NamedTuple):
    """One letter that somebody will get."""

    to: str
    subject: str
    text: str
    html: str
    message_id: str


@dataclass(frozen=True)
class Attempt:
    """One request as it arrived. `verdict`: the status, or what was done to the connection; `taken`: letters that it
    brought. Requests that come side by side are noted in another order than their letters."""

    at_s: float
    key: str
    sha256: str
    headers: Mapping[str, str]
    body: bytes
    verdict: str
    taken: tuple[Taken, ...] = ()
    replayed: bool = False

    @property
    def letters(self) -> int:
        return len(self.taken)


@dataclass(frozen=True)
class Answered:
    """What the rules say of a request: the answer, and the letters that it takes."""

    status: int
    body: bytes = b""
    taken: list[Taken] = field(default_factory=list)
    headers: Mapping[str, str] = field(default_factory=dict)
    replayed: bool = False


def as_json(status: int, said: object, taken: Iterable[Taken] = (), **headers: str) -> Answered:
    return Answered(status, orjson.dumps(said), list(taken), {"Content-Type": "application/json", **headers})


class KeyedProvider:
    """The provider while it is entered.

    script: fates of the first requests. One that accepts (`Fate.accepted`) is judged by the rules first, and only then
    does the fate befall the answer. keys_kept_s: how long a key is known. now_s: its own clock.
    """

    keys_kept_s = 24 * 3600.0

    def __init__(
        self,
        *script: Fate,
        tls: ssl.SSLContext | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.script = deque(script)
        self.attempts: list[Attempt] = []
        self.refused_recipients: set[str] = set()
        self.now_s = now_s
        self._always: Fate | None = None
        self._taken: list[Taken] = []
        self._keys: dict[str, tuple[float, str, Answered]] = {}
        self._working = threading.Lock()
        self._server = Server(self._handle, tls=tls)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def connections(self) -> int:
        return self._server.connections

    def __enter__(self) -> Any:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def letters(self) -> list[Taken]:
        """Each letter that somebody will get, in order of acceptance."""
        with self._working:
            return list(self._taken)

    def misbehave(self, how: str, address: str = "") -> None:
        """As `conformance.Provider` says it."""
        if how == "refuse_connection":
            self._server.__exit__()
            return
        if how == "refuse_recipient":
            self.refused_recipients.add(address)
            return
        self._always = {
            "": None,
            "close_before_reply": Fate(200, fault="close_after_read"),
            "silence": Fate(200, fault="stall"),
            "busy": Fate(429, {"Retry-After": "1"}),
            "refuse_account": Fate(401),
        }[how]

    # -- for the provider at hand -----------------------------------------------------------------------------------

    def judged(self, received: Received) -> Answered:
        """What the provider's rules say of a request that was read whole."""
        raise NotImplementedError

    def conflict(self, same: bool) -> Answered:
        """The answer to a key that is just being worked on (same bytes or not), or is known by other bytes."""
        raise NotImplementedError

    # -- one request ------------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection) -> bool:
        with self._working:
            fate = self.script.popleft() if self.script else self._always
        if fate is not None and fate.fault.endswith("before_read"):
            self._note(None, fate.fault)
            return connection.answer(fate)
        received = connection.read()
        if received is None:
            return False
        if fate is not None and not fate.accepted:
            self._note(received, fate.fault or str(fate.status))
            return connection.answer(fate)
        answered = self._by_key(received)
        fate = fate or Fate()
        self._note(received, fate.fault or str(answered.status), answered.taken, answered.replayed)
        if not 200 <= fate.status < 300:
            return connection.answer(fate)
        return connection.answer(
            replace(fate, status=answered.status, body=answered.body, headers={**answered.headers, **fate.headers})
        )

    def _by_key(self, received: Received) -> Answered:
        key, sha256 = received.headers.get("idempotency-key", ""), hashlib.sha256(received.body).hexdigest()
        with self._working:
            known = self._keys.get(key)
            if known is not None and self.now_s() - known[0] < self.keys_kept_s:
                if known[1] != sha256:
                    return self.conflict(same=False)
                return replace(known[2], taken=[], replayed=True)
            answered = self.judged(received)
            if 200 <= answered.status < 300:
                self._keys[key] = (self.now_s(), sha256, answered)
                self._taken += answered.taken
            return answered

    def _note(
        self, received: Received | None, verdict: str, taken: Iterable[Taken] = (), replayed: bool = False
    ) -> None:
        got = received or Received("", "", {}, b"")
        attempt = Attempt(
            self.now_s(),
            got.headers.get("idempotency-key", ""),
            hashlib.sha256(got.body).hexdigest(),
            got.headers,
            got.body,
            verdict,
            tuple(taken),
            replayed,
        )
        with self._working:
            self.attempts.append(attempt)
