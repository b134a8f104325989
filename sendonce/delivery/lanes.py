"""A lane as it runs: its terms, its policy for doubts, and the sender that goes with it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Optional

from sendonce.config import (
    ConfigFault,
    Lane,
    SenderSettings,
    domain_groups_in,
    lanes_in,
    senders_in,
)
from sendonce.config.stored import applied_revision
from sendonce.control.guards import sender_obstacle
from sendonce.delivery.resolver import Policy
from sendonce.delivery.terms import Terms
from sendonce.mailboxes import DomainGroups
from sendonce.senders.base import Sender
from sendonce.senders.making import make_sender
from sendonce.stores.base import Store


@dataclass(frozen=True)
class RunningLane:
    """Everything that delivering in one lane needs besides a store. fallback: by what it goes while its own sender
    cannot send."""

    lane: Lane
    terms: Terms
    policy: Policy
    sender: Sender
    settings: SenderSettings
    fallback: Optional["Made"] = None

    def made(self) -> Iterator["Made"]:
        """Its senders, its own first."""
        yield Made(self.settings, self.sender)
        if self.fallback is not None:
            yield self.fallback


@dataclass(frozen=True)
class Made:
    """An account, and the adapter that was made for it."""

    settings: SenderSettings
    sender: Sender


def running_lanes(
    store: Store, names: tuple[str, ...], before: Mapping[str, RunningLane] | None = None
) -> dict[str, RunningLane]:
    """The lanes of these names as the store configures them now, critical first. ConfigFault when it has none.

    before: the lanes as they ran until now; a sender whose settings are the same goes on, with its connections.

    Only senders that these lanes use are made: nothing else's secrets are needed here. ConfigFault, too, for a real
    sender that must not work from this store.
    """
    # Before what it names: settings that are applied in between make these look old, never new.
    revision = store.read(applied_revision)
    lanes = {name: lane for name, lane in lanes_in(store).items() if name in names}
    used = {name for lane in lanes.values() for name in lane.senders()}
    obstacles = store.read(lambda reader: [sender_obstacle(reader, name) for name in sorted(used)])
    if any(obstacles):
        raise ConfigFault(*filter(None, obstacles))
    settings = {name: found for name, found in senders_in(store).items() if name in used}
    held = {made.settings.name: made for running in (before or {}).values() for made in running.made()}
    made = {
        name: held[name] if name in held and held[name].settings == found else Made(found, make_sender(found))
        for name, found in settings.items()
    }
    groups = domain_groups_in(store)
    return {name: _running(lane, made, groups, revision) for name, lane in lanes.items()}


def scopes_of(lane: str, settings: SenderSettings) -> tuple[str, ...]:
    """The scopes from which every request of a lane draws with all its recipients."""
    warm_up = (f"warmup:{settings.name}",) if settings.warm_up is not None else ()
    return (f"lane:{lane}", f"sender:{settings.name}", *warm_up)


def _running(lane: Lane, made: Mapping[str, Made], groups: DomainGroups | None, revision: str) -> RunningLane:
    own = made[lane.sender]
    other = made[lane.fallback] if lane.fallback is not None else None
    terms = _terms(lane, own, groups, revision)
    if other is not None:
        terms = replace(terms, fallback=_terms(lane, other, groups, revision))
    policy = Policy(
        in_doubt=lane.in_doubt,
        outbound_log=lane.outbound_log,
    )
    return RunningLane(lane, terms, policy, own.sender, own.settings, other)


def _terms(lane: Lane, by: Made, groups: DomainGroups | None, revision: str) -> Terms:
    times = lane.all_times()
    return Terms(
        lane=lane.name,
        sender=by.settings.name,
        scopes=scopes_of(lane.name, by.settings),
        times=times,
        hold_max_s=times.hold_max_s,
        provider=by.sender.identity,
        asks_again_s=by.sender.capabilities.idempotency_window_s,
        outbound_log=lane.outbound_log,
        groups=groups,
        revision=revision,
    )
