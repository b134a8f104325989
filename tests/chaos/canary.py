"""Recipients whose address and variables must show up nowhere but in the store, the letters and the recipients file."""

from collections.abc import Iterable
from pathlib import Path


def find(folder: Path, mark: str, allowed: Iterable[Path]) -> list[str]:
    """Files below `folder` that hold the mark in their name or content, in any case of letters, and are not allowed to.

    `allowed`: files, or folders with all that is in them; for a SQLite store also its -wal and -shm files.
    """
    needle = mark.lower().encode()
    places = tuple(str(path) for path in allowed)
    found = []
    for path in sorted(folder.rglob("*")):
        if not path.is_file() or _inside(str(path), places):
            continue
        if needle in path.name.lower().encode() or needle in path.read_bytes().lower():
            found.append(str(path.relative_to(folder)))
    return found


def _inside(path: str, places: tuple[str, ...]) -> bool:
    return any(path == place or path.startswith((f"{place}/", f"{place}-")) for place in places)
