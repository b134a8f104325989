"""A recipients file: found out what it is, opened, and read in chunks of raw rows with their physical lines.

CSV, NDJSON and Parquet come out alike, as `Row`s whose values nobody has judged yet, and `Reject`s for what is no row.
Nothing is guessed about content: ids stay the text they are, an undecodable byte refuses the whole file.
"""

import codecs
import hashlib
import io
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final, Optional

from sendonce.control.csv_rows import CsvReader
from sendonce.control.json_rows import JsonReader
from sendonce.control.load_faults import LoadFault
from sendonce.control.parquet_rows import ParquetReader
from sendonce.control.raw_rows import Chunk, FileOptions, Lines, Reader

FORMATS: Final = ("csv", "ndjson", "parquet")

_HEAD: Final = 64 << 10
_EXTENSIONS: Final = {
    ".csv": "csv",
    ".tsv": "csv",
    ".ndjson": "ndjson",
    ".jsonl": "ndjson",
    ".json": "ndjson",
    ".parquet": "parquet",
}
_FOREIGN: Final = (
    (b"PK\x03\x04", "a ZIP archive or an Excel workbook", "export the sheet as CSV (UTF-8), or unpack the archive"),
    (b"\xd0\xcf\x11\xe0", "an old Excel workbook", "export the sheet as CSV (UTF-8)"),
    (b"\x1f\x8b", "compressed with gzip", "unpack it"),
    (b"BZh", "compressed with bzip2", "unpack it"),
    (b"\xfd7zXZ", "compressed with xz", "unpack it"),
    (b"\x28\xb5\x2f\xfd", "compressed with Zstandard", "unpack it"),
    (b"%PDF", "a PDF", "export the list as CSV (UTF-8)"),
    (b"SQLite format 3\0", "an SQLite database", "export the table as CSV (UTF-8)"),
)
# UTF-32 first: its little-endian mark begins with that of UTF-16.
_MARKS: Final = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


class RecipientsFile:
    """An existing, readable, regular file that looks like a list. LoadFault from the start for any other.

    `fingerprint` is the SHA-256 of its bytes. `position` is how many bytes were read so far, for progress.
    lines: reads text of another make, in place of the formats that are found out.
    """

    def __init__(self, path: Path, options: FileOptions, lines: Optional[Callable[[Lines], Reader]] = None) -> None:
        self.path = path
        self._state = _state(path)
        self.size = self._state[2]
        head = _head(path)
        self.fingerprint = _digest(path)
        self._handle: Optional[BinaryIO] = None
        self._lines_reader = lines
        self.format = _format(path, head, options) if lines is None else "lines"
        self._reader = self._open(head, options)
        self.settings: dict[str, Any] = {"format": self.format, **self._reader.settings}

    @property
    def position(self) -> int:
        return min(self._handle.tell(), self.size) if self._handle is not None and not self._handle.closed else 0

    def chunks(self) -> Iterator[Chunk]:
        """All records in order, once. LoadFault for a byte that cannot be decoded, and for a file that changed."""
        try:
            yield from self._reader.chunks()
        except UnicodeDecodeError:
            raise _undecodable(self.path, self._encoding) from None
        if _state(self.path) != self._state:
            raise LoadFault("the file changed while it was read", str(self.path), "load it again when it is complete")

    def close(self) -> None:
        if self._handle is not None:
            self._handle.close()

    def _open(self, head: bytes, options: FileOptions) -> Reader:
        if self.format == "parquet":
            return ParquetReader(self.path, options)
        self._encoding = _encoding(self.path, head, options)
        self._handle = open(self.path, "rb", buffering=1 << 20)  # noqa: SIM115 (until close)
        text = io.TextIOWrapper(self._handle, self._encoding, errors="strict", newline="")
        try:
            if self._lines_reader is not None:
                return self._lines_reader(Lines(text))
            return (CsvReader if self.format == "csv" else JsonReader)(self.path, Lines(text), options, self._encoding)
        except UnicodeDecodeError:
            raise _undecodable(self.path, self._encoding) from None


