"""Making, finding and opening a store on Spanner: `spanner://PROJECT/INSTANCE/DATABASE`.

On the emulator `init` makes instance and database too. In a real project both are made by whoever owns it (the commands
stand in the refusal), and `init` only makes the tables in a database that is empty.
"""

import os
import re
import secrets
from functools import partial
from typing import Any, Final, NamedTuple

from schemas.tables import SCHEMA_VERSION, Meta
from sendonce.stores.base import AlreadyExists, NoStore, Store, StoreRefused, Tx
from sendonce.stores.ddl import spanner_ddl
from sendonce.stores.migrations import check_not_newer, check_version, fact_number, next_step

EMULATOR: Final = "SPANNER_EMULATOR_HOST"
_URL: Final = re.compile(
    r"spanner://([a-z][a-z0-9:.-]{1,61}[a-z0-9])/([a-z][a-z0-9-]{0,62}[a-z0-9])/([a-z][a-z0-9_-]{0,28}[a-z0-9])"
)
_FORM: Final = "spanner://PROJECT/INSTANCE/DATABASE"
CALL_S = 60.0
_SCHEMA_S: Final = 600.0


class Place(NamedTuple):
    """Where a Spanner store is."""

    project: str
    instance: str
    database: str


def place_of(url: str) -> Place:
    """NoStore for a URL that names no database."""
    match = _URL.fullmatch(url)
    if match is None:
        raise NoStore(f"store {url!r} is not a store URL; write {_FORM}, in small letters as the console shows it")
    return Place(*match.groups())


def on_emulator() -> bool:
    return bool(os.environ.get(EMULATOR))


def gcloud_commands(url: str) -> list[str]:
    """What makes the instance and the database of a URL in a real project, for a person to run."""
    project, instance, database = place_of(url)
    return [
        f"gcloud spanner instances create {instance} --project={project} --config=regional-europe-west1 "
        f"--processing-units=100 --edition=STANDARD --description={instance}",
        f"gcloud spanner databases create {database} --project={project} --instance={instance}",
    ]


def make(url: str, environment: str) -> None:
    """Make the tables and the store's own facts, if they are missing; on the emulator, instance and database first."""
    database = _database(url)
    if on_emulator():
        _make_instance_and_database(url, database)
    _guarded(url, lambda: _make_tables(url, database))
    facts = {"schema_version": str(SCHEMA_VERSION).encode(), "environment": environment.encode()}
    store = _store(url, database)

    def write(tx: Tx) -> None:
        if tx.get(Meta, "key") is None:
            tx.insert(*(Meta(name, value) for name, value in facts.items()), Meta("key", secrets.token_bytes(32)))

    try:
        store.transact(write, tag="init")
    except AlreadyExists:  # another init was faster
        return


def open_place(url: str) -> Store:
    """The store of a URL. NoStore if there is none; StoreRefused for the schema of another release."""
    store = _store(url, _database(url))
    check_version(_version(store), url)
    return store


def migrate(url: str) -> tuple[int, int]:
    """Bring a store to this release's schema, step by step; returns (from, to) versions. Safe to run again."""
    database = _database(url)
    store = _store(url, database)
    found = _version(store)
    check_not_newer(found, url)
    reached = found
    while (step := next_step(reached)) is not None:
        if step.spanner:
            _guarded(url, partial(_change_tables, database, list(step.spanner)))
        reached = step.version
        store.transact(partial(_note_version, version=reached), tag="migrate")
    return found, reached


def _change_tables(database: Any, statements: list[str]) -> None:
    database.update_ddl(statements).result(_SCHEMA_S)


def _note_version(tx: Tx, version: int) -> None:
    tx.put(Meta("schema_version", str(version).encode()))


def _database(url: str) -> Any:
    """The library's database object of a URL; nothing is asked of it yet."""
    place = place_of(url)
    return _client(url).instance(place.instance).database(place.database)


