"""Work in processes of their own: the functions of `workers`, spawned, or any function, forked."""

import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("spawn")
PATIENCE_S = 60.0


@contextmanager
def started(work: Callable[..., None], *arguments: Any) -> Iterator[tuple[SpawnProcess, Connection]]:
    """A process that runs `work(*arguments, report)`, and the other end of `report`; it is gone afterwards."""
    ours, theirs = _CONTEXT.Pipe()
    process = _CONTEXT.Process(target=work, args=(*arguments, theirs))
    process.start()
    theirs.close()
    try:
        yield process, ours
        process.join(0.1)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        ours.close()


def told(report: Connection) -> Any:
    """What the process says next. Fails if it stays silent; EOFError if it died."""
    assert report.poll(PATIENCE_S), "the process says nothing"
    return report.recv()


def in_child(work: Callable[[], Any], *, plain_user: bool = False) -> str:
    """Run `work` in a forked child; returns what it raised, as text, or an empty string.

    plain_user: as a user to whom permissions apply, also where the tests run as root.
    """
    ours, theirs = os.pipe()
    pid = os.fork()
    if pid == 0:
        problem = ""
        try:
            if plain_user and os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            work()
        except BaseException as fault:
            problem = f"{type(fault).__name__}: {fault}"
        os.write(theirs, problem.encode())
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        problem = pipe.read().decode()
    os.waitpid(pid, 0)
    return problem
