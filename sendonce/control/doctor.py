"""Looking over an installation: each finding says how it is and, if it is not well, how to mend it."""

import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Final

from schemas.tables import SCHEMA_VERSION, Meta
from sendonce.config import (
    Config,
    ConfigFault,
    OutboxSettings,
    SenderSettings,
    config_changes,
    lanes_in,
    senders_in,
    topics_in,
)
from sendonce.config.placeholders import address_problem, placeholders, reaches_people, used_senders
from sendonce.config.secrets import resolve
from sendonce.control.doubts import list_doubts
from sendonce.control.findings import Finding, Level, from_text
from sendonce.control.guards import sender_obstacle
from sendonce.control.notices import LATE, notices_text, waiting_notices
from sendonce.control.reaching import reach_senders
from sendonce.control.sender_health import unwell_senders
from sendonce.control.topics import check_topic
from sendonce.rendering.catalogue import find_template, manifest_of, template_names
from sendonce.rendering.faults import TemplateFault
from sendonce.stores.base import Store, StoreError
from sendonce.stores.opening import open_store, store_environment
from sendonce.stores.sqlite import sqlite_path
from sendonce.times import check_times

DISK_FAIL_BYTES: Final = 100 * 1024**2
DISK_WARN_BYTES: Final = 1024**3
# More than drifting clocks under NTP differ; leases are seconds long.
CLOCK_WARN_S: Final = 2.0


def examine(
    load: Callable[[], Config], *, offline: bool = False, now: Callable[[], datetime] = lambda: datetime.now(UTC)
) -> list[Finding]:
    """Everything there is to say of an installation. load: reads the settings. No fault of it is raised.

    offline: without a look at the providers of senders and at topics.
    """
    findings = [*_python(), *_packages()]
    try:
        config = load()
    except ConfigFault as fault:
        return [*findings, *(Finding("fail", "settings", problem, "mend the file") for problem in fault.problems)]
    findings.append(Finding("ok", "settings", "read, and every value is in bounds"))
    findings += [*_templates(config), *_disk(config)]
    try:
        store = open_store(config.store)
    except StoreError as fault:
        return [*findings, from_text("store", str(fault))]
    try:
        return [
            *findings,
            *_store(store),
            *_clock(store, now()),
            *_applied(store, config),
            *_addresses(store, config),
            *_lanes(store, offline=offline),
            *_topics(store, config, offline=offline),
        ]
    finally:
        store.close()


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    good = (3, 11) <= sys.version_info < (3, 13)
    yield Finding("ok" if good else "fail", "python", version, "" if good else "use Python 3.11 or 3.12")


def _packages() -> Iterator[Finding]:
    try:
        required = metadata.requires("sendonce") or []
    except metadata.PackageNotFoundError:
        yield Finding(
            "warn", "packages", "sendonce itself is not installed here", "run `pip install -e .` in its folder"
        )
        return
    pinned = (re.match(r"([A-Za-z0-9._-]+)==([^ ;]+)$", line) for line in required)
    wrong = [text for match in pinned if match and (text := _version_fault(match[1], match[2]))]
    if wrong:
        yield Finding("warn", "packages", "; ".join(wrong), "install again: `make test` or `pip install -e .`")
    else:
        yield Finding("ok", "packages", f"sendonce {metadata.version('sendonce')} with the versions it was tested with")


def _version_fault(name: str, wanted: str) -> str:
    try:
        found = metadata.version(name)
    except metadata.PackageNotFoundError:
        return f"{name} is missing"
    return "" if found == wanted else f"{name} is {found}, tested with {wanted}"


def _templates(config: Config) -> Iterator[Finding]:
    from sendonce.rendering.check import check_template

    good = []
    for name in template_names(config.template_folders()):
        try:
            findings = check_template(find_template(name, config.template_folders()))
        except TemplateFault as fault:
            yield from_text(f"template {name}", str(fault))
            continue
        if errors := sum(found.level == "error" for found in findings):
            mend = f"`sendonce check {name}` lists them"
            yield Finding("fail", f"template {name}", f"{errors} errors", mend)
        else:
            good.append(name)
    yield Finding("ok" if good else "warn", "templates", ", ".join(good) or "none", "" if good else "add one")


