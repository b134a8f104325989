"""What the tests of the SES adapter share: requests, and a sender before a fake SES."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from schemas.ids import attempt_id
from schemas.letters import FormLetter, Letter, Letters, slot_key
from sendonce.config import SesSettings
from sendonce.senders.base import Reply, Request, Verdict
from sendonce.senders.ses import Ses
from sendonce.senders.ses_account import open_account
from tests.providers.http import Fate
from tests.providers.ses import KEY_ID, REGION, SECRET, FakeSes

NOW_S = 1_768_467_600
ATTEMPT = attempt_id(NOW_S * 1000, bytes(10))
PREFIX = "kx7"
S0, S1 = slot_key(PREFIX, 0), slot_key(PREFIX, 1)
FORM = FormLetter(PREFIX, 2, f"Hello {S0}", f"Dear {S0}, your code is {S1}.\n", f"<p>Dear {S0}, <b>{S1}</b></p>\n")
KEYS = {"access_key_id": KEY_ID, "secret_access_key": SECRET}


def packed(ordinal: int, to: str = "", values: Sequence[str] = (), **fields: Any) -> Letter:
    return Letter(
        ordinal,
        f"{ordinal:052d}",
        to or f"u{ordinal}@one.example",
        fields.pop("unsubscribe_url", f"https://shop.example/u/{ordinal}"),
        form=fields.pop("form", 0),
        values=list(values) or [f"Ann {ordinal}", f"c-{ordinal}"],
    )


def whole(ordinal: int, to: str = "", **texts: str) -> Letter:
    found = {"subject": f"Hello {ordinal}", "text": f"Dear {ordinal}\n", "html": f"<p>Dear {ordinal}</p>\n", **texts}
    link = found.pop("unsubscribe_url", f"https://shop.example/u/{ordinal}")
    return Letter(ordinal, f"{ordinal:052d}", to or f"u{ordinal}@one.example", link, **found)  # type: ignore[arg-type]


def request_of(letters: Sequence[Letter], forms: Sequence[FormLetter] = (FORM,), **fields: Any) -> Request:
    everything = Letters(
        fields.pop("from_address", "Shop <news@shop.example>"),
        fields.pop("reply_to", "help@shop.example"),
        list(forms),
        list(letters),
        [],
    )
    return Request(fields.pop("campaign", "spring"), 42, fields.pop("attempt", ATTEMPT), everything, letters)


def settings(**fields: Any) -> SesSettings:
    return SesSettings.model_validate({"name": "mail", "adapter": "ses", "region": REGION, **fields})


@contextmanager
def sender_for(url: str, *, keys: Mapping[str, str] = KEYS, **fields: Any) -> Iterator[Ses]:
    more = {name: fields.pop(name) for name in ("clock", "now_s") if name in fields}
    configured = settings(endpoint_url=url, **fields)
    with closing(Ses(configured, open_account(configured, keys), **more)) as sender:
        yield sender


class Scene:
    """A sender, the provider behind it, and what the provider says happened."""

    def __init__(self, sender: Ses, fake: FakeSes) -> None:
        self.sender = sender
        self.fake = fake

    def send(self, letters: Sequence[Letter], timeout_s: float = 10.0, **fields: Any) -> Reply:
        return self.sender.send(self.sender.prepare(request_of(letters, **fields)), timeout_s)

    def calls(self) -> list[int]:
        """How many recipients each call had, in order of arrival."""
        return [line["recipients"] for line in self.fake.requests()]


@contextmanager
def scene(folder: Path, *script: Fate, **fields: Any) -> Iterator[Scene]:
    ours = {name: fields.pop(name) for name in ("rule", "entries", "checks", "delay_s", "ahead_s") if name in fields}
    fake = FakeSes(folder / "log.jsonl", script=script, bodies=folder / "bodies.jsonl", **ours)
    with fake, sender_for(fake.url, **fields) as sender:
        yield Scene(sender, fake)


def verdicts(reply: Reply, letters: Sequence[Letter]) -> dict[int, Verdict]:
    """Ordinal to verdict."""
    return {o.ordinal: reply.exceptions.get(o.ordinal, (reply.verdict, reply.outcome, ""))[0] for o in letters}


def outcomes(reply: Reply, letters: Sequence[Letter]) -> dict[int, int]:
    """Ordinal to the outcome of its refusal, of those who were refused."""
    found = {o.ordinal: reply.exceptions.get(o.ordinal, (reply.verdict, reply.outcome, "")) for o in letters}
    return {ordinal: outcome for ordinal, (verdict, outcome, _) in found.items() if verdict is Verdict.REFUSED}
