"""Where good rows wait until the file is read: duplicates are dropped here, and the order of the snapshot is made.

A private SQLite database without a name: SQLite keeps it in a temporary file that no other process can open and that is
gone when this process is, however it ends. Beside it stand 16 bytes a row in memory, by which nearly all rows are known
to be nobody's duplicate: two unique indexes would cost half as much time as all checks of a row together.
"""

import sqlite3
import tempfile
from array import array
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from sendonce.control.load_faults import LoadFailed
from sendonce.control.raw_rows import Reject
from sendonce.control.row_checks import Candidate

_CACHE_KIB: Final = 64 << 10
_AT_ONCE: Final = 5_000

# `row` counts from 1 in file order. `place` is time zone, locale and recipient id in one text, which sorts faster than
# three: none of them holds a control character, so the separator stands before all that they hold.
_TABLES: Final = (
    "CREATE TABLE staged (row INTEGER PRIMARY KEY, line INTEGER, place TEXT, email TEXT, address_key TEXT, "
    "template_variables TEXT)",
    # Rows that may be duplicates, judged again by their exact values.
    "CREATE TABLE met (line INTEGER, recipient_id TEXT UNIQUE, address_key TEXT UNIQUE)",
)
_INSERT: Final = "INSERT INTO staged VALUES (NULL, ?, ?, ?, ?, ?)"
_ORDERED: Final = "SELECT place, email, address_key, template_variables FROM staged ORDER BY place"
_BETWEEN: Final = "\x1f"

# recipient_id, email, address_key, locale, timezone, template_variables.
StagedRow = tuple[str, str, str, str, str, str]


class Staging:
    """Holds the good rows of a file. LoadFailed for a full disk."""

    def __init__(self) -> None:
        self.rows = 0
        self._ids, self._keys = array("q"), array("q")
        # No name: a temporary file, unlinked by SQLite as soon as it is open.
        self._database = sqlite3.connect("", isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}", "temp_store = FILE"):
            self._database.execute(f"PRAGMA {setting}")
        for table in _TABLES:
            self._database.execute(table)

    def add(self, candidates: Sequence[Candidate]) -> None:
        """Take candidates, in file order."""
        self._ids.extend([hash(candidate[1]) for candidate in candidates])
        self._keys.extend([hash(candidate[3]) for candidate in candidates])
        self.rows += len(candidates)
        with _room():
            self._database.execute("BEGIN")
            self._database.executemany(
                _INSERT,
                [
                    (line, f"{timezone}{_BETWEEN}{locale}{_BETWEEN}{recipient_id}", email, key, variables)
                    for line, recipient_id, email, key, locale, timezone, variables in candidates
                ],
            )
            self._database.execute("COMMIT")

    def drop_duplicates(self) -> Iterator[list[Reject]]:
        """Drop each row whose recipient id or mailbox an earlier row that stays has; a reject for each, in file order.

        Call it once, when all rows are added.
        """
        ids, keys = (np.frombuffer(hashes, dtype=np.int64) for hashes in (self._ids, self._keys))
        suspects = np.flatnonzero(_repeated(ids) | _repeated(keys)) + 1
        with _room():
            for start in range(0, len(suspects), _AT_ONCE):
                yield self._drop(suspects[start : start + _AT_ONCE].tolist())

    def ordered(self) -> Generator[StagedRow, None, None]:
        """All rows in the order of the snapshot: by time zone, locale, recipient id, each by Unicode code points."""
        with _room():
            for place, email, key, variables in self._database.execute(_ORDERED):
                timezone, locale, recipient_id = place.split(_BETWEEN)
                yield recipient_id, email, key, locale, timezone, variables

    def close(self) -> None:
        self._database.close()

    def _drop(self, suspects: list[int]) -> list[Reject]:
        rejects = []
        self._database.execute("BEGIN")
        for row in suspects:
            line, place, key = self._one("SELECT line, place, address_key FROM staged WHERE row = ?", row)
            recipient_id = place.split(_BETWEEN)[2]
            inserted = self._database.execute("INSERT OR IGNORE INTO met VALUES (?, ?, ?)", (line, recipient_id, key))
            if inserted.rowcount:
                continue
            self._database.execute("DELETE FROM staged WHERE row = ?", (row,))
            same_id = self._one("SELECT line FROM met WHERE recipient_id = ?", recipient_id)
            if same_id is not None:
                column, reason, first = "recipient_id", "duplicate_id", same_id[0]
            else:
                column, reason = "email", "duplicate_address"
                first = self._one("SELECT line FROM met WHERE address_key = ?", key)[0]
            rejects.append(Reject(line, column, reason, f"the same as in line {first}, which counts"))
        self._database.execute("COMMIT")
        self.rows -= len(rejects)
        return rejects

    def _one(self, statement: str, value: Any) -> Any:
        return self._database.execute(statement, (value,)).fetchone()


def _repeated(hashes: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which places hold a value that another place holds, too."""
    order = np.argsort(hashes)
    same = np.diff(hashes[order]) == 0
    repeated = np.zeros(len(hashes), dtype=np.bool_)
    repeated[order[:-1]] = same
    repeated[order[1:]] |= same
    return repeated


@contextmanager
def _room() -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as fault:
        raise LoadFailed(
            f"cannot write temporary data ({fault})",
            f"the folder for temporary files ({tempfile.gettempdir()}, /var/tmp or SQLITE_TMPDIR)",
            "make room there, or set SQLITE_TMPDIR to a folder that has some, then load again",
        ) from None
