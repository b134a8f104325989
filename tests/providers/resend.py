"""A fake Resend: the batch call over HTTP on loopback, judged as its pages say, written without any of our own code.

https://resend.com/docs/api-reference/emails/send-batch-emails, …/errors, …/rate-limit,
https://resend.com/docs/dashboard/emails/idempotency-keys, https://resend.com/changelog/batch-validation-modes
"""

import re
import uuid
from collections.abc import Callable
from typing import Any

import orjson

from tests.providers.http import Received
from tests.providers.keyed import Answered, KeyedProvider, Taken, as_json

KEY = "re_fake_key"
DOMAINS = frozenset({"shop.example"})

_ADDRESS = re.compile(r"[!-?A-~]+@[A-Za-z0-9.-]+\.[A-Za-z0-9-]+")
_NAMED = re.compile(r"(?:(?:\"[^\"]*\"|[^<>]*?) ?<([^<>]+)>|([^<> ]+))")
_TAG = re.compile(r"[A-Za-z0-9_-]{1,256}")
_FORMAT = "The email address needs to follow the `email@example.com` or `Name <email@example.com>` format."
_FIELDS = frozenset(
    {"from", "to", "subject", "bcc", "cc", "reply_to", "html", "text", "headers", "topic_id", "tags", "template"}
)


def error(status: int, name: str, message: str, **headers: str) -> Answered:
    return as_json(status, {"statusCode": status, "name": name, "message": message}, (), **headers)


class FakeResend(KeyedProvider):
    """rule: what to answer instead, by the emails of a request. strict: permissive calls are taken as strict ones."""

    rule: Callable[[list[dict[str, Any]]], Answered | None] | None = None
    strict = False

    def judged(self, received: Received) -> Answered:
        found = self._of_the_call(received)
        if found is not None:
            return found
        emails = _json(received.body)
        if not isinstance(emails, list):
            return error(422, "validation_error", "The `request.body` field must be an `array`.")
        if not 1 <= len(emails) <= 100:
            return error(422, "validation_error", "Batch must have between 1 and 100 emails.")
        ruled = self.rule(emails) if self.rule is not None else None
        if ruled is not None:
            return ruled
        faults = {place: fault for place, email in enumerate(emails) if (fault := self._fault(email))}
        permissive = received.headers.get("x-batch-validation") == "permissive" and not self.strict
        if faults and not permissive:
            return next(iter(faults.values()))
        taken = [_taken(email) for place, email in enumerate(emails) if place not in faults]
        ids = [{"id": str(uuid.uuid5(uuid.NAMESPACE_URL, one.message_id))} for one in taken]
        if not permissive:
            return as_json(200, {"data": ids}, taken)
        errors = [{"index": place, "message": orjson.loads(fault.body)["message"]} for place, fault in faults.items()]
        return as_json(200, {"data": ids, "errors": errors}, taken)

    def conflict(self, same: bool) -> Answered:
        if same:
            return error(409, "concurrent_idempotent_requests", "Same key used while the first is still in progress.")
        return error(409, "invalid_idempotent_request", "Same idempotency key used with a different request payload.")

    def _of_the_call(self, received: Received) -> Answered | None:
        headers = received.headers
        if not headers.get("user-agent"):
            return Answered(403, b"error code: 1010")
        if received.target != "/emails/batch":
            return error(404, "not_found", "The requested endpoint does not exist.")
        if received.method != "POST":
            return error(405, "method_not_allowed", "Method is not allowed for the requested path.")
        if "authorization" not in headers:
            return error(401, "missing_api_key", "Missing API key in the authorization header.")
        if headers["authorization"] != f"Bearer {KEY}":
            return error(403, "invalid_api_key", "API key is invalid.")
        if headers.get("content-type") != "application/json":
            return error(422, "validation_error", "The `content-type` must be `application/json`.")
        if not 1 <= len(headers.get("idempotency-key", "x")) <= 256:
            return error(400, "invalid_idempotency_key", "The key must be between 1-256 chars.")
        return None

    def _fault(self, email: Any) -> Answered | None:
        if not isinstance(email, dict) or set(email) - _FIELDS:
            return error(422, "validation_error", "Unknown field.")
        sender = _NAMED.fullmatch(email.get("from", ""))
        plain = (sender[1] or sender[2]) if sender else ""
        if not _ADDRESS.fullmatch(plain):
            return error(422, "validation_error", f"Invalid `from` field. {_FORMAT}")
        domain = plain.rpartition("@")[2]
        if domain not in DOMAINS:
            return error(
                403, "validation_error", f"The {domain} domain is not verified. Please, add and verify your domain."
            )
        people = [email["to"]] if isinstance(email.get("to"), str) else email.get("to") or []
        if not people:
            return error(422, "missing_required_field", "Missing `to` field.")
        if any(not _ADDRESS.fullmatch(one) or one in self.refused_recipients for one in people):
            return error(422, "validation_error", f"Invalid `to` field. {_FORMAT}")
        if not email.get("subject"):
            return error(422, "missing_required_field", "Missing `subject` field.")
        if not email.get("html") and not email.get("text"):
            return error(422, "missing_required_field", "Missing `html` or `text` field.")
        if any(not (_TAG.fullmatch(tag["name"]) and _TAG.fullmatch(tag["value"])) for tag in email.get("tags", [])):
            return error(422, "validation_error", "Tags should only contain ASCII letters, numbers, _ or -.")
        return None


def _taken(email: dict[str, Any]) -> Taken:
    (to,) = email["to"]
    tags = {tag["name"]: tag["value"] for tag in email.get("tags", [])}
    return Taken(to, email["subject"], email.get("text", ""), email.get("html", ""), tags["message_id"])


def _json(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except ValueError:
        return None
