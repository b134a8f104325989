"""What each answer of SES proves: by phase, by the code of an error, by the status of an entry."""

import json
from typing import Any

import botocore.session
import pytest

from schemas.outcomes import Outcome
from sendonce.senders.base import Verdict
from sendonce.senders.http import Answer
from sendonce.senders.ses_replies import QUOTA_WAIT_S, Judgement, judge

NOT_SENT, REFUSED, UNKNOWN, ACCEPTED = Verdict.NOT_SENT, Verdict.REFUSED, Verdict.UNKNOWN, Verdict.ACCEPTED


def judged(status: int | None, body: Any = b"", n: int = 2, *, bulk: bool = True, **fields: Any) -> Judgement:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    http_503 = fields.pop("http_503", "unknown")
    return judge(Answer(status, body=raw, **{"written": True, **fields}), n, bulk=bulk, http_503=http_503)


def of_code(code: str, message: str = "", status: int = 400, n: int = 2) -> Judgement:
    return judged(status, {"message": message}, n, headers={"x-amzn-errortype": f"{code}:http://internal.amazon.com/"})


def of_entry(status: str, error: str = "") -> Judgement:
    entries = [{"Status": "SUCCESS", "MessageId": "m-1"}, {"Status": status, "Error": error}]
    return judged(200, {"BulkEmailEntryResults": entries})


# -- by phase -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", ["dns", "connect", "tls", "pool", "timeout", "closed", "garbled"])
@pytest.mark.parametrize("written", [True, False])
def test_without_a_status_only_an_unwritten_request_was_not_sent(reason: str, written: bool) -> None:
    found = judged(None, written=written, reason=reason)
    assert {one.verdict for one in found.results} == {UNKNOWN if written else NOT_SENT}
    assert found.stop is not None
    assert found.stop.reason == reason


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"{}", b'{"BulkEmailEntryResults": 5}', b"<html>", b"\xff"])
def test_a_bulk_answer_that_is_not_all_there_proves_nothing(body: bytes) -> None:
    """SES says 200 and then, in the body, whom it refused."""
    found = judged(200, body)
    assert [one.verdict for one in found.results] == [UNKNOWN, UNKNOWN]
    assert judged(200, body, 1, bulk=False).results[0].verdict is ACCEPTED


@pytest.mark.parametrize("n", [0, 1, 3])
def test_as_many_statuses_as_entries_or_none_counts(n: int) -> None:
    found = judged(200, {"BulkEmailEntryResults": [{"Status": "SUCCESS"}] * n}, 2)
    assert [one.verdict for one in found.results] == [UNKNOWN, UNKNOWN]


# -- by entry -------------------------------------------------------------------------------------------------------

ENTRIES = {
    "SUCCESS": (ACCEPTED, ""),
    "MESSAGE_REJECTED": (REFUSED, "message_rejected"),
    "INVALID_PARAMETER": (REFUSED, "invalid_parameter"),
    "MAIL_FROM_DOMAIN_NOT_VERIFIED": (NOT_SENT, "refused_from"),
    "CONFIGURATION_SET_NOT_FOUND": (NOT_SENT, "configuration_set"),
    "TEMPLATE_NOT_FOUND": (NOT_SENT, "template"),
    "ACCOUNT_SUSPENDED": (NOT_SENT, "account_suspended"),
    "ACCOUNT_THROTTLED": (NOT_SENT, "throttled"),
    "ACCOUNT_DAILY_QUOTA_EXCEEDED": (NOT_SENT, "quota"),
    "INVALID_SENDING_POOL_NAME": (NOT_SENT, "sending_pool"),
    "ACCOUNT_SENDING_PAUSED": (NOT_SENT, "sending_paused"),
    "CONFIGURATION_SET_SENDING_PAUSED": (NOT_SENT, "configuration_set_paused"),
    "TRANSIENT_FAILURE": (NOT_SENT, "transient_failure"),
    "FAILED": (NOT_SENT, "failed"),
}
WAITS = {"ACCOUNT_THROTTLED", "ACCOUNT_DAILY_QUOTA_EXCEEDED"}
GOES_ON = {"SUCCESS", "MESSAGE_REJECTED", "INVALID_PARAMETER", "TRANSIENT_FAILURE", "FAILED"}


