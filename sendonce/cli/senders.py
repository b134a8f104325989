"""A sender that is not well or slow to answer, in one or two lines: since when, what comes next, and the mend."""

from datetime import datetime

from sendonce.cli.output import counted, duration, moment
from sendonce.control.in_flight import Awaited, InFlight
from sendonce.control.sender_health import SenderHealth
from sendonce.delivery.health import FAILURES_TO_OPEN


def health_text(found: SenderHealth) -> str:
    """Like `sender mail is halted (credentials) since …: give the sender a key that is in force …`."""
    who, why = f"sender {found.sender}", f"({found.reason})" if found.reason else ""
    mend = f"; {found.mend}" if found.mend else ""
    if found.state == "halted":
        return f"{who} is halted {why} since {moment(found.since)}{mend}, then `sendonce run`"
    if found.state == "throttled":
        return f"{who} is throttled {why} by its provider until {moment(found.until)}"
    in_a_row = f"{counted(found.failures, 'failure')} in a row"
    if found.state == "failing":
        others = " or ".join(found.fallbacks)
        then = f"; after {FAILURES_TO_OPEN} in a row letters go by {others}" if others else ""
        return f"{who} is failing {why}, {in_a_row}{then}{mend}"
    after = f"one letter probes it at {moment(found.next_probe)}"
    if found.probing:
        after = f"a request probes it now, the next one could at {moment(found.next_probe)}"
    elif found.probe_due:
        after = "a probe is due"
    since = f"breaker open {why} since {moment(found.since)}"
    return f"{who}: {since}, {in_a_row}; {after}{mend}"


def awaited_text(found: Awaited) -> str:
    """Like `sender post: 3 letters await an answer since … (for up to 600 s: times.answer_s)`."""
    letters = counted(found.letters, "letter")
    if found.requests != found.letters:
        letters += f" in {counted(found.requests, 'request')}"
    wait = "awaits" if found.letters == 1 else "await"
    most = f" (for up to {found.answer_s:g} s: times.answer_s)" if found.answer_s else ""
    return f"sender {found.sender}: {letters} {wait} an answer since {moment(found.since)}{most}"


def ending_text(flights: list[InFlight], now: datetime) -> str:
    """What a job that stops still waits for, and for how long that may take."""
    letters = counted(sum(flight.letters for flight in flights), "letter")
    senders = ", ".join(sorted({flight.sender for flight in flights}))
    left_s = max(0.0, max((flight.ends_at - now).total_seconds() for flight in flights))
    why = " (times.answer_s)" if any(flight.answer_s for flight in flights) else ""
    return f"In flight: {letters} by sender {senders}; the answer may take {duration(left_s)} more{why}."
