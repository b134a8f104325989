"""A provider in a process of its own, which nobody kills, that makes faults by a seed and by order.

    python -m tests.chaos.provider_process KIND --log FILE --seed N [--calm] [--honest-503]

prints its port and serves until its standard input ends. A line there is an order (`provider_faults`), answered by
itself. The log is append-only JSON lines, each written before the reply: at least {"at", "campaign_id", "batch_no",
"attempt_ids", "recipients", "taken" (message ids)} for each request, or letter. --calm: no faults but those ordered.
--honest-503: it says 503 only where it took nothing.
"""

import argparse
import email
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import orjson

from tests.chaos.provider_faults import Troubles
from tests.evidence import arrival_of
from tests.providers import json_lines, smtp
from tests.providers.http import Received
from tests.providers.keyed import Answered, KeyedProvider, Taken
from tests.providers.resend import FakeResend
from tests.providers.sendgrid import FakeSendGrid
from tests.providers.ses import FakeSes
from tests.providers.smtp import FakeSmtp
from tests.providers.webhook import FakeReceiver

USER, PASSWORD = "chaos", "chaos-password"
# Long enough that a process dies now and then while its request is on the way.
ANSWERS_AFTER_S = 0.03
# Of repeats under a key: the first is said to be still at work, or to have been another request.
_STILL_AT_WORK, _ANOTHER = 0.2, 0.1


def line_of(at_s: float, facts: dict[str, Any], taken: Iterable[str], recipients: int, **more: Any) -> bytes:
    line = {
        "at": at_s,
        "campaign_id": facts.get("campaign_id", ""),
        "batch_no": facts.get("batch_no"),
        "attempt_ids": [facts.get("attempt_id", "")],
        "recipients": recipients,
        "taken": list(taken),
        **more,
    }
    return orjson.dumps(line)


class _Refused:
    """The recipients whom a provider refuses, as a set that nobody has to fill."""

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles

    def __contains__(self, address: object) -> bool:
        return self._troubles.refuses(str(address))


class _Keyed(KeyedProvider):
    """Writes down what it took, and repeats that it knew by their key."""

    log: Path
    troubles: Troubles
    facts: Callable[[bytes], dict[str, Any]]

    def _by_key(self, received: Received) -> Answered:
        key = received.headers.get("idempotency-key", "")
        if key in self._keys and self.troubles.hits(_STILL_AT_WORK):
            return self.conflict(same=True)
        if key in self._keys and self.troubles.hits(_ANOTHER):
            return self.conflict(same=False)
        answered = super()._by_key(received)
        taken: list[Taken] = answered.taken
        if taken or answered.replayed:
            facts, at_s = type(self).facts(received.body), time.time()
            names = [letter.message_id for letter in taken]
            json_lines.append(self.log, line_of(at_s, facts, names, len(names), replayed=answered.replayed))
        time.sleep(ANSWERS_AFTER_S)
        return answered


class ChaosResend(_Keyed, FakeResend):
    @staticmethod
    def facts(body: bytes) -> dict[str, Any]:
        return {tag["name"]: tag["value"] for tag in orjson.loads(body)[0]["tags"]}


class ChaosReceiver(_Keyed, FakeReceiver):
    @staticmethod
    def facts(body: bytes) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(body)["data"]
        return found


class _Letters(list[smtp.Taken]):
    """What a mail server took: each is written down before its reply."""

    def __init__(self, log: Path) -> None:
        super().__init__()
        self._log = log

    def append(self, letter: smtp.Taken) -> None:
        super().append(letter)
        known = arrival_of(email.message_from_bytes(letter.data), letter.at, "")
        facts = {"attempt_id": known.attempt_id}
        json_lines.append(self._log, line_of(letter.at.timestamp(), facts, [known.message_id], 1))


def server(kind: str, log: Path, troubles: Troubles) -> tuple[AbstractContextManager[Any], Callable[[], int]]:
    """A provider to enter, and what tells its port then."""
    made: Any
    if kind == "smtp":
        made = FakeSmtp(rule=troubles.at, users={USER: PASSWORD})
        made.taken = _Letters(log)
        return made, lambda: int(made.port)
    if kind == "sendgrid":
        made = FakeSendGrid(log, checks="limits", delay_s=ANSWERS_AFTER_S)
    elif kind == "ses":
        made = FakeSes(log, entries=_entries(troubles), delay_s=ANSWERS_AFTER_S)
    else:
        made = {"resend": ChaosResend, "webhook": ChaosReceiver}[kind]()
        made.log, made.troubles, made.refused_recipients = log, troubles, _Refused(troubles)
    made.script = troubles
    return made, lambda: int(urlsplit(made.url).port or 0)


def _entries(troubles: Troubles) -> Callable[[str], tuple[str, str] | None]:
    """Partial success: some are never taken, and some not now."""

    def status(address: str) -> tuple[str, str] | None:
        if troubles.refuses(address):
            return "MESSAGE_REJECTED", "not this one"
        return ("TRANSIENT_FAILURE", "later") if troubles.hits(0.01) else None

    return status


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.provider_process")
    parser.add_argument("kind", choices=("sendgrid", "ses", "webhook", "resend", "smtp"))
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--calm", action="store_true")
    parser.add_argument("--honest-503", action="store_true")
    options = parser.parse_args()
    troubles = Troubles(options.seed, at_random=not options.calm, honest_503=options.honest_503)
    made, port = server(options.kind, options.log, troubles)
    with made:
        print(port(), flush=True)
        for line in sys.stdin:
            troubles.order = line.strip()
            print(troubles.order, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
