"""Google's emulators of Spanner and Pub/Sub: those of an installed gcloud SDK, each for as long as its user needs it.

Tests start their own on free ports; where the SDK or an emulator in it is missing they are skipped with one line.
`python -m tests.emulated` (`make emulators`) starts both on their usual ports, says what to export, and ends them on
Ctrl-C or SIGTERM.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from threading import Event

_PLACES = (
    "/usr/lib/google-cloud-sdk",
    "/usr/share/google-cloud-sdk",
    "/opt/google-cloud-sdk",
    "/snap/google-cloud-cli",
)
PATIENCE_S = 60.0
SPANNER_PORT, PUBSUB_PORT = 9010, 8085
_PORTS = (20_000, 30_000)


class Missing(Exception):
    """What is not installed, in a sentence."""


@dataclass(frozen=True)
class Emulator:
    """One that runs: its host and port, and its process, which leads a group of its own."""

    address: str
    process: "subprocess.Popen[bytes]"

    def pause(self) -> None:
        """It answers nobody and forgets nothing, until `go_on`. A thread of it may answer until it has stopped, too."""
        os.killpg(self.process.pid, signal.SIGSTOP)
        until_s = time.monotonic() + 30.0
        while Path("/proc").is_dir() and not all(state in "TZ" for state in _thread_states(self.process.pid)):
            assert time.monotonic() < until_s, "an emulator does not stand still"
            time.sleep(0.001)

    def go_on(self) -> None:
        os.killpg(self.process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """It is gone, and all that it held."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _thread_states(group: int) -> Iterator[str]:
    """The states of all threads of a group's processes (`man 5 proc_pid_stat`)."""
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, its_group = (process / "stat").read_text().rpartition(")")[2].split()[:3]
            if int(its_group) == group:
                yield state
                for thread in (process / "task").iterdir():
                    yield (thread / "stat").read_text().rpartition(")")[2].split()[0]


def sdk() -> Path:
    """The folder of the installed gcloud SDK."""
    named = os.environ.get("CLOUDSDK_ROOT_DIR")
    gcloud = shutil.which("gcloud")
    places = [Path(named)] if named else []
    places += [Path(gcloud).resolve().parents[1]] if gcloud else []
    places += [*map(Path, _PLACES), Path.home() / "google-cloud-sdk"]
    for place in places:
        if (place / "bin").is_dir() and (place / "platform").is_dir():
            return place
    raise Missing("the gcloud SDK is not installed (https://cloud.google.com/sdk/docs/install)")


def spanner_program() -> Path:
    return _program("bin/cloud_spanner_emulator/emulator_main", "cloud-spanner-emulator")


def pubsub_program() -> Path:
    program = _program("platform/pubsub-emulator/bin/cloud-pubsub-emulator", "pubsub-emulator")
    if shutil.which("java") is None:
        raise Missing("the Pub/Sub emulator needs java, which is not installed")
    return program


def missing(name: str) -> str:
    """What keeps an emulator, `spanner` or `pubsub`, from running here, in a sentence; empty if it can."""
    try:
        {"spanner": spanner_program, "pubsub": pubsub_program}[name]()
    except Missing as what:
        return str(what)
    return ""


def _program(place: str, component: str) -> Path:
    program = sdk() / place
    if not program.is_file():
        raise Missing(f"the gcloud SDK has no {component}; install it: gcloud components install {component}")
    return program


@contextlib.contextmanager
def spanner_emulator(port: int = 0) -> Iterator[str]:
    """A running Spanner emulator; gives its host and port. Missing where there is none."""
    with emulator("spanner", port) as running:
        yield running.address


@contextlib.contextmanager
def pubsub_emulator(port: int = 0) -> Iterator[str]:
    """A running Pub/Sub emulator; gives its host and port. Missing where there is none."""
    with emulator("pubsub", port) as running:
        yield running.address


@contextlib.contextmanager
def emulator(name: str, port: int = 0) -> Iterator[Emulator]:
    """The running emulator `spanner` or `pubsub`, on a free port unless one is given. Missing where there is none."""
    host, port = "127.0.0.1", port or _free_port()
    address = f"{host}:{port}"
    with tempfile.TemporaryDirectory(prefix=f"{name}-emulator-", ignore_cleanup_errors=True) as folder:
        if name == "spanner":
            command = [str(spanner_program()), "--host_port", address]
        else:
            command = [str(pubsub_program()), f"--host={host}", f"--port={port}", f"--data-dir={folder}"]
        with _running(command, address) as process:
            _wait_for(process, lambda: _takes_connections(address) if name == "spanner" else _answers(address))
            yield Emulator(address, process)


@contextlib.contextmanager
def _running(command: list[str], address: str) -> Iterator["subprocess.Popen[bytes]"]:
    if _takes_connections(address):
        raise Missing(
            f"something listens on {address} already; end it, or choose other ports: "
            f"make emulators SPANNER_PORT={SPANNER_PORT + 1} PUBSUB_PORT={PUBSUB_PORT + 1}"
        )
    # A process group of its own: the Pub/Sub emulator's program is a script around java.
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
                os.killpg(process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
                break


def _wait_for(process: "subprocess.Popen[bytes]", ready) -> None:  # type: ignore[no-untyped-def]
    deadline_s = time.monotonic() + PATIENCE_S
    while not ready():
        if process.poll() is not None:
            raise RuntimeError(f"{process.args[0]} ended at once with {process.returncode}")  # type: ignore[index]
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"{process.args[0]} does not answer")  # type: ignore[index]
        time.sleep(0.05)


def _takes_connections(address: str) -> bool:
    host, port = address.split(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}", timeout=1) as answer:
            return bool(answer.status == 200)
    except (OSError, HTTPException):  # not yet, or not ours
        return False


def _free_port() -> int:
    """Below those that systems give to outgoing connections, and by chance, so that nobody else takes it meanwhile."""
    while True:
        port = random.SystemRandom().randrange(*_PORTS)
        with socket.socket() as found, contextlib.suppress(OSError):
            found.bind(("127.0.0.1", port))
            return port


def main() -> int:
    stop = Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        spanner_port = int(os.environ.get("SPANNER_PORT", SPANNER_PORT))
        pubsub_port = int(os.environ.get("PUBSUB_PORT", PUBSUB_PORT))
        with spanner_emulator(spanner_port) as spanner, pubsub_emulator(pubsub_port) as pubsub:
            print("Both emulators answer; what they hold is gone when they end. In another terminal, for Pub/Sub:\n")
            print(f"  export PUBSUB_EMULATOR_HOST={pubsub}\n")
            print("Only if the store is to be on Spanner (else it stays a file on this machine):\n")
            print(f"  export SPANNER_EMULATOR_HOST={spanner}")
            print("  export SENDONCE_STORE=spanner://local/sendonce/sendonce    # before `sendonce init`\n")
            print("Ctrl-C ends them.", flush=True)
            while not stop.wait(1):
                continue
        print("\nBoth emulators ended.")
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
