"""What the steps of the protocol are given and what they answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Optional

from schemas.ids import shard_of
from schemas.outcomes import Outcome
from schemas.tables import Batch
from sendonce.delivery.limits import Cut
from sendonce.mailboxes import DomainGroups
from sendonce.times import Times

# The reason of a request that its own owner did not start, because its permit or lease was running out.
LATE = "late"
# The reason of a batch that its owner hands back because settings were applied since it read them.
SETTINGS_CHANGED = "settings_changed"


@dataclass(frozen=True)
class Terms:
    """What a lane's configuration means for the protocol. `scopes` are the limits that each request draws from.

    hold_max_s: the longest wait for a permit that the owner does itself; 0 where a runner cannot wait.
    provider: the identity of the sender's account or place, as it stands in intents.
    asks_again_s: for how long the provider takes the same request under the same key once; None if it does not.
    most_tries: failed requests in a row after which the unsent recipients are `refused(exhausted)`.
    outbound_log: `rows` writes a row per final message, `packed` only those that were not accepted.
    groups: the groups of mailbox providers that have limits of their own; None where none has. revision: of the
    settings that all this comes from, compared in each transaction that grants a permit; empty: never compared.
    fallback: the same lane by its second sender, if it has one (`routes.route` says when).
    """

    lane: str
    sender: str
    scopes: tuple[str, ...]
    times: Times
    hold_max_s: float = 0.0
    provider: str = ""
    asks_again_s: float | None = None
    most_tries: int = 12
    outbound_log: str = "rows"
    groups: DomainGroups | None = None
    revision: str = ""
    fallback: Optional["Terms"] = None

    def of(self, provider: str | None) -> "Terms | None":
        """The terms under which requests go to an account: the lane's own, its fallback's; None for another account."""
        if provider == self.provider:
            return self
        return self.fallback.of(provider) if self.fallback is not None else None


@dataclass(frozen=True)
class Ask:
    """The request that an owner wants to make next. `payload_hash` is of the very bytes that will be sent.

    shares: by scope, those of its ordinals that draw from that scope's limits too.
    """

    attempt_id: str
    ordinals: Sequence[int]
    payload_hash: str
    provider: str
    shares: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Later:
    """Instead of a request: everybody who is open waits for a share of `scope`, which has none before `until`."""

    until: datetime
    scope: str


@dataclass(frozen=True)
class Report:
    """A finished request. `outcomes` names each of its ordinals: final, IN_DOUBT, or OPEN when it was not sent.

    wait_s: do not try the open ones earlier. halts: a person must mend the sender first, `reason` says what.
    throttled: the provider only asked to slow down; spends no try, and the permit counts as used. shares: as in the
    request's `Ask`. put_off: the open ones were not sent to for their own mailboxes' sake; the provider works.
    answered: each of the open ones had a "not now" of its own, which spends a try even while the sender fails.
    """

    attempt_id: str
    verdict: str
    outcomes: Mapping[int, Outcome]
    reason: str = ""
    provider_ref: str | None = None
    wait_s: float | None = None
    halts: bool = False
    throttled: bool = False
    put_off: bool = False
    answered: bool = False
    shares: Mapping[str, Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Rendered:
    """What rendering decided or must be checked again: outcomes without a letter, message names, details of refusals.

    at: store time at which suppressions were read; only newer ones can still strike someone out.
    """

    at: datetime
    outcomes: Mapping[int, Outcome] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)
    details: Mapping[int, str] = field(default_factory=dict)
    lists: tuple[str, ...] = ("*",)


class Move(Enum):
    """What the owner does after a transaction."""

    GO = "go"  # the intent is durable and holds its permit: check the deadline, send, then advance
    AGAIN = "again"  # the batch is mine, the request must change: fewer ordinals, no more than `size`, `cuts` of shares
    HOLD = "hold"  # no permit before `until`: keep the rendered batch, claim it again then
    ENDED = "ended"  # the batch is no longer mine, by my own step: done, handed back, or in doubt
    LOST = "lost"  # the batch was not mine any more (or never): drop everything


@dataclass(frozen=True)
class Turn:
    """The answer of claim, reclaim and advance. `batch` is the row as committed (None when it is lost)."""

    move: Move
    batch: Batch | None = None
    size: int | None = None
    cuts: Mapping[str, Cut] = field(default_factory=dict)
    until: datetime | None = None
    reason: str = ""


def batch_key(campaign_id: str, batch_no: int) -> tuple[int, str, int]:
    return shard_of(campaign_id, batch_no), campaign_id, batch_no
