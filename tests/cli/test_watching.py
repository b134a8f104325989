"""What is said of campaigns as they go where there is no terminal."""

import time

import pytest

from schemas.outcomes import Outcome
from sendonce.cli import watching
from sendonce.control.completion import settle_campaign
from sendonce.stores.base import Store
from tests.control.made import campaign_row, outcomes, seal


def test_a_line_is_said_when_something_changed_and_only_of_the_lanes_of_the_job(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watching, "_QUIET_LOOK_S", 0.01)
    monkeypatch.setattr(watching, "_LINE_S", 0.0)
    seal(store, "spring", [2], state="running")
    seal(store, "codes", [1], state="running", priority="critical")
    lines: list[str] = []

    def said(line: str) -> None:
        ends = time.monotonic() + 60
        while not any(line in one for one in lines):
            assert time.monotonic() < ends, lines
            time.sleep(0.02)
            lines.extend(capsys.readouterr().err.splitlines())

    with watching.Watch(store, lanes=("bulk", "high")):
        said("spring: 0 of 2")
        outcomes(store, "spring", 0, {0: Outcome.ACCEPTED, 1: Outcome.ACCEPTED})
        said("spring: 2 of 2")
        settle_campaign(store, "spring")
        assert campaign_row(store, "spring").state == "completed"
        time.sleep(0.2)  # many looks, which have nothing new
    lines.extend(capsys.readouterr().err.splitlines())

    assert [line.split(",")[0].split(";")[0] for line in lines] == ["spring: 0 of 2", "spring: 2 of 2"]