def _disk(config: Config) -> Iterator[Finding]:
    places: Mapping[str, Path] = {
        **({"disk of the store": sqlite_path(config.store).parent} if config.store.startswith("sqlite:") else {}),
        **{f"disk of {s.name}": Path(s.path) for s in config.senders.values() if isinstance(s, OutboxSettings)},
    }
    for what, place in places.items():
        try:
            there = _nearest(place.absolute())
        except OSError as fault:
            yield Finding("fail", what, f"{place} cannot be reached: {fault.strerror}", "choose another path")
            continue
        if not there.is_dir():
            yield Finding("fail", what, f"{there} is a file, not a folder", "choose another path")
            continue
        free = shutil.disk_usage(there).free
        text = f"{free / 1024**3:,.1f} GiB free at {there}"
        if not os.access(there, os.W_OK | os.X_OK):
            yield Finding("fail", what, f"{there} cannot be written", "give this user write permission to the folder")
        elif free < DISK_FAIL_BYTES:
            yield Finding("fail", what, text, "free some space: a full disk stops every send")
        elif free < DISK_WARN_BYTES:
            yield Finding("warn", what, text, "free some space before a large campaign")
        else:
            yield Finding("ok", what, text)


def _nearest(place: Path) -> Path:
    """The path itself, or the nearest one above it that is there. OSError for a path that can't be made as it is."""
    for path in (place, *place.parents):
        try:
            path.stat()
        except FileNotFoundError:
            if path.is_symlink():  # it leads nowhere: no folder can be made in its place
                raise
        except NotADirectoryError:
            pass
        else:
            return path
    raise AssertionError("the root is there")


def _store(store: Store) -> Iterator[Finding]:
    try:
        # Deleting a row that is not there takes the same path to the disk as any other write.
        store.transact(lambda tx: tx.delete(Meta("doctor", b"")), tag="doctor")
    except StoreError as fault:
        yield from_text("store", str(fault))
        return
    environment = store_environment(store)
    yield Finding("ok", "store", f"{store.url}, version {SCHEMA_VERSION}, {environment}, can be written")


def _clock(store: Store, now: datetime) -> Iterator[Finding]:
    ahead_s = (store.read(lambda reader: reader.now()) - now).total_seconds()
    if abs(ahead_s) > CLOCK_WARN_S:
        which = "behind" if ahead_s > 0 else "ahead of"
        mend = "set this machine's clock (NTP); leases go by the store's time, so nothing is sent twice"
        yield Finding("warn", "clock", f"this machine is {abs(ahead_s):,.0f} s {which} the store's time", mend)
    else:
        yield Finding("ok", "clock", "this machine and the store agree")


def _applied(store: Store, config: Config) -> Iterator[Finding]:
    changes = config_changes(store, config)
    if changes:
        places = f"the store differs from the settings in {len(changes)} places"
        yield Finding("warn", "lanes and senders", places, "`sendonce config apply`")
    else:
        yield Finding("ok", "lanes and senders", "the store has them as set")


def _addresses(store: Store, config: Config) -> Iterator[Finding]:
    """Addresses from examples that real letters would bear."""
    senders = [sender for sender in used_senders(config) if sender.adapter != "outbox"]
    if store_environment(store) != "production" or not senders:
        return
    level: Level = "fail" if any(reaches_people(sender) for sender in senders) else "warn"
    for problem in placeholders(config):
        yield replace(from_text("addresses", problem), level=level)
    for name in template_names(config.template_folders()):
        with suppress(TemplateFault):
            manifest = manifest_of(find_template(name, config.template_folders()))
            for setting, address in (("from", manifest.from_address), ("reply_to", manifest.reply_to)):
                if problem := address_problem(address):
                    mend = f"set it to an address of your own in template.yaml of {name}"
                    yield Finding(level, f"template {name}", f"{setting} {problem}", mend)


