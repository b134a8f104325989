"""What an adapter is: capabilities, and two steps from letters to a verdict per recipient.

`prepare` is pure: the same request gives the same bytes, so its hash can be written down before the first byte
leaves. `send` makes one provider call and says only what it can prove (DELIVERY: judge by phase and status line,
never by exception class).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, runtime_checkable

from schemas.letters import Letter, Letters


class Verdict(Enum):
    ACCEPTED = "accepted"
    REFUSED = "refused"
    NOT_SENT = "not_sent"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Capabilities:
    """recipients: most letters in one request. mixes_forms: it may carry letters of several form letters.

    calls: where each form letter, and each letter without a form, is a call of its own: most of them in one request
    (None: no such bound). They share one intent. Such a request takes up one form letter after the other, so that its
    calls are full.

    idempotency_window_s: for how long the same key with the same bytes is taken once (None: no such thing;
    infinity: for ever). parallel: calls that one process makes side by side.
    """

    recipients: int
    mixes_forms: bool
    idempotency_window_s: float | None = None
    parallel: int = 1
    calls: int | None = None


@dataclass(frozen=True)
class Request:
    """One provider call for some ordinals of one batch."""

    campaign_id: str
    batch_no: int
    attempt_id: str
    letters: Letters
    chosen: Sequence[Letter]

    @property
    def ordinals(self) -> list[int]:
        return [letter.ordinal for letter in self.chosen]


@dataclass(frozen=True)
class Prepared:
    """The bytes of a call and their SHA-256 in hex. The same request always gives the same hash."""

    request: Request
    body: bytes
    payload_hash: str


@dataclass(frozen=True)
class Reply:
    """What one call proved. `verdict` holds for every chosen recipient that `exceptions` does not name.

    exceptions: ordinal -> (verdict, Outcome byte if refused, detail without personal data). reason: machine-readable
    (`connect`, `timeout`, `http_500`, `disk_full`). retry_after_s: the provider's own wish. halts_sender: credentials
    or account: nothing more may go by this sender until a person mends it. throttled: the provider only asks to
    slow down. put_off: whoever was not sent to was so for their own mailbox's sake; the provider works.
    answered: whoever was not sent to had a "not now" of their own. Such letters are given up after some tries, though
    all other letters of a failing sender wait for it.
    """

    verdict: Verdict
    reason: str = ""
    outcome: int = 0
    provider_ref: str | None = None
    retry_after_s: float | None = None
    halts_sender: bool = False
    throttled: bool = False
    put_off: bool = False
    answered: bool = False
    exceptions: Mapping[int, tuple[Verdict, int, str]] = field(default_factory=dict)


def name_in(identity: str, names: Iterable[str]) -> str | None:
    """Which of these senders an `identity` is of; None for that of a sender which is not among them."""
    beginning, slash, _ = identity.partition("/")
    known = list(names)
    if beginning in known:
        return beginning
    return next((name for name in known if slash and name[:50] == beginning), None)


class Unsendable(Exception):
    """A letter that no call of this adapter can carry: its `Outcome` byte, and a detail without personal data."""

    def __init__(self, ordinal: int, outcome: int, detail: str) -> None:
        super().__init__(detail)
        self.ordinal = ordinal
        self.outcome = outcome
        self.detail = detail


@dataclass(frozen=True)
class Reached:
    """What a look at a provider found, without a letter. reason: why letters could not go now, as in `Reply`; empty if
    nothing speaks against it. told: in words, without secrets: how far it came, or where it ended.
    """

    reason: str
    told: str


class Sender(Protocol):
    """An adapter with its configuration. Made once per process; `send` may be called from several threads."""

    name: str
    capabilities: Capabilities

    @property
    def identity(self) -> str:
        """The account or place that knows this sender's requests: a repeat under the same key goes there or nowhere.

        The sender's name; or, so that it changes when the settings point to somewhere else, the first 50 characters
        of the name, a slash and what tells one place from another. At most 64 characters, stable over restarts.
        """

    def prepare(self, request: Request) -> Prepared:
        """Bytes and hash of a call. Pure. Unsendable names a letter that must be left out and refused."""

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        """Make the call once, within `timeout_s`. Never raises for what a provider or a network does."""

    def close(self) -> None:
        """Drop connections."""


@runtime_checkable
class Patient(Protocol):
    """A sender whose provider may take longer to answer than a request may take to leave."""

    def send_and_wait(self, prepared: Prepared, timeout_s: float, answer_s: float) -> Reply:
        """As `send`: whatever could be accepted leaves within `timeout_s`. Its answer is waited for `answer_s`, too."""


@runtime_checkable
class Reachable(Protocol):
    """An adapter that can look at its provider without sending; for `sendonce doctor`. Who has nothing to look at has
    no such method."""

    def reach(self, timeout_s: float) -> Reached:
        """Connect, and log in where that is a step of its own, within `timeout_s`. Never raises for what a network
        does."""
