"""SMTP, put through what every adapter must do."""

from collections.abc import Iterator

import pytest

from tests.senders import smtp_letters
from tests.senders.conformance import Account, Conformance


class TestSmtp(Conformance):
    @pytest.fixture
    def account(self) -> Iterator[Account]:
        with smtp_letters.account() as account:
            yield account
