"""What other processes do with sends in a test; each function is started in a process of its own, by spawn."""

from multiprocessing.connection import Connection

from sendonce.stores.opening import open_store
from tests.control.sending import body, take


def race(url: str, rounds: int, report: Connection) -> None:
    """Takes the same sends as its twin, a key at a time; reports how each ended."""
    store = open_store(url)
    report.send("ready")
    report.recv()
    report.send([take(store, body(f"key-{number}"), body(f"both-{number}"))[0].ended for number in range(rounds)])


def killed_after_taking(url: str, report: Connection) -> None:
    """Takes a send and dies without a word, as if before its acknowledgement."""
    import os
    import signal

    take(open_store(url), body("key"))
    os.kill(os.getpid(), signal.SIGKILL)
