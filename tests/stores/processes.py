"""Starting the functions of `workers` in processes of their own."""

import multiprocessing
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
