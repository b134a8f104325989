"""A fake receiver of webhooks, as a user would write one: by the JSON Schema and the signature scheme alone.

    python -m tests.providers.webhook --log FILE [--delay-ms N]

prints its URL and serves until it is told to stop (SIGTERM, SIGINT). Then it checks signatures and keys, no schema,
and keeps no letters. The log is append-only JSON lines, each written before its reply: {"at", "key", "message_ids",
"recipients" (taken), "bytes", "sha256", "verdict", "accepted"}.
"""

import argparse
import base64
import hashlib
import hmac
import sys
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import orjson

from tests.providers import json_lines
from tests.providers.http import Received
from tests.providers.keyed import Answered, KeyedProvider, Taken, as_json

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()
SCHEMA = orjson.loads((Path(__file__).resolve().parents[2] / "schemas" / "webhook.schema.json").read_bytes())
TOLERANCE_S = 300


def valid(part: str, value: object) -> None:
    """jsonschema.ValidationError for what is no `request` or `reply` of the schema."""
    jsonschema.Draft202012Validator({**SCHEMA, "$ref": f"#/$defs/{part}"}).validate(value)


class FakeReceiver(KeyedProvider):
    """answers: `results` tells message by message, `bare` only that it took all, `whole` refuses all for one.

    largest: bytes of a request that it takes. by_schema: whether requests and answers are held against the schema.
    """

    answers = "results"
    by_schema = True
    largest = 10_000_000
    secret = SECRET
    path = "/letters"

    def judged(self, received: Received) -> Answered:
        if received.target != self.path or received.method != "POST":
            return Answered(404)
        if not self._signed(received):
            return Answered(401)
        if len(received.body) > self.largest:
            return Answered(413)
        said = orjson.loads(received.body)
        if self.by_schema:
            valid("request", said)
        if received.headers["idempotency-key"] != said["data"]["attempt_id"]:
            return Answered(400)
        messages = said["data"]["messages"]
        bad = [one for one in messages if one["to"] in self.refused_recipients]
        if self.answers == "whole" and bad:
            return Answered(422)
        good = [_taken(one) for one in messages if one not in bad]
        if self.answers == "bare" or self.answers == "whole":
            return Answered(204, b"", good)
        results: list[dict[str, Any]] = [
            {"message_id": one["message_id"], "status": "refused", "reason": "invalid_address"}
            if one in bad
            else {"message_id": one["message_id"], "status": "accepted"}
            for one in messages
        ]
        reply = {"id": f"order-{len(self.attempts)}", "results": results}
        if self.by_schema:
            valid("reply", reply)
        return as_json(200, reply, good)

    def conflict(self, same: bool) -> Answered:
        return Answered(409)

    def _signed(self, received: Received) -> bool:
        headers = received.headers
        name, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
        if not at.isdecimal() or abs(self.now_s() - int(at)) > TOLERANCE_S:
            return False
        key = base64.b64decode(self.secret.removeprefix("whsec_"))
        digest = hmac.new(key, f"{name}.{at}.".encode() + received.body, hashlib.sha256).digest()
        expected = "v1," + base64.b64encode(digest).decode()
        return any(hmac.compare_digest(expected, one) for one in headers.get("webhook-signature", "").split(" "))


def _taken(message: dict[str, Any]) -> Taken:
    return Taken(message["to"], message["subject"], message["text"], message["html"], message["message_id"])


# -- as a process ---------------------------------------------------------------------------------------------------


class LoggingReceiver(FakeReceiver):
    """Writes down what came instead of keeping it, and answers late."""

    by_schema = False

    def __init__(self, log: Path, delay_s: float = 0.0) -> None:
        super().__init__()
        self._log = log
        self._delay_s = delay_s

    def judged(self, received: Received) -> Answered:
        answered = super().judged(received)
        return replace(answered, taken=[Taken(one.to, "", "", "", one.message_id) for one in answered.taken])

    def _note(
        self, received: Received | None, verdict: str, taken: Iterable[Taken] = (), replayed: bool = False
    ) -> None:
        got = received or Received("", "", {}, b"")
        message_ids = [one.message_id for one in taken]
        line = {
            "at": time.time(),
            "key": got.headers.get("idempotency-key", ""),
            "message_ids": message_ids,
            "recipients": len(message_ids),
            "bytes": len(got.body),
            "sha256": hashlib.sha256(got.body).hexdigest(),
            "verdict": verdict,
            "accepted": verdict.startswith("2") and not replayed,
        }
        json_lines.append(self._log, orjson.dumps(line))
        with self._working:
            self._taken.clear()
        time.sleep(self._delay_s)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.providers.webhook", description=(__doc__ or "").split(":")[0]
    )
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    options = parser.parse_args()
    with LoggingReceiver(options.log, options.delay_ms / 1000) as fake:
        json_lines.until_told(f"{fake.url}{fake.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
