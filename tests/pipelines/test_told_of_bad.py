"""What a live job says of triggers that cannot be followed: the first at once, and how many there are."""

import pytest

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from pipelines.intake import SAID_AGAIN_S, ToldOfBad
from tests.fakes import ManualClock

LIST = "`sendonce dead-letters list`"


def test_all_are_counted_that_come_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    """Of four in a row a job said "1 in all", and no more."""
    clock = ManualClock()
    told = ToldOfBad(clock.boottime)
    for reason in ("invalid", "not_json", "invalid", "unknown_type"):
        told.note([reason])
        told.say()
        clock.advance(1)
    assert caplog.messages == [f"a trigger cannot be followed (invalid), 1 in all: {LIST}"]

    clock.advance(SAID_AGAIN_S)
    told.say()  # though no other came
    assert caplog.messages[1:] == [f"3 triggers cannot be followed (not_json, invalid, unknown_type), 4 in all: {LIST}"]
    told.say()
    assert len(caplog.messages) == 2


def test_those_that_came_together_are_told_together(caplog: pytest.LogCaptureFixture) -> None:
    told = ToldOfBad(ManualClock().boottime)
    told.note(["invalid"] * 4)
    told.say()
    assert caplog.messages == [f"4 triggers cannot be followed (invalid), 4 in all: {LIST}"]


def test_a_stop_tells_what_was_not_told_yet(caplog: pytest.LogCaptureFixture) -> None:
    told = ToldOfBad(ManualClock().boottime)
    for _ in range(3):
        told.note(["invalid"])
        told.say()
    told.say(last=True)
    assert caplog.messages[-1] == f"2 triggers cannot be followed (invalid), 3 in all: {LIST}"
    told.say(last=True)
    assert len(caplog.messages) == 2
