"""What the tests of the SendGrid adapter share: letters, requests, and a sender before a fake provider."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import orjson

from schemas.ids import attempt_id
from schemas.letters import FormLetter, Letter, Letters, slot_key
from sendonce.config import SendGridSettings
from sendonce.senders.base import Reply, Request, Verdict
from sendonce.senders.sendgrid import SendGrid
from tests.providers.http import Fate
from tests.providers.sendgrid import KEY, FakeSendGrid

CASES = Path(__file__).resolve().parents[1] / "cases"
NOW_S = 1_768_467_600
ATTEMPT = attempt_id(NOW_S * 1000, bytes(10))
PREFIX = "kx7"
S0, S1 = slot_key(PREFIX, 0), slot_key(PREFIX, 1)
FORM = FormLetter(PREFIX, 2, f"Hello {S0}", f"Dear {S0}, your code is {S1}.\n", f"<p>Dear {S0}, <b>{S1}</b></p>\n")


def packed(ordinal: int, to: str = "", values: Sequence[str] = (), **fields: Any) -> Letter:
    return Letter(
        ordinal,
        f"{ordinal:052d}",
        to or f"u{ordinal}@one.example",
        fields.pop("unsubscribe_url", f"https://shop.example/u/{ordinal}"),
        form=fields.pop("form", 0),
        values=list(values) or [f"Ann {ordinal}", f"c-{ordinal}"],
        **fields,
    )


def whole(ordinal: int, to: str = "", text: str = "", **fields: str) -> Letter:
    return Letter(
        ordinal,
        f"{ordinal:052d}",
        to or f"u{ordinal}@one.example",
        f"https://shop.example/u/{ordinal}",
        subject=fields.get("subject", f"Hello {ordinal}"),
        text=text or f"Dear {ordinal}\n",
        html=fields.get("html", f"<p>Dear {ordinal}</p>\n"),
    )


def request_of(letters: Sequence[Letter], forms: Sequence[FormLetter] = (FORM,), **fields: Any) -> Request:
    everything = Letters(
        fields.pop("from_address", "Shop <news@shop.example>"),
        fields.pop("reply_to", "help@shop.example"),
        list(forms),
        list(letters),
        [],
    )
    return Request("spring", 42, fields.pop("attempt", ATTEMPT), everything, letters)


def settings(**fields: Any) -> SendGridSettings:
    known = {"name": "mail", "adapter": "sendgrid", "api_key": "env:K"}
    return SendGridSettings.model_validate({**known, **fields})


@contextmanager
def sender_for(url: str, *, key: str = KEY, now_s: float = NOW_S, **fields: Any) -> Iterator[SendGrid]:
    sender = SendGrid(settings(base_url=url, **fields), key, now_s=lambda: now_s)
    try:
        yield sender
    finally:
        sender.close()


class Scene:
    """A sender, the provider behind it, and what the provider says happened."""

    def __init__(self, sender: SendGrid, fake: FakeSendGrid) -> None:
        self.sender = sender
        self.fake = fake

    def send(self, letters: Sequence[Letter], timeout_s: float = 10.0, **fields: Any) -> Reply:
        return self.sender.send(self.sender.prepare(request_of(letters, **fields)), timeout_s)

    def calls(self) -> list[int]:
        """How many recipients each call had, in order of arrival."""
        return [line["recipients"] for line in self.fake.requests()]

    def accepted(self) -> list[str]:
        return [address for line in self.fake.accepted() for address in line["to"]]


@contextmanager
def scene(
    folder: Path,
    *script: Fate,
    rule: Callable[[dict[str, Any]], Fate | None] | None = None,
    names_fields: bool = True,
    checks: str = "all",
    delay_s: float = 0.0,
    **fields: Any,
) -> Iterator[Scene]:
    fake = FakeSendGrid(
        folder / "log.jsonl",
        script=script,
        rule=rule,
        names_fields=names_fields,
        checks=checks,
        delay_s=delay_s,
        bodies=folder / "bodies.jsonl",
    )
    with fake, sender_for(fake.url, **fields) as sender:
        yield Scene(sender, fake)


def verdicts(reply: Reply, letters: Sequence[Letter]) -> dict[int, Verdict]:
    """Ordinal to verdict."""
    return {
        letter.ordinal: reply.exceptions.get(letter.ordinal, (reply.verdict, reply.outcome, ""))[0]
        for letter in letters
    }


def outcomes(reply: Reply, letters: Sequence[Letter]) -> dict[int, int]:
    """Ordinal to the outcome of its refusal, of those who were refused."""
    found = {o.ordinal: reply.exceptions.get(o.ordinal, (reply.verdict, reply.outcome, "")) for o in letters}
    return {ordinal: outcome for ordinal, (verdict, outcome, _) in found.items() if verdict is Verdict.REFUSED}


def body_of(raw: bytes) -> Mapping[str, Any]:
    found: Mapping[str, Any] = orjson.loads(raw)
    return found
