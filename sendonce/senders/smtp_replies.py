"""What a mail server's reply proves of one letter (DELIVERY 3): by the phase that the transaction is in, then by code.

RFC 5321 4.2.1 and 4.2.3 (codes), RFC 3463 and its registry (enhanced codes), RFC 4954 6 (those of AUTH).
"""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final

from schemas.outcomes import Outcome
from sendonce.senders.base import Verdict
from sendonce.senders.smtp_wire import SmtpReply

_ENHANCED: Final = re.compile(r"([245])\.(\d{1,3})\.(\d{1,3})(?![\d.])")
# Words of servers behind which they name what they took: "queued as 4XYZ", "id=1abc", "Ok 0100-...".
_NAME: Final = re.compile(
    r"(?:\bqueued as\s|\bid=|\bOk:?\s(?=\S*\d))\s*<?([A-Za-z0-9][A-Za-z0-9._-]{5,79})(?![\w@.-])", re.IGNORECASE
)

# RFC 4954 6: authentication is needed, failed, too weak, or wants encryption first.
_CREDENTIALS: Final = frozenset({530, 534, 535, 538})
# The server is loaded or has seen too much of us: system capacity, congestion, rates (Gmail and Outlook use the last
# two: https://support.google.com/a/answer/3726730, https://learn.microsoft.com/exchange/mail-flow/non-delivery-reports).
_SLOWER: Final = frozenset({"4.3.1", "4.3.2", "4.4.5", "4.5.3", "4.7.28", "4.7.500"})
# Codes that ask to slow down unless the enhanced code speaks of the mailbox.
_BUSY: Final = frozenset({452, 454})
# A command that the server does not know or has no place for: ours and its view of the conversation differ.
_MISUNDERSTOOD: Final = frozenset({500, 501, 502, 503, 504, 555})
# Daily sending quota (https://support.google.com/a/answer/3726730).
_QUOTA: Final = "5.4.5"

_OUTCOMES: Final[dict[str, Outcome]] = {
    "5.1.1": Outcome.PROVIDER_UNKNOWN_MAILBOX,
    "5.1.6": Outcome.PROVIDER_UNKNOWN_MAILBOX,
    "5.1.10": Outcome.PROVIDER_UNKNOWN_MAILBOX,
    "5.2.1": Outcome.PROVIDER_UNKNOWN_MAILBOX,
    "5.1.2": Outcome.PROVIDER_INVALID_ADDRESS,
    "5.1.3": Outcome.PROVIDER_INVALID_ADDRESS,
    "5.2.2": Outcome.PROVIDER_MAILBOX_FULL,
    "5.2.3": Outcome.PROVIDER_TOO_LARGE,
    "5.3.4": Outcome.PROVIDER_TOO_LARGE,
    "5.6.7": Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED,
}


class Phase(Enum):
    """How far a letter's transaction is: the command whose reply is awaited."""

    CONNECT = "connect"
    EHLO = "ehlo"
    STARTTLS = "starttls"
    AUTH = "auth"
    MAIL = "mail"
    RCPT = "rcpt"
    DATA = "data"
    BODY = "body"
    DOT = "dot"


@dataclass(frozen=True)
class Judgement:
    """The verdict on one letter. stops: no other letter is begun in this request. halts, throttled: as in `Reply`.

    broken: the connection is of no more use. of_mailbox: it is put off for its own mailbox's sake, as the server says.
    """

    verdict: Verdict
    reason: str = ""
    outcome: int = 0
    detail: str = ""
    stops: bool = False
    halts: bool = False
    throttled: bool = False
    broken: bool = False
    of_mailbox: bool = False


ACCEPTED: Final = Judgement(Verdict.ACCEPTED)


def broke(phase: Phase, reason: str) -> Judgement:
    """The connection failed, fell silent or made no sense: nothing is proven once the final dot may have left."""
    verdict = Verdict.UNKNOWN if phase is Phase.DOT else Verdict.NOT_SENT
    return Judgement(verdict, reason, detail=f"{reason} at {phase.value}", stops=True, broken=True)


