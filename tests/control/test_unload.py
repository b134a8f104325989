"""Taking a sealed campaign out again: only while nobody started it, whole, also after a kill."""

import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from schemas.tables import Decision
from sendonce.control import snapshots
from sendonce.control.campaigns import begin_cancel, pause, submit
from sendonce.control.faults import UnknownCampaign, WrongState
from sendonce.control.load import LoadFailed, LoadFault
from sendonce.control.snapshots import Snapshot
from sendonce.control.triggers import BadTrigger, Trigger, apply_trigger
from sendonce.control.unload import unload
from tests.control.lists import Loads, batches, campaign, recipients
from tests.control.made import Clock, seal


def people(count: int) -> bytes:
    return b"recipient_id,email\n" + b"".join(b"%d,u%d@one.example\n" % (n, n) for n in range(count))


def test_an_unloaded_campaign_is_gone_and_its_id_is_free(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "_WRITE_ROWS", 20)
    loads(people(50), campaign_id="spring", batch_size=10)
    loads(people(3), campaign_id="summer")
    removed: list[int] = []

    assert unload(loads.store, "spring", removed.append) == 50

    assert removed[-3:] == [20, 40, 50]
    assert campaign(loads.store, "spring") is None
    assert recipients(loads.store, "spring") == batches(loads.store, "spring") == []
    assert len(recipients(loads.store, "summer")) == 3
    assert loads(people(7), campaign_id="spring").report.recipients == 7


@pytest.mark.parametrize("state", ["running", "paused", "halted", "cancelling", "cancelled", "completed", "loading"])
def test_whatever_was_started_stays(loads: Loads, state: str) -> None:
    seal(loads.store, "spring", [3], state=state)

    with pytest.raises(WrongState, match=f"cannot unload campaign spring: it is {state}; "):
        unload(loads.store, "spring")

    assert len(recipients(loads.store, "spring")) == 3
    with pytest.raises(UnknownCampaign):
        unload(loads.store, "autumn")


def begun(loads: Loads) -> Snapshot:
    """An unload of another process that is in the middle of its work."""
    loads(people(5), campaign_id="spring")
    row = campaign(loads.store, "spring")
    assert row is not None
    snapshot = Snapshot(loads.store, row, "other")
    snapshot.take_back()
    return snapshot


def test_nothing_starts_a_campaign_that_is_being_unloaded(loads: Loads) -> None:
    snapshot = begun(loads)

    for action in (submit, pause):
        with pytest.raises(WrongState):
            action(loads.store, "spring", "ann")
    with pytest.raises(BadTrigger) as refused:
        apply_trigger(loads.store, Trigger("start", "spring", None), "bus")
    assert refused.value.reason == "wrong_state"
    with pytest.raises(LoadFault, match="is running"):
        unload(loads.store, "spring")
    with pytest.raises(LoadFault, match="is running"):
        loads(people(5), campaign_id="spring")

    snapshot.abandon()
    assert campaign(loads.store, "spring") is None


def test_a_cancel_meanwhile_stays_and_leaves_nobody_behind(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    loads(people(5), campaign_id="spring")
    take_back = Snapshot.take_back

    def and_cancelled(self: Snapshot) -> None:
        take_back(self)
        begin_cancel(loads.store, "spring", "ann")

    monkeypatch.setattr(Snapshot, "take_back", and_cancelled)
    with pytest.raises(LoadFailed, match="cancelled meanwhile"):
        unload(loads.store, "spring")

    row = campaign(loads.store, "spring")
    assert row is not None
    assert row.state == "cancelled"
    assert recipients(loads.store, "spring") == batches(loads.store, "spring") == []
    assert loads.store.read(lambda reader: reader.scan(Decision, "spring", index="decisions_by_campaign"))


def test_a_cancel_afterwards_is_kept_for_whoever_starts_the_id(loads: Loads) -> None:
    loads(people(5), campaign_id="spring")
    unload(loads.store, "spring")

    with pytest.raises(BadTrigger, match="no campaign"):
        apply_trigger(loads.store, Trigger("start", "spring", None), "bus")
    apply_trigger(loads.store, Trigger("cancel", "spring", None), "bus")
    loads(people(5), campaign_id="spring")

    assert submit(loads.store, "spring", "ann").after == "cancelling"


def test_an_unload_that_fell_silent_is_taken_over_by_the_next_or_by_a_load(loads: Loads, clock: Clock) -> None:
    silent = begun(loads)
    clock.at += timedelta(seconds=snapshots.DEAD_AFTER_S + 1)
    assert unload(loads.store, "spring") == 5

    loads(people(4), campaign_id="spring")
    silent.abandon()
    assert len(recipients(loads.store, "spring")) == 4


KILLED = """
import os, signal, sys
from sendonce.control import snapshots
from sendonce.control.unload import unload
from sendonce.stores.opening import open_store
snapshots._WRITE_ROWS = 50
def die(removed):
    if removed == 100:
        os.kill(os.getpid(), signal.SIGKILL)
unload(open_store(sys.argv[1]), "spring", die)
"""


@pytest.mark.parametrize("then", ["unload", "load"])
def test_a_killed_unload_goes_on_when_it_is_called_again(loads: Loads, then: str) -> None:
    loads(people(300), campaign_id="spring", batch_size=10)

    killed = subprocess.run(
        [sys.executable, "-c", KILLED, loads.store.url],
        cwd=Path(__file__).parents[2],
        check=False,
        capture_output=True,
        env={**os.environ},
    )

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert len(recipients(loads.store, "spring")) == 200
    if then == "unload":
        assert unload(loads.store, "spring") == 300
        assert campaign(loads.store, "spring") is None
        assert recipients(loads.store, "spring") == []
    else:
        assert loads(people(7), campaign_id="spring").report.recipients == 7
        assert len(recipients(loads.store, "spring")) == 7
