"""What an answer of SendGrid proves, without a network: statuses, error paths, wishes to wait."""

import json
from email.utils import formatdate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.outcomes import Outcome
from sendonce.senders.base import Verdict
from sendonce.senders.http import Answer
from sendonce.senders.replies import retry_after_s
from sendonce.senders.sendgrid_replies import Judgement, judge
from tests.senders.sendgrid_letters import CASES, NOW_S


def judged(answer: Answer, n: int = 10, http_503: str = "unknown") -> Judgement:
    return judge(answer, n, now_s=NOW_S, http_503=http_503)


def refusal(*errors: tuple[object, str], status: int = 400) -> Answer:
    listed = [{"message": message, "field": field, "help": None} for field, message in errors]
    return Answer(status, True, body=json.dumps({"errors": listed}).encode())


@pytest.mark.parametrize("reason", ["dns", "connect", "tls", "pool", "timeout"])
def test_nothing_written_is_not_sent(reason: str) -> None:
    assert judged(Answer(None, False, reason)) == Judgement(Verdict.NOT_SENT, reason)


@pytest.mark.parametrize("reason", ["timeout", "closed", "garbled"])
def test_no_status_after_the_first_byte_is_unknown(reason: str) -> None:
    assert judged(Answer(None, True, reason)) == Judgement(Verdict.UNKNOWN, reason)


@pytest.mark.parametrize(
    ("status", "verdict"),
    [
        (200, Verdict.ACCEPTED),
        (202, Verdict.ACCEPTED),
        (204, Verdict.ACCEPTED),
        (101, Verdict.UNKNOWN),
        (301, Verdict.UNKNOWN),
        (307, Verdict.UNKNOWN),
        (400, Verdict.REFUSED),
        (401, Verdict.NOT_SENT),
        (403, Verdict.NOT_SENT),
        (404, Verdict.NOT_SENT),
        (405, Verdict.NOT_SENT),
        (406, Verdict.NOT_SENT),
        (408, Verdict.UNKNOWN),
        (413, Verdict.REFUSED),
        (415, Verdict.NOT_SENT),
        (429, Verdict.NOT_SENT),
        (451, Verdict.NOT_SENT),
        (499, Verdict.UNKNOWN),
        (500, Verdict.UNKNOWN),
        (502, Verdict.UNKNOWN),
        (503, Verdict.UNKNOWN),
        (504, Verdict.UNKNOWN),
        (599, Verdict.UNKNOWN),
    ],
)
@pytest.mark.parametrize("body", [b"", b"<html><h1>Sorry</h1></html>", b'{"errors": 5}', b"\xff\xfe"])
def test_the_status_decides_whatever_the_body(status: int, verdict: Verdict, body: bytes) -> None:
    found = judged(Answer(status, True, body=body))
    assert found.verdict is verdict
    assert found.halts == (status in (401, 403, 404, 405, 406, 415, 451))
    assert found.throttled == (status == 429)
    assert found.divide == (status in (400, 413))


def test_503_means_what_the_settings_say() -> None:
    answer = Answer(503, True, headers={"retry-after": "9"})
    assert judged(answer).verdict is Verdict.UNKNOWN
    assert judged(answer, http_503="not_sent") == Judgement(Verdict.NOT_SENT, "http_503", retry_after_s=9.0)
    assert judged(Answer(500, True), http_503="not_sent").verdict is Verdict.UNKNOWN


# -- whom a 400 is about --------------------------------------------------------------------------------------------


def test_a_path_names_the_recipient() -> None:
    """Case one-bad-address-400."""
    step = json.loads((CASES / "one-bad-address-400" / "provider.json").read_text())["steps"][0]
    found = judged(Answer(step["status"], True, body=json.dumps(step["body"]).encode()))
    assert found.refused == {3: (Outcome.PROVIDER_INVALID_ADDRESS, "Does not contain a valid address.")}
    assert not found.divide
    assert not found.halts


def test_several_paths_name_several_recipients() -> None:
    found = judged(
        refusal(
            ("personalizations.3.to.0.email", "bad"),
            ("personalizations[7].substitutions", "too long"),
            ("personalizations.0", "odd"),
        )
    )
    assert {place: Outcome(outcome) for place, (outcome, _) in found.refused.items()} == {
        3: Outcome.PROVIDER_INVALID_ADDRESS,
        7: Outcome.PROVIDER_REFUSED,
        0: Outcome.PROVIDER_REFUSED,
    }


@pytest.mark.parametrize(
    "field", [None, "", "null", "personalizations", "personalizations.to", "personalizations.10.to", 5]
)
def test_a_path_that_names_nobody_of_the_call_leaves_it_to_halves(field: object) -> None:
    found = judged(refusal((field, "Bad Request")), n=10)
    assert (found.refused, found.divide, found.halts) == ({}, True, False)
    assert found.outcome == Outcome.PROVIDER_REFUSED


