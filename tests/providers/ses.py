"""A fake Amazon SES: takes SendBulkEmail and SendEmail over HTTP on loopback, judges them as its pages say.

    python -m tests.providers.ses --port 0 --log FILE [--bodies FILE] [--delay-ms N] [--checks signature|all]

prints its URL and serves until it is told to stop (SIGTERM, SIGINT); whoever calls it signs as KEY_ID with SECRET. The
log is append-only JSON lines, each written before its reply is: {"at", "operation", "attempt_ids", "campaign_id",
"batch_no", "message_ids" (asked for), "to", "recipients", "bytes", "sha256", "verdict", "taken" (message ids),
"accepted" (all of them)}.
`--bodies` keeps what was taken, for `letters_of`.
"""

import argparse
import hashlib
import itertools
import ssl
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from email.utils import formatdate
from pathlib import Path
from typing import Any

import orjson

from tests.evidence import Arrival
from tests.providers import json_lines
from tests.providers.http import Connection, Fate, Received, Server
from tests.providers.ses_letters import SentLetter, letters_of
from tests.providers.ses_rules import OPERATIONS, is_an_address, problem_of, signature_problem

KEY_ID = "AKIAFAKEFAKEFAKEFAKE"
SECRET = "fake/secret+access+key+of+forty+characters"
REGION = "eu-west-1"

Rule = Callable[[dict[str, Any]], Fate | None]
# (status, error) of an entry's address; None to take it.
EntryRule = Callable[[str], tuple[str, str] | None]


def error(code: str, message: str = "", status: int = 400, fault: str = "") -> Fate:
    """A refusal as AWS words it."""
    headers = {"Content-Type": "application/json", "x-amzn-ErrorType": f"{code}:http://internal.amazon.com/"}
    return Fate(status, headers, orjson.dumps({"message": message}), fault)


