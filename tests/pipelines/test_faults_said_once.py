"""A fault of the store in the middle of a round: its one line is what a person sees, and no traceback of Beam's."""

import logging

import pytest

from pipelines.quiet import errors_kept_back
from sendonce.config import ConfigFault
from sendonce.stores.base import StoreRefused
from tests.pipelines.shop import Shop, people
from transforms.worker import Worker


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.name for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.parametrize("fault", [StoreRefused("the store is gone"), ConfigFault("the store holds no lanes")])
def test_a_fault_that_is_reported_is_not_logged_too(
    shop: Shop, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, fault: Exception
) -> None:
    """The store was removed while a job ran: a page of Beam's stood before the message."""

    def fail(*args: object) -> None:
        raise fault

    shop.campaign("spring", people(3))
    monkeypatch.setattr(Worker, "render", fail)
    with pytest.raises(type(fault), match=str(fault)):
        shop.run()
    assert errors(caplog) == []


def test_what_beam_says_of_an_unforeseen_fault_still_comes(caplog: pytest.LogCaptureFixture) -> None:
    beam = logging.getLogger("apache_beam.runners.common")

    def fail() -> None:
        with errors_kept_back():
            beam.error("a bug")
            beam.warning("a warning")
            assert [record.getMessage() for record in caplog.records] == ["a warning"]
            raise ValueError("a bug")

    with pytest.raises(ValueError, match="a bug"):
        fail()
    assert [record.getMessage() for record in caplog.records] == ["a warning", "a bug"]
    beam.error("later")
    assert caplog.records[-1].getMessage() == "later"
