"""Making, opening and migrating a store by its URL.

On one machine `sqlite:///relative/path` or `sqlite:////absolute/path`, for many `spanner://PROJECT/INSTANCE/DATABASE`.
What goes wrong is StoreRefused or StoreUnavailable; the message names the store, the fault and the mend.
"""

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

from schemas.tables import Meta
from sendonce.stores import spanner_opening, sqlite_opening
from sendonce.stores.base import Store, StoreRefused
from sendonce.stores.sqlite import sqlite_path, utc_now
from sendonce.stores.sqlite_time import SinceBoot

ENVIRONMENTS: Final = ("test", "production")

_shared: dict[str, Store] = {}
_shared_lock = threading.Lock()


def init_store(url: str, environment: str = "test") -> Store:
    """Make the store of a URL, with what it stands in, and open it. A store that is there already stays as it is.

    `environment`, `test` or `production`, is written once: StoreRefused if the store has another.
    """
    if environment not in ENVIRONMENTS:
        raise StoreRefused(f"a store's environment is {' or '.join(ENVIRONMENTS)}, not {environment!r}")
    if _on_spanner(url):
        spanner_opening.make(url, environment)
    else:
        sqlite_opening.make(url, environment)
    store = open_store(url)
    found = store_environment(store)
    if found != environment:
        raise StoreRefused(
            f"store {_place(url)} was made for environment {found}, not {environment}; "
            f"name another store, or run `sendonce init` for environment {found}"
        )
    return store


def open_store(
    url: str, *, clock: Callable[[], datetime] = utc_now, boot_clock: Callable[[], SinceBoot] | None = None
) -> Store:
    """Open the store of a URL. NoStore if there is none; StoreRefused for the schema of another release.

    clock, boot_clock: the machine's clocks, for a store on this machine; Spanner has its own.
    """
    if _on_spanner(url):
        return spanner_opening.open_place(url)
    return sqlite_opening.open_file(url, clock, boot_clock)


def shared_store(url: str) -> Store:
    """The process's one store object for a URL, opened at the first call."""
    key = url if _on_spanner(url) else f"sqlite:///{sqlite_path(url).absolute()}"
    with _shared_lock:
        if key not in _shared:
            _shared[key] = open_store(key)
        return _shared[key]


def migrate_store(url: str) -> tuple[int, int]:
    """Bring a store to this release's schema, a step at a time; returns (from, to) versions.

    Safe to run again after a kill, and by two processes at once. StoreRefused for a store of a newer release.
    """
    return spanner_opening.migrate(url) if _on_spanner(url) else sqlite_opening.migrate(url)


def store_key(store: Store) -> bytes:
    """The store's 32 secret bytes, from which message ids and address keys are made. Never rotated."""
    return _fact(store, "key")


def store_environment(store: Store) -> str:
    """`test` or `production`, as `init` wrote it."""
    return _fact(store, "environment").decode()


def _fact(store: Store, name: str) -> bytes:
    row = store.read(lambda reader: reader.get(Meta, name))
    if row is None:
        raise StoreRefused(f"store {store.url} has lost its {name}; restore it from a backup")
    return row.value


def _on_spanner(url: str) -> bool:
    return url.startswith("spanner:")


def _place(url: str) -> str:
    return url if _on_spanner(url) else str(sqlite_path(url))
