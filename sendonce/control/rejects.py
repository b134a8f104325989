"""The rejects file of a load: `rejects/CAMPAIGN.ndjson` beside the store, one object per row that was not taken.

`{"line": 3, "column": "email", "reason": "bad_address", "detail": "no @-sign"}`: never the value, so that the file may
be handed around. It appears whole or not at all.
"""

import os
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Optional

import orjson

from sendonce.control.load_faults import folder_fault
from sendonce.control.raw_rows import Reject
from sendonce.folders import private_folder


class Rejects:
    """Collects rejects beside the final file; `publish` puts it in place, `drop` takes it away. LoadFailed."""

    def __init__(self, folder: Path, campaign_id: str, token: str) -> None:
        """`token` names this load alone: a load that was overtaken must not touch the draft of the one that did it."""
        self.path = folder / f"{campaign_id}.ndjson"
        self._draft = folder / f".{campaign_id}.{token}.draft"
        self._drafts = f".{campaign_id}.{'?' * len(token)}.draft"
        self._handle: Optional[BinaryIO] = None
        self.reasons: Counter[str] = Counter()

    def open(self) -> None:
        """Start collecting, as the only load of the campaign: drafts of dead ones are taken away."""
        try:
            private_folder(self.path.parent)
            for left_over in self.path.parent.glob(self._drafts):
                left_over.unlink(missing_ok=True)
            self._handle = open(self._draft, "wb", buffering=1 << 18)  # noqa: SIM115 (open as long as the load)
        except OSError as fault:
            raise folder_fault(fault, "the rejects file", str(self.path.parent)) from None

    def add(self, rejects: Iterable[Reject]) -> None:
        assert self._handle is not None, "opened before"
        try:
            for line, column, reason, detail in rejects:
                self.reasons[reason] += 1
                body = {"line": line, "column": column, "reason": reason, "detail": detail}
                self._handle.write(orjson.dumps(body) + b"\n")
        except OSError as fault:
            raise folder_fault(fault, "the rejects file", str(self.path)) from None

    def publish(self) -> Optional[Path]:
        """Put the file in place; without rejects, take away that of an earlier try. The path, if there is a file."""
        assert self._handle is not None, "opened before"
        try:
            self._handle.flush()
            os.fsync(self._handle.fileno())
            self._handle.close()
            if self.reasons:
                os.replace(self._draft, self.path)
                return self.path
            self._draft.unlink()
            self.path.unlink(missing_ok=True)
        except OSError as fault:
            raise folder_fault(fault, "the rejects file", str(self.path)) from None
        return None

    def drop(self) -> None:
        """Take away what was collected, if it was not published."""
        if self._handle is None:
            return
        with suppress(OSError):
            self._handle.close()
        self._draft.unlink(missing_ok=True)
