"""Connections to SQLite files: one per thread, and none that crosses a fork.

A process that is forked while SQLite has a file open inherits SQLite's notes on the locks it holds, but not the
locks: it would read and write without them (https://www.sqlite.org/howtocorrupt.html, section 2.6). So every
connection is closed before a fork and opened again, on either side, when it is next used.
"""

import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sendonce.stores.base import StoreRefused

_FORK_WAIT_S: Final = 5.0
_SETUP: Final = (
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = ON",
    "PRAGMA cache_size = -16384",
    "PRAGMA journal_size_limit = 67108864",
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing file, in autocommit mode, that never waits by itself."""
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=0,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    try:
        for statement in _SETUP:
            connection.execute(statement)
    except BaseException:
        connection.close()
        raise
    return connection


class _Held:
    """One thread's connection. The lock is held while it is in use, and by a fork."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.connection: sqlite3.Connection | None = None


class Connections:
    """The connections of this process to one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._of_thread = threading.local()
        self._held: weakref.WeakSet[_Held] = weakref.WeakSet()
        self._crossed_a_fork = False
        with _fork_lock:
            _all.add(self)

    @contextmanager
    def mine(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection, opened if need be. A fork waits until it is given back."""
        held = getattr(self._of_thread, "held", None)
        if held is None:
            held = self._of_thread.held = _Held()
            with _fork_lock:
                self._held.add(held)
        with held.lock:
            if self._crossed_a_fork:
                raise StoreRefused(
                    f"store {self._path}: this process was forked in the middle of a transaction and cannot use the "
                    "store; start it by spawn"
                )
            if held.connection is None:
                held.connection = connect(self._path)
            yield held.connection

    def close(self) -> None:
        for held in list(self._held):
            with held.lock:
                _close(held)

    def before_fork(self) -> list[_Held]:
        """Close what is idle; returns what is locked until the fork is over."""
        locked = []
        for held in list(self._held):
            if held.lock.acquire(timeout=_FORK_WAIT_S):
                locked.append(held)
                if held.connection is not None and not held.connection.in_transaction:
                    _close(held)
        return locked

    def after_fork_in_child(self) -> None:
        for held in list(self._held):
            if held.connection is not None:
                self._crossed_a_fork = True
                # Even closing it here is unsafe, so it lives as long as the process.
                _never_closed.append(held.connection)
                held.connection = None


def _close(held: _Held) -> None:
    if held.connection is not None:
        held.connection.close()
        held.connection = None


_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_fork_lock = threading.RLock()
_locked_for_fork: list[_Held] = []
_never_closed: list[sqlite3.Connection] = []


def _before_fork() -> None:
    _fork_lock.acquire()
    for connections in list(_all):
        _locked_for_fork.extend(connections.before_fork())


def _after_fork() -> None:
    while _locked_for_fork:
        _locked_for_fork.pop().lock.release()
    _fork_lock.release()


def _after_fork_in_child() -> None:
    for connections in list(_all):
        connections.after_fork_in_child()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
