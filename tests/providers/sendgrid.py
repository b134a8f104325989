"""A fake SendGrid: takes Mail Send requests over HTTP on loopback, judges them as its pages say, writes down each one.

    python -m tests.providers.sendgrid --port 0 --log FILE [--key KEY] [--delay-ms N] [--script FILE] [--bodies FILE]

prints its base URL and serves until it is told to stop (SIGTERM, SIGINT). The log is append-only JSON lines, each
written before its reply is: {"at", "attempt_ids", "campaign_id", "batch_no", "message_ids", "to", "recipients",
"sha256", "verdict", "accepted"}. `--bodies` keeps accepted requests, one line each, for `letters_of`. `--script` is a
JSON list of fates, {"status", "headers", "body", "fault", "delay_s", "accepts"}, taken in order; then, and without it,
each request is judged by the rules. `--checks` says by how many: none, limits, or limits and published schema (all).
"""

import argparse
import hashlib
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import orjson

from tests.evidence import Arrival
from tests.providers import json_lines
from tests.providers.http import Connection, Fate, Received, Server
from tests.providers.sendgrid_letters import SentLetter, letters_of
from tests.providers.sendgrid_rules import errors_of

KEY = "SG.fake-key"

Rule = Callable[[dict[str, Any]], Fate | None]


def errors(*found: tuple[str | None, str], status: int = 400, fault: str = "") -> Fate:
    """A refusal as SendGrid words it: (field, message) each."""
    listed = [{"message": message, "field": field, "help": None} for field, message in found]
    return Fate(status, {"Content-Type": "application/json"}, orjson.dumps({"errors": listed}), fault)


class FakeSendGrid:
    """The provider while it is entered. Fates come from `script`, then from `rule`, then from what the pages say.

    names_fields: whether a refusal names the field at fault; without, it is "Bad Request" and no more.
    """

    def __init__(
        self,
        log: Path,
        *,
        key: str = KEY,
        script: Iterable[Fate] = (),
        rule: Rule | None = None,
        names_fields: bool = True,
        checks: str = "all",
        delay_s: float = 0.0,
        bodies: Path | None = None,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.log = log
        self.script = deque(script)
        self.rule = rule
        self._key = key
        self._names_fields = names_fields
        self._checks = checks
        self._delay_s = delay_s
        self._bodies = bodies
        self._writing = threading.Lock()
        self._server = Server(self._handle, port, tls=tls)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def connections(self) -> int:
        return self._server.connections

    def __enter__(self) -> "FakeSendGrid":
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    # -- what happened ------------------------------------------------------------------------------------------

    def requests(self) -> list[dict[str, Any]]:
        """Every request, in order of arrival, as the log has it."""
        return read_log(self.log)

    def accepted(self) -> list[dict[str, Any]]:
        return [line for line in self.requests() if line["accepted"]]

    def letters(self) -> list[SentLetter]:
        """The letters that people got. Needs `bodies`."""
        assert self._bodies is not None
        return list(read_letters(self._bodies))

    # -- one request --------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection) -> bool:
        fate = self._next_fate()
        if fate is not None and fate.fault.endswith("before_read"):
            self._write(b"", {}, fate)
            return connection.answer(fate)
        received = connection.read()
        if received is None:
            return False
        body = json_lines.parsed(received.body)
        fate = fate or self._judged(received, body)
        self._write(received.body, body, fate)
        if self._delay_s:
            time.sleep(self._delay_s)
        return connection.answer(fate)

    def _next_fate(self) -> Fate | None:
        with self._writing:
            return self.script.popleft() if self.script else None

    def _judged(self, received: Received, body: Any) -> Fate:
        if received.target != "/v3/mail/send":
            return errors((None, "not found"), status=404)
        if received.method != "POST":
            return errors((None, "method not allowed"), status=405)
        if received.headers.get("authorization") != f"Bearer {self._key}":
            return errors((None, "The provided authorization grant is invalid, expired, or revoked"), status=401)
        if received.headers.get("accept", "") not in ("application/json", "*/*"):
            return errors((None, "not acceptable"), status=406)
        if received.headers.get("content-type") != "application/json":
            return errors((None, "Content-Type should be application/json."), status=415)
        ruled = self.rule(body) if self.rule is not None and isinstance(body, dict) else None
        if ruled is not None:
            return ruled
        if self._checks != "none":
            found = errors_of(body, len(received.body), schema=self._checks == "all")
            if found and not self._names_fields:
                return errors((None, "Bad Request"))
            if found:
                return Fate(400, {"Content-Type": "application/json"}, orjson.dumps({"errors": found}))
        sandbox = body.get("mail_settings", {}).get("sandbox_mode", {}).get("enable", False)
        name = hashlib.sha256(received.body).hexdigest()[:22]
        return Fate(200 if sandbox else 202, {"X-Message-Id": name}, accepts=not sandbox)

    def _write(self, raw: bytes, body: Any, fate: Fate) -> None:
        people = body.get("personalizations", []) if isinstance(body, dict) else []
        args = [one.get("custom_args", {}) for one in people]
        line = {
            "at": time.time(),
            "attempt_ids": sorted({one.get("attempt_id", "") for one in args}),
            "campaign_id": args[0].get("campaign_id", "") if args else "",
            "batch_no": args[0].get("batch_no", "") if args else "",
            "message_ids": [one.get("message_id", "") for one in args],
            "to": [party.get("email", "") for one in people for party in one.get("to", [])],
            "recipients": len(people),
            "bytes": len(raw),
            "sha256": hashlib.sha256(raw).hexdigest(),
            "verdict": fate.fault or str(fate.status),
            "accepted": bool(people) and fate.accepted,
        }
        with self._writing:
            if line["accepted"] and self._bodies is not None:
                json_lines.append(self._bodies, orjson.dumps(body))
            json_lines.append(self.log, orjson.dumps(line))


def read_log(path: Path) -> list[dict[str, Any]]:
    return json_lines.read(path)


def read_letters(bodies: Path) -> Iterator[SentLetter]:
    for body in json_lines.read(bodies):
        yield from letters_of(body)


def arrivals(log: Path) -> list[Arrival]:
    """Every letter that was accepted, for the checker. One attempt may take several calls, so no hash is told."""
    return [
        Arrival(
            message_id,
            line["campaign_id"],
            int(line["batch_no"]) if line["batch_no"].isdecimal() else -1,
            line["attempt_ids"][0],
            datetime.fromtimestamp(line["at"], UTC),
            f"{log.name}:{number}",
        )
        for number, line in enumerate(read_log(log), 1)
        if line["accepted"]
        for message_id in line["message_ids"]
    ]


# -- as a process ---------------------------------------------------------------------------------------------------


def main() -> int:
    options = _options()
    script = [_fate(step) for step in orjson.loads(options.script.read_bytes())] if options.script else []
    fake = FakeSendGrid(
        options.log,
        key=options.key,
        script=script,
        checks=options.checks,
        delay_s=options.delay_ms / 1000,
        bodies=options.bodies,
        port=options.port,
    )
    with fake:
        json_lines.until_told(fake.url)
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.providers.sendgrid", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--key", default=KEY)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--script", type=Path)
    parser.add_argument("--bodies", type=Path)
    parser.add_argument("--checks", choices=("none", "limits", "all"), default="limits")
    return parser.parse_args()


def _fate(step: dict[str, Any]) -> Fate:
    body = step.get("body", "")
    return Fate(**{**step, "body": body.encode() if isinstance(body, str) else orjson.dumps(body)})


if __name__ == "__main__":
    sys.exit(main())
