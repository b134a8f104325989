"""What can be set of an outbox."""

from typing import ClassVar, Final, Literal

from pydantic import field_validator

from sendonce.config.adapters.account import SenderSettings

DEFAULT_OUTBOX: Final = ".sendonce/outbox"
# Bytes that Linux takes in one name and in a whole path (NAME_MAX, PATH_MAX); below the folder stand a campaign's and
# a file's name.
NAME_BYTES_MAX: Final = 255
FOLDER_BYTES_MAX: Final = 4095 - 2 * NAME_BYTES_MAX


class OutboxSettings(SenderSettings):
    """Letters as files. `path` is the outbox's folder, absolute once read from a file."""

    paths: ClassVar[tuple[str, ...]] = ("path",)

    adapter: Literal["outbox"]
    path: str = DEFAULT_OUTBOX

    @field_validator("path")
    @classmethod
    def _can_stand(cls, path: str) -> str:
        """Refuses what no disk takes. What one disk may take and another not shows when it is written."""
        try:
            size = max(map(len, path.encode().split(b"/")))
        except UnicodeEncodeError:
            raise ValueError("must be UTF-8, which the name of this folder is not; choose another folder") from None
        if not path or "\x00" in path:
            raise ValueError("must be the path of a folder")
        if size > NAME_BYTES_MAX:
            raise ValueError(f"has a name of {size} bytes; a folder's name has at most {NAME_BYTES_MAX}")
        if len(path.encode()) > FOLDER_BYTES_MAX:
            raise ValueError(f"is longer than {FOLDER_BYTES_MAX} bytes; choose a shorter path")
        return path
