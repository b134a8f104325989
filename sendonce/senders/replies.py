"""What replies of providers over HTTP have in common: how long they ask to wait, and what of their words may stay."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Final

from sendonce.senders.base import Reply, Verdict
from sendonce.senders.http import Answer

# A provider's wish to wait is taken within these bounds: a clock that is off must not stop a sender for years.
SHORTEST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 3600.0
# A number from here on is a moment, not a duration: 1973 in Unix seconds, 2001 in milliseconds.
_UNIX_FROM: Final = 1e8
_UNIX_MS_FROM: Final = 1e12

REF_MAX: Final = 256
# verdict, Outcome byte if refused, detail without personal data
Result = tuple[Verdict, int, str]


def without_answer(answer: Answer) -> Reply:
    """The reply of a call that brought no status line: not sent only if no byte of the request was written."""
    return Reply(Verdict.UNKNOWN if answer.written else Verdict.NOT_SENT, answer.reason)


def reply_of(
    results: Mapping[int, Result], reason: str = "", *, halts: bool = False, refs: Sequence[str] = ()
) -> Reply:
    """One reply for results by ordinal (one at least): the commonest holds, the others are its exceptions."""
    ((verdict, outcome), _), *_ = Counter(result[:2] for result in results.values()).most_common(1)
    return Reply(
        verdict,
        reason,
        outcome,
        provider_ref=joined(refs),
        halts_sender=halts,
        exceptions={ordinal: one for ordinal, one in results.items() if one[:2] != (verdict, outcome)},
    )


def joined(refs: Sequence[str]) -> str | None:
    """The names that a provider gave, as many as a column holds."""
    text = ""
    for ref in refs:
        if ref and len(text) + 1 + len(ref) <= REF_MAX:
            text = f"{text} {ref}".strip()
    return text or None


def scrubbed(message: str) -> str:
    """A provider's words without anything that could be an address, at most 200 characters."""
    words = (word if "@" not in word and "%40" not in word else "(address)" for word in message.split())
    return " ".join(words)[:200]


def retry_after_s(
    headers: Mapping[str, str], now_s: float, names: Sequence[str] = ("x-ratelimit-reset", "retry-after")
) -> float | None:
    """Seconds to wait, between 1 and 3,600: by these headers (Retry-After: RFC 9110 10.2.3), the latest of them.

    Each may be seconds from now, Unix seconds (or milliseconds), or a date. One that is farther off than an hour is
    taken for a clock that is off, and the others count. None when none says anything.
    """
    asked = [_from_now(headers.get(name, ""), now_s) for name in names]
    waits = [wait_s for wait_s in asked if wait_s is not None]
    sane = [wait_s for wait_s in waits if wait_s <= LONGEST_WAIT_S]
    return min(LONGEST_WAIT_S, max(SHORTEST_WAIT_S, *(sane or waits))) if waits else None


def _from_now(text: str, now_s: float) -> float | None:
    number = _number(text)
    if number is not None:
        at_s = number / 1000 if number >= _UNIX_MS_FROM else number
        return at_s - now_s if at_s >= _UNIX_FROM else at_s
    try:
        date = parsedate_to_datetime(text)
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - now_s
    except (ValueError, OverflowError):
        return None


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
