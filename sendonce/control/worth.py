"""Which outcomes a retry may open again, which it opens unless told otherwise, and why it leaves the others.

Only a refusal proves that nobody got a letter, so only refusals may be opened. By default those whose cause passes by
itself: a snapshot and its template never change, so a letter that could not be made or an address that does not exist
is refused again.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from schemas.outcomes import Outcome
from sendonce.control.faults import ControlFault


class UnknownReason(ControlFault):
    """No outcome has this reason."""

    reason = "unknown_reason"


class NeverAgain(ControlFault):
    """Whoever has this outcome is not sent to again, whoever asks for it."""

    reason = "never_again"


@dataclass(frozen=True)
class Worth:
    """by_default: opened unless reasons are named. why: why it is, or why it is left. lasts: nothing that anybody could
    mend meanwhile makes it go another way."""

    by_default: bool
    why: str
    lasts: bool = False


_PINNED: Final = Worth(False, "template and variables are pinned, so the letter fails in the same way", lasts=True)

WORTH: Final[dict[Outcome, Worth]] = {
    Outcome.EXHAUSTED: Worth(True, "never sent: the provider took nothing for too many tries"),
    Outcome.PROVIDER_MAILBOX_FULL: Worth(True, "a full mailbox empties"),
    Outcome.RENDER_UNDEFINED_VARIABLE: _PINNED,
    Outcome.RENDER_ERROR: _PINNED,
    Outcome.RENDER_TOO_LARGE: _PINNED,
    Outcome.RENDER_TOO_SLOW: _PINNED,
    Outcome.RENDER_EMPTY_SUBJECT: _PINNED,
    Outcome.RENDER_EMPTY_BODY: _PINNED,
    Outcome.RENDER_BAD_VARIABLE: _PINNED,
    Outcome.RENDER_UNSAFE_LINK: _PINNED,
    Outcome.RENDER_HEADER_CONTROL_CHAR: _PINNED,
    Outcome.ADDRESS_INVALID: Worth(False, "the address stays what it is", lasts=True),
    Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED: Worth(
        False, "the sender cannot carry the address; name it if the sender changed"
    ),
    Outcome.EXPIRED: Worth(False, "the end was set by a person; name it after giving the campaign a later one"),
    Outcome.PROVIDER_REFUSED: Worth(False, "the provider said no; name it once its cause is mended"),
    Outcome.PROVIDER_INVALID_ADDRESS: Worth(False, "the address stays what it is", lasts=True),
    Outcome.PROVIDER_UNKNOWN_MAILBOX: Worth(False, "there is no such mailbox", lasts=True),
    Outcome.PROVIDER_CONTENT: Worth(False, "the letter stays what it is", lasts=True),
    Outcome.PROVIDER_POLICY: Worth(False, "the provider's policy is against it; name it once that is mended"),
    Outcome.PROVIDER_TOO_LARGE: Worth(False, "the letter stays what it is", lasts=True),
}

BY_DEFAULT: Final = frozenset(outcome for outcome, worth in WORTH.items() if worth.by_default)

# By kind, for all that is no refusal.
NEVER: Final = {
    "accepted": "the provider took their letter",
    "assumed": "the provider may have taken their letter; nobody may get two",
    "in_doubt": "whether they got a letter is not known yet; see `sendonce doubts list`",
    "suppressed": "they asked for no letters, or their mailbox is gone; a suppression holds",
    "skipped": "they were left out on purpose; load them under a new campaign id",
    "cancelled": "a person stopped it for good; load them under a new campaign id",
    "open": "they are to be sent to anyway",
}
_BY_NAME: Final = {outcome.reason or outcome.kind: outcome for outcome in Outcome}


def chosen_reasons(names: Sequence[str]) -> frozenset[Outcome]:
    """The refusals that a retry opens: those of these reasons, or without any, those that are worth it by default.

    UnknownReason, with the known ones; NeverAgain for what is no refusal, with why.
    """
    if not names:
        return BY_DEFAULT
    return frozenset(_chosen(name) for name in names)


def _chosen(name: str) -> Outcome:
    kind = name if name in NEVER else _BY_NAME[name].kind if name in _BY_NAME else ""
    if not kind or name == "refused":
        raise UnknownReason(f"there is no reason {name!r} to be refused; known are {', '.join(known_reasons())}")
    if kind in NEVER:
        raise NeverAgain(f"nobody whose outcome is {name} is sent to again: {NEVER[kind]}")
    return _BY_NAME[name]


def known_reasons() -> list[str]:
    """The reasons that a retry may name, those that it opens by default first."""
    return [outcome.reason for outcome in sorted(WORTH, key=lambda outcome: (outcome not in BY_DEFAULT, outcome))]


def warnings_of(outcomes: Collection[Outcome]) -> dict[str, str]:
    """Of those that somebody wants to open again, the reasons that last, and why it is of no use."""
    return {
        outcome.reason: WORTH[outcome].why for outcome in sorted(outcomes) if outcome in WORTH and WORTH[outcome].lasts
    }


def names_of(outcomes: Collection[Outcome]) -> list[str]:
    return sorted(outcome.reason for outcome in outcomes)
