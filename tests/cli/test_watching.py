"""What is said of campaigns as they go where there is no terminal."""

import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from pipelines.local import Round
from schemas.ordinals import pack
from schemas.outcomes import Outcome
from schemas.tables import Switch
from sendonce.cli import watching
from sendonce.control.completion import settle_campaign
from sendonce.delivery.outlook import Left
from sendonce.stores.base import Store
from tests.cli.conftest import Call
from tests.control.made import batch_row, campaign_row, outcomes, seal


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


def test_that_letters_await_an_answer_is_said(
    store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that waited for a slow mail server said nothing for minutes."""
    monkeypatch.setattr(watching, "_QUIET_LOOK_S", 0.01)
    monkeypatch.setattr(watching, "_LINE_S", 0.0)
    monkeypatch.setenv("COLUMNS", "200")
    seal(store, "spring", [20], state="running")
    waits = replace(batch_row(store, "spring", 0), state="sending", open_state="sending", provider="outbox")
    waits = replace(waits, attempt_id="01A", intent_ordinals=pack([0, 1, 2]))
    long_ago = timedelta(minutes=1)
    store.transact(lambda tx: tx.put(replace(waits, permit_at=tx.now() - long_ago)), tag="test")
    said = ""
    ends = time.monotonic() + 60
    with watching.Watch(store, lanes=("bulk",)):
        while "sender outbox: 3 letters in 1 request await an answer since" not in " ".join(said.split()):
            assert time.monotonic() < ends, said
            said += capsys.readouterr().err


def test_a_failing_sender_is_told_of_once_with_who_stands_by(
    store: Store, sendonce: Call, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each failure in a row was told anew, and never what comes after the last one."""
    (folder / "sendonce.yaml").write_text(
        "senders: {post: {adapter: outbox, path: one}, spare: {adapter: outbox, path: two}}\n"
        "lanes: {bulk: {sender: post, fallback: spare}}\n"
    )
    assert sendonce("config", "apply").code == 0
    capsys.readouterr()
    watch = watching.Watch(store, lanes=("bulk",))
    now = store.read(lambda reader: reader.now())

    def fails(failures: int) -> str:
        switch = Switch("sender:post", "failing", now, "w", "connect", None, f'{{"failures": {failures}}}')
        store.transact(lambda tx: tx.put(switch), tag="test")
        left = Left(5, now + timedelta(seconds=failures), due_for="retry")
        watch.round(Round(1, left, 1.0))
        return " ".join(capsys.readouterr().err.split())

    assert "post is failing (connect), 1 failure in a row; after 5 in a row letters go by spare" in fails(1)
    assert fails(2) == ""
