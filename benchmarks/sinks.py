"""Where a benchmark's letters go, and what arrived there: a fake provider in a process of its own, or a folder."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from tests.providers import ses, webhook

KEY = "SG.benchmark"
# What the senders' settings name, for the environment of a process that sends.
SECRETS = {
    "BENCH_KEY": KEY,
    "BENCH_SES_KEY_ID": ses.KEY_ID,
    "BENCH_SES_SECRET": ses.SECRET,
    "BENCH_WEBHOOK_SECRET": webhook.SECRET,
}


@dataclass(frozen=True)
class Arrived:
    """What one side of a comparison handed over. content: a digest of which letters stood in which request."""

    requests: int
    recipients: int
    bytes: int
    content: str


class Sink(Protocol):
    def settings(self) -> dict[str, Any]:
        """The sender's configuration that leads here."""

    def arrived(self) -> Arrived:
        """What came since this was last asked."""

    def busy_s(self) -> float:
        """CPU seconds that the sink has used so far, outside the sending process; 0 when it has no process."""


@dataclass(frozen=True)
class Provider:
    """A fake provider that runs as `python -m MODULE OPTIONS --log FILE --delay-ms N`, and prints its address.

    account: the sender's settings that lead to an address. answers_after_ms: as a real one far away does; 0 where only
    the sending machine's own work is to be seen.
    """

    module: str
    account: Callable[[str], dict[str, Any]]
    options: Sequence[str] = ()
    answers_after_ms: int = 0


def _mail_account(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    return {"adapter": "smtp", "host": parts.hostname, "port": parts.port, "tls": "never", "parallel": 32}


PROVIDERS = {
    "sendgrid": Provider(
        "tests.providers.sendgrid",
        lambda url: {"adapter": "sendgrid", "base_url": url, "api_key": "env:BENCH_KEY"},
        ("--key", KEY, "--checks", "none"),
    ),
    "smtp": Provider("tests.providers.smtp_sink", _mail_account, answers_after_ms=30),
    "ses": Provider(
        "tests.providers.ses",
        lambda url: {
            "adapter": "ses",
            "endpoint_url": url,
            "region": ses.REGION,
            "access_key_id": "env:BENCH_SES_KEY_ID",
            "secret_access_key": "env:BENCH_SES_SECRET",
            "parallel": 16,
        },
        ("--checks", "signature"),
        answers_after_ms=100,
    ),
    "webhook": Provider(
        "tests.providers.webhook",
        lambda url: {
            "adapter": "webhook",
            "url": url,
            "secret": "env:BENCH_WEBHOOK_SECRET",
            "parallel": 8,
            "allow_private": True,
        },
        answers_after_ms=50,
    ),
}


class Fake:
    """A fake provider as a process: real connections on loopback, every request logged."""

    def __init__(self, provider: Provider, url: str, log: Path, pid: int) -> None:
        self._provider = provider
        self._url = url
        self._log = log
        self._pid = pid
        self._read_to = 0

    def settings(self) -> dict[str, Any]:
        return self._provider.account(self._url)

    def arrived(self) -> Arrived:
        requests = recipients = size = 0
        content: list[str] = []
        with open(self._log, "rb") as log:
            log.seek(self._read_to)
            for line in log:
                found = json.loads(line)
                assert found["accepted"], found
                requests += 1
                recipients += found["recipients"]
                size += found["bytes"]
                content.append(_digest(found["message_ids"]))
            self._read_to = log.tell()
        return Arrived(requests, recipients, size, _digest(sorted(content)))

    def busy_s(self) -> float:
        words = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


class Folder:
    """The outbox's folder. Emptied when it has been counted."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def settings(self) -> dict[str, Any]:
        return {"adapter": "outbox", "path": str(self._path)}

    def arrived(self) -> Arrived:
        files = sorted(self._path.rglob("*.mbox"))
        sizes = [file.stat().st_size for file in files]
        recipients = sum(_letters_in(file) for file in files)
        names = _digest([file.name for file in files])
        for file in files:
            file.unlink()
        return Arrived(len(files), recipients, sum(sizes), names)

    def busy_s(self) -> float:
        return 0.0


def _letters_in(file: Path) -> int:
    with open(file, "rb") as handle:
        return sum(line.startswith(b"X-Sendonce-Ordinal: ") for line in handle)


def _digest(words: list[str]) -> str:
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


@contextmanager
def sink_of(sender: str, folder: Path) -> Iterator[Sink]:
    """The sink of a sender, `outbox` or one of `PROVIDERS`; its files lie in `folder`."""
    if sender == "outbox":
        yield Folder(folder / "outbox")
        return
    provider, log = PROVIDERS[sender], folder / f"{sender}.log"
    log.touch()
    command = [sys.executable, "-m", provider.module, *provider.options, "--log", str(log)]
    command += ["--delay-ms", str(provider.answers_after_ms)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Fake(provider, _first_line(server.stdout).split()[-1], log, server.pid)
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(10)


def _first_line(output: IO[str] | None) -> str:
    assert output is not None
    line = output.readline()
    assert line, "the fake provider did not start"
    return line
