"""What a receiver's answer proves, as docs/webhook.md promises it."""

import orjson
import pytest

from schemas.letters import Letter
from schemas.outcomes import Outcome
from sendonce.senders.base import Reply, Verdict
from sendonce.senders.http import Answer
from sendonce.senders.webhook_replies import Judged, judge

NOW_S = 1_768_467_600.0
THREE = [Letter(ordinal, f"{ordinal:052d}", f"u{ordinal}@one.example", "") for ordinal in (3, 8, 9)]
JSON = {"content-type": "application/json; charset=utf-8"}


def answered(status: int, http_503: str = "unknown", **headers: str) -> Judged:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return judge(Answer(status, True, headers=named), THREE, now_s=NOW_S, http_503=http_503)


def taken(body: bytes, **headers: str) -> Reply:
    return judge(Answer(200, True, headers=headers or JSON, body=body), THREE, now_s=NOW_S, http_503="unknown").reply


def results(*said: object, **more: object) -> Reply:
    return taken(orjson.dumps({"results": list(said), **more}))


def result(ordinal: int, status: str = "accepted", **more: object) -> dict[str, object]:
    return {"message_id": f"{ordinal:052d}", "status": status, **more}


@pytest.mark.parametrize(
    ("written", "reason", "verdict"),
    [
        (False, "dns", Verdict.NOT_SENT),
        (False, "tls_untrusted", Verdict.NOT_SENT),
        (True, "timeout", Verdict.UNKNOWN),
        (True, "closed", Verdict.UNKNOWN),
    ],
)
def test_without_a_status_line_the_first_byte_decides(written: bool, reason: str, verdict: Verdict) -> None:
    reply = judge(Answer(None, written, reason), THREE, now_s=NOW_S, http_503="unknown").reply
    assert (reply.verdict, reply.reason, reply.halts_sender) == (verdict, reason, False)


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (401, "signature_refused"),
        (403, "signature_refused"),
        (404, "no_receiver"),
        (405, "no_receiver"),
        (407, "no_receiver"),
        (410, "receiver_gone"),
        (411, "no_receiver"),
        (415, "no_receiver"),
        (421, "no_receiver"),
        (426, "no_receiver"),
        (451, "http_451"),
    ],
)
def test_what_is_everybodys_halts_the_sender_and_refuses_nobody(status: int, reason: str) -> None:
    judged = answered(status)
    assert judged == Judged(Reply(Verdict.NOT_SENT, reason, halts_sender=True))


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_proves_nothing_and_halts(status: int) -> None:
    assert answered(status, location="https://elsewhere.example/") == Judged(
        Reply(Verdict.UNKNOWN, "redirect", halts_sender=True)
    )


@pytest.mark.parametrize(
    ("status", "headers", "wait_s"),
    [(429, {"retry_after": "7"}, 7.0), (429, {}, None), (503, {"retry_after": "120"}, 120.0)],
)
def test_a_receiver_that_asks_to_wait_is_waited_for(status: int, headers: dict[str, str], wait_s: float | None) -> None:
    reply = answered(status, **headers).reply
    assert (reply.verdict, reply.throttled, reply.retry_after_s) == (Verdict.NOT_SENT, True, wait_s)


@pytest.mark.parametrize("status", [101, 408, 409, 425, 499, 500, 501, 502, 503, 504, 505, 599])
def test_what_proves_nothing_is_in_doubt(status: int) -> None:
    assert answered(status) == Judged(Reply(Verdict.UNKNOWN, f"http_{status}"))


def test_503_may_be_set_to_mean_not_sent() -> None:
    assert answered(503, "not_sent") == Judged(Reply(Verdict.NOT_SENT, "http_503"))


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (400, Outcome.PROVIDER_REFUSED),
        (402, Outcome.PROVIDER_REFUSED),
        (418, Outcome.PROVIDER_REFUSED),
        (422, Outcome.PROVIDER_REFUSED),
        (413, Outcome.PROVIDER_TOO_LARGE),
    ],
)
def test_other_4xx_refuse_a_letter_that_is_alone(status: int, outcome: Outcome) -> None:
    assert answered(status) == Judged(Reply(Verdict.REFUSED, f"http_{status}", outcome), whole=True)


