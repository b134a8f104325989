"""Google's emulators for tests: the ones of an installed gcloud SDK, each on a free port, for as long as a process.

Where the SDK or an emulator in it is missing, tests that need it are skipped with one line that says so.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_PLACES = ("/usr/lib/google-cloud-sdk", "/usr/share/google-cloud-sdk", "/opt/google-cloud-sdk")
PATIENCE_S = 60.0


def sdk() -> Path | None:
    """The folder of the installed gcloud SDK."""
    if named := os.environ.get("CLOUDSDK_ROOT_DIR"):
        return Path(named) if Path(named).is_dir() else None
    gcloud = shutil.which("gcloud")
    places = [*([Path(gcloud).resolve().parents[1]] if gcloud else []), *map(Path, _PLACES)]
    places.append(Path.home() / "google-cloud-sdk")
    return next((place for place in places if (place / "bin").is_dir() and (place / "platform").is_dir()), None)


def binary(*parts: str) -> Path | None:
    root = sdk()
    path = root.joinpath(*parts) if root is not None else None
    return path if path is not None and path.is_file() else None


def spanner_binary() -> Path | None:
    return binary("bin", "cloud_spanner_emulator", "emulator_main")


@contextlib.contextmanager
def spanner_emulator() -> Iterator[str]:
    """A running Spanner emulator; gives its host and port. Skips the test where there is none."""
    program = spanner_binary()
    if program is None:
        pytest.skip("the gcloud SDK with its Spanner emulator is not installed")
    address = f"127.0.0.1:{_free_port()}"
    process = subprocess.Popen(
        [str(program), "--host_port", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _answers(address, process)
        yield address
    finally:
        process.kill()
        process.wait()


def _answers(address: str, process: "subprocess.Popen[bytes]") -> None:
    host, port = address.split(":")
    deadline_s = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline_s:
        assert process.poll() is None, "the emulator ended at once"
        with contextlib.suppress(OSError):
            socket.create_connection((host, int(port)), timeout=1).close()
            return
        time.sleep(0.05)
    raise AssertionError("the emulator does not answer")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
