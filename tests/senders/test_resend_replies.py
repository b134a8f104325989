"""What each answer that Resend documents proves: https://resend.com/docs/api-reference/errors."""

import orjson
import pytest

from schemas.outcomes import Outcome
from sendonce.delivery.protocol.doubts import PAYLOAD_CHANGED
from sendonce.senders.base import Verdict
from sendonce.senders.http import Answer
from sendonce.senders.resend_replies import KEY_OF_OTHER_BYTES, Judged, judge

NOW_S = 1_768_467_600.0
ONE, MANY = [4], list(range(10, 20))


def answered(status: int, name: str = "", message: str = "", ordinals: list[int] = ONE, **headers: str) -> Judged:
    body = orjson.dumps({"statusCode": status, "name": name, "message": message}) if name else b"<html>"
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return judge(Answer(status, True, headers=named, body=body), ordinals, now_s=NOW_S)


def taken(said: object, ordinals: list[int]) -> Judged:
    return judge(Answer(200, True, body=orjson.dumps(said)), ordinals, now_s=NOW_S)


@pytest.mark.parametrize(
    ("written", "reason", "verdict"),
    [
        (False, "connect", Verdict.NOT_SENT),
        (False, "dns", Verdict.NOT_SENT),
        (False, "tls_host", Verdict.NOT_SENT),
        (False, "pool", Verdict.NOT_SENT),
        (True, "timeout", Verdict.UNKNOWN),
        (True, "closed", Verdict.UNKNOWN),
        (True, "garbled", Verdict.UNKNOWN),
    ],
)
def test_without_a_status_line_the_first_byte_decides(written: bool, reason: str, verdict: Verdict) -> None:
    reply = judge(Answer(None, written, reason), MANY, now_s=NOW_S).reply
    assert (reply.verdict, reply.reason, reply.halts_sender) == (verdict, reason, False)


@pytest.mark.parametrize(
    ("status", "name", "message", "reason"),
    [
        (401, "missing_api_key", "Missing API key in the authorization header.", "credentials"),
        (401, "restricted_api_key", "This API key is restricted to only send emails.", "credentials"),
        (401, "", "", "credentials"),
        (403, "invalid_api_key", "API key is invalid.", "credentials"),
        (403, "suspended_api_key", "API key is suspended.", "credentials"),
        (
            403,
            "validation_error",
            "The shop.example domain is not verified. Please, verify your domain.",
            "refused_from",
        ),
        (403, "invalid_from_address", "The from address is not valid.", "refused_from"),
        (403, "validation_error", "You can only send testing emails to your own email address.", "forbidden"),
        (403, "", "", "forbidden"),
        (404, "not_found", "The requested endpoint does not exist.", "http_404"),
        (405, "method_not_allowed", "Method is not allowed for the requested path.", "http_405"),
        (415, "", "", "http_415"),
        (451, "security_error", "We may have found a security issue with the request.", "security_error"),
        (429, "monthly_quota_exceeded", "You have reached your monthly email sending quota.", "monthly_quota"),
        (422, "validation_error", "Invalid `from` field. The email address needs to follow …", "refused_from"),
        (422, "validation_error", "Invalid `reply_to` field.", "refused_reply_to"),
        (422, "invalid_from_address", "Not one of yours.", "refused_from"),
    ],
)
def test_what_is_everybodys_halts_the_sender_and_refuses_nobody(
    status: int, name: str, message: str, reason: str
) -> None:
    judged = answered(status, name, message, MANY)
    assert (judged.reply.verdict, judged.reply.reason) == (Verdict.NOT_SENT, reason)
    assert judged.reply.halts_sender
    assert not judged.whole
    assert not judged.reply.exceptions


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry_after": "7"}, 7.0),
        ({"ratelimit_reset": "3", "retry_after": "1"}, 3.0),
        ({}, None),
        ({"retry_after": "soon"}, None),
        ({"retry_after": "0"}, 1.0),
        ({"retry_after": "999999"}, 3600.0),
    ],
)
def test_too_many_calls_a_second_slow_down(headers: dict[str, str], wait_s: float | None) -> None:
    reply = answered(429, "rate_limit_exceeded", "Too many requests.", MANY, **headers).reply
    assert (reply.verdict, reply.throttled, reply.halts_sender) == (Verdict.NOT_SENT, True, False)
    assert reply.retry_after_s == wait_s


def test_a_days_quota_is_waited_for() -> None:
    reply = answered(429, "daily_quota_exceeded", "You have reached your daily quota.", MANY, retry_after="1").reply
    assert (reply.verdict, reply.reason, reply.throttled) == (Verdict.NOT_SENT, "daily_quota", True)
    assert reply.retry_after_s == 3600
    assert not reply.halts_sender


@pytest.mark.parametrize("status", [101, 302, 307, 408, 418, 500, 502, 503, 504, 520])
def test_what_proves_nothing_is_in_doubt(status: int) -> None:
    reply = answered(status, "internal_server_error", "An unexpected error occurred.", MANY).reply
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.UNKNOWN, f"http_{status}", False)


def test_a_key_in_progress_is_in_doubt_still() -> None:
    """The call that came first may yet be accepted."""
    reply = answered(409, "concurrent_idempotent_requests", "Same key while the original is in progress.", MANY).reply
    assert (reply.verdict, reply.reason, reply.retry_after_s) == (Verdict.UNKNOWN, "in_progress", 5.0)


