"""A fake receiver of webhooks, as a user would write one: by the JSON Schema and the signature scheme alone."""

import base64
import hashlib
import hmac
from pathlib import Path
from typing import Any

import jsonschema
import orjson

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

    largest: bytes of a request that it takes.
    """

    answers = "results"
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
