"""What the tests of the Resend adapter share: a sender before a fake provider."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from schemas.letters import Letter
from sendonce.config import ResendSettings
from sendonce.senders.base import Reply
from sendonce.senders.resend import Resend
from tests.providers.http import Fate
from tests.providers.resend import KEY, FakeResend
from tests.senders.sendgrid_letters import NOW_S, request_of


def settings(**fields: Any) -> ResendSettings:
    return ResendSettings.model_validate({"name": "mail", "adapter": "resend", "api_key": "env:K", **fields})


@contextmanager
def sender_for(
    url: str, *, key: str = KEY, now_s: Callable[[], float] = lambda: NOW_S, **fields: Any
) -> Iterator[Resend]:
    sender = Resend(settings(base_url=url, **fields), key, now_s=now_s)
    try:
        yield sender
    finally:
        sender.close()


class Scene:
    """A sender, the provider behind it, and what the provider says happened."""

    def __init__(self, sender: Resend, fake: FakeResend) -> None:
        self.sender = sender
        self.fake = fake

    def send(self, letters: Sequence[Letter], timeout_s: float = 10.0, **fields: Any) -> Reply:
        return self.sender.send(self.sender.prepare(request_of(letters, **fields)), timeout_s)

    def accepted(self) -> list[str]:
        return [letter[0] for letter in self.fake.letters()]


@contextmanager
def scene(*script: Fate, **fields: Any) -> Iterator[Scene]:
    with FakeResend(*script) as fake, sender_for(fake.url, **fields) as sender:
        yield Scene(sender, fake)


@contextmanager
def account() -> Iterator[tuple[Resend, FakeResend]]:
    """A working account, for what every adapter must do."""
    with scene() as there:
        yield there.sender, there.fake
