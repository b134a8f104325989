"""`sendonce jobs`: who works on a store, and who fell silent."""

import threading
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.tables import Job
from sendonce.control import jobs
from sendonce.control.jobs import KEPT, Heartbeat, JobRow, forget_old_jobs, seen_jobs
from sendonce.stores.base import Store, Tx
from tests.cli.conftest import Call
from tests.control.made import seal


def _job(store: Store, job_id: str, *, silent_s: float = 0.0, state: str = "running", **more: object) -> None:
    def work(tx: Tx) -> None:
        at = tx.now() - timedelta(seconds=silent_s)
        row = Job(job_id, "host", 7, "critical,high", "1.0", at - timedelta(seconds=90), at, state)
        tx.put(replace(row, **more))

    store.transact(work, tag="test")


def test_there_is_none(sendonce: Call, store: Store) -> None:
    answer = sendonce("jobs")
    assert "No job has worked here" in answer.out
    assert sendonce("jobs", "--json").json == []


def test_running_silent_and_ended_jobs(sendonce: Call, store: Store) -> None:
    _job(store, "a", silent_s=3, detail='{"subscription":"projects/p/subscriptions/s","triggers_applied":1204}')
    _job(store, "b", silent_s=600)
    _job(store, "c", silent_s=5, state="ended")
    found = sendonce("jobs", "--json").json
    assert [(job["job"], job["state"], job["lanes"]) for job in found] == [
        ("a", "running", ["critical", "high"]),
        ("b", "silent", ["critical", "high"]),
        ("c", "ended", ["critical", "high"]),
    ]
    assert found[0]["facts"] == {"subscription": "projects/p/subscriptions/s", "triggers_applied": 1204}
    assert 3 <= found[0]["silent_s"] < 60
    shown = sendonce("jobs")
    assert "1,204" in shown.out
    assert "1 job is silent: it was killed or has lost the store." in " ".join(shown.out.split())
    assert shown.widest <= 80


def test_jobs_of_long_ago_are_shown_when_asked_for(sendonce: Call, store: Store) -> None:
    _job(store, "old", silent_s=2 * 86_400)
    assert sendonce("jobs", "--json").json == []
    assert [job["job"] for job in sendonce("jobs", "--json", "--all").json] == ["old"]


def test_of_jobs_that_ended_the_last_ten_are_shown(sendonce: Call, store: Store) -> None:
    for number in range(12):
        _job(store, f"ended-{number}", silent_s=5 + number, state="ended", pid=900 + number)
    for name in ("b", "c"):
        _job(store, name, silent_s=600)
    shown = sendonce("jobs").out
    pids = [pid for pid in range(900, 912) if f"host {pid}" in " ".join(shown.split())]
    assert pids == list(range(900, 910))
    assert "2 more jobs ended within a day: `sendonce jobs --all`" in shown
    assert "2 jobs are silent: they were killed or have lost the store." in " ".join(shown.split())
    whole = sendonce("jobs", "--all").out
    assert "host 911" in " ".join(whole.split())
    assert len(sendonce("jobs", "--json").json) == 14


def test_jobs_of_two_versions_are_pointed_out(sendonce: Call, store: Store) -> None:
    _job(store, "a", version="1.0")
    _job(store, "b", version="1.1")
    _job(store, "c", version="0.9", state="ended")
    assert "Jobs of different versions run: 1.0, 1.1." in " ".join(sendonce("jobs").out.split()) or (
        "Jobs of different versions run: 1.1, 1.0." in " ".join(sendonce("jobs").out.split())
    )


def test_a_job_says_the_same_of_itself_until_it_says_otherwise(store: Store) -> None:
    row = JobRow(store, "a", ["bulk"], subscription="s")
    row.beat("running", restarts=1)
    row.beat("ended", restarts=2)
    (job,) = store.read(seen_jobs)
    assert (job.state, job.facts) == ("ended", {"subscription": "s", "restarts": 2})


def test_rows_of_jobs_are_not_kept_for_ever(store: Store) -> None:
    _job(store, "old", silent_s=KEPT.total_seconds() + 60)
    _job(store, "new", silent_s=KEPT.total_seconds() - 60)
    assert forget_old_jobs(store) == 1
    assert [job.row.job_id for job in store.read(seen_jobs)] == ["new"]


def test_what_a_job_said_may_be_damaged(store: Store) -> None:
    _job(store, "a", detail="{")
    assert store.read(seen_jobs)[0].facts == {}


def test_a_job_is_heard_of_whatever_it_waits_for_and_its_end_is_its_last_word(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run whose round waited for a slow provider seemed to be dead."""
    monkeypatch.setattr(jobs, "BEATS_S", 0.02)
    stopping = threading.Event()
    row = JobRow(store, "a", ["bulk"])
    heart = Heartbeat(row, stopping)

    def heard(state: str, times: int) -> None:
        ends_s = time.monotonic() + 60
        moments = set()
        while len(moments) < times:
            assert time.monotonic() < ends_s
            moments.update(job.row.heartbeat_at for job in store.read(seen_jobs) if job.state == state)

    heart.start()
    heard("running", 3)
    stopping.set()
    heard("stopping", 3)
    row.beat("ended")
    row.beat("running")  # as a thread that was held up would
    heart.end()
    assert [job.state for job in store.read(seen_jobs)] == ["ended"]


def test_a_job_that_is_stopping_is_no_job_that_is_missing(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [2], state="running")
    _job(store, "a", state="stopping", lanes="bulk")
    said = " ".join(sendonce("status", "spring").out.split())
    assert "The job of the lane bulk is stopping: what it has in flight ends first." in said
    assert "No job of the lane" not in said
    found = sendonce("status", "spring", "--json").json
    assert (found["jobs"], found["jobs_stopping"]) == (0, 1)
    assert [job["state"] for job in sendonce("jobs", "--json").json] == ["stopping"]
