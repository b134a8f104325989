"""Who takes the letters of a run, and what it says afterwards of what it took."""

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from tests.chaos.watch import OutboxWatch
from tests.checker import Arrivals
from tests.evidence import Arrival
from tests.providers.sendgrid import arrivals, read_log

KEY = "SG.chaos-key"
# Long enough that a process dies now and then while its request is on the way.
ANSWERS_AFTER_MS = 30


class Provider(Protocol):
    """name, setting: the sender's, for the settings file; complete once it is started. environment: what a process
    needs besides. files: where letters may lie. real: whether the product takes it for one that reaches people."""

    name: str
    setting: dict[str, str]
    environment: dict[str, str]
    files: tuple[Path, ...]
    real: bool

    def start(self) -> None: ...

    def stop(self) -> None:
        """Ends after a last look; harmless to call twice."""

    def arrivals(self) -> tuple[list[Arrival], list[Arrivals]]:
        """Every letter that was taken, once for each request that differed; and every request with its time."""

    def has(self, attempt_id: str) -> bool:
        """Whether a request of this attempt was taken: what a person would look up at the provider."""

    @property
    def repeats(self) -> int:
        """How often a request came again."""


class OutboxProvider:
    """A folder, with an eye on it: the outbox itself replaces what comes again."""

    name = "outbox"
    real = False

    def __init__(self, outbox: Path, keep: Path) -> None:
        self.setting = {"adapter": "outbox", "path": str(outbox)}
        self.environment: dict[str, str] = {}
        self._watch = OutboxWatch(outbox, keep)
        self.files = (outbox, keep)

    def start(self) -> None:
        self._watch.start()

    def stop(self) -> None:
        self._watch.stop()

    def arrivals(self) -> tuple[list[Arrival], list[Arrivals]]:
        return self._watch.arrivals()

    def has(self, attempt_id: str) -> bool:
        return any(letter.attempt_id == attempt_id for letter in self.arrivals()[0])

    @property
    def repeats(self) -> int:
        return self._watch.repeats


class SendGridProvider:
    """The fake SendGrid in a process of its own, which nobody kills: it takes no key, so each doubt stays one."""

    name = "mail"
    real = True

    def __init__(self, log: Path) -> None:
        self._log = log
        self.files: tuple[Path, ...] = (log,)
        self.environment = {"CHAOS_KEY": KEY}
        self._process: subprocess.Popen[str] | None = None
        self.setting = {"adapter": "sendgrid", "api_key": "env:CHAOS_KEY"}

    def start(self) -> None:
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.providers.sendgrid"),
                *("--log", str(self._log), "--key", KEY, "--delay-ms", str(ANSWERS_AFTER_MS)),
            ],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.setting["base_url"] = self._process.stdout.readline().strip()

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def arrivals(self) -> tuple[list[Arrival], list[Arrivals]]:
        log = read_log(self._log)
        requests = [
            Arrivals(line["campaign_id"], datetime.fromtimestamp(line["at"], UTC), line["recipients"]) for line in log
        ]
        return arrivals(self._log), requests

    def has(self, attempt_id: str) -> bool:
        return any(attempt_id in line["attempt_ids"] for line in read_log(self._log) if line["accepted"])

    @property
    def repeats(self) -> int:
        attempts = [attempt for line in read_log(self._log) for attempt in line["attempt_ids"]]
        return len(attempts) - len(set(attempts))
