"""Judges a run: do the store and the provider's log together keep the invariants of the delivery protocol?

It shares nothing with the code it judges but the tables' shapes and the outcome codes, and counts everything
itself. `judge` looks at one moment; `changes` compares two moments of the same store. Findings name campaigns, batches,
ordinals, message ids and attempts, never people.

    I1   outcomes add up to the snapshot, and the stored counts to the outcomes     outcomes
    I2   at most one acceptance per message; every further one was decided before   attempts
    I3   what the provider took carries an attempt that the store knew before       attempts
    I4   tokens only rise                                                           history
    I5   recorded as accepted: then the provider took it                            attempts
    I6   one attempt, one payload                                                   attempts
    I7   arrivals keep to the limits                                                limits
    I8   nothing is in flight past its lease                                        history
    I9   no request began after a stop was on record                                history
    I10  a final outcome stays, save a refusal by a retry with its decision         history
    I11  everything ends                                                            outcomes

What one moment cannot show: the past of a token or an outcome (`changes` sees it between two moments), a pause that
was lifted again, limits that were changed on the way.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from schemas.outcomes import KIND_OF, KINDS, Outcome
from tests.checker import attempts, history, limits, outcomes
from tests.checker.case import Arrivals, Case, Violation
from tests.checker.history import changes
from tests.evidence import Arrival, Records

__all__ = ["Arrivals", "Findings", "Violation", "changes", "judge"]


@dataclass
class Findings:
    """`outcomes` counts recipients by kind. accepted_once: recorded as accepted, and the provider took exactly one."""

    recipients: int
    accepted_once: int
    outcomes: dict[str, int]
    violations: list[Violation] = field(default_factory=list)

    def count(self, fault: str) -> int:
        return sum(violation.fault == fault for violation in self.violations)

    @property
    def broken(self) -> set[str]:
        """The invariants that do not hold."""
        return {violation.invariant for violation in self.violations}


def judge(
    records: Records,
    letters: Sequence[Arrival],
    *,
    now: datetime,
    ended: bool = False,
    requests: Iterable[Arrivals] | None = None,
    late_requests: Collection[str] = (),
    intended: Mapping[str, datetime] | None = None,
) -> Findings:
    """Every violation in a store and what the provider took (`letters`).

    now: the moment of the records, by the store's clock. ended: the run says that it is over, so nothing may be open.
    requests: arrivals with their times, if something saw more of them than `letters` still shows (a repeated request
    replaces a file of the outbox). late_requests: attempts that are known to have stood still between the owner's last
    check and the first byte. Nothing can hold a limit for those, and a decision that they did not know of counts.
    intended: when attempts were first intended, by store time, if something saw it; else the time in their ids helps.
    """
    case = Case(records, letters, frozenset(late_requests), intended)
    if requests is None:
        requests = [
            Arrivals(one.campaign_id, one.at, 1, one.provider, one.message_id)
            for one in letters
            if one.attempt_id not in late_requests
        ]
    violations = [
        *outcomes.add_up(case),
        *outcomes.one_for_each_recipient(case),
        *attempts.no_second_acceptance(case),
        *attempts.no_second_attempt(case),
        *attempts.letters_were_intended(case),
        *attempts.accepted_means_taken(case),
        *attempts.one_payload_each(case),
        *limits.hold(case, list(requests)),
        *history.tokens_rise(case),
        *history.nothing_past_its_lease(case, now),
        *history.nothing_after_a_stop(case),
        *history.retries_are_rounds(case),
        *(outcomes.everything_ended(case) if ended else ()),
    ]
    kinds = Counter(KIND_OF.get(code, "unknown") for code in case.outcome.values())
    once = sum(
        code == Outcome.ACCEPTED and len(case.letters_of.get(case.message_id[place], ())) == 1
        for place, code in case.outcome.items()
    )
    return Findings(len(case.recipient), once, {kind: kinds[kind] for kind in KINDS}, violations)
