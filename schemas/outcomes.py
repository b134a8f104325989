"""The outcome of one recipient, one byte each.

A batch keeps one of these bytes per ordinal (`campaign_batches.outcomes`). The numbers are
written into stores that outlive any release: a code is never renumbered and never reused; new
reasons take the next free number of their block.

Block  0- 15  states without a reason      16- 31  suppressed     32- 63  skipped
Block 64-127  refused by us                128-191 refused by the provider
"""

from enum import IntEnum


class Outcome(IntEnum):
    """One recipient's outcome. `kind` is what is counted; `reason` is what is explained."""

    OPEN = 0
    IN_DOUBT = 1
    ACCEPTED = 2
    CANCELLED = 3
    ASSUMED = 4

    SUPPRESSED_UNSUBSCRIBED = 16
    SUPPRESSED_BOUNCED = 17
    SUPPRESSED_COMPLAINED = 18
    SUPPRESSED_MANUAL = 19
    SUPPRESSED_ERASED = 20

    SKIPPED_NOT_ALLOWED = 32
    SKIPPED_TEMPLATE = 33
    SKIPPED_OPERATOR = 34
    SKIPPED_DUPLICATE = 35

    RENDER_UNDEFINED_VARIABLE = 64
    RENDER_ERROR = 65
    RENDER_TOO_LARGE = 66
    RENDER_TOO_SLOW = 67
    RENDER_EMPTY_SUBJECT = 68
    RENDER_EMPTY_BODY = 69
    RENDER_BAD_VARIABLE = 70
    RENDER_UNSAFE_LINK = 71
    RENDER_HEADER_CONTROL_CHAR = 72
    ADDRESS_INVALID = 80
    ADDRESS_SMTPUTF8_UNSUPPORTED = 81
    EXPIRED = 96
    EXHAUSTED = 97

    PROVIDER_REFUSED = 128
    PROVIDER_INVALID_ADDRESS = 129
    PROVIDER_UNKNOWN_MAILBOX = 130
    PROVIDER_MAILBOX_FULL = 131
    PROVIDER_CONTENT = 132
    PROVIDER_POLICY = 133
    PROVIDER_TOO_LARGE = 134

    @property
    def kind(self) -> str:
        """`open`, `in_doubt`, `accepted`, `cancelled`, `assumed`, `suppressed`, `skipped` or `refused`."""
        return KIND_OF[self]

    @property
    def reason(self) -> str:
        """Machine-readable reason, e.g. `render.undefined_variable`; empty when the kind says it all."""
        return REASON_OF[self]

    @property
    def final(self) -> bool:
        """True when nothing but a recorded `retry` decision may change it (invariant I10)."""
        return self > Outcome.IN_DOUBT


def _kind(outcome: Outcome) -> str:
    if outcome < 16:
        return outcome.name.lower()
    if outcome < 32:
        return "suppressed"
    return "skipped" if outcome < 64 else "refused"


def _reason(outcome: Outcome) -> str:
    if outcome < 16:
        return ""
    if outcome in (Outcome.EXPIRED, Outcome.EXHAUSTED):
        return outcome.name.lower()
    family, _, rest = outcome.name.lower().partition("_")
    return f"{family}.{rest}"


KIND_OF: dict[int, str] = {o: _kind(o) for o in Outcome}
REASON_OF: dict[int, str] = {o: _reason(o) for o in Outcome}

# The kinds in the order in which people read them; `status`, `export` and the demo print them so.
KINDS: tuple[str, ...] = (
    "accepted",
    "refused",
    "skipped",
    "suppressed",
    "cancelled",
    "assumed",
    "in_doubt",
    "open",
)


def tally(outcomes: bytes) -> dict[str, int]:
    """Count the kinds in a batch's outcome bytes. Every kind is present; the values sum to `len(outcomes)`.

    An unknown byte (written by a newer release) raises KeyError: counting it as something else would lie.
    """
    counts = dict.fromkeys(KINDS, 0)
    for code in set(outcomes):
        counts[KIND_OF[code]] += outcomes.count(code)
    return counts