@pytest.mark.parametrize("status", ENTRIES)
def test_the_status_of_an_entry_is_its_recipients_alone(status: str) -> None:
    found = of_entry(status)
    first, second = found.results
    assert first.verdict is ACCEPTED
    assert (second.verdict, second.reason) == ENTRIES[status]
    assert (found.stop is None) == (status in GOES_ON)
    assert second.throttled == (status in WAITS)
    assert second.halts == (status not in WAITS | GOES_ON)
    assert not found.divide


def test_every_status_of_the_published_model_is_known() -> None:
    model = botocore.session.Session().get_service_model("sesv2")
    assert set(model.shape_for("BulkEmailStatus").enum) == set(ENTRIES)


@pytest.mark.parametrize("status", ["", "SOMETHING_NEW", "success"])
def test_a_status_that_nobody_knows_is_a_doubt(status: str) -> None:
    assert of_entry(status).results[1].verdict is UNKNOWN


def test_a_bad_address_is_told_from_another_bad_parameter() -> None:
    address, other = of_entry("INVALID_PARAMETER", "Missing final '@domain'"), of_entry("INVALID_PARAMETER", "Bad tag")
    assert (address.results[1].outcome, address.results[1].blind) == (Outcome.PROVIDER_INVALID_ADDRESS, False)
    assert (other.results[1].outcome, other.results[1].blind) == (Outcome.PROVIDER_REFUSED, True)


def test_a_used_up_quota_is_asked_for_after_ten_minutes() -> None:
    assert of_entry("ACCOUNT_DAILY_QUOTA_EXCEEDED").results[1].retry_after_s == QUOTA_WAIT_S == 600
    (one,) = of_code("ThrottlingException", "Daily message quota exceeded.", 429, 1).results
    assert (one.reason, one.throttled, one.retry_after_s) == ("quota", True, 600)


@pytest.mark.parametrize("how", ["call", "entry"])
def test_an_address_that_is_not_verified_is_the_accounts_affair(how: str) -> None:
    """In its sandbox an account may write to verified addresses alone: nobody is refused for that."""
    words = "Email address is not verified. The following identities failed the check in region EU-WEST-1: a@b.example"
    found = of_code("MessageRejected", words) if how == "call" else of_entry("MESSAGE_REJECTED", words)
    assert (found.results[1].verdict, found.results[1].reason, found.results[1].halts) == (
        NOT_SENT,
        "not_verified",
        True,
    )
    assert "b.example" not in found.results[1].detail


# -- by the error of a call -----------------------------------------------------------------------------------------

CODES = {
    "TooManyRequestsException": (429, NOT_SENT, "throttled"),
    "LimitExceededException": (400, NOT_SENT, "throttled"),
    "AccountSuspendedException": (400, NOT_SENT, "account_suspended"),
    "SendingPausedException": (400, NOT_SENT, "sending_paused"),
    "MessageRejected": (400, REFUSED, "http_400"),
    "MailFromDomainNotVerifiedException": (400, NOT_SENT, "refused_from"),
    "NotFoundException": (404, NOT_SENT, "configuration_set"),
    "BadRequestException": (400, REFUSED, "http_400"),
}


@pytest.mark.parametrize("code", CODES)
def test_the_error_of_a_call_is_everybodys(code: str) -> None:
    status, verdict, reason = CODES[code]
    found = of_code(code, "words", status)
    assert {(one.verdict, one.reason) for one in found.results} == {(verdict, reason)}
    assert found.divide == (verdict is REFUSED)
    assert found.results[0].throttled == (reason == "throttled")
    assert found.results[0].halts == (verdict is NOT_SENT and reason != "throttled")


