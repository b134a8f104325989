"""Who holds the lock that a transaction waits for: best effort, for the message about it (Linux only).

SQLite locks bytes of its files: the writer of a write-ahead log has byte 120 of the `-shm` file, and whoever wants the
whole database to itself has bytes from 0x40000000 on of the file (https://www.sqlite.org/walformat.html, 2.3).
No file of the store is opened here: closing it again would drop the locks that this process has on it.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_WRITER: Final = 120
_WHOLE_FILE: Final = 0x40000000
_PROC: Final = Path("/proc")


def holders(path: Path) -> str:
    """The processes that keep others from writing, e.g. `process 4711 (sqlite3)`; empty if that cannot be found out."""
    try:
        wanted = {(os.stat(f"{path}-shm").st_ino, _WRITER), (os.stat(path).st_ino, _WHOLE_FILE)}
        found = {pid for pid, inode, first in _write_locks() if (inode, first) in wanted}
    except (OSError, ValueError, IndexError):
        return ""
    return ", ".join("this process" if pid == os.getpid() else f"process {pid}{_name(pid)}" for pid in sorted(found))


def _write_locks() -> Iterator[tuple[int, int, int]]:
    """Process, inode and first byte of each write lock, from `1: POSIX ADVISORY WRITE 4711 fe:00:9978063 120 120`."""
    for line in (_PROC / "locks").read_text().splitlines():
        words = line.split()
        if words[1] == "POSIX" and words[3] == "WRITE":
            yield int(words[4]), int(words[5].rpartition(":")[2]), int(words[6])


def _name(pid: int) -> str:
    try:
        return f" ({(_PROC / str(pid) / 'comm').read_text().strip()})"
    except OSError:
        return ""
