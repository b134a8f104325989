"""Who takes the letters of a run, and what they say afterwards of what they took."""

import random
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tests.chaos.provider_process import PASSWORD, USER
from tests.chaos.watch import OutboxWatch
from tests.checker import Arrivals
from tests.evidence import Arrival
from tests.providers import json_lines, resend, sendgrid, ses, webhook
from tests.providers.proxy import Proxy

KINDS = ("outbox", "sendgrid", "ses", "webhook", "resend", "smtp")
SECRETS = {
    "sendgrid": {"CHAOS_SENDGRID_KEY": sendgrid.KEY},
    "ses": {"CHAOS_SES_ID": ses.KEY_ID, "CHAOS_SES_KEY": ses.SECRET},
    "webhook": {"CHAOS_WEBHOOK_SECRET": webhook.SECRET},
    "resend": {"CHAOS_RESEND_KEY": resend.KEY},
    "smtp": {"CHAOS_SMTP_USER": USER, "CHAOS_SMTP_PASSWORD": PASSWORD},
}


class Provider(Protocol):
    """name, setting: the sender's, for the settings file; complete once it is started. environment: what a process
    needs besides. files: where letters may lie. real: whether a store for tests must say who may get letters.
    private: whether a store for production refuses it. knows_keys: whether it knows a repeat, so that nobody has to
    look."""

    name: str
    setting: dict[str, Any]
    environment: dict[str, str]
    files: tuple[Path, ...]
    real: bool
    private: bool

    def start(self) -> None: ...

    def stop(self) -> None:
        """Ends after a last look; harmless to call twice."""

    def arrivals(self) -> tuple[list[Arrival], list[Arrivals]]:
        """Every letter that was taken, once for each request that differed; and every request with its time."""

    def has(self, attempt_id: str) -> bool:
        """Whether something of this attempt was taken: what a person would look up at the provider."""

    @property
    def repeats(self) -> int:
        """How often a request came again."""


class OutboxProvider:
    """A folder, with an eye on it: the outbox itself replaces what comes again."""

    name = "outbox"
    real = False
    private = False

    def __init__(self, outbox: Path, keep: Path) -> None:
        self.setting: dict[str, Any] = {"adapter": "outbox", "path": str(outbox)}
        self.environment: dict[str, str] = {}
        self._watch = OutboxWatch(outbox, keep)
        self.files = (outbox, keep)

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()

    def arrivals(self) -> tuple[list[Arrival], list[Arrivals]]:
        letters, requests = self._watch.arrivals()
        letters = [replace(letter, provider=self.name) for letter in letters]
        return letters, [Arrivals(one.campaign_id, one.at, one.n, self.name) for one in requests]

    def has(self, attempt_id: str) -> bool:
        return any(letter.attempt_id == attempt_id for letter in self.arrivals()[0])

    @property
    def repeats(self) -> int:
        return self._watch.repeats