# -- 2xx ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_bare_2xx_takes_all(status: int) -> None:
    assert answered(status).reply == Reply(Verdict.ACCEPTED)


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"OK", {"content-type": "text/plain"}),
        (b"<html>", {"content-type": "text/html"}),
        (b"", {"content-type": "application/json"}),
        (b"", {"content-type": "application/json", "content-length": "0"}),
        (b"{}", JSON),
        (b'{"ok": true}', JSON),
        (b"[]", JSON),
        (b'"fine"', JSON),
        (b"null", JSON),
    ],
)
def test_a_body_without_results_says_nothing(body: bytes, headers: dict[str, str]) -> None:
    assert taken(body, **headers) == Reply(Verdict.ACCEPTED)


def test_results_speak_for_each_message() -> None:
    reply = results(result(9), result(3, "refused", reason="invalid_address"), result(8), id="order-7")
    assert (reply.verdict, reply.provider_ref, reply.reason) == (Verdict.ACCEPTED, "order-7", "")
    assert reply.exceptions == {3: (Verdict.REFUSED, Outcome.PROVIDER_INVALID_ADDRESS, "invalid_address")}


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        ("invalid_address", Outcome.PROVIDER_INVALID_ADDRESS),
        ("unknown_mailbox", Outcome.PROVIDER_UNKNOWN_MAILBOX),
        ("mailbox_full", Outcome.PROVIDER_MAILBOX_FULL),
        ("content", Outcome.PROVIDER_CONTENT),
        ("policy", Outcome.PROVIDER_POLICY),
        ("too_large", Outcome.PROVIDER_TOO_LARGE),
        ("not a customer", Outcome.PROVIDER_REFUSED),
        (None, Outcome.PROVIDER_REFUSED),
        (7, Outcome.PROVIDER_REFUSED),
    ],
)
def test_reasons_of_a_refusal(reason: object, outcome: Outcome) -> None:
    reply = results(result(3), result(8), result(9, "refused", reason=reason))
    assert reply.exceptions[9][:2] == (Verdict.REFUSED, outcome)


def test_a_receivers_words_hold_no_address_and_no_line_break() -> None:
    reply = results(result(3), result(8), result(9, "refused", reason="no\x00body\n at u9@one.example " + "x" * 300))
    detail = reply.exceptions[9][2]
    assert "@" not in detail
    assert detail.isprintable()
    assert len(detail) <= 200


@pytest.mark.parametrize(
    "said",
    [
        [],
        [result(3)],
        [result(3), result(8), result(9, "queued")],
        [result(3), result(8), {"message_id": f"{9:052d}"}],
        [result(3), result(8), result(9), result(9, "refused")],
        [result(3), result(8), "accepted"],
        [result(3), result(8), {"message_id": 9, "status": "accepted"}],
    ],
)
def test_whoever_has_no_result_is_in_doubt(said: list[object]) -> None:
    """Nobody said that the letter was taken."""
    reply = results(*said)
    found = {letter.ordinal: reply.exceptions.get(letter.ordinal, (reply.verdict,))[0] for letter in THREE}
    assert found[9] is Verdict.UNKNOWN
    assert reply.reason == "garbled"


@pytest.mark.parametrize("listed", [None, {}, "all", 7])
def test_results_that_are_no_list_leave_all_in_doubt(listed: object) -> None:
    reply = taken(orjson.dumps({"results": listed}))
    assert (reply.verdict, dict(reply.exceptions)) == (Verdict.UNKNOWN, {})


def test_json_that_was_cut_leaves_all_in_doubt() -> None:
    """What is missing may have refused somebody."""
    whole = orjson.dumps({"results": [result(3), result(8), result(9, "refused")]})
    for end in range(1, len(whole)):
        assert taken(whole[:end]) == Reply(Verdict.UNKNOWN, "garbled")
    assert taken(b"", **JSON, **{"content-length": "300"}) == Reply(Verdict.UNKNOWN, "garbled")


def test_results_of_others_are_passed_over() -> None:
    assert results(result(3), result(8), result(9), result(77, "refused")).exceptions == {}


@pytest.mark.parametrize("name", ["order for ann@one.example", "a\nb", 7, "x" * 300])
def test_a_name_for_the_request_that_cannot_be_kept_is_left_out(name: object) -> None:
    assert results(result(3), result(8), result(9), id=name).provider_ref is None
