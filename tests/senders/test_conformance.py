"""The adapters that ship, put through what every adapter must do."""

import mailbox
from collections.abc import Iterator, Sequence
from contextlib import closing
from email import policy
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import pytest

from sendonce.senders.outbox import Outbox
from tests.senders.conformance import Account, Conformance, Sent


class Folder:
    """An outbox's folder as a provider: what it holds is what it took."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def letters(self) -> Sequence[Sent]:
        files = sorted(self._folder.rglob("*.mbox"), key=lambda path: path.stat().st_mtime_ns)
        return [sent_of(letter) for path in files for letter in letters_in(path)]

    def misbehave(self, how: str, address: str = "") -> None:
        assert not how, "a folder takes what it is given"


def letters_in(path: Path) -> Iterator[EmailMessage]:
    box = mailbox.mbox(path, create=False)
    try:
        for key in box.iterkeys():
            yield BytesParser(policy=policy.default).parsebytes(box.get_bytes(key))  # type: ignore[misc]
    finally:
        box.close()


def sent_of(letter: EmailMessage) -> Sent:
    """A letter as a mail program shows it."""

    def part(kind: str) -> str:
        found = letter.get_body((kind,))
        return found.get_content() if found is not None else ""

    name = str(letter["Message-ID"]).strip("<>").partition("@")[0]
    return Sent(str(letter["To"]), str(letter["Subject"]), part("plain"), part("html"), name)


class TestOutbox(Conformance):
    faults = ()
    knows_repeats = True

    @pytest.fixture
    def account(self, tmp_path: Path) -> Iterator[Account]:
        with closing(Outbox("outbox", tmp_path / "outbox")) as sender:
            yield Account(sender, Folder(tmp_path / "outbox"))


class AtSendGrid:
    """The fake SendGrid under the names of the suite."""

    def __init__(self, fake: Any) -> None:
        self._fake = fake
        self._how, self._address = "", ""

    def letters(self) -> Sequence[Sent]:
        return [
            Sent(one.to, one.subject, one.text, one.html, one.custom_args["message_id"]) for one in self._fake.letters()
        ]

    def misbehave(self, how: str, address: str = "") -> None:
        if how == "refuse_connection":
            self._fake.__exit__()
        self._how, self._address = how, address

    def fate(self, body: dict[str, Any]) -> Any:
        from tests.providers.http import Fate
        from tests.providers.sendgrid import errors

        people = [party["email"] for one in body["personalizations"] for party in one["to"]]
        if self._how == "refuse_recipient" and self._address in people:
            place = people.index(self._address)
            return errors((f"personalizations.{place}.to.0.email", "Does not contain a valid address."))
        fates = {
            "close_before_reply": Fate(202, fault="close_after_read", accepts=True),
            "silence": Fate(202, fault="stall", accepts=True),
            "busy": errors((None, "too many requests"), status=429),
            "refuse_account": errors((None, "authorization required"), status=401),
        }
        return fates.get(self._how)


class TestSendGrid(Conformance):
    @pytest.fixture
    def account(self, tmp_path: Path) -> Iterator[Account]:
        pytest.importorskip("sendgrid", reason="sendgrid is not installed")
        from tests.providers.sendgrid import FakeSendGrid
        from tests.senders.sendgrid_letters import sender_for

        provider: list[AtSendGrid] = []
        fake = FakeSendGrid(
            tmp_path / "log.jsonl",
            rule=lambda body: provider[0].fate(body),
            bodies=tmp_path / "bodies.jsonl",
        )
        with fake, sender_for(fake.url) as sender:
            provider.append(AtSendGrid(fake))
            yield Account(sender, provider[0])
