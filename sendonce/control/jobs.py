"""Jobs in the store: who works there, on what, when each was last heard of, and what it says of itself."""

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from secrets import token_hex
from typing import Any, Final, Optional

import orjson

from schemas.tables import Job
from sendonce import __version__
from sendonce.moments import utc_text
from sendonce.stores.base import Reader, Store, Tx

RUNNING, ENDED = "running", "ended"
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
    counters. They replace what it said under the same names before.
    """

    def __init__(self, store: Store, job_id: str, lanes: Sequence[str], **facts: Any) -> None:
        self._store = store
        self._job_id = job_id
        self._lanes = ",".join(lanes)
        self._facts = facts
        self._row: Optional[Job] = None

    def beat(self, state: str, **facts: Any) -> None:
        """Tell the store that this process lives (`running`), or that it has ended (`ended`)."""
        self._facts.update(facts)
        detail = orjson.dumps(self._facts).decode()

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


@dataclass(frozen=True)
class SeenJob:
    """A job as somebody sees it now. state: `running`, `silent` (it was not heard of for a minute: killed, or cut off
    from the store), `ended`. facts: as it said last."""

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
    return "silent" if (now - row.heartbeat_at).total_seconds() > SILENT_S else RUNNING


def _facts(row: Job) -> dict[str, Any]:
    try:
        found = orjson.loads(row.detail)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