def test_a_key_of_other_bytes_sent_nothing_and_is_not_asked_again() -> None:
    reply = answered(409, "invalid_idempotent_request", "Same key used with a different payload.", MANY).reply
    assert (reply.verdict, reply.reason) == (Verdict.NOT_SENT, KEY_OF_OTHER_BYTES)
    assert KEY_OF_OTHER_BYTES == PAYLOAD_CHANGED


def test_another_conflict_is_in_doubt() -> None:
    assert answered(409, "", "", MANY).reply.verdict is Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("status", "message", "outcome"),
    [
        (422, "Invalid `to` field. Use the `email@example.com` format.", Outcome.PROVIDER_INVALID_ADDRESS),
        (422, "Missing `subject` field.", Outcome.PROVIDER_CONTENT),
        (422, "Missing `html` or `text` field.", Outcome.PROVIDER_CONTENT),
        (400, "We found an error with one or more fields in the request.", Outcome.PROVIDER_REFUSED),
        (413, "Too large", Outcome.PROVIDER_TOO_LARGE),
    ],
)
def test_a_call_refused_as_one_refuses_a_letter_that_is_alone(status: int, message: str, outcome: Outcome) -> None:
    judged = answered(status, "validation_error", message)
    assert judged.whole
    assert (judged.reply.verdict, judged.reply.outcome) == (Verdict.REFUSED, outcome)


# -- 2xx ------------------------------------------------------------------------------------------------------------


def test_ids_are_the_providers_names() -> None:
    reply = taken({"data": [{"id": "a-1"}, {"id": "b-2"}]}, [3, 8]).reply
    assert (reply.verdict, reply.provider_ref, dict(reply.exceptions)) == (Verdict.ACCEPTED, "a-1 b-2", {})


def test_whoever_is_named_is_refused_and_the_others_are_taken() -> None:
    said = {"data": [{"id": "a"}, {"id": "c"}], "errors": [{"index": 1, "message": "Invalid `to` field: x@y.example"}]}
    reply = taken(said, [3, 8, 9]).reply
    assert reply.verdict is Verdict.ACCEPTED
    assert reply.exceptions == {8: (Verdict.REFUSED, Outcome.PROVIDER_INVALID_ADDRESS, "Invalid `to` field: (address)")}


def test_two_errors_of_one_letter_are_one_refusal() -> None:
    said = {"data": [{"id": "a"}], "errors": [{"index": 1, "message": m} for m in ("Bad.", "Invalid `to` field.")]}
    reply = taken(said, [3, 8]).reply
    assert reply.exceptions[8][0] is Verdict.REFUSED
    assert 3 not in reply.exceptions


def test_all_named_are_all_refused() -> None:
    said = {"data": [], "errors": [{"index": place, "message": "Invalid `to` field."} for place in range(2)]}
    reply = taken(said, [3, 8]).reply
    assert (reply.verdict, reply.outcome, dict(reply.exceptions)) == (
        Verdict.REFUSED,
        Outcome.PROVIDER_INVALID_ADDRESS,
        {},
    )


def test_a_domain_that_is_not_verified_halts_and_refuses_nobody() -> None:
    said = {"data": [], "errors": [{"index": n, "message": "The shop.example domain is not verified."} for n in (0, 1)]}
    reply = taken(said, [3, 8]).reply
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "refused_from", True)


def test_everybody_refused_without_a_field_blames_the_account() -> None:
    said = {"data": [], "errors": [{"index": n, "message": "Not allowed."} for n in range(8)]}
    reply = taken(said, list(range(8))).reply
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "refused_all", True)


@pytest.mark.parametrize(
    "said",
    [
        {},
        [],
        {"data": [{"id": "a"}]},
        {"data": [{"id": "a"}, {"id": 7}]},
        {"data": [{"id": "a"}], "errors": [{"index": 2, "message": "x"}]},
        {"data": [{"id": "a"}], "errors": [{"index": "1", "message": "x"}]},
        {"data": [{"id": "a"}], "errors": [{"message": "x"}]},
        {"data": [{"id": "a"}], "errors": [{"index": [1], "message": "x"}]},
        {"data": [{"id": "a"}], "errors": [{"index": True, "message": "x"}]},
        {"data": [{"id": "a"}], "errors": [{"index": -1, "message": "x"}]},
        {"data": [{"id": "a"}], "errors": [{"index": 1.0, "message": "x"}]},
        {"data": [{"id": "a"}, {"id": "b"}], "errors": [{"index": 1, "message": "x"}]},
        {"data": {"id": "a"}, "errors": "none"},
        {"data": [{"id": "a"}, {"id": "b"}, {"id": "c"}]},
    ],
)
def test_a_body_that_does_not_say_who_was_taken_is_in_doubt(said: object) -> None:
    """The same key brings the same answer again, whole this time."""
    reply = taken(said, [3, 8]).reply
    assert (reply.verdict, reply.reason) == (Verdict.UNKNOWN, "garbled")


def test_no_words_of_the_provider_hold_an_address() -> None:
    assert "@" not in answered(403, "forbidden", "not to ann@one.example").detail
