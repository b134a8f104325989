"""What `resume` says will go on with a campaign: a job that is there, or the one that is to be started."""

from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.tables import Job
from sendonce.control.campaigns import pause
from sendonce.stores.base import Store, Tx
from tests.cli.conftest import Call
from tests.control.made import seal

BY_A_JOB, BY_YOU = "A running job goes on with it.", "`sendonce run` goes on with it."


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (None, BY_YOU),
        ({"silent_s": -60}, BY_A_JOB),
        ({"state": "ended"}, BY_YOU),
        ({"lanes": "critical,high"}, BY_YOU),
        ({"silent_s": 2000}, BY_YOU),
        ({"silent_s": 40}, "A job was last heard of "),
    ],
)
def test_resume_names_who_goes_on_with_it(
    sendonce: Call, store: Store, monkeypatch: pytest.MonkeyPatch, job: dict[str, object] | None, said: str
) -> None:
    """It promised a running job where none was."""
    monkeypatch.setattr("sendonce.control.jobs.SILENT_S", 1_000.0)
    seal(store, "spring", [2], state="running")
    pause(store, "spring", "ann")

    def work(tx: Tx) -> None:
        if job is not None:
            at = tx.now() - timedelta(seconds=int(str(job.get("silent_s", 0))))
            row = Job("j1", "host", 1, "bulk", "1", at, at, "running")
            tx.put(replace(row, **{name: value for name, value in job.items() if name != "silent_s"}))

    store.transact(work, tag="test")

    assert said in " ".join(sendonce("resume", "spring").out.split())
    shown = " ".join(sendonce("status", "spring").out.split())
    assert ("last heard of" in shown) == ("last heard of" in said)
    assert (sendonce("status", "spring", "--json").json["jobs_heard_s"] is None) == (said == BY_YOU)
