"""What SES's answer to one call proves (DELIVERY 3): by phase and status line, then by the code or the statuses in it.

Its pages: https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_SendBulkEmail.html (errors),
…/API_BulkEmailEntryResult.html (a status per entry), …/CommonErrors.html (signatures, credentials, throttling). That
the entries' statuses come in the order of the request is said of the same call in the older API:
https://docs.aws.amazon.com/ses/latest/APIReference/API_SendBulkTemplatedEmail.html.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from schemas.outcomes import Outcome
from sendonce.senders.base import Verdict
from sendonce.senders.http import Answer
from sendonce.senders.replies import scrubbed

# "Wait for an interval of up to 10 minutes", of letters that SES drops for a quota:
# https://docs.aws.amazon.com/ses/latest/dg/manage-sending-quotas-errors.html. The daily one counts the last 24 hours,
# so a little of it is free again soon.
QUOTA_WAIT_S: Final = 600.0

_SLOW_DOWN: Final = frozenset(
    {"TooManyRequestsException", "ThrottlingException", "Throttling", "RequestLimitExceeded", "LimitExceededException"}
)
# Not this call but every call of the account fails, until a person has seen to it.
_HALTING_CODES: Final = {
    "AccountSuspendedException": "account_suspended",
    "SendingPausedException": "sending_paused",
    "MailFromDomainNotVerifiedException": "refused_from",
    "NotFoundException": "configuration_set",
    "OptInRequired": "forbidden",
    "NotAuthorized": "forbidden",
    "AccessDenied": "forbidden",
    "AccessDeniedException": "forbidden",
    "ExpiredToken": "credentials",
    "ExpiredTokenException": "credentials",
    "IncompleteSignature": "credentials",
    "IncompleteSignatureException": "credentials",
    "InvalidClientTokenId": "credentials",
    "InvalidSignatureException": "credentials",
    "MissingAuthenticationToken": "credentials",
    "MissingAuthenticationTokenException": "credentials",
    "SignatureDoesNotMatch": "credentials",
    "UnrecognizedClientException": "credentials",
}
# Two spellings are about of some: API_BulkEmailEntryResult.html names …_DOES_NOT_EXIST, the service model …_NOT_FOUND.
_HALTING_STATUSES: Final = {
    "MAIL_FROM_DOMAIN_NOT_VERIFIED": "refused_from",
    "CONFIGURATION_SET_NOT_FOUND": "configuration_set",
    "CONFIGURATION_SET_DOES_NOT_EXIST": "configuration_set",
    "TEMPLATE_NOT_FOUND": "template",
    "TEMPLATE_DOES_NOT_EXIST": "template",
    "ACCOUNT_SUSPENDED": "account_suspended",
    "INVALID_SENDING_POOL_NAME": "sending_pool",
    "ACCOUNT_SENDING_PAUSED": "sending_paused",
    "CONFIGURATION_SET_SENDING_PAUSED": "configuration_set_paused",
}
# "Check each response object and retry any messages with a failure status": these are not the recipient's fault.
_TRANSIENT_STATUSES: Final = frozenset({"TRANSIENT_FAILURE", "FAILED"})
_WRONG_PLACE: Final = frozenset({404, 405, 406, 415, 451})
_CLOCK_CODES: Final = frozenset({"RequestTimeTooSkewed", "RequestExpired"})
_CLOCK_WORDS: Final = ("signature expired", "signature not yet current")
_NOT_VERIFIED: Final = re.compile(r"address (?:is )?not verified", re.IGNORECASE)
_OF_AN_ADDRESS: Final = re.compile(r"address|@domain|domain (?:contains|starts|ends)", re.IGNORECASE)


@dataclass(frozen=True)
class Result:
    """What became of one letter, or of all of a call. halts, throttled, retry_after_s: as in `Reply`.

    blind: refused, and SES does not say that it is for this recipient's sake.
    """

    verdict: Verdict
    reason: str = ""
    outcome: int = 0
    detail: str = ""
    halts: bool = False
    throttled: bool = False
    retry_after_s: float | None = None
    blind: bool = False


@dataclass(frozen=True)
class Judgement:
    """The verdict on one call.

    results: one for each letter, in order. divide: SES refused the call whole and not for everybody's sake, so halves
    will tell. stop: why no further call should be made now; None when the next may go.
    """

    results: Sequence[Result]
    divide: bool = False
    stop: Result | None = None


ACCEPTED: Final = Result(Verdict.ACCEPTED)


def judge(answer: Answer, n: int, *, bulk: bool, http_503: str) -> Judgement:
    """What an answer to a call of n letters proves. http_503: what that status proves, `unknown` or `not_sent`."""
    status = answer.status
    if status is None:
        return _for_all(Result(Verdict.UNKNOWN if answer.written else Verdict.NOT_SENT, answer.reason), n)
    if 200 <= status < 300:
        return _by_entry(answer, n) if bulk else Judgement([ACCEPTED] * n)
    code, detail = code_of(answer), said(answer)
    if code in _SLOW_DOWN or status == 429:
        return _for_all(_slow_down(detail), n)
    if 400 <= status < 500 and (found := _of_the_account(status, code, detail)):
        return _for_all(Result(Verdict.NOT_SENT, found, detail=detail, halts=True), n)
    if status == 413:
        return _divided(Result(Verdict.REFUSED, "http_413", Outcome.PROVIDER_TOO_LARGE, "too large"), n)
    if status == 400:
        outcome = Outcome.PROVIDER_CONTENT if code == "MessageRejected" else _why(detail)
        return _divided(Result(Verdict.REFUSED, "http_400", outcome, detail), n)
    if status == 503 and http_503 == "not_sent":
        return _for_all(Result(Verdict.NOT_SENT, "http_503"), n)
    return _for_all(Result(Verdict.UNKNOWN, f"http_{status}"), n)


def _of_the_account(status: int, code: str, detail: str) -> str:
    """The reason why nothing goes for anybody; empty when the call itself is to blame."""
    if _NOT_VERIFIED.search(detail):
        return "not_verified"
    if is_about_the_clock(code, detail):
        return "clock"
    if status in _WRONG_PLACE and code != "NotFoundException":
        return f"http_{status}"
    return _HALTING_CODES.get(code, "") or ("credentials" if status in (401, 403) else "")


def is_about_the_clock(code: str, detail: str) -> bool:
    """Whether SES refused a signature for its time: it takes five minutes to either side.

    https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_sigv-troubleshooting.html
    """
    return code in _CLOCK_CODES or any(words in detail.lower() for words in _CLOCK_WORDS)


def _slow_down(detail: str) -> Result:
    if "daily" in detail.lower():
        return Result(Verdict.NOT_SENT, "quota", detail=detail, throttled=True, retry_after_s=QUOTA_WAIT_S)
    return Result(Verdict.NOT_SENT, "throttled", detail=detail, throttled=True)


def _why(detail: str) -> Outcome:
    return Outcome.PROVIDER_INVALID_ADDRESS if _OF_AN_ADDRESS.search(detail) else Outcome.PROVIDER_REFUSED


def _for_all(result: Result, n: int) -> Judgement:
    return Judgement([result] * n, stop=result)


def _divided(result: Result, n: int) -> Judgement:
    return Judgement([replace(result, blind=True)] * n, divide=True)


# -- a status per entry ---------------------------------------------------------------------------------------------


def _by_entry(answer: Answer, n: int) -> Judgement:
    """200 for a bulk call says nothing yet: each entry has a status, in the order of the request.

    A reply that is not all there proves nothing for anybody: an entry may have been accepted or refused.
    """
    entries = _entries(answer.body)
    if entries is None or len(entries) != n:
        return _for_all(Result(Verdict.UNKNOWN, "reply_cut"), n)
    results = [_of_entry(entry) for entry in entries]
    stops = [result for result in results if result.halts] or [result for result in results if result.throttled]
    return Judgement(results, stop=stops[0] if stops else None)


def _entries(body: bytes) -> list[Mapping[str, Any]] | None:
    try:
        entries = orjson.loads(body)["BulkEmailEntryResults"]
    except (ValueError, KeyError, TypeError):
        return None
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return None
    return entries


def _of_entry(entry: Mapping[str, Any]) -> Result:
    status, detail = str(entry.get("Status") or ""), _first_line(str(entry.get("Error") or ""))
    if status == "SUCCESS":
        return ACCEPTED
    if _NOT_VERIFIED.search(detail):
        return Result(Verdict.NOT_SENT, "not_verified", detail=detail, halts=True)
    if reason := _HALTING_STATUSES.get(status):
        return Result(Verdict.NOT_SENT, reason, detail=detail, halts=True)
    if status == "ACCOUNT_DAILY_QUOTA_EXCEEDED":
        return Result(Verdict.NOT_SENT, "quota", detail=detail, throttled=True, retry_after_s=QUOTA_WAIT_S)
    if status == "ACCOUNT_THROTTLED":
        return Result(Verdict.NOT_SENT, "throttled", detail=detail, throttled=True)
    if status in _TRANSIENT_STATUSES:
        return Result(Verdict.NOT_SENT, status.lower(), detail=detail)
    if status == "MESSAGE_REJECTED":
        return Result(Verdict.REFUSED, "message_rejected", Outcome.PROVIDER_CONTENT, detail)
    if status == "INVALID_PARAMETER":
        why = _why(detail)
        return Result(Verdict.REFUSED, "invalid_parameter", why, detail, blind=why == Outcome.PROVIDER_REFUSED)
    return Result(Verdict.UNKNOWN, "unknown_status")


# -- what an error says ---------------------------------------------------------------------------------------------


def code_of(answer: Answer) -> str:
    """The error's name, from its header or else the body; empty when something else than AWS answers.

    https://smithy.io/2.0/aws/protocols/aws-restjson1-protocol.html#operation-error-serialization
    """
    told = answer.headers.get("x-amzn-errortype", "")
    if not told:
        body = _object(answer.body)
        told = str(body.get("__type") or body.get("code") or "")
    return told.partition(":")[0].rpartition("#")[2].strip()


def said(answer: Answer) -> str:
    """What SES says of an error, without anything that could be an address, or a signature."""
    body = _object(answer.body)
    return _first_line(str(body.get("message") or body.get("Message") or ""))


def _object(body: bytes) -> Mapping[str, Any]:
    try:
        found = orjson.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _first_line(message: str) -> str:
    """Of a provider's words, scrubbed: what follows it in a refused signature are the headers that were signed."""
    return scrubbed(message.strip().partition("\n")[0])
