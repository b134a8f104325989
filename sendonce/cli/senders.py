"""A sender that is not well, in one or two lines: what it is, since when, what comes next, and the mend."""

from sendonce.cli.output import moment
from sendonce.control.sender_health import SenderHealth


def health_text(found: SenderHealth) -> str:
    """Like `sender mail is halted (credentials) since …: give the sender a key that is in force …`."""
    who, why = f"sender {found.sender}", f"({found.reason})" if found.reason else ""
    mend = f"; {found.mend}" if found.mend else ""
    if found.state == "halted":
        return f"{who} is halted {why} since {moment(found.since)}{mend}, then `sendonce run`"
    if found.state == "throttled":
        return f"{who} is throttled {why} by its provider until {moment(found.until)}"
    in_a_row = f"{found.failures} failures in a row"
    if found.state == "failing":
        return f"{who} is failing {why}, {in_a_row}{mend}"
    after = "a request probes it now, the next one could" if found.probing else "one letter probes it"
    since = f"breaker open {why} since {moment(found.since)}"
    return f"{who}: {since}, {in_a_row}; {after} at {moment(found.next_probe)}{mend}"