def judge(phase: Phase, reply: SmtpReply) -> Judgement:
    """What a reply proves that does not let the transaction go on; after the dot, any reply.

    421 says that the server is leaving. Before the dot nothing went out. After it, it is a verdict on the letter only
    where it says so (4.7.x, a policy); else it may come from what stands in between, and the letter may be queued.
    """
    code, enhanced = reply.code, enhanced_of(reply)
    detail = f"smtp {code}{' ' + enhanced if enhanced else ''} at {phase.value}"
    if phase is Phase.DOT and 200 <= code < 300:
        return ACCEPTED
    if phase is Phase.DOT and (code < 400 or (code == 421 and not enhanced.startswith("4.7."))):
        reason = "smtp_421" if code == 421 else "garbled"
        return Judgement(Verdict.UNKNOWN, reason, detail=detail, stops=True, broken=True)
    if code < 400:
        return Judgement(Verdict.NOT_SENT, "garbled", detail=detail, stops=True, broken=True)
    if code == 421:
        return Judgement(Verdict.NOT_SENT, "smtp_421", detail=detail, stops=True, throttled=True, broken=True)
    if code in _CREDENTIALS or (phase is Phase.AUTH and code >= 500):
        return Judgement(Verdict.NOT_SENT, "credentials", detail=detail, stops=True, halts=True, broken=True)
    if enhanced == _QUOTA:
        return Judgement(Verdict.NOT_SENT, "credits", detail=detail, stops=True, halts=True)
    if phase in (Phase.CONNECT, Phase.EHLO, Phase.STARTTLS, Phase.AUTH):
        slower = (code in _BUSY and phase is not Phase.STARTTLS) or enhanced in _SLOWER
        return Judgement(Verdict.NOT_SENT, f"smtp_{code}", detail=detail, stops=True, throttled=slower, broken=True)
    if code < 500:
        return _later(phase, code, enhanced, detail)
    return _never(phase, code, enhanced, detail)


def _later(phase: Phase, code: int, enhanced: str, detail: str) -> Judgement:
    """4xx: the letter was not taken. At MAIL the server has seen nothing of the recipient, so it means everybody."""
    of_mailbox = enhanced.startswith(("4.1.", "4.2."))
    slower = (code in _BUSY and not of_mailbox) or enhanced in _SLOWER
    stops = slower or phase is Phase.MAIL
    # 450 is "mailbox unavailable" (RFC 5321 4.2.3); without an enhanced code nothing else is known of it.
    put_off = not stops and (of_mailbox or (phase is Phase.RCPT and code == 450 and not enhanced))
    return Judgement(Verdict.NOT_SENT, f"smtp_{code}", detail=detail, stops=stops, throttled=slower, of_mailbox=put_off)


def _never(phase: Phase, code: int, enhanced: str, detail: str) -> Judgement:
    """5xx. At MAIL it is the sending address or the account that is refused, and never a recipient."""
    outcome = _OUTCOMES.get(enhanced)
    if phase is Phase.MAIL:
        if code == 552 or outcome is Outcome.PROVIDER_TOO_LARGE:
            return Judgement(Verdict.REFUSED, f"smtp_{code}", Outcome.PROVIDER_TOO_LARGE, detail)
        if outcome is Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED:
            return Judgement(Verdict.REFUSED, f"smtp_{code}", outcome, detail)
        reason = "refused_command" if code in _MISUNDERSTOOD else "refused_from"
        return Judgement(Verdict.NOT_SENT, reason, detail=detail, stops=True, halts=True)
    if code in (502, 503) and phase in (Phase.RCPT, Phase.DATA):
        return Judgement(Verdict.NOT_SENT, "garbled", detail=detail, stops=True, broken=True)
    return Judgement(Verdict.REFUSED, f"smtp_{code}", outcome or _why(phase, code, enhanced), detail)


def _why(phase: Phase, code: int, enhanced: str) -> Outcome:
    if enhanced.startswith("5.7."):
        return Outcome.PROVIDER_POLICY
    if phase is Phase.RCPT:
        if code in (501, 553):
            return Outcome.PROVIDER_INVALID_ADDRESS
        if code == 552:
            return Outcome.PROVIDER_MAILBOX_FULL
        if code in (550, 551) and not enhanced:
            return Outcome.PROVIDER_UNKNOWN_MAILBOX
        return Outcome.PROVIDER_REFUSED
    if code == 552:
        return Outcome.PROVIDER_TOO_LARGE
    if phase in (Phase.BODY, Phase.DOT) and (code in (550, 554) or enhanced.startswith("5.6.")):
        return Outcome.PROVIDER_CONTENT
    return Outcome.PROVIDER_REFUSED


def enhanced_of(reply: SmtpReply) -> str:
    """The enhanced code of a reply (RFC 2034), of the same class as its code; empty if it has none."""
    found = _ENHANCED.match(reply.text.lstrip())
    return found[0] if found is not None and int(found[1]) == reply.code // 100 else ""


def name_of(reply: SmtpReply) -> str:
    """What the server calls the letter that it took; empty if it does not say."""
    found = _NAME.search(reply.text)
    return found[1] if found is not None else ""