def _state(path: Path) -> tuple[int, int, int, int]:
    """What tells that a file is still the same. LoadFault for what is no readable regular file, or empty."""
    place = str(path)
    try:
        found = os.stat(path)
    except FileNotFoundError:
        raise LoadFault("there is no such recipients file", place, "check the path") from None
    except (OSError, ValueError) as fault:
        words = getattr(fault, "strerror", None) or "no path"
        raise LoadFault(f"cannot be read ({words})", place, "check the path and its permissions") from None
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise LoadFault(f"is {kind}", place, "name a CSV, NDJSON or Parquet file")
    if found.st_size == 0:
        raise LoadFault("the recipients file is empty", place, "export the list again")
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _head(path: Path) -> bytes:
    try:
        with open(path, "rb") as handle:
            head = handle.read(_HEAD)
    except OSError as fault:
        raise LoadFault(f"cannot be read ({fault.strerror})", str(path), "check its permissions") from None
    for magic, kind, mend in _FOREIGN:
        if head.startswith(magic):
            raise LoadFault(f"is {kind}, not a list", str(path), mend)
    return head


def _digest(path: Path) -> str:
    with open(path, "rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def _format(path: Path, head: bytes, options: FileOptions) -> str:
    if options.format is not None and options.format not in FORMATS:
        raise LoadFault(f"unknown format {options.format!r}", "", f"use one of {', '.join(FORMATS)}")
    if head.startswith(b"PAR1"):
        return "parquet"
    if options.format is not None:
        return options.format
    if head.removeprefix(codecs.BOM_UTF8).replace(b"\0", b"").lstrip(b"\xff\xfe \t\r\n").startswith(b"{"):
        return "ndjson"
    return _EXTENSIONS.get(path.suffix.lower(), "csv")


def _encoding(path: Path, head: bytes, options: FileOptions) -> str:
    if options.encoding is not None:
        try:
            # Only a text encoding may open a text file; `rot13` and `hex` are codecs, too.
            name = codecs.lookup(options.encoding).name
            io.TextIOWrapper(io.BytesIO(), name).close()
        except LookupError:
            raise LoadFault(
                f"unknown encoding {options.encoding!r}", "", "use a name such as utf-8 or cp1252"
            ) from None
        return "utf-8-sig" if name == "utf-8" and head.startswith(codecs.BOM_UTF8) else name
    for mark, name in _MARKS:
        if head.startswith(mark):
            return name
    if b"\0" in head.split(b"\n", 1)[0] or head.count(0) > len(head) // 50:
        raise LoadFault(
            "holds NUL bytes: a binary file, or UTF-16 without a byte order mark",
            str(path),
            "export it as CSV (UTF-8), or name its encoding with --encoding utf-16-le",
        )
    return "utf-8"


def _undecodable(path: Path, encoding: str) -> LoadFault:
    """The fault for the first byte that is not in the encoding, with its line and offset: reads the file once more."""
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    offset, line, last = 0, 1, ""
    with open(path, "rb") as handle:
        while True:
            block = handle.read(1 << 20)
            pending = decoder.getstate()[0]
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as fault:
                good = fault.object[: fault.start].decode(encoding, "ignore")
                line += _line_ends(last, good)
                if not block:
                    return LoadFault(
                        "the file ends in the middle of a character: it was cut off",
                        f"{path}, line {line}",
                        "export it again",
                    )
                place = offset - len(pending) + fault.start
                return LoadFault(
                    f"byte {place} (0x{fault.object[fault.start]:02x}) is not {encoding.upper().removesuffix('-SIG')}",
                    f"{path}, line {line}",
                    "if it is text, name its encoding, for example --encoding cp1252 for a Western European sheet",
                )
            line += _line_ends(last, text)
            last = text[-1:] or last
            offset += len(block)
            if not block:
                return LoadFault(f"is not {encoding}", str(path), "name its encoding with --encoding")


def _line_ends(last: str, text: str) -> int:
    """How many lines end in `text`, which follows the character `last`."""
    ends = text.count("\n") + text.count("\r") - text.count("\r\n")
    return ends - 1 if last == "\r" and text.startswith("\n") else ends
