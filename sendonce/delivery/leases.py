"""Leases of requests whose answers take long, renewed while their owner waits."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from schemas.tables import Batch
from sendonce.delivery.protocol import owning
from sendonce.stores.base import Store, StoreUnavailable
from sendonce.times import Times

log = logging.getLogger(__name__)

# A lease is renewed so often in its length: one renewal may fail, and the next still comes in time.
_TIMES_IN_A_LEASE = 3
# An idle thread ends after this; the next wait starts another.
_IDLE_S = 30.0


@dataclass
class _Kept:
    """A request in flight. due, ends: this process's monotonic clock, in seconds."""

    batch: Batch
    every_s: float
    due: float
    ends: float


class LeaseKeeper:
    """Renews the leases of one process's long calls from a thread of its own. Safe for threads.

    A process that dies or is held stops renewing: its requests are in doubt one lease later, however long their answers
    might have taken. A call that outlives every time it was given is not kept either.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._kept: dict[int, _Kept] = {}
        self._names = 0
        self._working = False

    @contextmanager
    def kept(self, mine: Batch, times: Times) -> Iterator[None]:
        """Keep the lease of the request that `mine` names, from now until the block ends. Costs no transaction before
        a third of the lease is over."""
        now = time.monotonic()
        every_s = times.lease_s / _TIMES_IN_A_LEASE
        kept = _Kept(mine, every_s, now + every_s, now + times.request_timeout_s + times.answer_s + times.margin_s)
        with self._changed:
            self._names += 1
            name = self._names
            self._kept[name] = kept
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="leases", daemon=True).start()
            elif len(self._kept) == 1:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._kept.pop(name, None)

    def _work(self) -> None:
        while (due := self._due()) is not None:
            try:
                held = self._store.transact(
                    lambda tx: [owning.renew(tx, kept.batch) for kept in due.values()],
                    tag="renew",
                )
            except StoreUnavailable as fault:
                log.warning("leases of %d requests in flight were not renewed (%s)", len(due), type(fault).__name__)
                continue
            except Exception:
                log.exception("leases of %d requests in flight were not renewed", len(due))
                continue
            with self._changed:
                for name, still_mine in zip(due, held, strict=True):
                    if not still_mine:
                        self._kept.pop(name, None)

    def _due(self) -> dict[int, _Kept] | None:
        """Wait for those whose renewal is due; None when nothing has been kept for a while."""
        with self._changed:
            while True:
                now = time.monotonic()
                self._kept = {name: kept for name, kept in self._kept.items() if kept.ends > now}
                due = {name: kept for name, kept in self._kept.items() if kept.due <= now}
                if due:
                    for kept in due.values():
                        kept.due = now + kept.every_s
                    return due
                wait_s = min((kept.due for kept in self._kept.values()), default=now + _IDLE_S) - now
                told = self._changed.wait(wait_s)
                if not told and not self._kept and wait_s >= _IDLE_S:
                    self._working = False
                    return None
