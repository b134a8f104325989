"""The SES adapter, put through what every adapter must do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from tests.providers.http import Fate
from tests.providers.ses import FakeSes, error
from tests.senders.conformance import Account, Conformance, Sent
from tests.senders.ses_letters import sender_for


class AtSes:
    """The fake SES under the names of the suite."""

    def __init__(self, folder: Path) -> None:
        self._how, self._address = "", ""
        self.fake = FakeSes(
            folder / "log.jsonl", rule=self._fate, entries=self._refused, bodies=folder / "bodies.jsonl"
        )

    def letters(self) -> Sequence[Sent]:
        return [Sent(one.to, one.subject, one.text, one.html, one.tags["message_id"]) for one in self.fake.letters()]

    def misbehave(self, how: str, address: str = "") -> None:
        if how == "refuse_connection":
            self.fake.__exit__()
        self._how, self._address = how, address

    def _fate(self, body: dict[str, Any]) -> Fate | None:
        fates = {
            "close_before_reply": Fate(200, fault="close_after_read", accepts=True),
            "silence": Fate(200, fault="stall", accepts=True),
            "busy": error("TooManyRequestsException", "Maximum sending rate exceeded.", 429),
            "refuse_account": error("UnrecognizedClientException", "The security token is invalid.", 403),
        }
        return fates.get(self._how)

    def _refused(self, address: str) -> tuple[str, str] | None:
        if self._how == "refuse_recipient" and address == self._address:
            return "INVALID_PARAMETER", f"Missing final '@domain' in {address}"
        return None


@contextmanager
def account() -> Iterator[tuple[Any, AtSes]]:
    """A sender, and the provider that it sends to."""
    with TemporaryDirectory() as folder:
        provider = AtSes(Path(folder))
        with provider.fake, sender_for(provider.fake.url) as sender:
            yield sender, provider


class TestSes(Conformance):
    @pytest.fixture
    def account(self) -> Iterator[Account]:
        with account() as (sender, provider):
            yield Account(sender, provider)
