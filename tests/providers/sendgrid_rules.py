"""What SendGrid's pages ask of a Mail Send request, each limit with its page, written without any of our own code.

Where the published OpenAPI description is at hand (../shared/contracts beside the repository), requests are checked
against that too.
"""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema

CONTRACT = Path(__file__).resolve().parents[2].parent / "shared" / "contracts" / "sendgrid-mail-v3.openapi.json"

_PAGES = "https://www.twilio.com/docs/sendgrid/api-reference/mail-send"
LIMITS: dict[str, tuple[int, str]] = {
    "request_bytes": (30_000_000, f"{_PAGES}/limitations"),
    "personalizations": (1000, f"{_PAGES}/errors"),
    "recipients": (1000, f"{_PAGES}/errors"),
    "substitutions_bytes": (10_000, f"{_PAGES}/mail-send"),
    "custom_args_bytes": (10_000, f"{_PAGES}/limitations"),
    "categories": (10, f"{_PAGES}/errors"),
    "category_characters": (255, f"{_PAGES}/errors"),
    "send_at_s": (72 * 3600, f"{_PAGES}/errors"),
    "ip_pool_characters": (64, f"{_PAGES}/mail-send"),
}
RESERVED_HEADERS = frozenset(
    {"x-sg-id", "x-sg-eid", "received", "dkim-signature", "content-type", "content-transfer-encoding"}
    | {"content-disposition", "to", "from", "subject", "reply-to", "cc", "bcc"}
)
# Looser than the standards, as SendGrid's own check is: one @, no space, no control, a dot in the domain.
_ADDRESS = re.compile(r"[!-?A-~]+@[A-Za-z0-9.-]+\.[A-Za-z0-9-]+")

Error = dict[str, Any]


def errors_of(body: Any, size: int, *, schema: bool = True, now_s: float | None = None) -> list[Error]:
    """What is wrong with a request's JSON, as SendGrid words errors; empty when it would be taken."""
    found = [{"message": message, "field": field, "help": None} for field, message in _problems(body, size, now_s)]
    if not found and schema:
        found = [{"message": f"contract: {message}", "field": field, "help": None} for field, message in _broken(body)]
    return found


def _limit(name: str) -> int:
    return LIMITS[name][0]


def _problems(body: Any, size: int, now_s: float | None) -> Iterator[tuple[str | None, str]]:
    if size >= _limit("request_bytes"):
        yield None, "The request is larger than 30 MB."
    if not isinstance(body, dict):
        yield None, "Bad Request"
        return
    people = body.get("personalizations")
    if not isinstance(people, list) or not people:
        yield "personalizations", "The personalizations field is required and must have at least one personalization."
        return
    if len(people) > _limit("personalizations"):
        yield (
            "personalizations",
            f"The personalizations field is limited to 1000 personalizations, {len(people)} given.",
        )
    everybody = [party for one in people for kind in ("to", "cc", "bcc") for party in one.get(kind, [])]
    if len(everybody) > _limit("recipients"):
        yield "personalizations", "There is a limit of 1000 total recipients (to + cc + bcc) per request."
    repeated = [a for a, n in Counter(str(party.get("email")).lower() for party in everybody).items() if n > 1]
    if repeated:
        yield "personalizations", f"Each email address should be unique. We found [{repeated[0]}] more than once."
    for number, one in enumerate(people):
        yield from _person(f"personalizations.{number}", one, body)
    yield from _shared(body, time.time() if now_s is None else now_s)


def _person(path: str, one: dict[str, Any], body: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if not one.get("to"):
        yield f"{path}.to", "The to array is required for all personalization objects."
    for number, party in enumerate(one.get("to", [])):
        if not _ADDRESS.fullmatch(str(party.get("email"))):
            yield f"{path}.to.{number}.email", "Does not contain a valid address."
        if re.search("[;,]", party.get("name", "")):
            yield f"{path}.to.{number}.name", "The name must not hold a comma or a semicolon."
    for kind, name in (("substitutions", "substitutions_bytes"), ("custom_args", "custom_args_bytes")):
        pairs = one.get(kind, {})
        if not all(isinstance(value, str) for value in pairs.values()):
            yield f"{path}.{kind}", f"All {kind} values must be strings."
        elif sum(len(key.encode()) + len(value.encode()) for key, value in pairs.items()) > _limit(name):
            yield f"{path}.{kind}", f"The {kind} are limited to {_limit(name)} bytes."
    if not one.get("subject", body.get("subject")):
        yield "subject", "The subject is required."
    for name, value in {**body.get("headers", {}), **one.get("headers", {})}.items():
        if name.lower() in RESERVED_HEADERS or not name.isascii() or " " in name:
            yield f"{path}.headers", "This header is reserved, or its name is not ASCII without spaces."
        elif not isinstance(value, str) or not value.isascii() or re.search(r"[\r\n]", value):
            yield f"{path}.headers", "A header's value must be a string of ASCII characters on one line."


def _shared(body: dict[str, Any], now_s: float) -> Iterator[tuple[str, str]]:
    if not _ADDRESS.fullmatch(str(body.get("from", {}).get("email"))):
        yield "from.email", "The from email does not contain a valid address."
    if "reply_to" in body and not _ADDRESS.fullmatch(str(body["reply_to"].get("email"))):
        yield "reply_to.email", "The reply_to email does not contain a valid address."
    content = body.get("content")
    if not content:
        yield "content", "Unless a valid template_id is provided, the content parameter is required."
    else:
        kinds = [part.get("type") for part in content]
        if "text/plain" in kinds[1:] or ("text/html" in kinds and kinds.index("text/html") > 1):
            yield "content", "If present, text/plain must come first, followed by text/html."
        for number, part in enumerate(content):
            if not isinstance(part.get("value"), str) or not part["value"]:
                yield f"content.{number}.value", "The content value must be a string at least one character in length."
    categories = body.get("categories", [])
    if len(categories) > _limit("categories") or len(set(categories)) < len(categories):
        yield "categories", "You may have up to 10 unique categories per request."
    if any(len(category) > _limit("category_characters") for category in categories):
        yield "categories", "A category may not be longer than 255 characters."
    if "send_at" in body and not 0 < body["send_at"] <= now_s + _limit("send_at_s"):
        yield "send_at", "Scheduling more than 72 hours in advance is forbidden."
    if "ip_pool_name" in body and not 2 <= len(body["ip_pool_name"]) <= _limit("ip_pool_characters"):
        yield "ip_pool_name", "The ip pool name must be 2 to 64 characters long."
    if "asm" in body and not isinstance(body["asm"].get("group_id"), int):
        yield "asm.group_id", "The asm group_id must be an integer."


def _broken(body: Any) -> Iterator[tuple[str, str]]:
    validator = contract()
    if validator is not None:
        for error in validator.iter_errors(body):
            yield ".".join(str(step) for step in error.absolute_path), error.message[:200]


@cache
def contract() -> Any:
    """A validator for the published description of a Mail Send body; None where the file is not."""
    if not CONTRACT.exists():
        return None
    document = json.loads(CONTRACT.read_text(encoding="utf-8"))
    schema = document["components"]["requestBodies"]["PostMailSend"]["content"]["application/json"]["schema"]
    return jsonschema.Draft202012Validator({**schema, "components": document["components"]})
