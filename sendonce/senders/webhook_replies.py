"""What a receiver's answer proves: docs/webhook.md says it to those who write one.

By phase and status line (DELIVERY 3), then by the results of a 2xx, message by message.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from schemas.letters import Letter
from schemas.outcomes import Outcome
from sendonce.senders.base import Reply, Verdict
from sendonce.senders.http import Answer
from sendonce.senders.replies import Result, reply_of, retry_after_s, scrubbed, without_answer

# Statuses that say nothing of a letter: the address, the signature or the method is wrong, for everybody.
_HALTS: Final = {
    401: "signature_refused",
    403: "signature_refused",
    404: "no_receiver",
    405: "no_receiver",
    407: "no_receiver",
    410: "receiver_gone",
    411: "no_receiver",
    415: "no_receiver",
    421: "no_receiver",
    426: "no_receiver",
    451: "http_451",
}
# Somebody on the way gave up, or the same key is just being worked on: nothing is proven.
_UNPROVEN: Final = frozenset({408, 409, 425, 499})
# Reasons that a receiver may give for a message, with an outcome of their own.
_REASONS: Final = {
    "invalid_address": Outcome.PROVIDER_INVALID_ADDRESS,
    "unknown_mailbox": Outcome.PROVIDER_UNKNOWN_MAILBOX,
    "mailbox_full": Outcome.PROVIDER_MAILBOX_FULL,
    "content": Outcome.PROVIDER_CONTENT,
    "policy": Outcome.PROVIDER_POLICY,
    "too_large": Outcome.PROVIDER_TOO_LARGE,
}


@dataclass(frozen=True)
class Judged:
    """whole: the call was refused as one, and the reply holds for a letter that is alone in it."""

    reply: Reply
    whole: bool = False


def judge(answer: Answer, chosen: Sequence[Letter], *, now_s: float, http_503: str) -> Judged:
    """What an answer to a call with these letters proves.

    now_s: Unix seconds. http_503: what that status proves without Retry-After, `unknown` or `not_sent`.
    """
    status = answer.status
    if status is None:
        reply = without_answer(answer)
        private = answer.reason == "private_address"
        return Judged(Reply(reply.verdict, reply.reason, halts_sender=True) if private else reply)
    if 200 <= status < 300:
        return Judged(_taken(answer, chosen))
    if 300 <= status < 400:
        # Whoever answered may have taken the letters first, as one does who sends a browser on after a form.
        return Judged(Reply(Verdict.UNKNOWN, "redirect", halts_sender=True))
    if status in _HALTS:
        return Judged(Reply(Verdict.NOT_SENT, _HALTS[status], halts_sender=True))
    wait_s = retry_after_s(answer.headers, now_s, ("retry-after",))
    if status == 429 or (status == 503 and wait_s is not None):
        return Judged(Reply(Verdict.NOT_SENT, f"http_{status}", throttled=True, retry_after_s=wait_s))
    if status == 503 and http_503 == "not_sent":
        return Judged(Reply(Verdict.NOT_SENT, "http_503"))
    if status >= 500 or status == 101 or status in _UNPROVEN:
        return Judged(Reply(Verdict.UNKNOWN, f"http_{status}"))
    outcome = Outcome.PROVIDER_TOO_LARGE if status == 413 else Outcome.PROVIDER_REFUSED
    return Judged(Reply(Verdict.REFUSED, f"http_{status}", outcome), whole=True)


def _taken(answer: Answer, chosen: Sequence[Letter]) -> Reply:
    """2xx: all are taken, unless the body is JSON with `results`: then each is what its result says.

    A message without a result, or with one that cannot be read, is in doubt: nobody said that it was taken. So are all
    when JSON was announced and cannot be read, for it may have refused some.
    """
    try:
        said = orjson.loads(answer.body)
    except ValueError:
        if _is_json(answer.headers) and (answer.body or answer.headers.get("content-length") not in (None, "0")):
            return Reply(Verdict.UNKNOWN, "garbled")
        return Reply(Verdict.ACCEPTED)
    if not isinstance(said, dict) or "results" not in said:
        return Reply(Verdict.ACCEPTED)
    listed = said["results"] if isinstance(said["results"], list) else []
    found: dict[str, Result] = {}
    for one in listed:
        if isinstance(one, dict) and isinstance(one.get("message_id"), str):
            result = _result(one)
            same = found.get(one["message_id"], result) == result
            found[one["message_id"]] = result if same else _UNREAD
    results = {letter.ordinal: found.get(letter.message_id, _UNREAD) for letter in chosen}
    garbled = any(result[0] is Verdict.UNKNOWN for result in results.values())
    ref = said.get("id")
    refs = [ref] if isinstance(ref, str) and ref.isascii() and ref.isprintable() and "@" not in ref else []
    return reply_of(results, "garbled" if garbled else "", refs=refs)


_UNREAD: Final[Result] = (Verdict.UNKNOWN, 0, "")


def _result(one: Mapping[str, Any]) -> Result:
    status, reason = one.get("status"), one.get("reason")
    if status == "accepted":
        return Verdict.ACCEPTED, 0, ""
    if status == "refused":
        said = "".join(letter for letter in reason if letter.isprintable()) if isinstance(reason, str) else ""
        return Verdict.REFUSED, _REASONS.get(said, Outcome.PROVIDER_REFUSED), scrubbed(said)
    return _UNREAD


def _is_json(headers: Mapping[str, str]) -> bool:
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or kind.endswith("+json")
