"""Making, opening and migrating a store on one machine: `sqlite:///relative/path`, `sqlite:////absolute/path`."""

import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Final, TypeVar

from schemas.tables import SCHEMA_VERSION
from sendonce.folders import private_folder
from sendonce.stores.base import NoStore, Store, StoreRefused
from sendonce.stores.ddl import sqlite_ddl
from sendonce.stores.migrations import check_not_newer, check_version, fact_number, next_step
from sendonce.stores.sqlite import SQLiteStore, sqlite_path
from sendonce.stores.sqlite_connections import connected
from sendonce.stores.sqlite_faults import in_our_words, is_busy, still_locked
from sendonce.stores.sqlite_time import SinceBoot

Result = TypeVar("Result")
_PATIENCE_S: Final = 30.0
_RETRY_S: Final = 0.01
# A row of a table without rowid that is longer than a quarter of its page spills onto pages of its own: with SQLite's
# usual 4 KB, a recipient with 1 KB of variables took 4.7 KB; with 8 KB pages it takes 1.3 KB, and loads three times as
# fast.
_PAGE_BYTES: Final = 8192


def make(url: str, environment: str) -> None:
    """Make the store's file, with its folder, tables and own facts, where they are missing."""
    path = sqlite_path(url)
    _make_file(path)

    def make_tables(connection: sqlite3.Connection) -> None:
        if not _has_tables(connection, path):
            connection.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
        _use_wal(connection, path)
        connection.execute("BEGIN IMMEDIATE")
        if not _has_tables(connection, path):
            for statement in sqlite_ddl():
                connection.execute(statement)
            facts = {"schema_version": str(SCHEMA_VERSION), "environment": environment, "clock": "0", "pace": "0 0 -"}
            rows = [*((name, value.encode()) for name, value in facts.items()), ("key", secrets.token_bytes(32))]
            connection.executemany("INSERT INTO meta (name, value) VALUES (?, ?)", rows)
        connection.execute("COMMIT")

    _patiently(path, make_tables)


def open_file(url: str, clock: Callable[[], datetime], boot_clock: Callable[[], SinceBoot] | None) -> Store:
    """The store of a URL. NoStore if there is none; StoreRefused for the schema of another release."""
    path = _existing(url)

    def check(connection: sqlite3.Connection) -> None:
        check_version(_version(connection, path), path)
        _use_wal(connection, path)

    _patiently(path, check)
    return SQLiteStore(url, clock=clock, boot_clock=boot_clock)


def migrate(url: str) -> tuple[int, int]:
    """Bring a store to this release's schema, a step at a time, each in a transaction; returns (from, to) versions.

    Safe to run again after a kill, and by two processes at once. StoreRefused for a store of a newer release.
    """
    path = _existing(url)

    def step(connection: sqlite3.Connection) -> tuple[int, int]:
        connection.execute("BEGIN IMMEDIATE")
        found = _version(connection, path)
        check_not_newer(found, path)
        migration = next_step(found)
        if migration is not None:
            for statement in migration.sqlite:
                connection.execute(statement)
            reached = str(migration.version).encode()
            connection.execute("UPDATE meta SET value = ? WHERE name = 'schema_version'", (reached,))
        connection.execute("COMMIT")
        return found, migration.version if migration is not None else found

    first, reached = _patiently(path, step)
    while next_step(reached) is not None:
        _, reached = _patiently(path, step)
    return first, reached


def _existing(url: str) -> Path:
    path = sqlite_path(url)
    try:
        path.stat()
    except FileNotFoundError:
        raise NoStore(
            f"there is no store at {path}; run `sendonce init`, or name the one there is by --store or SENDONCE_STORE"
        ) from None
    except OSError as fault:
        raise StoreRefused(f"store {path}: {fault.strerror}; check the path and its permissions") from fault
    return path


def _make_file(path: Path) -> None:
    """An empty file that only its owner reads: addresses and the store's key will lie in it."""
    try:
        private_folder(path.parent)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        if path.parent.is_dir():
            return
        raise StoreRefused(f"store {path}: {path.parent} is a file, not a folder; choose another path") from None
    except OSError as fault:
        raise StoreRefused(
            f"store {path} cannot be made: {fault.strerror}; choose a path where this user may write"
        ) from fault


def _has_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Whether the file holds a store; False for an empty file, NoStore for somebody else's database."""
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if names and not {"meta", "campaigns"} <= names:
        raise NoStore(f"store {path}: the file is a SQLite database, but not a Sendonce store; name another file")
    return bool(names)


def _version(connection: sqlite3.Connection, path: Path) -> int:
    if not _has_tables(connection, path):
        raise NoStore(f"store {path}: the file is empty; run `sendonce init`")
    found = connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone()
    if found is None:
        raise StoreRefused(f"store {path} has lost its schema_version; restore it from a backup")
    return fact_number("schema_version", found[0], path)


def _use_wal(connection: sqlite3.Connection, path: Path) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreRefused(f"store {path}: this file system cannot share a SQLite file; move the store to a local disk")


def _patiently(path: Path, work: Callable[[sqlite3.Connection], Result]) -> Result:
    """Run `work` on a connection of its own, again while others hold the lock; what it left open is rolled back."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            with connected(path) as connection:
                return work(connection)
        except sqlite3.Error as fault:
            if not is_busy(fault):
                raise in_our_words(fault, path) from fault
            if time.monotonic() >= deadline:
                raise still_locked(path, "opening", _PATIENCE_S) from fault
        time.sleep(_RETRY_S)
