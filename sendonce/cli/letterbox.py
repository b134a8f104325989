"""Counting what lies in an outbox: an independent look at what was sent, past the store."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Letterbox:
    """files: mbox files. letters: messages in them. duplicates: message ids that occur more than once."""

    files: int
    letters: int
    duplicates: int


def look_into(folder: Path) -> Letterbox:
    """Read every mbox file of a folder, by the Message-ID headers. A folder that is not there holds nothing."""
    paths = sorted(folder.glob("*.mbox"))
    found = Counter(name for path in paths for name in _message_ids(path))
    return Letterbox(len(paths), found.total(), sum(times > 1 for times in found.values()))


def _message_ids(path: Path) -> Iterator[bytes]:
    """The Message-ID of each message of an mbox file (RFC 4155): headers end at the first empty line."""
    headers, blank = False, True
    with path.open("rb") as file:
        for line in file:
            if blank and line.startswith(b"From "):
                headers = True
            elif headers and line[:11].lower() == b"message-id:":
                yield line[11:].strip()
            blank = not line.strip()
            headers = headers and not blank
