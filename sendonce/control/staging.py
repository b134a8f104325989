"""Where good rows wait until the file is read: duplicates are found here, and the order of the snapshot is made.

A private SQLite database without a name: SQLite keeps it in a temporary file that no other process can open and that is
gone when this process is, however it ends. Memory stays flat, whatever the number of rows.
"""

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from sendonce.control.load_faults import LoadFailed
from sendonce.control.raw_rows import Reject
from sendonce.control.row_checks import Candidate

_CACHE_KIB: Final = 96 << 10

_TABLE: Final = """
CREATE TABLE staged (
  line INTEGER NOT NULL, recipient_id TEXT NOT NULL UNIQUE, email TEXT NOT NULL, address_key TEXT NOT NULL UNIQUE,
  locale TEXT NOT NULL, timezone TEXT NOT NULL, template_variables TEXT NOT NULL
)
"""
# The columns are in the order of `Candidate`.
_INSERT: Final = "INSERT OR IGNORE INTO staged VALUES (?, ?, ?, ?, ?, ?, ?)"


class Staging:
    """Holds each recipient id and each mailbox once; the first row of the file wins. LoadFailed for a full disk."""

    def __init__(self) -> None:
        self.rows = 0
        # No name: a temporary file, unlinked by SQLite as soon as it is open.
        self._database = sqlite3.connect("", isolation_level=None)
        for setting in ("journal_mode = OFF", "synchronous = OFF", f"cache_size = -{_CACHE_KIB}", "temp_store = FILE"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute(_TABLE)

    def add(self, candidates: Sequence[Candidate]) -> list[Reject]:
        """Keep the candidates, given in file order, that are nobody's duplicate; a reject for each other one."""
        with _room():
            before = self._last()
            self._database.execute("BEGIN")
            self._database.executemany(_INSERT, candidates)
            self._database.execute("COMMIT")
            kept = self._last() - before
            self.rows += kept
            if kept == len(candidates):
                return []
            lines = {line for (line,) in self._database.execute("SELECT line FROM staged WHERE rowid > ?", (before,))}
            return [self._duplicate(candidate) for candidate in candidates if candidate.line not in lines]

    def ordered(self) -> Iterator[tuple[str, str, str, str, str, str]]:
        """All rows as (recipient_id, email, address_key, locale, timezone, template_variables), in the order of the

        snapshot: by time zone, locale, recipient id, each by Unicode code points.
        """
        with _room():
            yield from self._database.execute(
                "SELECT recipient_id, email, address_key, locale, timezone, template_variables FROM staged "
                "ORDER BY timezone, locale, recipient_id"
            )

    def close(self) -> None:
        self._database.close()

    def _last(self) -> int:
        found: int = self._database.execute("SELECT coalesce(max(rowid), 0) FROM staged").fetchone()[0]
        return found

    def _duplicate(self, candidate: Candidate) -> Reject:
        for column, value in (("recipient_id", candidate.recipient_id), ("address_key", candidate.address_key)):
            first = self._database.execute(f"SELECT line FROM staged WHERE {column} = ?", (value,)).fetchone()
            if first is not None:
                break
        assert first is not None, "a row is left out only for one that is there"
        name, column = ("duplicate_id", "recipient_id") if column == "recipient_id" else ("duplicate_address", "email")
        return Reject(candidate.line, column, name, f"the same as in line {first[0]}, which counts")


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
