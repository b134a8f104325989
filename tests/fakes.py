"""A clock that only tests move, and a provider that writes down everything that happens to it, in order.

`ProviderLog` is the provider's side of the truth: it survives the senders of dead processes, as a real provider would.
`FakeSender` is one process's sender before that log.
"""

import hashlib
import json
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from schemas import ids
from sendonce.senders.base import Capabilities, Prepared, Reply, Request, Verdict
from tests.evidence import Arrival

START = datetime(2026, 1, 15, 9, 0, tzinfo=UTC)


class ManualClock:
    """Wall time and time since boot, apart: a wall clock may be wrong or jump, time since boot never does."""

    def __init__(self, start: datetime = START, boot_s: float = 1_000.0) -> None:
        self._wall = start
        self._boot_s = boot_s
        self.slept: list[float] = []

    def now(self) -> datetime:
        return self._wall

    def boottime(self) -> float:
        return self._boot_s

    def advance(self, seconds: float) -> None:
        """Time passes: both clocks go on."""
        self._wall += timedelta(seconds=seconds)
        self._boot_s += seconds

    def jump(self, seconds: float) -> None:
        """The wall clock is set, forwards or backwards; no time passes."""
        self._wall += timedelta(seconds=seconds)

    def sleep(self, seconds: float) -> None:
        """In place of time.sleep: notes the wait and lets the time pass at once."""
        self.slept.append(seconds)
        self.advance(seconds)


@dataclass(frozen=True)
class Action:
    """One thing that happened at the provider: called, accepted, repeated (known key, nothing new) or replied."""

    what: str
    sender: str
    campaign_id: str
    batch_no: int
    attempt_id: str
    ordinals: tuple[int, ...]
    payload_hash: str
    at: datetime
    verdict: str = ""


@dataclass
class ProviderLog:
    """Append-only. `accepted` holds what the provider took, letter by letter, for `tests.checker`."""

    now: Callable[[], datetime]
    actions: list[Action] = field(default_factory=list)
    accepted: list[Arrival] = field(default_factory=list)
    keys: dict[str, tuple[str, datetime]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str, sender: str, prepared: Prepared, verdict: str = "") -> None:
        request = prepared.request
        self.actions.append(
            Action(
                what,
                sender,
                request.campaign_id,
                request.batch_no,
                request.attempt_id,
                tuple(request.ordinals),
                prepared.payload_hash,
                self.now(),
                verdict,
            )
        )

    def accept(self, prepared: Prepared, ordinals: Iterable[int], sender: str) -> None:
        request = prepared.request
        wanted = set(ordinals)
        for letter in request.chosen:
            if letter.ordinal in wanted:
                self.accepted.append(
                    Arrival(
                        letter.message_id,
                        request.campaign_id,
                        request.batch_no,
                        request.attempt_id,
                        self.now(),
                        f"log:{len(self.actions)}",
                        prepared.payload_hash,
                        sender,
                    )
                )

    def words(self) -> list[str]:
        """What happened, in order, for assertions that read well."""
        return [action.what for action in self.actions]

    def times_accepted(self) -> Counter[str]:
        """How often each message id was accepted."""
        return Counter(arrival.message_id for arrival in self.accepted)


@dataclass(frozen=True)
class Scripted:
    """One call's fate. `accepts`: ordinals that the provider really takes (None: all that it says it accepted).

    `before` runs when the call has begun and nothing is accepted yet, `after` when it is accepted and the reply is on
    its way: the places for a take-over, a pause, a cancel.
    """

    reply: Reply
    accepts: tuple[int, ...] | None = None
    before: Callable[[Prepared], None] | None = None
    after: Callable[[Prepared], None] | None = None


ACCEPTED = Reply(Verdict.ACCEPTED, provider_ref="fake")


class FakeSender:
    """An adapter whose provider is a `ProviderLog`.

    Calls take their fates from `script` in order; then everything is accepted. With an idempotency window a repeated
    attempt id with the same bytes is answered as accepted and taken once; with other bytes it is refused whole.
    """

    def __init__(
        self,
        log: ProviderLog,
        *,
        name: str = "fake",
        recipients: int = 1000,
        mixes_forms: bool = True,
        idempotency_window_s: float | None = None,
        parallel: int = 1,
        script: Iterable[Scripted] = (),
    ) -> None:
        self.name = name
        self.capabilities = Capabilities(recipients, mixes_forms, idempotency_window_s, parallel)
        self.log = log
        self.script: deque[Scripted] = deque(script)
        self.closed = False

    @property
    def identity(self) -> str:
        return self.name

    def prepare(self, request: Request) -> Prepared:
        """JSON of everything that reaches a recipient, the attempt included: the same request, the same hash."""
        body = json.dumps(
            {
                "attempt": request.attempt_id,
                "campaign": request.campaign_id,
                "batch": request.batch_no,
                "from": request.letters.from_address,
                "letters": [
                    (letter.message_id, letter.to, *request.letters.texts(letter)) for letter in request.chosen
                ],
            },
            sort_keys=True,
        ).encode()
        return Prepared(request, body, hashlib.sha256(body).hexdigest())

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        with self.log.lock:
            self.log.note("called", self.name, prepared)
            fate = self.script.popleft() if self.script else Scripted(ACCEPTED)
        if fate.before:
            fate.before(prepared)
        with self.log.lock:
            reply = self._taken(prepared, fate)
        if fate.after:
            fate.after(prepared)
        with self.log.lock:
            self.log.note("replied", self.name, prepared, reply.verdict.value)
        return reply

    def _taken(self, prepared: Prepared, fate: Scripted) -> Reply:
        attempt = prepared.request.attempt_id
        window_s = self.capabilities.idempotency_window_s
        known = self.log.keys.get(attempt)
        if window_s is not None and known and (self.log.now() - known[1]).total_seconds() < window_s:
            if known[0] != prepared.payload_hash:
                return Reply(Verdict.REFUSED, reason="idempotency_mismatch", outcome=128)
            self.log.note("repeated", self.name, prepared)
            return ACCEPTED
        ordinals = _said(prepared, fate.reply) if fate.accepts is None else list(fate.accepts)
        if ordinals:
            self.log.keys[attempt] = (prepared.payload_hash, self.log.now())
            self.log.note("accepted", self.name, prepared)
            self.log.accept(prepared, ordinals, self.name)
        return fate.reply

    def close(self) -> None:
        self.closed = True


def _said(prepared: Prepared, reply: Reply) -> list[int]:
    """The ordinals that a reply claims accepted: what a truthful provider took."""

    def verdict(ordinal: int) -> Verdict:
        found = reply.exceptions.get(ordinal)
        return found[0] if found else reply.verdict

    return [ordinal for ordinal in prepared.request.ordinals if verdict(ordinal) is Verdict.ACCEPTED]


def attempt_ids(start_ms: int = 1_768_467_600_000) -> Callable[[], str]:
    """A source of attempt ids that is the same in every run: one millisecond and one random number apart."""
    count = 0

    def make() -> str:
        nonlocal count
        count += 1
        return ids.attempt_id(start_ms + count, count.to_bytes(10, "big"))

    return make
