"""Eyes that stay open during the run: what the end of it no longer shows."""

import os
import threading
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from schemas.tables import Batch, OutboundMessage
from tests.chaos.place import Place
from tests.checker import Arrivals, Violation, changes
from tests.evidence import Arrival, Records, read_mbox

LOOK_EVERY_S = 0.05


class OutboxWatch:
    """Keeps every version of every file of an outbox.

    A request that is made again replaces its file, under a new attempt too, so the outbox alone would hide a second
    acceptance. Each version is kept by a hard link: the outbox renames whole files into place and never writes to one.
    """

    def __init__(self, outbox: Path, keep: Path) -> None:
        self._outbox = outbox
        self.folder = keep
        keep.mkdir()
        self._seen: set[int] = set()
        self._versions: list[tuple[str, Path]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="outbox-watch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ends after a last look; harmless to call twice."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            self.look()
        self.look()

    def look(self) -> None:
        for folder in self._entries(self._outbox):
            for file in self._entries(Path(folder.path)):
                if file.name.endswith(".mbox") and not file.name.startswith(".") and file.inode() not in self._seen:
                    self._link(f"{folder.name}/{file.name}", Path(file.path))

    @staticmethod
    def _entries(folder: Path) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as found:
                return list(found)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _link(self, name: str, path: Path) -> None:
        kept = self.folder / f"{len(self._versions):06d}.mbox"
        os.link(path, kept)
        inode = kept.stat().st_ino
        if inode in self._seen:
            kept.unlink()
            return
        self._seen.add(inode)
        self._versions.append((name, kept))

    def arrivals(self) -> tuple[list[Arrival], list[Arrivals]]:
        """Every letter that was taken, once for each request that differed; and every request with its time."""
        letters: list[Arrival] = []
        requests: list[Arrivals] = []
        known: set[tuple[str, str]] = set()
        for name, kept in self._versions:
            found = [replace(one, place=f"{name} ({one.place})") for one in read_mbox(kept)]
            at = datetime.fromtimestamp(kept.stat().st_mtime, UTC)
            requests.append(Arrivals(name.partition("/")[0], at, len(found)))
            version = (name, found[0].payload_hash if found else "")
            if version not in known:
                known.add(version)
                letters += found
        return letters, requests

    @property
    def repeats(self) -> int:
        """How often a request came again and replaced its file."""
        return len(self._versions) - len({name for name, _ in self._versions})


class Journal:
    """Compares the store with itself, moment by moment: tokens only rise, final stays final."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._before: Records | None = None
        self.violations: list[Violation] = []

    def look(self) -> None:
        now = self._place.records((Batch, OutboundMessage))
        if self._before is not None:
            self.violations += changes(self._before, now)
        self._before = now
