"""What a look over an installation says."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warn", "fail"]


@dataclass(frozen=True)
class Finding:
    """level: ok, warn (works, but look at it) or fail. `mend` is empty when all is well."""

    level: Level
    what: str
    found: str
    mend: str = ""


def from_text(what: str, text: str) -> Finding:
    """A fault whose message already holds its mend after the last semicolon."""
    found, _, mend = text.rpartition("; ")
    return Finding("fail", what, found or text, mend if found else "")
