"""What the tests of the SMTP adapter share: a sender before a fake mail server, and its letters as people read them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest

from schemas.letters import Letter
from sendonce.config import SmtpSettings
from sendonce.senders.base import Reply, Verdict
from tests.providers.smtp import FakeSmtp, Fault
from tests.senders.conformance import Account, Sent, request_of

CASES = Path(__file__).resolve().parents[1] / "cases"
USER, PASSWORD = "shop", "correct-horse"


def settings(**fields: Any) -> SmtpSettings:
    known = {"name": "mail", "adapter": "smtp", "host": "127.0.0.1", "tls": "never", "ehlo_name": "out.shop.example"}
    return SmtpSettings.model_validate({**known, **fields})


@contextmanager
def sender_for(
    port: int, secrets: Mapping[str, str] | None = None, ssl_context: Any = None, **fields: Any
) -> Iterator[Any]:
    from sendonce.senders.smtp import Smtp

    if secrets is not None:
        fields = {"user": "env:U", "password": "env:P", **fields}
    with closing(Smtp(settings(port=port, **fields), secrets or {}, ssl_context=ssl_context)) as sender:
        yield sender


class Scene:
    """A sender and the server behind it."""

    def __init__(self, sender: Any, fake: FakeSmtp) -> None:
        self.sender = sender
        self.fake = fake

    def send(self, letters: Sequence[Letter], timeout_s: float = 10.0) -> Reply:
        reply: Reply = self.sender.send(self.sender.prepare(request_of(letters)), timeout_s)
        return reply


@contextmanager
def scene(*faults: Fault, server: Mapping[str, Any] | None = None, **fields: Any) -> Iterator[Scene]:
    with FakeSmtp(*faults, **(server or {})) as fake, sender_for(fake.port, **fields) as sender:
        yield Scene(sender, fake)


def outcomes(reply: Reply, letters: Sequence[Letter]) -> dict[int, int]:
    """Ordinal to the outcome of its refusal, of those who were refused."""
    found = {o.ordinal: reply.exceptions.get(o.ordinal, (reply.verdict, reply.outcome, "")) for o in letters}
    return {ordinal: outcome for ordinal, (verdict, outcome, _) in found.items() if verdict is Verdict.REFUSED}


def read(data: bytes) -> EmailMessage:
    letter = BytesParser(policy=policy.default).parsebytes(data)
    assert isinstance(letter, EmailMessage)
    assert not letter.defects
    return letter


def sent_of(to: str, data: bytes) -> Sent:
    """A letter as a mail program shows it, to the address of its envelope."""
    letter = read(data)

    def part(kind: str) -> str:
        found = letter.get_body((kind,))
        return found.get_content().replace("\r\n", "\n") if found is not None else ""

    name = str(letter["Message-ID"]).strip("<>").partition("@")[0]
    return Sent(to, str(letter["Subject"]), part("plain"), part("html"), name)


class AtSmtp:
    """The fake server under the names of the conformance suite."""

    def __init__(self, fake: FakeSmtp) -> None:
        self._fake = fake
        self._how, self._address = "", ""
        fake.rule = self._fault

    def letters(self) -> Sequence[Sent]:
        return [sent_of(letter.to, letter.data) for letter in self._fake.taken]

    def misbehave(self, how: str, address: str = "") -> None:
        if how == "refuse_connection":
            self._fake.refuse_connections()
        self._how, self._address = how, address

    def _fault(self, phase: str, argument: str) -> Fault | None:
        if self._how == "refuse_recipient" and (phase, argument) == ("rcpt", self._address):
            return Fault("rcpt", "reply", f"550 5.1.1 <{argument}>: no such user here")
        return {
            ("close_before_reply", "dot"): Fault("dot", "close", takes=True),
            ("silence", "dot"): Fault("dot", "silence", takes=True),
            ("busy", "mail"): Fault("mail", "reply", "452 4.3.1 too busy"),
            ("refuse_account", "auth"): Fault("auth", "reply", "535 5.7.8 no"),
            ("refuse_account", "mail"): Fault("mail", "reply", "530 5.7.0 log in first"),
        }.get((self._how, phase))


@contextmanager
def account() -> Iterator[Account]:
    """A sender and its server for the conformance suite."""
    pytest.importorskip("aiosmtplib", reason="aiosmtplib is not installed")
    secrets = {"user": USER, "password": PASSWORD}
    with FakeSmtp(users={USER: PASSWORD}) as fake, sender_for(fake.port, secrets) as sender:
        yield Account(sender, AtSmtp(fake))
