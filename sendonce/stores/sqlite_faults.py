"""SQLite's errors in the words of the store's interface: the file, the fault, the mend.

Result codes: https://www.sqlite.org/rescode.html. SQLite's own texts name tables and columns, never values.
"""

import sqlite3
from pathlib import Path
from typing import Final

from sendonce.stores.base import AlreadyExists, StoreError, StoreRefused, StoreUnavailable
from sendonce.stores.sqlite_locks import holders

_DISK_FULL: Final = "there is no room to write; free disk space, or raise the quota or file size limit, and try again"
_DAMAGED: Final = "the file is damaged; keep a copy, then restore it from a backup"
_READ_ONLY: Final = "the file or its folder is read-only; let this user write to the file and to its folder"
_NOT_OPENED: Final = "the file cannot be opened; check that it is a file and that this user may write it and its folder"
_NO_DATABASE: Final = "the file is not a SQLite database; name another, or move it away and run `sendonce init`"

_REFUSALS: Final = {
    sqlite3.SQLITE_FULL: _DISK_FULL,
    sqlite3.SQLITE_READONLY: _READ_ONLY,
    sqlite3.SQLITE_PERM: _READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: _NOT_OPENED,
    sqlite3.SQLITE_CORRUPT: _DAMAGED,
    sqlite3.SQLITE_NOTADB: _NO_DATABASE,
    sqlite3.SQLITE_NOLFS: "the file has grown beyond what this file system holds; move the store to another one",
}

# Failed writes whose commit record cannot have reached the file: quota (EDQUOT), file size limit (EFBIG), no room.
_FAILED_WRITES: Final = {sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_TRUNCATE}
_TAKEN: Final = {
    sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY,
    sqlite3.SQLITE_CONSTRAINT_UNIQUE,
    sqlite3.SQLITE_CONSTRAINT_ROWID,
}


def is_busy(fault: sqlite3.Error) -> bool:
    """Whether somebody else holds the lock: trying again soon is right."""
    return _code(fault) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def in_our_words(fault: sqlite3.Error, path: Path, *, committing: bool = False) -> StoreError:
    """The error to raise for what SQLite raised on the store at `path`. `committing`: by COMMIT itself."""
    code = _code(fault)
    if code in _TAKEN:
        key = str(fault).removeprefix("UNIQUE constraint failed: ")
        return AlreadyExists(f"store {path}: a row with the same {key} exists; nothing of the transaction was stored")
    if code in _FAILED_WRITES:
        return StoreRefused(f"store {path}: {_DISK_FULL}")
    if code & 0xFF in _REFUSALS:
        return StoreRefused(f"store {path}: {_REFUSALS[code & 0xFF]}")
    if code & 0xFF == sqlite3.SQLITE_ERROR:
        return StoreRefused(f"store {path} is not as sendonce made it ({fault}); restore it from a backup")
    if code & 0xFF == sqlite3.SQLITE_IOERR:
        # The commit record may be in the journal, though its sync was not confirmed.
        problem = f"the disk failed ({fault}); check the disk and the system log, then try again"
        return StoreUnavailable(f"store {path}: {problem}", maybe_applied=committing)
    return StoreUnavailable(f"store {path}: {fault}; try again")


def still_locked(path: Path, what: str, waited_s: float) -> StoreUnavailable:
    """The error after `what` has waited for a lock in vain."""
    holding = holders(path) or "some process (a SQLite shell, a backup tool, a stopped sendonce)"
    return StoreUnavailable(
        f"store {path}: {what} waited {waited_s:g} s for the lock that {holding} holds; "
        "let it finish, or end it, then try again"
    )


def _code(fault: sqlite3.Error) -> int:
    return getattr(fault, "sqlite_errorcode", 0)
