"""A job's row in the store: who works there, on what, and when it was last heard of."""

import os
import socket
from collections.abc import Sequence
from dataclasses import replace
from secrets import token_hex

from schemas.tables import Job
from sendonce import __version__
from sendonce.stores.base import Store, Tx


def new_job_id() -> str:
    """Where a job runs, and a number that no other job has."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}-{token_hex(4)}"


class JobRow:
    """The row of one job. detail: JSON text that stays in it."""

    def __init__(self, store: Store, job_id: str, lanes: Sequence[str], detail: str = "{}") -> None:
        self._store = store
        self._job_id = job_id
        self._lanes = ",".join(lanes)
        self._detail = detail
        self._row: Job | None = None

    def beat(self, state: str) -> None:
        """Tell the store that this process lives."""

        def work(tx: Tx) -> Job:
            now = tx.now()
            if self._row is None:
                row = Job(
                    job_id=self._job_id,
                    host=socket.gethostname()[:100],
                    pid=os.getpid(),
                    lanes=self._lanes,
                    version=__version__,
                    started_at=now,
                    heartbeat_at=now,
                    state=state,
                    detail=self._detail,
                )
            else:
                row = replace(self._row, heartbeat_at=now, state=state)
            tx.put(row)
            return row

        self._row = self._store.transact(work, tag="heartbeat")