def _client(url: str) -> Any:
    try:
        from google.auth.credentials import AnonymousCredentials
        from google.auth.exceptions import DefaultCredentialsError
        from google.cloud import spanner
    except ImportError as fault:
        raise StoreRefused(
            f"store {url}: the package {fault.name} is not installed; install sendonce[gcp] (`make cloud`)"
        ) from None
    if on_emulator():
        # The emulator forgets the transactions of a session as soon as another thread begins one on it: read-write ones
        # fail (237 of 240 that ran side by side), and reads lose their snapshot ("Transaction not found").
        for sessions in ("MULTIPLEXED_SESSIONS", "MULTIPLEXED_SESSIONS_FOR_RW"):
            os.environ.setdefault(f"GOOGLE_CLOUD_SPANNER_{sessions}", "false")
    try:
        credentials = AnonymousCredentials() if on_emulator() else None
        return spanner.Client(project=place_of(url).project, credentials=credentials, disable_builtin_metrics=True)
    except DefaultCredentialsError:
        raise StoreRefused(
            f"store {url}: no Google credentials were found; run `gcloud auth application-default login`, or set "
            f"{EMULATOR} for the emulator"
        ) from None


def _store(url: str, database: Any) -> Store:
    from sendonce.stores.spanner import SpannerStore

    return SpannerStore(url, database, one_writer=on_emulator())


def _make_instance_and_database(url: str, database: Any) -> None:
    from google.api_core import exceptions

    place = place_of(url)

    def work() -> None:
        config = f"projects/{place.project}/instanceConfigs/emulator-config"
        instance = _client(url).instance(place.instance, configuration_name=config, node_count=1)
        for made in (instance.create, database.create):
            try:
                made().result(CALL_S)
            except exceptions.AlreadyExists:
                continue

    _guarded(url, work)


def _make_tables(url: str, database: Any) -> None:
    from google.api_core import exceptions

    with database.snapshot() as snapshot:
        rows = snapshot.execute_sql("SELECT table_name FROM information_schema.tables WHERE table_schema = ''")
        names = {name for (name,) in rows}
    if {"meta", "campaigns"} <= names:
        return
    if names:
        raise NoStore(f"store {url}: the database is somebody else's ({len(names)} tables); name an empty one")
    try:
        database.update_ddl(spanner_ddl()).result(_SCHEMA_S)
    except (exceptions.FailedPrecondition, exceptions.AlreadyExists):
        # Another init made them meanwhile, or the database refuses: the next look tells which.
        with database.snapshot() as snapshot:
            if not list(snapshot.execute_sql("SELECT 1 FROM information_schema.tables WHERE table_name = 'meta'")):
                raise


def _version(store: Store) -> int:
    from google.api_core import exceptions

    try:
        row = store.read(lambda reader: reader.get(Meta, "schema_version"))
    except StoreRefused as fault:
        if isinstance(fault.__cause__, exceptions.NotFound):
            raise NoStore(str(fault)) from None
        raise
    if row is None:
        raise NoStore(f"store {store.url} is empty; run `sendonce init`")
    return fact_number("schema_version", row.value, store.url)


def _guarded(url: str, work: Any) -> Any:
    """Run calls of the library's; what fails is said in our words, with the commands that mend a missing database."""
    from google.api_core import exceptions

    from sendonce.stores.spanner_faults import FAULTS, in_our_words

    try:
        return work()
    except exceptions.NotFound:
        commands = "\n  ".join(gcloud_commands(url))
        raise StoreRefused(f"there is no database {url}; make it first:\n  {commands}") from None
    except exceptions.PermissionDenied:
        raise StoreRefused(
            f"store {url}: this account may not make or change its tables; give it the role "
            "roles/spanner.databaseAdmin for that, or let somebody run what `sendonce init --print-ddl` prints"
        ) from None
    except FAULTS as fault:
        raise in_our_words(url, fault) from fault