@pytest.mark.parametrize(
    ("field", "reason"),
    [
        ("from", "refused_from"),
        ("from.email", "refused_from"),
        ("reply_to.email", "refused_reply_to"),
        ("categories", "refused_categories"),
        ("asm.group_id", "refused_asm"),
        ("ip_pool_name", "refused_ip_pool_name"),
        ("send_at", "refused_send_at"),
        ("batch_id", "refused_batch_id"),
        ("tracking_settings.click_tracking.enable", "refused_tracking_settings"),
    ],
)
def test_what_everybody_shares_halts_the_sender_and_refuses_nobody(field: str, reason: str) -> None:
    found = judged(refusal(("personalizations.3.to.0.email", "bad"), (field, "not verified")))
    assert (found.verdict, found.reason, found.halts, found.refused) == (Verdict.NOT_SENT, reason, True, {})


@pytest.mark.parametrize("field", ["content", "content.0.value", "subject"])
def test_a_refused_text_is_refused_to_all_who_share_it(field: str) -> None:
    found = judged(refusal((field, "at least one character")))
    assert (found.verdict, found.outcome, found.divide) == (Verdict.REFUSED, Outcome.PROVIDER_CONTENT, False)


def test_credits_that_are_used_up_are_told_from_a_wrong_key() -> None:
    """Case credits-401."""
    step = json.loads((CASES / "credits-401" / "provider.json").read_text())["steps"][1]
    found = judged(Answer(step["status"], True, body=json.dumps(step["body"]).encode()))
    assert (found.reason, found.detail, found.halts) == ("credits", "Maximum credits exceeded", True)
    assert judged(Answer(401, True)).reason == "credentials"
    assert judged(Answer(403, True)).reason == "forbidden"


def test_no_address_of_a_message_is_repeated() -> None:
    found = judged(refusal(("personalizations.1.to.0.email", "We found [ann@one.example] and bob%40one.example twice")))
    assert found.refused[1][1] == "We found (address) and (address) twice"
    assert len(judged(refusal(("personalizations.1", "x" * 5000))).refused[1][1]) <= 200


# -- how long to wait -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"x-ratelimit-reset": str(NOW_S + 7)}, 7.0),
        ({"x-ratelimit-reset": "1768467000"}, 1.0),
        ({"x-ratelimit-reset": str(NOW_S + 10**6)}, 3600.0),
        ({"x-ratelimit-reset": "139281526367"}, 3600.0),
        ({"x-ratelimit-reset": "30"}, 30.0),
        ({"x-ratelimit-reset": "0"}, 1.0),
        ({"x-ratelimit-reset": f"{NOW_S + 7}000"}, 7.0),
        ({"x-ratelimit-reset": formatdate(NOW_S + 9, usegmt=True)}, 9.0),
        ({"x-ratelimit-reset": str(NOW_S + 7), "retry-after": "60"}, 60.0),
        ({"x-ratelimit-reset": str(NOW_S + 60), "retry-after": "7"}, 60.0),
        ({"x-ratelimit-reset": str(NOW_S - 7), "retry-after": "60"}, 60.0),
        ({"x-ratelimit-reset": "139281526367", "retry-after": "60"}, 60.0),
        ({"x-ratelimit-reset": str(NOW_S + 7), "retry-after": "999999"}, 7.0),
        ({"retry-after": str(NOW_S + 12)}, 12.0),
        ({"retry-after": "99999999"}, 3600.0),
        ({"retry-after": "1e400"}, None),
        ({"retry-after": "5, 60"}, None),
        ({"retry-after": "9" * 400}, None),
        ({"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": "Mon, 01 Jan 2026 00:00:00 +99999999999999999999"}, None),
        ({"retry-after": "Fri, 31 Dec 9999 23:59:59 GMT"}, 3600.0),
        ({"retry-after": "Thu, 01 Jan 1 00:00:00 +1400"}, 1.0),
        ({"x-ratelimit-reset": "soon", "retry-after": "60"}, 60.0),
        ({"retry-after": "0"}, 1.0),
        ({"retry-after": "-5"}, 1.0),
        ({"retry-after": "2.5"}, 2.5),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": formatdate(NOW_S + 5, usegmt=True)}, 5.0),
        ({"retry-after": formatdate(NOW_S - 500, usegmt=True)}, 1.0),
        ({"retry-after": "Thu, 15 Jan 2026 09:00:05 -0000"}, 5.0),
        ({"retry-after": "next week"}, None),
        ({"retry-after": ""}, None),
    ],
)
def test_a_wish_to_wait_is_read_and_bounded(headers: dict[str, str], wait_s: float | None) -> None:
    """Case 429-reset-epoch: Unix seconds, in the past, absent, a date."""
    assert retry_after_s(headers, NOW_S) == wait_s
    assert judged(Answer(429, True, headers=headers)).retry_after_s == wait_s


@given(
    headers=st.dictionaries(
        st.sampled_from(["x-ratelimit-reset", "retry-after"]),
        st.text(st.characters(max_codepoint=255), max_size=60)
        | st.integers().map(str)
        | st.floats().map(str)
        | st.tuples(st.integers(), st.integers()).map(lambda n: f"Mon, 01 Jan {n[0]} 00:00:00 {n[1]:+d}"),
    )
)
def test_whatever_stands_in_the_headers_the_wait_is_bounded(headers: dict[str, str]) -> None:
    wait_s = retry_after_s(headers, NOW_S)
    assert wait_s is None or 1.0 <= wait_s <= 3600.0
    assert judged(Answer(429, True, headers=headers)).throttled
