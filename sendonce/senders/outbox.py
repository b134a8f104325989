"""The outbox: letters as mbox files on this machine. For trying things out, for tests, and for looking at letters.

One file per request, `FOLDER/CAMPAIGN/batch-000042.ordinals-0000-0999.1f0c9a3b.mbox`, named by the batch and its
ordinals (the last part is a hash of the exact set). It is written beside its place, synced and renamed, so a file is
there whole or not at all, and the same request again replaces the file: the outbox is idempotent for ever.

Files are in mbox form (RFC 4155, LF line ends). No line of a body starts with "From ": such parts are base64.
"""

import errno
import hashlib
import math
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import parseaddr
from pathlib import Path

from schemas.ids import attempt_time_ms
from schemas.ordinals import pack
from schemas.outcomes import Outcome
from sendonce.config import OutboxSettings
from sendonce.failpoints import failpoint
from sendonce.folders import private_folder
from sendonce.senders import mime
from sendonce.senders.base import Capabilities, Prepared, Reply, Request, Unsendable, Verdict

# Faults with a name of their own; every other one goes by the system's, `os_eio`.
_REASONS = {
    errno.ENOSPC: "disk_full",
    errno.EDQUOT: "disk_quota",
    errno.EACCES: "no_permission",
    errno.EPERM: "no_permission",
    errno.EROFS: "read_only",
    errno.ENOTDIR: "not_a_folder",
    errno.EEXIST: "not_a_folder",
}


def make(settings: OutboxSettings, secrets: Mapping[str, str]) -> "Outbox":
    """The outbox as it is configured; it needs no secrets."""
    return Outbox(settings.name, Path(settings.path))


class Outbox:
    """Writes requests under `folder`, which is made when it is first needed. Safe for threads and processes."""

    capabilities = Capabilities(recipients=1000, mixes_forms=True, idempotency_window_s=math.inf, parallel=1)

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self.folder = folder

    @property
    def identity(self) -> str:
        """The name and a hash of the folder: in another folder nothing would be replaced."""
        place = hashlib.sha256(os.fsencode(self.folder.absolute())).hexdigest()[:8]
        return f"{self.name[:50]}/{place}"

    def prepare(self, request: Request) -> Prepared:
        """The mbox file's bytes. Unsendable for a letter with a header that could break out of its line."""
        letters = request.letters
        date = _asctime(request.attempt_id)
        sender = parseaddr(letters.from_address)[1] or "MAILER-DAEMON"
        separator = f"From {sender} {date}\n".encode()
        pieces: list[bytes] = []
        for letter in request.chosen:
            subject, text, html = letters.texts(letter)
            try:
                pieces += (
                    separator,
                    mime.message(
                        from_address=letters.from_address,
                        reply_to=letters.reply_to,
                        to=letter.to,
                        subject=subject,
                        text=text,
                        html=html,
                        message_id=letter.message_id,
                        attempt_id=request.attempt_id,
                        unsubscribe_url=letter.unsubscribe_url,
                        extra=(
                            ("X-Sendonce-Campaign", request.campaign_id),
                            ("X-Sendonce-Batch", str(request.batch_no)),
                            ("X-Sendonce-Ordinal", str(letter.ordinal)),
                            ("X-Sendonce-Attempt", request.attempt_id),
                        ),
                    ),
                    b"\n",
                )
            except (mime.NotAnAddress, mime.NotUnicode) as fault:
                raise Unsendable(letter.ordinal, Outcome.RENDER_ERROR, str(fault)) from None
            except ValueError as fault:
                raise Unsendable(letter.ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, str(fault)) from None
        body = b"".join(pieces)
        return Prepared(request, body, hashlib.sha256(body).hexdigest())

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        """Write the file. A failure before the rename proves that nothing is there; the rename is the acceptance.

        Whatever fails before it is a fault of this machine's disk, path or limits, and never of a recipient: it halts
        the sender until a person has mended it, and nobody's tries are spent.
        `timeout_s` is not used: a local file system either answers or holds the process itself.
        """
        path = self.path_of(prepared.request)
        beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            private_folder(path.parent)
            with open(beside, "wb") as file:
                file.write(prepared.body)
                file.flush()
                os.fsync(file.fileno())
            failpoint("S4")
            os.rename(beside, path)
        except OSError as fault:
            with suppress(OSError):
                beside.unlink()
            return Reply(Verdict.NOT_SENT, _reason(fault), halts_sender=True)
        _sync_folder(path.parent)
        if failpoint("S5") == "drop_reply":
            return Reply(Verdict.UNKNOWN, "reply_lost")
        return Reply(Verdict.ACCEPTED, provider_ref=path.name)

    def path_of(self, request: Request) -> Path:
        """Where a request's file stands: the same for the same batch and ordinals, whatever the attempt."""
        ordinals = request.ordinals
        digest = hashlib.sha256(pack(ordinals)).hexdigest()[:8]
        name = f"batch-{request.batch_no:06d}.ordinals-{ordinals[0]:04d}-{ordinals[-1]:04d}.{digest}.mbox"
        return self.folder / request.campaign_id / name

    def close(self) -> None:
        """Nothing is kept open."""


def _reason(fault: OSError) -> str:
    """The fault for machines; `control.stops.mend_of` says to a person what to do about each."""
    number = fault.errno or 0
    return _REASONS.get(number) or f"os_{errno.errorcode.get(number, 'error').lower()}"


def _sync_folder(folder: Path) -> None:
    """Make the new name durable. Where that cannot be done, the file is there all the same."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _asctime(attempt_id: str) -> str:
    """The date of a separator line, UTC, in the fixed form of RFC 4155 (never the locale's)."""
    return time.asctime(time.gmtime(attempt_time_ms(attempt_id) // 1000))
