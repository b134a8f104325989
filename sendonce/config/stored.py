"""Lanes, limits, senders, guards, topics and the from address in the store, where jobs read them. Never a secret."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from secrets import token_hex
from typing import Final, TypeVar

import orjson
from pydantic import TypeAdapter, ValidationError

from schemas.tables import Limit, Meta, Setting
from sendonce.config.adapters import AnySender
from sendonce.config.adapters.account import SenderSettings
from sendonce.config.faults import ConfigFault
from sendonce.config.model import LANE_NAMES, Config, DomainGroup, Lane
from sendonce.config.placeholders import placeholders, reaches_people, used_senders
from sendonce.mailboxes import DomainGroups
from sendonce.stores.base import Reader, Store, Tx

_KINDS = ("lane", "sender", "guard", "topic", "domain", "letters")
_SCOPES = ("lane:", "sender:", "domain:", "warmup:")
_LANE: Final[TypeAdapter[Lane]] = TypeAdapter(Lane)
_SENDER: Final[TypeAdapter[SenderSettings]] = TypeAdapter(AnySender)
_GROUP: Final[TypeAdapter[DomainGroup]] = TypeAdapter(DomainGroup)
Model = TypeVar("Model")
_DAYS_TOLD: Final = 6
TOPIC: Final = "topic"
_REVISION: Final = ("applied", "revision")


@dataclass(frozen=True)
class ConfigChange:
    """One difference between a configuration and the store. action: `add`, `change` or `remove`."""

    action: str
    what: str
    before: str
    after: str

    def fields(self) -> list[tuple[str, str, str]]:
        """What is other inside: field, before, after, in words; "" where there is none. References, never secrets.

        The limits of a lane, a sender or a group are changes of their own and are left out here. What is none of them
        has one field without a name.
        """
        if not self.what.startswith(("lane ", "sender ", "domain ")):
            return [("", self.before, self.after)]
        before, after = (_inside(text) for text in (self.before, self.after))
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        return [(name, before.get(name, ""), after.get(name, "")) for name in names]


def _inside(value: str) -> dict[str, str]:
    """The fields of a lane, a sender or a group as they are shown; what is not set is left out."""
    fields = orjson.loads(value) if value else {}
    shown = {name: found for name, found in fields.items() if name not in ("name", "limits", "warm_up")}
    return {
        name: found if isinstance(found, str) else orjson.dumps(found).decode()
        for name, found in shown.items()
        if found not in (None, [], {}, "")
    }


def apply_config(store: Store, config: Config, by: str) -> list[ConfigChange]:
    """Bring the store's lanes, limits, senders, guards, topics and from address to the settings, in one transaction.

    Returns what changed. ConfigFault if the store was made for another environment than the configuration names, and
    for addresses from examples in a store for production whose lanes send by a provider. Applying the same twice
    changes nothing. A limit that stays keeps its level: applying does not refill a bucket.
    """

    def work(tx: Tx) -> list[ConfigChange]:
        _check_environment(tx, config, store.url)
        to_people = is_production(tx) and any(reaches_people(sender) for sender in used_senders(config))
        if to_people and (problems := list(placeholders(config))):
            raise ConfigFault(*problems)
        now = tx.now()
        changes, writes, removals = _differences(tx, config, by, now)
        tx.delete(*removals)
        tx.put(*writes)
        if changes:
            tx.put(Setting(*_REVISION, token_hex(8), now, by))
        return changes

    return store.transact(work, tag="config_apply")


def _check_environment(reader: Reader, config: Config, url: str) -> None:
    """Settings for production never meet a store for tests, nor the other way round."""
    row = reader.get(Meta, "environment")
    found = row.value.decode() if row is not None else ""
    if config.environment not in (None, found):
        raise ConfigFault(
            f"environment: the settings are for {config.environment}, {url} was made for {found}; "
            "name the other store, or mend the setting"
        )


def is_production(reader: Reader) -> bool:
    """Whether a store was made for letters to real people."""
    row = reader.get(Meta, "environment")
    return row is not None and row.value == b"production"


def check_environment(store: Store, config: Config) -> None:
    """ConfigFault if the store was made for another environment than the configuration names."""
    store.read(lambda reader: _check_environment(reader, config, store.url))


def config_changes(store: Store, config: Config) -> list[ConfigChange]:
    """What `apply_config` would change now."""
    return store.read(lambda reader: _differences(reader, config, "", reader.now())[0])


def lanes_in(store: Store) -> dict[str, Lane]:
    """The lanes that jobs run with, by name, critical first. ConfigFault when none were applied."""
    lanes = {row.name: _parse(_LANE, row) for row in _settings(store, "lane")}
    return {name: lanes[name] for name in LANE_NAMES if name in lanes}


def senders_in(store: Store) -> dict[str, SenderSettings]:
    """The senders that jobs may use, by name. ConfigFault when none were applied."""
    return {row.name: _parse(_SENDER, row) for row in _settings(store, "sender")}


def sender_in(reader: Reader, name: str) -> SenderSettings | None:
    """One sender as it was applied; None for one that the store does not hold."""
    row = reader.get(Setting, "sender", name)
    return _parse(_SENDER, row) if row is not None else None


def lane_in(reader: Reader, name: str) -> Lane | None:
    """One lane as it was applied; None for one that the store does not hold."""
    row = reader.get(Setting, "lane", name)
    return _parse(_LANE, row) if row is not None else None


def applied_revision(reader: Reader) -> str:
    """Names what was applied last, so that a job can tell whether it works by old settings; empty before `init`."""
    row = reader.get(Setting, *_REVISION)
    return row.value if row is not None else ""


def domain_groups_in(store: Store) -> DomainGroups | None:
    """The groups of mailbox providers that have limits; None when no group has."""
    rows = store.read(lambda reader: reader.scan(Setting, "domain"))
    groups = [_parse(_GROUP, row) for row in rows]
    return DomainGroups({group.name: group.domains for group in groups}) if groups else None


def topics_in(reader: Reader) -> dict[str, str]:
    """The topics for notices, by kind (`outcomes`, `dead_letters`); a kind without one is told to nobody."""
    return {row.name: str(orjson.loads(row.value)) for row in reader.scan(Setting, TOPIC)}


def topic_in(reader: Reader, kind: str) -> str | None:
    """The topic for the notices of one kind."""
    row = reader.get(Setting, TOPIC, kind)
    return str(orjson.loads(row.value)) if row is not None else None


def _settings(store: Store, kind: str) -> list[Setting]:
    rows = store.read(lambda reader: reader.scan(Setting, kind))
    if not rows:
        raise ConfigFault(f"{store.url} holds no {kind}s; run `sendonce config apply`")
    return rows


def _parse(model: TypeAdapter[Model], row: Setting) -> Model:
    try:
        return model.validate_json(row.value)
    except ValidationError:
        raise ConfigFault(
            f"the {row.kind} {row.name!r} in the store was written by another release; run `sendonce config apply`"
        ) from None


def _differences(
    reader: Reader, config: Config, by: str, now: datetime
) -> tuple[list[ConfigChange], list[Setting | Limit], list[Setting | Limit]]:
    changes: list[ConfigChange] = []
    writes: list[Setting | Limit] = []
    removals: list[Setting | Limit] = []

    held = {(row.kind, row.name): row for kind in _KINDS for row in reader.scan(Setting, kind)}
    for kind, name, value in _values(config):
        row = held.pop((kind, name), None)
        if row is None or row.value != value:
            changes.append(ConfigChange("change" if row else "add", f"{kind} {name}", row.value if row else "", value))
            writes.append(Setting(kind, name, value, now, by))
    for row in held.values():
        changes.append(ConfigChange("remove", f"{row.kind} {row.name}", row.value, ""))
        removals.append(row)

    limits = {(row.scope, row.name): row for row in reader.scan(Limit) if row.scope.startswith(_SCOPES)}
    for wanted in _limits(config):
        limit = limits.pop((wanted.scope, wanted.name), None)
        if limit is None or _as_set(limit) != wanted:
            before = limit_text(limit) if limit else ""
            changes.append(
                ConfigChange(
                    "change" if limit else "add", f"limit {wanted.scope} {wanted.name}", before, limit_text(wanted)
                )
            )
            writes.append(_carried_over(wanted, limit, reader.pace()))
    for limit in limits.values():
        changes.append(ConfigChange("remove", f"limit {limit.scope} {limit.name}", limit_text(limit), ""))
        removals.append(limit)
    return changes, writes, removals


def _values(config: Config) -> Iterator[tuple[str, str, str]]:
    for lane in config.lanes.values():
        yield "lane", lane.name, lane.model_dump_json()
    for sender in config.senders.values():
        yield "sender", sender.name, sender.model_dump_json()
    for group in config.domains.values():
        yield "domain", group.name, group.model_dump_json()
    if config.from_address:
        yield "letters", "from", orjson.dumps(config.from_address).decode()
    for kind, topic in config.topics().items():
        yield TOPIC, kind, orjson.dumps(topic).decode()
    if config.recipients_allowed is not None:
        yield "guard", "recipients_allowed", orjson.dumps(sorted(set(config.recipients_allowed))).decode()
    if config.redirect_all_to is not None:
        yield "guard", "redirect_all_to", orjson.dumps(config.redirect_all_to).decode()


def _limits(config: Config) -> Iterator[Limit]:
    for lane in config.lanes.values():
        yield from (limit.row(f"lane:{lane.name}") for limit in lane.limits)
    for sender in config.senders.values():
        yield from (limit.row(f"sender:{sender.name}") for limit in sender.limits)
        if sender.warm_up is not None:
            yield sender.warm_up.row(f"warmup:{sender.name}")
    for group in config.domains.values():
        yield from (limit.row(f"domain:{group.name}") for limit in group.limits)


def _as_set(limit: Limit) -> Limit:
    """A limit as its setting made it, without what has been drawn from it since."""
    return replace(limit, level=None, level_at=None, slow=1.0, slow_at=None, stripes=1)


def limit_text(limit: Limit) -> str:
    """What people set of a limit, without its level: `500/s, burst 500`, `100000/day`, or a warm-up's first days."""
    if limit.kind == "rate":
        return f"{limit.per_s:g}/s, burst {limit.burst}"
    if limit.plan is not None and limit.starts_at is not None:
        days: list[int] = orjson.loads(limit.plan)
        told = ", ".join(map(str, days[:_DAYS_TOLD])) + (f" … {days[-1]}" if len(days) > _DAYS_TOLD else "")
        return f"{told} a day in the {len(days)} days from {limit.starts_at:%Y-%m-%d %H:%M} UTC"
    window = {1.0: "s", 60.0: "min", 3600.0: "hour", 86400.0: "day"}.get(limit.window_s, f"{limit.window_s:g}s")
    return f"{limit.most}/{window}"


def _carried_over(wanted: Limit, held: Limit | None, pace: datetime) -> Limit:
    """The new limit with the old bucket's level, filled up to now at the old rate, so that a change grants nothing."""
    if held is None or held.level is None or held.level_at is None or held.per_s is None or held.burst is None:
        return wanted
    gained = max(0.0, (pace - held.level_at).total_seconds()) * held.per_s * held.slow
    level = min(held.level + gained, float(held.burst), float(wanted.burst or 0))
    return replace(wanted, level=level, level_at=pace, slow=held.slow, slow_at=held.slow_at, stripes=held.stripes)
