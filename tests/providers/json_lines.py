"""Logs of fake providers: JSON lines that other processes read while they grow."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import orjson


def parsed(raw: bytes) -> Any:
    """The JSON of a body; None for what is none."""
    try:
        return orjson.loads(raw)
    except ValueError:
        return None


def append(path: Path, line: bytes) -> None:
    """One write of one line to the end: other processes see it whole or not at all."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(handle, line + b"\n")
    finally:
        os.close(handle)


def read(path: Path) -> list[Any]:
    """What it holds, in order; nothing while it is not there."""
    return [orjson.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def until_told(url: str) -> None:
    """Print an address, then wait for SIGTERM or SIGINT: the body of a fake that is a process."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    print(url, flush=True)
    stopped.wait()