class ServedProvider:
    """A provider of some kind in a process of its own (`provider_process`), which nobody kills.

    calm: it makes no fault but those that are ordered. may_vanish: between it and its clients stands a proxy, so that
    `vanish` can make it refuse connections.
    """

    real = True

    def __init__(self, kind: str, log: Path, chance: random.Random, *, calm: bool, may_vanish: bool = False) -> None:
        self.name = kind
        self.private = kind == "webhook"
        self.files: tuple[Path, ...] = (log,)
        self.environment = SECRETS[kind]
        self.setting: dict[str, Any] = {"adapter": kind}
        self._log = log
        self._seed = chance.getrandbits(32)
        self._proves = chance.choice(("not_sent", "unknown"))
        self._calm = calm
        self._may_vanish = may_vanish
        self._process: subprocess.Popen[str] | None = None
        self._proxy: Proxy | None = None

    def start(self) -> None:
        arguments = ["--log", str(self._log), "--seed", str(self._seed), *(["--calm"] if self._calm else [])]
        if self._proves == "not_sent":
            arguments.append("--honest-503")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.provider_process", self.name, *arguments],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        port = int(self._process.stdout.readline())
        if self._may_vanish:
            self._proxy = Proxy(f"127.0.0.1:{port}")
            self._proxy.__enter__()
            port = int(self._proxy.address.rpartition(":")[2])
        self.setting |= self._account(port)

    def _account(self, port: int) -> dict[str, Any]:
        url = f"http://127.0.0.1:{port}"
        if self.name == "sendgrid":
            return {"api_key": "env:CHAOS_SENDGRID_KEY", "base_url": url, "http_503": self._proves}
        if self.name == "ses":
            keys = {"access_key_id": "env:CHAOS_SES_ID", "secret_access_key": "env:CHAOS_SES_KEY"}
            return {**keys, "region": ses.REGION, "endpoint_url": url, "http_503": self._proves}
        if self.name == "webhook":
            window = {"idempotency_window_s": 3600, "allow_private": True, "http_503": self._proves}
            return {"url": f"{url}/letters", "secret": "env:CHAOS_WEBHOOK_SECRET", "recipients": 50, **window}
        if self.name == "resend":
            return {"api_key": "env:CHAOS_RESEND_KEY", "base_url": url}
        login = {"user": "env:CHAOS_SMTP_USER", "password": "env:CHAOS_SMTP_PASSWORD"}
        return {"host": "127.0.0.1", "port": port, "tls": "never", **login}

    def stop(self) -> None:
        if self._proxy is not None:
            self._proxy.__exit__()
            self._proxy = None
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    def order(self, what: str) -> None:
        """Tell it how to answer from now on."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(what, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline().strip() == what

    def vanish(self) -> None:
        """Refuse every connection, until `appear`."""
        assert self._proxy is not None
        self._proxy.close()

    def appear(self) -> None:
        assert self._proxy is not None
        self._proxy.open()

    def arrivals(self) -> tuple[list[Arrival], list[Arrivals]]:
        letters: list[Arrival] = []
        requests: list[Arrivals] = []
        for number, line in enumerate(json_lines.read(self._log), 1):
            if not (taken := _taken(line)):
                continue
            at, campaign = datetime.fromtimestamp(line["at"], UTC), line["campaign_id"]
            batch_no = None if line["batch_no"] is None else int(line["batch_no"])
            place = f"{self._log.name}:{number}"
            letters += [
                Arrival(message, campaign, batch_no, line["attempt_ids"][0], at, place, provider=self.name)
                for message in taken
            ]
            requests.append(Arrivals(campaign, at, len(taken), self.name, taken[0]))
        return letters, requests

    def has(self, attempt_id: str) -> bool:
        return any(attempt_id in line["attempt_ids"] for line in json_lines.read(self._log) if _taken(line))

    def taken(self) -> int:
        """How many letters it has taken until now."""
        return sum(len(_taken(line)) for line in json_lines.read(self._log))

    @property
    def repeats(self) -> int:
        return sum(bool(line.get("replayed")) for line in json_lines.read(self._log))


def _taken(line: dict[str, Any]) -> list[str]:
    """The message ids that a line of a log says were taken."""
    if "taken" in line:
        return list(line["taken"])
    return list(line["message_ids"]) if line["accepted"] else []


class Providers:
    """The lane's own provider and, where it has one, its fallback's: what a run needs of all of them together."""

    def __init__(self, own: Provider, fallback: Provider | None = None) -> None:
        self.own, self.fallback = own, fallback
        self.each = [own] if fallback is None else [own, fallback]

    @property
    def environment(self) -> dict[str, str]:
        return {name: value for one in self.each for name, value in one.environment.items()}

    @property
    def files(self) -> tuple[Path, ...]:
        return tuple(file for one in self.each for file in one.files)

    @property
    def real(self) -> bool:
        return any(one.real for one in self.each)

    @property
    def private(self) -> bool:
        return any(one.private for one in self.each)

    def start(self) -> None:
        for one in self.each:
            one.start()

    def stop(self) -> None:
        for one in self.each:
            one.stop()

    def arrivals(self) -> tuple[list[Arrival], list[Arrivals]]:
        found = [one.arrivals() for one in self.each]
        return [letter for letters, _ in found for letter in letters], [one for _, each in found for one in each]

    def has(self, attempt_id: str) -> bool:
        return any(one.has(attempt_id) for one in self.each)

    @property
    def repeats(self) -> int:
        return sum(one.repeats for one in self.each)