def _lanes(store: Store, *, offline: bool) -> Iterator[Finding]:
    try:
        lanes, senders = lanes_in(store), senders_in(store)
    except ConfigFault as fault:
        yield from (from_text("lanes", problem) for problem in fault.problems)
        return
    for lane in lanes.values():
        for name in lane.senders():
            if name not in senders:
                mend = "add it under senders, then `sendonce config apply`"
                yield Finding("fail", f"lane {lane.name}", f"its sender {name} is not in the store", mend)
    used = sorted({name for lane in lanes.values() for name in lane.senders()})
    obstacles = store.read(lambda reader: {name: sender_obstacle(reader, name) for name in used})
    yield from (from_text(f"sender {name}", problem) for name, problem in obstacles.items() if problem)
    missing = list(_secrets([senders[name] for name in used if name in senders]))
    yield from missing
    if not offline:  # who has something else to mend is not asked yet
        amiss = {finding.what for finding in missing}
        may = [name for name in used if name in senders and not obstacles[name] and f"sender {name}" not in amiss]
        yield from reach_senders([senders[name] for name in may])
    yield from _health(store, tuple(lanes))
    yield from _doubts(store)
    broken = [problem for lane in lanes.values() for problem in check_times(lane.all_times(), lane.name)]
    for problem in broken:
        yield Finding("fail", "times", problem, "change the lane's times in sendonce.yaml")
    if not broken:
        yield Finding("ok", "times", "leases, time-outs and waits fit together")


def _secrets(senders: Sequence[SenderSettings]) -> Iterator[Finding]:
    for sender in senders:
        for setting, reference in sender.secret_references().items():
            try:
                resolve(reference, sender=sender.name, setting=setting, environ=os.environ)
            except ConfigFault as fault:
                yield from (from_text(f"sender {sender.name}", problem) for problem in fault.problems)


def _health(store: Store, lanes: tuple[str, ...]) -> Iterator[Finding]:
    for health in store.read(lambda reader: unwell_senders(reader, lanes)):
        level: Level = "fail" if health.state == "halted" else "warn"
        told = f"{health.state.replace('_', ' ')} ({health.reason}) since {health.since:%Y-%m-%d %H:%M} UTC"
        yield Finding(level, f"sender {health.sender}", told, health.mend or "`sendonce status` follows it")


def _doubts(store: Store) -> Iterator[Finding]:
    count = sum(doubt.recipients for doubt in list_doubts(store) if doubt.held)
    if count:
        yield Finding("warn", "doubts", f"{count:,} recipients wait for a person's decision", "`sendonce doubts list`")


def _topics(store: Store, config: Config, *, offline: bool = False) -> Iterator[Finding]:
    """The topics that jobs use, those of the store; and those of the settings, which may not be applied yet."""
    applied, waiting = store.read(topics_in), store.read(waiting_notices)
    topics = {} if offline else {**config.topics(), **applied}
    for kind, topic in topics.items():
        setting = f"{kind}_topic"
        if problem := check_topic(topic):
            yield from_text(setting, problem)
        else:
            yield Finding("ok", setting, f"{topic} is there and may be published to")
    for some in waiting:
        told = f"{notices_text(some.kind, some.count)} wait, the oldest since {some.since:%Y-%m-%d %H:%M:%S} UTC"
        if some.kind not in applied:
            mend = f"set {some.kind}_topic, then `sendonce config apply`; else they are given up after a week"
            yield Finding("warn", "notices", told, mend)
        elif store.read(lambda reader: reader.now()) - some.since > LATE:
            yield Finding("warn", "notices", told, "`sendonce run` publishes them, once the topic takes them")
