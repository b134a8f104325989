"""Jobs in the store: who works there, on what, when each was last heard of, and what it says of itself."""

import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, Final, Optional

import orjson

from schemas.tables import Job
from sendonce import __version__
from sendonce.moments import utc_text
from sendonce.stores.base import Reader, Store, StoreUnavailable, Tx

_log = logging.getLogger(__name__)

RUNNING, STOPPING, ENDED = "running", "stopping", "ended"
# A job that lives says so every few seconds; one that has not for a minute is gone, whatever became of it.
BEATS_S: Final = 10.0
SILENT_S: Final = 60.0
# Rows of jobs that are over are kept for so long.
KEPT: Final = timedelta(days=30)


def new_job_id() -> str:
    """Where a job runs, and a number that no other job has."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{token_hex(4)}"


class JobRow:
    """The row of one job; the processes of a job on many machines share it.

    facts: what the job says of itself, plain JSON values without personal data: `subscription`, `topics`, and its
    counters. They replace what it said under the same names before. Safe for threads.
    """

    def __init__(self, store: Store, job_id: str, lanes: Sequence[str], **facts: Any) -> None:
        self._store = store
        self._job_id = job_id
        self._lanes = ",".join(lanes)
        self._facts = facts
        self._row: Optional[Job] = None
        self._writing = threading.Lock()
        self._ended = False

    def beat(self, state: str, **facts: Any) -> None:
        """Tell the store that this process lives (`running`, `stopping`), or that it has ended (`ended`): its last
        word, whatever another thread says later."""
        with self._writing:
            if self._ended:
                return
            self._ended = state == ENDED
            self._facts.update(facts)
            self._write(state, orjson.dumps(self._facts).decode())

    def _write(self, state: str, detail: str) -> None:

        def work(tx: Tx) -> Job:
            now = tx.now()
            row = (
                self._row
                or tx.get(Job, self._job_id)
                or Job(
                    job_id=self._job_id,
                    host=socket.gethostname()[:100],
                    pid=os.getpid(),
                    lanes=self._lanes,
                    version=__version__,
                    started_at=now,
                    heartbeat_at=now,
                    state=state,
                )
            )
            row = replace(row, heartbeat_at=now, state=state, detail=detail)
            tx.put(row)
            return row

        self._row = self._store.transact(work, tag="heartbeat")


class Heartbeat:
    """Says every few seconds that a job lives, from a thread of its own: whatever its other threads wait for, and while
    it stops. The last word, `ended`, is its owner's.

    stopping: set when the job has been asked to stop. facts: what the job says of itself each time. on_fault: told,
    once, what the store says beside that it is away.
    """

    def __init__(
        self,
        row: JobRow,
        stopping: threading.Event,
        facts: Callable[[], dict[str, Any]] = dict,
        on_fault: Optional[Callable[[Exception], None]] = None,
    ) -> None:
        self._row = row
        self._stopping = stopping
        self._facts = facts
        self._on_fault = on_fault
        self._over = threading.Event()

    def start(self) -> None:
        """Begin, with a word at once."""
        threading.Thread(target=self._work, name="heartbeat", daemon=True).start()

    def end(self) -> None:
        """No more words. Waits for nothing: a store that is silent must not hold up an end."""
        self._over.set()

    def _work(self) -> None:
        while not self._over.is_set():
            stopping = self._stopping.is_set()
            try:
                self._row.beat(STOPPING if stopping else RUNNING, **self._facts())
            except StoreUnavailable:
                pass
            except Exception as fault:
                if self._on_fault is None:
                    _log.exception("the store does not take that this job lives")
                else:
                    self._on_fault(fault)
                return
            (self._over if stopping else self._stopping).wait(BEATS_S / 2)


@dataclass(frozen=True)
class SeenJob:
    """A job as somebody sees it now. state: `running`, `stopping` (what it has in flight ends first), `silent` (it was
    not heard of for a minute: killed, or cut off from the store), `ended`. facts: as it said last."""

    row: Job
    state: str
    at: datetime
    facts: dict[str, Any]

    @property
    def silent_s(self) -> float:
        """Seconds since it was last heard of."""
        return max(0.0, (self.at - self.row.heartbeat_at).total_seconds())

    def as_json(self) -> dict[str, Any]:
        """Plain JSON values; times are UTC."""
        return {
            "job": self.row.job_id,
            "state": self.state,
            "lanes": self.row.lanes.split(","),
            "host": self.row.host,
            "pid": self.row.pid,
            "version": self.row.version,
            "started_at": utc_text(self.row.started_at),
            "heartbeat_at": utc_text(self.row.heartbeat_at),
            "silent_s": round(self.silent_s, 3),
            "facts": self.facts,
        }


def seen_jobs(reader: Reader, *, since: Optional[timedelta] = None) -> list[SeenJob]:
    """Jobs, those that were heard of last first; none that was not heard of within `since`."""
    now = reader.now()
    rows = [row for row in reader.scan(Job) if since is None or now - row.heartbeat_at <= since]
    rows.sort(key=lambda row: (row.state != ENDED, row.heartbeat_at), reverse=True)
    return [SeenJob(row, _state(row, now), now, _facts(row)) for row in rows]


def forget_old_jobs(store: Store) -> int:
    """Remove rows of jobs that were not heard of for `KEPT`; returns how many."""

    def work(tx: Tx) -> int:
        now = tx.now()
        old = [row for row in tx.scan(Job) if now - row.heartbeat_at > KEPT]
        tx.delete(*old)
        return len(old)

    return store.transact(work, tag="forget_jobs")


def _state(row: Job, now: datetime) -> str:
    if row.state == ENDED:
        return ENDED
    if (now - row.heartbeat_at).total_seconds() > SILENT_S:
        return "silent"
    return STOPPING if row.state == STOPPING else RUNNING


def _facts(row: Job) -> dict[str, Any]:
    try:
        found = orjson.loads(row.detail)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