def test_every_error_of_the_published_model_is_known() -> None:
    model = botocore.session.Session().get_service_model("sesv2")
    published = {
        shape.name: shape.metadata["error"]["httpStatusCode"]
        for operation in ("SendBulkEmail", "SendEmail")
        for shape in model.operation_model(operation).error_shapes
    }
    assert published == {code: status for code, (status, _, _) in CODES.items()}


@pytest.mark.parametrize(
    ("code", "status", "reason"),
    [
        ("UnrecognizedClientException", 403, "credentials"),
        ("InvalidClientTokenId", 403, "credentials"),
        ("SignatureDoesNotMatch", 403, "credentials"),
        ("InvalidSignatureException", 403, "credentials"),
        ("MissingAuthenticationTokenException", 403, "credentials"),
        ("IncompleteSignatureException", 400, "credentials"),
        ("UnrecognizedClientException", 400, "credentials"),
        ("ExpiredTokenException", 403, "credentials"),
        ("ExpiredTokenException", 400, "credentials"),
        ("AccessDeniedException", 403, "forbidden"),
        ("OptInRequired", 403, "forbidden"),
        ("", 401, "credentials"),
        ("", 403, "credentials"),
        ("UnknownOperationException", 404, "http_404"),
        ("", 404, "http_404"),
        ("", 405, "http_405"),
        ("SerializationException", 415, "http_415"),
        ("RequestExpired", 400, "clock"),
        ("RequestTimeTooSkewed", 403, "clock"),
    ],
)
def test_what_a_person_must_mend_halts_and_refuses_nobody(code: str, status: int, reason: str) -> None:
    found = of_code(code, "words", status)
    assert {(one.verdict, one.reason, one.halts) for one in found.results} == {(NOT_SENT, reason, True)}


@pytest.mark.parametrize("words", ["Signature expired: 2026… is now earlier than …", "Signature not yet current: …"])
def test_a_signature_out_of_its_time_is_about_the_clock(words: str) -> None:
    assert of_code("InvalidSignatureException", words, 403).results[0].reason == "clock"


@pytest.mark.parametrize("status", [500, 502, 503, 504, 301, 302, 101, 409, 418])
def test_a_fault_of_the_provider_is_a_doubt(status: int) -> None:
    for code in ("InternalFailure", "ServiceUnavailable", ""):
        assert {one.verdict for one in of_code(code, "words", status).results} == {UNKNOWN}


def test_503_proves_what_the_settings_say() -> None:
    assert judged(503, http_503="not_sent").results[0].verdict is NOT_SENT
    assert judged(500, http_503="not_sent").results[0].verdict is UNKNOWN


@pytest.mark.parametrize(
    "body",
    [
        {"__type": "com.amazonaws.sesv2#TooManyRequestsException", "message": "slow"},
        {"__type": "TooManyRequestsException"},
        {"code": "TooManyRequestsException", "Message": "slow"},
    ],
)
def test_an_error_is_named_in_the_body_where_no_header_does(body: dict[str, str]) -> None:
    assert judged(400, body).results[0].throttled


def test_too_large_is_divided() -> None:
    found = judged(413, b"<html>")
    assert (found.divide, found.results[0].outcome) == (True, Outcome.PROVIDER_TOO_LARGE)


@pytest.mark.parametrize(
    ("said", "kept"),
    [
        ("Missing final '@domain' in ann@one.example", "Missing final (address) in (address)"),
        ("no match\n\nThe Canonical String …\nx-amz-security-token:SECRET", "no match"),
        ("x" * 500, "x" * 200),
        (None, ""),
    ],
)
def test_what_ses_says_is_kept_without_addresses_and_signed_headers(said: str | None, kept: str) -> None:
    assert judged(400, {"message": said}).results[0].detail == kept