class FakeSes:
    """The provider while it is entered. Fates come from `script`, then from `rule`, then from what the pages say.

    A fate of 200 without a body answers as SES would: with a status for each entry (`entries`), or a message id.
    checks: `all`, or the `signature` alone.
    """

    def __init__(
        self,
        log: Path,
        *,
        script: Iterable[Fate] = (),
        rule: Rule | None = None,
        entries: EntryRule | None = None,
        bodies: Path | None = None,
        checks: str = "all",
        delay_s: float = 0.0,
        ahead_s: float = 0.0,
        port: int = 0,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.log = log
        self.script = deque(script)
        self.rule = rule
        self.entries = entries
        self.keys = {KEY_ID: SECRET}
        self.ahead_s = ahead_s
        self._bodies = bodies
        self._checks = checks
        self._delay_s = delay_s
        self._writing = threading.Lock()
        self._numbers = itertools.count(1)
        self._server = Server(self._handle, port, tls=tls)

    @property
    def url(self) -> str:
        return self._server.url

    @property
    def connections(self) -> int:
        return self._server.connections

    def __enter__(self) -> "FakeSes":
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    # -- what happened ------------------------------------------------------------------------------------------

    def requests(self) -> list[dict[str, Any]]:
        """Every request, in order of arrival, as the log has it."""
        return read_log(self.log)

    def taken(self) -> list[str]:
        """The message ids that it took, in order."""
        return [message_id for line in self.requests() for message_id in line["taken"]]

    def letters(self) -> list[SentLetter]:
        """The letters that people got. Needs `bodies`."""
        assert self._bodies is not None
        return list(read_letters(self._bodies))

    # -- one request --------------------------------------------------------------------------------------------

    def _handle(self, connection: Connection) -> bool:
        with self._writing:
            fate = self.script.popleft() if self.script else None
        if fate is not None and fate.fault.endswith("before_read"):
            self._write("", b"", {}, fate, [])
            return connection.answer(fate)
        received = connection.read()
        if received is None:
            return False
        operation, body = OPERATIONS.get(received.target, ""), json_lines.parsed(received.body)
        fate = fate or self._judged(received, operation, body)
        statuses = self._statuses(operation, body) if fate.accepted else []
        self._write(operation, received.body, body, fate, statuses)
        if self._delay_s:
            time.sleep(self._delay_s)
        return connection.answer(self._worded(fate, operation, statuses))

    def _judged(self, received: Received, operation: str, body: Any) -> Fate:
        code, message = signature_problem(received, self.keys, REGION, time.time() + self.ahead_s)
        if code:
            return error(code, message, 403)
        if received.method != "POST" or not operation:
            return error("UnknownOperationException", "", 404)
        if received.headers.get("content-type") != "application/json":
            return error("SerializationException", "Unsupported content type", 415)
        if self.rule is not None and (ruled := self.rule(body)) is not None:
            return ruled
        if self._checks == "all":
            if problem := problem_of(operation, body, len(received.body)):
                return error("BadRequestException", problem)
            if operation == "SendEmail" and (bad := self._of_entry(body["Destination"]["ToAddresses"][0])):
                return error("BadRequestException", bad[1])
        return Fate(200)

    def _of_entry(self, address: str) -> tuple[str, str] | None:
        if self.entries is not None and (found := self.entries(address)) is not None:
            return found
        if self._checks == "all" and not is_an_address(address):
            return "INVALID_PARAMETER", f"Missing final '@domain' in {address}"
        return None

    def _statuses(self, operation: str, body: Any) -> list[tuple[str, str]]:
        if operation != "SendBulkEmail":
            return [("SUCCESS", "")]
        found = [self._of_entry(address) for address in _people(body)]
        return [one or ("SUCCESS", "") for one in found]

    def _worded(self, fate: Fate, operation: str, statuses: list[tuple[str, str]]) -> Fate:
        number = next(self._numbers)
        headers = {
            "x-amzn-RequestId": f"00000000-0000-0000-0000-{number:012d}",
            "Date": formatdate(time.time() + self.ahead_s, usegmt=True),
            **fate.headers,
        }
        reply = fate.body
        if not reply and fate.status == 200:
            results = [
                {"Status": status, **({"Error": why} if why else {"MessageId": f"m-{number}-{place}"})}
                for place, (status, why) in enumerate(statuses)
            ]
            whole = {"BulkEmailEntryResults": results} if operation == "SendBulkEmail" else {"MessageId": f"m-{number}"}
            reply = orjson.dumps(whole)
        return Fate(fate.status, headers, reply, fate.fault, fate.delay_s, fate.accepts)

    def _write(self, operation: str, raw: bytes, body: Any, fate: Fate, statuses: list[tuple[str, str]]) -> None:
        tags = _tags(body)
        ids = [one.get("message_id", "") for one in tags]
        taken = [place for place, (status, _) in enumerate(statuses) if status == "SUCCESS"]
        line = {
            "at": time.time(),
            "operation": operation,
            "attempt_ids": sorted({one.get("attempt_id", "") for one in tags}),
            "campaign_id": tags[0].get("campaign_id", "") if tags else "",
            "batch_no": tags[0].get("batch_no", "") if tags else "",
            "message_ids": ids,
            "to": _people(body),
            "recipients": len(ids),
            "bytes": len(raw),
            "sha256": hashlib.sha256(raw).hexdigest(),
            "verdict": fate.fault or str(fate.status),
            "taken": [ids[place] for place in taken if place < len(ids)],
            "accepted": len(taken) == len(ids) > 0,
        }
        with self._writing:
            if taken and self._bodies is not None:
                if operation == "SendBulkEmail":
                    body = {**body, "BulkEmailEntries": [body["BulkEmailEntries"][place] for place in taken]}
                json_lines.append(self._bodies, orjson.dumps(body))
            json_lines.append(self.log, orjson.dumps(line))


def _people(body: Any) -> list[str]:
    if not isinstance(body, dict):
        return []
    entries = body.get("BulkEmailEntries", [body] if "Destination" in body else [])
    return [entry["Destination"]["ToAddresses"][0] for entry in entries]


def _tags(body: Any) -> list[dict[str, str]]:
    if not isinstance(body, dict):
        return []
    entries = body.get("BulkEmailEntries")
    listed = [entry.get("ReplacementTags", []) for entry in entries] if entries is not None else [body.get("EmailTags")]
    return [{tag["Name"]: tag["Value"] for tag in tags} for tags in listed if tags is not None]


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
        for message_id in line["taken"]
    ]


# -- as a process ---------------------------------------------------------------------------------------------------


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.providers.ses", description=(__doc__ or "").split(":")[0])
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--bodies", type=Path)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--checks", choices=("signature", "all"), default="signature")
    options = parser.parse_args()
    delay_s = options.delay_ms / 1000
    with FakeSes(options.log, bodies=options.bodies, checks=options.checks, delay_s=delay_s, port=options.port) as fake:
        json_lines.until_told(fake.url)
    return 0


if __name__ == "__main__":
    sys.exit(main())
