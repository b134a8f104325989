"""What the tests of the webhook adapter share: a sender before a fake receiver."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from schemas.letters import Letter
from sendonce.config import WebhookSettings
from sendonce.senders.base import Reply
from sendonce.senders.webhook import Webhook
from tests.providers.http import Fate
from tests.providers.webhook import SECRET, FakeReceiver
from tests.senders.sendgrid_letters import NOW_S, request_of


def settings(**fields: Any) -> WebhookSettings:
    known = {"name": "hook", "adapter": "webhook", "url": "https://hooks.shop.example/letters", "secret": "env:S"}
    return WebhookSettings.model_validate({**known, **fields})


@contextmanager
def sender_for(
    url: str, *, secret: str = SECRET, now_s: Callable[[], float] = lambda: NOW_S, **fields: Any
) -> Iterator[Webhook]:
    sender = Webhook(settings(**{"url": url, "allow_private": True, **fields}), secret, now_s=now_s)
    try:
        yield sender
    finally:
        sender.close()


class Scene:
    """A sender, the receiver behind it, and what the receiver says happened."""

    def __init__(self, sender: Webhook, fake: FakeReceiver) -> None:
        self.sender = sender
        self.fake = fake

    def send(self, letters: Sequence[Letter], timeout_s: float = 10.0, **fields: Any) -> Reply:
        return self.sender.send(self.sender.prepare(request_of(letters, **fields)), timeout_s)

    def accepted(self) -> list[str]:
        return [letter[0] for letter in self.fake.letters()]


@contextmanager
def scene(*script: Fate, **fields: Any) -> Iterator[Scene]:
    with FakeReceiver(*script, now_s=lambda: NOW_S) as fake, sender_for(f"{fake.url}/letters", **fields) as sender:
        yield Scene(sender, fake)


@contextmanager
def account() -> Iterator[tuple[Webhook, FakeReceiver]]:
    """A working account, for what every adapter must do."""
    with scene(idempotency_window_s=86_400) as there:
        yield there.sender, there.fake
