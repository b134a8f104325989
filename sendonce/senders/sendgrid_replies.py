"""What SendGrid's answer to one call proves (DELIVERY 3): by phase and status line, then by the errors it names.

Its pages: https://www.twilio.com/docs/sendgrid/api-reference/how-to-use-the-sendgrid-v3-api/errors (statuses),
…/rate-limits (429), https://www.twilio.com/docs/sendgrid/api-reference/mail-send/errors (400 and its fields).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from schemas.outcomes import Outcome
from sendonce.senders.base import Verdict
from sendonce.senders.http import Answer
from sendonce.senders.replies import retry_after_s, scrubbed

# The request never reached what sends mail: the address, the method or the account's region is wrong, for everybody.
_WRONG_PLACE: Final = frozenset({404, 405, 406, 415, 451})
_PERSON: Final = re.compile(r"personalizations(?:\.|\[)(\d{1,9})\b")
_TEXTS: Final = re.compile(r"(content|subject)\b")
_SHARED: Final = re.compile(r"personalizations\b")


@dataclass(frozen=True)
class Judgement:
    """The verdict on one call of n letters.

    refused: place in the call -> outcome and detail, when SendGrid names recipients; the others were not taken either
    and may go in another call. divide: somebody is refused, or the call is too large, and halves will tell. halts,
    throttled, retry_after_s: as in `Reply`.
    """

    verdict: Verdict
    reason: str = ""
    outcome: int = 0
    detail: str = ""
    refused: Mapping[int, tuple[int, str]] = field(default_factory=dict)
    divide: bool = False
    halts: bool = False
    throttled: bool = False
    retry_after_s: float | None = None


def judge(answer: Answer, n: int, *, now_s: float, http_503: str) -> Judgement:
    """What an answer proves. now_s: Unix seconds. http_503: what that status proves, `unknown` or `not_sent`."""
    status = answer.status
    if status is None:
        return Judgement(Verdict.UNKNOWN if answer.written else Verdict.NOT_SENT, answer.reason)
    if 200 <= status < 300:
        return Judgement(Verdict.ACCEPTED)
    if status == 400:
        return _bad_request(answer, n)
    if status == 413:
        return Judgement(Verdict.REFUSED, "http_413", Outcome.PROVIDER_TOO_LARGE, "too large", divide=True)
    if status == 401:
        reason = "credits" if "credit" in said(answer).lower() else "credentials"
        return Judgement(Verdict.NOT_SENT, reason, detail=said(answer), halts=True)
    if status == 403:
        by_from = any(path.startswith("from") for path, _ in _errors(answer))
        return Judgement(Verdict.NOT_SENT, "refused_from" if by_from else "forbidden", detail=said(answer), halts=True)
    if status == 429:
        return Judgement(
            Verdict.NOT_SENT, "http_429", throttled=True, retry_after_s=retry_after_s(answer.headers, now_s)
        )
    if status in _WRONG_PLACE:
        return Judgement(Verdict.NOT_SENT, f"http_{status}", detail=said(answer), halts=True)
    if status == 503 and http_503 == "not_sent":
        return Judgement(Verdict.NOT_SENT, "http_503", retry_after_s=retry_after_s(answer.headers, now_s))
    return Judgement(Verdict.UNKNOWN, f"http_{status}")


def _bad_request(answer: Answer, n: int) -> Judgement:
    """400: nobody was taken. Who or what is to blame, SendGrid says by a path like `personalizations.3.to.0.email`."""
    refused: dict[int, tuple[int, str]] = {}
    texts, detail = False, said(answer)
    for path, message in _errors(answer):
        person = _PERSON.match(path)
        if person is not None and int(person[1]) < n:
            refused[int(person[1])] = (_why(path), message)
        elif _TEXTS.match(path):
            texts = True
        elif path and not _SHARED.match(path):
            # The sending address, a category, a setting: everybody's, so nobody is refused for it.
            return Judgement(Verdict.NOT_SENT, f"refused_{_plain(path)}", detail=message, halts=True)
    if refused:
        return Judgement(Verdict.REFUSED, "http_400", detail=detail, refused=refused)
    if texts:
        return Judgement(Verdict.REFUSED, "http_400", Outcome.PROVIDER_CONTENT, detail)
    return Judgement(Verdict.REFUSED, "http_400", Outcome.PROVIDER_REFUSED, detail, divide=True)


def _why(path: str) -> Outcome:
    return Outcome.PROVIDER_INVALID_ADDRESS if re.search(r"\bto\b|\bemail\b", path) else Outcome.PROVIDER_REFUSED


def _plain(path: str) -> str:
    """The first step of a path as part of a reason: `from.email` is `from`."""
    return re.sub(r"[^a-z_]", "", re.split(r"[.\[]", path.lower())[0])[:40] or "setting"


def said(answer: Answer) -> str:
    """What SendGrid says of the first error, without anything that could be an address."""
    return next((message for _, message in _errors(answer)), "")


def _errors(answer: Answer) -> list[tuple[str, str]]:
    """The errors of a reply as (path, message). None for a body that is no such list, HTML for one."""
    try:
        listed = orjson.loads(answer.body)["errors"]
        return [
            (_path(error.get("field")), scrubbed(str(error.get("message") or "")))
            for error in listed
            if isinstance(error, dict)
        ]
    except (ValueError, KeyError, TypeError):
        return []


def _path(field: object) -> str:
    """The path of an error; empty when there is none, which the published examples also write as the text `null`."""
    return field.strip() if isinstance(field, str) and field.strip() != "null" else ""
