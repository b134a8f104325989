"""Resend and webhooks, put through what every adapter must do."""

from collections.abc import Iterator

import pytest

from tests.senders import resend_account, webhook_account
from tests.senders.conformance import Account, Conformance


class TestResend(Conformance):
    knows_repeats = True

    @pytest.fixture
    def account(self) -> Iterator[Account]:
        with resend_account.account() as (sender, provider):
            yield Account(sender, provider)


class TestWebhookWithKeys(Conformance):
    knows_repeats = True

    @pytest.fixture
    def account(self) -> Iterator[Account]:
        with webhook_account.account() as (sender, provider):
            yield Account(sender, provider)


class TestWebhookWithoutKeys(Conformance):
    @pytest.fixture
    def account(self) -> Iterator[Account]:
        with webhook_account.scene() as there:
            yield Account(there.sender, there.fake)
