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
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import quote

from sendonce.stores.base import StoreRefused

_FORK_WAIT_S: Final = 5.0
_SETUP: Final = (
    "PRAGMA synchronous = FULL",
    "PRAGMA secure_delete = ON",
    # A thousand messages change a page of 8 KB each: what the cache does not hold goes to the journal and comes back.
    "PRAGMA cache_size = -16384",
    # At 128 MB of journal the pages go into the file, each once however often it was changed; a journal that a long
    # reader let grow is cut back to 256 MB.
    "PRAGMA wal_autocheckpoint = 16000",
    "PRAGMA journal_size_limit = 268435456",
)


def connect(path: Path) -> sqlite3.Connection:
    """A connection to an existing file, in autocommit mode, that never waits by itself."""
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?mode=rw",
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


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for one short piece of work. A fork waits until it is closed."""
    with _fork_lock, closing(connect(path)) as connection:
        yield connection


class Held:
    """One thread's place for a connection. The lock is held while a transaction runs, and by a fork."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.RLock()
        self.in_use = False
        self._path = path
        self._file: tuple[int, int] | None = None
        self._connection: sqlite3.Connection | None = None

    def connection(self) -> sqlite3.Connection:
        """The connection, opened if need be. sqlite3.Error if the file cannot be opened, or not yet."""
        if self._connection is None:
            self._connection = connect(self._path)
            self._file = _identity(self._path)
        elif self._file != _identity(self._path):
            # SQLite would go on writing into a file that nobody can find again.
            raise StoreRefused(
                f"store {self._path}: the file was removed or replaced while this process used it; "
                "end every process that uses it, then start again"
            )
        if self._connection.in_transaction:
            # Left by a signal that came just before the transaction was in anybody's care.
            self._connection.execute("ROLLBACK")
        return self._connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def leave_open_for_ever(self) -> bool:
        """In a forked child, where even closing the connection is unsafe. Returns whether there was one."""
        if self._connection is None:
            return False
        _never_closed.append(self._connection)
        self._connection = None
        return True


class Connections:
    """The connections of this process to one file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._of_thread = threading.local()
        self._held: weakref.WeakSet[Held] = weakref.WeakSet()
        self._forked_in_use = False
        with _fork_lock:
            _all.add(self)

    @contextmanager
    def mine(self) -> Iterator[Held]:
        """This thread's place, for one transaction. A fork waits until it is given back.

        RuntimeError if this thread is inside a transaction already.
        """
        held = self._place()
        with held.lock:
            if held.in_use:
                raise RuntimeError("the store was called inside a transaction; use what the transaction hands over")
            if self._forked_in_use:
                raise StoreRefused(
                    f"store {self._path}: this process was forked while a transaction ran, so it must not use the "
                    "store; start it by spawn"
                )
            held.in_use = True
            try:
                yield held
            finally:
                held.in_use = False

    def _place(self) -> Held:
        found: Held | None = getattr(self._of_thread, "held", None)
        if found is None:
            found = self._of_thread.held = Held(self._path)
            with _fork_lock:
                self._held.add(found)
        return found

    def close(self) -> None:
        for held in list(self._held):
            with held.lock:
                held.close()

    def before_fork(self) -> list[Held]:
        """Close what is idle; returns the places that are locked until the fork is over."""
        locked = []
        for held in list(self._held):
            if held.lock.acquire(timeout=_FORK_WAIT_S):
                locked.append(held)
                if not held.in_use:
                    held.close()
        return locked

    def after_fork_in_child(self) -> None:
        crossed = [held.leave_open_for_ever() for held in list(self._held)]
        self._forked_in_use = self._forked_in_use or any(crossed)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


_all: weakref.WeakSet[Connections] = weakref.WeakSet()
_fork_lock = threading.RLock()
_locked_for_fork: list[Held] = []
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
