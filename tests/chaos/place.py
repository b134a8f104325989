"""Where a run's store is, and looks at it from outside: plain SQL, none of the code that is judged."""

import os
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from schemas.tables import TABLES
from tests.evidence import Records, read_spanner, read_sqlite

SPANNER_URL = "spanner://sendonce-chaos/chaos/run"

_ANY = "SELECT coalesce(sum(n_open), 0), coalesce(sum(n_in_doubt), 0), coalesce(sum(size), 0) FROM campaign_batches"
_OF_RUNNING = (
    "SELECT coalesce(sum(n_open + n_in_doubt), 0) FROM campaign_batches WHERE campaign_id IN "
    "(SELECT campaign_id FROM campaigns WHERE state = 'running')"
)
_STATES = "SELECT campaign_id, state FROM campaigns"
_JOBS = "SELECT pid FROM jobs"
_HELD = (
    "SELECT campaign_id, batch_no, attempt_id FROM campaign_batches WHERE state = 'held' ORDER BY campaign_id, batch_no"
)

# A doubt keeps its batch where it is, with all that is open in it.
_MOVABLE = "SELECT coalesce(sum(n_open), 0) FROM campaign_batches WHERE state NOT IN ('in_doubt', 'held')"
_BREAKER = "SELECT kind FROM switches WHERE scope = 'sender:{}'"


@dataclass(frozen=True)
class Glance:
    """Where the work stands. unfinished: recipients of running campaigns without an outcome. jobs: process ids."""

    open: int
    in_doubt: int
    total: int
    unfinished: int
    states: dict[str, str]
    jobs: set[int]

    @property
    def running(self) -> int:
        return sum(state in ("running", "cancelling") for state in self.states.values())

    @property
    def released(self) -> int:
        return sum(state not in ("loading", "ready") for state in self.states.values())


class Place(Protocol):
    """url: for the settings file. environment: what a process needs besides. files: where its content lies on disk."""

    url: str
    environment: dict[str, str]
    files: tuple[Path, ...]

    def rows(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        """The answers to some queries."""

    def records(self, kinds: Iterable[type] = tuple(TABLES)) -> Records:
        """Every row of some tables, at one moment."""


def glance(place: Place) -> Glance:
    """One quick look at the batches."""
    ((anywhere,), (running,), states, jobs) = place.rows(_ANY, _OF_RUNNING, _STATES, _JOBS)
    return Glance(*anywhere, *running, states=dict(states), jobs={pid for (pid,) in jobs})


def held(place: Place) -> list[tuple[str, int, str]]:
    """The batches that wait for a person: campaign, number, the attempt in doubt."""
    return place.rows(_HELD)[0]


def movable(place: Place) -> int:
    """How many recipients could go by whichever sender."""
    ((found,),) = place.rows(_MOVABLE)[0]
    return int(found)


def breaker(place: Place, sender: str) -> bool:
    """Whether a sender's breaker is open, or a probe is on its way."""
    return any(kind in ("open", "probing") for (kind,) in place.rows(_BREAKER.format(sender))[0])


class SqlitePlace:
    """A SQLite file, opened read-only."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.url = f"sqlite:///{file}"
        self.environment: dict[str, str] = {}
        self.files: tuple[Path, ...] = (file,)

    def rows(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        connection = sqlite3.connect(f"file:{self._file}?mode=ro", uri=True, timeout=30)
        try:
            return [connection.execute(query).fetchall() for query in queries]
        finally:
            connection.close()

    def records(self, kinds: Iterable[type] = tuple(TABLES)) -> Records:
        return read_sqlite(self._file, kinds)


class SpannerPlace:
    """A database on the emulator. direct: its address for who looks; through: for the processes that are tested."""

    def __init__(self, direct: str, through: str) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import spanner

        # As the product has it on the emulator, which forgets a session's transactions when another thread begins one.
        for sessions in ("MULTIPLEXED_SESSIONS", "MULTIPLEXED_SESSIONS_FOR_RW"):
            os.environ[f"GOOGLE_CLOUD_SPANNER_{sessions}"] = "false"
        os.environ["SPANNER_EMULATOR_HOST"] = direct
        self.url = SPANNER_URL
        self.environment = {"SPANNER_EMULATOR_HOST": through}
        self.files: tuple[Path, ...] = ()
        project, instance, database = SPANNER_URL.removeprefix("spanner://").split("/")
        client = spanner.Client(project=project, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
        self._database = client.instance(instance).database(database)

    def rows(self, *queries: str) -> list[list[tuple[Any, ...]]]:
        with self._database.snapshot(multi_use=True) as snapshot:
            return [[tuple(row) for row in snapshot.execute_sql(query)] for query in queries]

    def records(self, kinds: Iterable[type] = tuple(TABLES)) -> Records:
        return read_spanner(self._database, kinds)
