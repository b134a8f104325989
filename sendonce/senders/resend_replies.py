"""What Resend's answer to a batch call proves (DELIVERY 3): by phase and status line, then by the error's name.

Its pages: https://resend.com/docs/api-reference/errors (names and statuses),
https://resend.com/docs/api-reference/rate-limit (429 and its headers),
https://resend.com/changelog/batch-validation-modes (who of a call was not taken).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from schemas.outcomes import Outcome
from sendonce.senders.base import Reply, Verdict
from sendonce.senders.http import Answer
from sendonce.senders.replies import LONGEST_WAIT_S, Result, reply_of, retry_after_s, scrubbed, without_answer

# The reason of a doubt that asking again cannot settle (`doubts.PAYLOAD_CHANGED`): Resend knows the key by other bytes.
KEY_OF_OTHER_BYTES: Final = "payload_changed"

# How long to leave the first call under a key alone before it is asked again.
IN_PROGRESS_S: Final = 5.0
_WAITS: Final = ("ratelimit-reset", "retry-after")
# The request never reached what sends mail: the address or the method is wrong, for everybody.
_WRONG_PLACE: Final = frozenset({404, 405, 406, 415})
_KEY: Final = re.compile(r"api_key$", re.IGNORECASE)
# Resend names a field between backticks; the first one is at fault: "Invalid `to` field. The email address …".
_FIELD: Final = re.compile(r"`([a-z_]+)")
_UNVERIFIED: Final = re.compile(r"\bdomain\b.*\bnot verified\b|\bverify (?:your|a|the) domain\b", re.IGNORECASE)
_PERSONAL: Final = {
    "to": Outcome.PROVIDER_INVALID_ADDRESS,
    "subject": Outcome.PROVIDER_CONTENT,
    "html": Outcome.PROVIDER_CONTENT,
    "text": Outcome.PROVIDER_CONTENT,
    "headers": Outcome.PROVIDER_CONTENT,
}
_NOBODY: Final = Outcome.PROVIDER_REFUSED
# From so many letters on, a call in which each was refused and no field named blames the account.
_ENOUGH: Final = 8


@dataclass(frozen=True)
class Judged:
    """whole: the call was refused as one, and the reply holds for a letter that is alone in it."""

    reply: Reply
    whole: bool = False
    detail: str = ""


def judge(answer: Answer, ordinals: Sequence[int], *, now_s: float) -> Judged:
    """What an answer to a call with these letters proves. now_s: Unix seconds."""
    status = answer.status
    if status is None:
        return Judged(without_answer(answer))
    said = _json(answer)
    if 200 <= status < 300:
        return _taken(said, ordinals)
    name, message = str(said.get("name") or ""), str(said.get("message") or "")
    detail = scrubbed(message)
    if status in (400, 413, 422):
        return _refused(status, name, message, detail)
    if status == 401 or (status == 403 and _KEY.search(name)):
        return _halt("credentials", detail)
    if status == 403:
        by_from = name == "invalid_from_address" or _UNVERIFIED.search(message)
        return _halt("refused_from" if by_from else "forbidden", detail)
    if status == 409:
        return Judged(_conflict(name))
    if status == 429:
        return _too_many(name, detail, retry_after_s(answer.headers, now_s, _WAITS))
    if status == 451:
        return _halt("security_error", detail)
    if status in _WRONG_PLACE:
        return _halt(f"http_{status}", detail)
    return Judged(Reply(Verdict.UNKNOWN, f"http_{status}"))


def _taken(said: dict[str, Any], ordinals: Sequence[int]) -> Judged:
    """2xx: ids of those who were taken, in their order, and errors by place.

    The body says who was not taken. Without all of it nobody knows, and the same key brings the same answer again.
    """
    ids = [one["id"] for one in _objects(said.get("data")) if isinstance(one.get("id"), str)]
    listed = _objects(said.get("errors"))
    errors = {one["index"]: str(one.get("message") or "") for one in listed if _is_place(one.get("index"), ordinals)}
    if not all(_is_place(one.get("index"), ordinals) for one in listed) or len(ids) + len(errors) != len(ordinals):
        return Judged(Reply(Verdict.UNKNOWN, "garbled"))
    results: dict[int, Result] = dict.fromkeys(ordinals, (Verdict.ACCEPTED, 0, ""))
    reason, halts, shown = "", False, ""
    for place in sorted(errors):
        setting, outcome = _blamed(errors[place])
        detail = scrubbed(errors[place])
        if setting:
            reason, halts, shown = setting, True, detail
            results[ordinals[place]] = (Verdict.NOT_SENT, 0, detail)
        else:
            results[ordinals[place]] = (Verdict.REFUSED, outcome, detail)
    if len(ordinals) >= _ENOUGH and all(one[:2] == (Verdict.REFUSED, _NOBODY) for one in results.values()):
        return _halt("refused_all", scrubbed(errors[0]))
    return Judged(reply_of(results, reason, halts=halts, refs=ids), detail=shown)


def _is_place(index: object, ordinals: Sequence[int]) -> bool:
    return type(index) is int and 0 <= index < len(ordinals)


def _refused(status: int, name: str, message: str, detail: str) -> Judged:
    """The call was refused as one. `from` and `reply_to` are everybody's, so nobody is refused for them."""
    if status == 413:
        return Judged(Reply(Verdict.REFUSED, "http_413", Outcome.PROVIDER_TOO_LARGE), whole=True, detail=detail)
    setting, outcome = _blamed(message)
    if setting or name == "invalid_from_address":
        return _halt(setting or "refused_from", detail)
    return Judged(Reply(Verdict.REFUSED, f"http_{status}", outcome), whole=True, detail=detail)


def _blamed(message: str) -> tuple[str, Outcome]:
    """The reason to halt if a setting is at fault, else empty; and the outcome of a letter that is at fault itself."""
    found = _FIELD.search(message)
    field = found[1] if found else ""
    if field in ("from", "reply_to") or _UNVERIFIED.search(message):
        return f"refused_{field if field == 'reply_to' else 'from'}", _NOBODY
    return "", _PERSONAL.get(field, _NOBODY)


def _conflict(name: str) -> Reply:
    """409. In progress: the first call under this key may yet be accepted, so it is in doubt and asked again later.

    Other bytes under this key: this call sent nothing; if it was to repeat a request in doubt, the doubt stays, and
    another way must settle it.
    """
    if name == "invalid_idempotent_request":
        return Reply(Verdict.NOT_SENT, KEY_OF_OTHER_BYTES)
    if name == "concurrent_idempotent_requests":
        return Reply(Verdict.UNKNOWN, "in_progress", retry_after_s=IN_PROGRESS_S)
    return Reply(Verdict.UNKNOWN, "http_409")


def _too_many(name: str, detail: str, wait_s: float | None) -> Judged:
    """429. A month's quota needs a person; a day's is over by itself, so it is tried again every hour."""
    if name == "monthly_quota_exceeded":
        return _halt("monthly_quota", detail)
    if name == "daily_quota_exceeded":
        return Judged(Reply(Verdict.NOT_SENT, "daily_quota", throttled=True, retry_after_s=LONGEST_WAIT_S))
    return Judged(Reply(Verdict.NOT_SENT, "http_429", throttled=True, retry_after_s=wait_s))


def _halt(reason: str, detail: str) -> Judged:
    return Judged(Reply(Verdict.NOT_SENT, reason, halts_sender=True), detail=detail)


def _json(answer: Answer) -> dict[str, Any]:
    try:
        found = orjson.loads(answer.body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _objects(listed: object) -> list[dict[str, Any]]:
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
