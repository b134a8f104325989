"""Leases of requests whose answers take long, renewed while their owner waits."""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from schemas.tables import Batch
from sendonce.delivery.protocol import owning
from sendonce.delivery.terms import Terms
from sendonce.stores.base import Store, StoreUnavailable

log = logging.getLogger(__name__)

# A lease is renewed so often in its length: one renewal may fail, and the next still comes in time.
_TIMES_IN_A_LEASE = 3
# An idle thread ends after this; the next wait starts another.
_IDLE_S = 30.0


@dataclass
class _Kept:
    """A request in flight. due, late, ends: this process's monotonic clock, in seconds; late: None once it was told."""

    batch: Batch
    terms: Terms
    due: float
    late: float | None
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
    def kept(self, mine: Batch, terms: Terms) -> Iterator[None]:
        """Keep the lease of the request that `mine` names, from now until the block ends. Costs no transaction before
        a third of the lease is over."""
        now, times = time.monotonic(), terms.times
        late = now + times.request_timeout_s
        kept = _Kept(mine, terms, now + _every_s(terms), late, late + times.answer_s + times.margin_s)
        with self._changed:
            self._names += 1
            name = self._names
            self._kept[name] = kept
            if not self._working:
                self._working = True
                threading.Thread(target=self._work, name="leases", daemon=True).start()
            else:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._kept.pop(name, None)

    def _work(self) -> None:
        while (due := self._due()) is not None:
            for name, kept in due.items():
                late = kept.late is not None and kept.late <= time.monotonic()
                work = partial(owning.renew, terms=kept.terms, mine=kept.batch, late=late)
                try:
                    still_mine = self._store.transact(work, tag="renew")
                except StoreUnavailable as fault:
                    log.warning("the lease of a request in flight was not renewed (%s)", type(fault).__name__)
                    continue
                except Exception:
                    log.exception("the lease of a request in flight was not renewed")
                    continue
                if late:
                    kept.late = None
                if not still_mine:
                    with self._changed:
                        self._kept.pop(name, None)

    def _due(self) -> dict[int, _Kept] | None:
        """Wait for those whose renewal is due; None when nothing has been kept for a while."""
        with self._changed:
            idle_from = time.monotonic()
            while True:
                now = time.monotonic()
                self._kept = {name: kept for name, kept in self._kept.items() if kept.ends > now}
                due = {name: kept for name, kept in self._kept.items() if kept.due <= now}
                if due:
                    for kept in due.values():
                        kept.due = now + _every_s(kept.terms)
                    return due
                if self._kept:
                    self._changed.wait(min(kept.due for kept in self._kept.values()) - now)
                    idle_from = time.monotonic()
                elif now - idle_from >= _IDLE_S:
                    self._working = False
                    return None
                else:
                    self._changed.wait(_IDLE_S)


def _every_s(terms: Terms) -> float:
    return terms.times.lease_s / _TIMES_IN_A_LEASE
