"""Beam's own words: left out while it loads; of a fault, kept back until it is known who says it better."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Keeper(logging.Handler):
    """Keeps errors; lets what is below pass as it would without it."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.ERROR:
            self.kept.append(record)
        else:
            logging.getLogger().handle(record)


@contextmanager
def loading_quietly() -> Iterator[None]:
    """Beam says on import which cloud libraries it did not find; on one machine none is needed."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def errors_kept_back() -> Iterator[list[logging.LogRecord]]:
    """In this block Beam logs no error; at its end, however it ends, what is still in the list is logged.

    For a fault that the caller reports itself: clear the list. A traceback of Beam's would stand before its one line.
    """
    beam, keeper = logging.getLogger("apache_beam"), _Keeper()
    propagated, beam.propagate = beam.propagate, False
    beam.addHandler(keeper)
    try:
        yield keeper.kept
    finally:
        beam.removeHandler(keeper)
        beam.propagate = propagated
        for record in keeper.kept:
            logging.getLogger().handle(record)
