"""Which letters go into the next call, and what its reply means for each of them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from schemas.letters import Letter, Letters
from schemas.outcomes import Outcome
from sendonce.delivery.terms import Report
from sendonce.mailboxes import DomainGroups
from sendonce.senders.base import Capabilities, Reply, Verdict


def next_letters(
    letters: Letters,
    open_ordinals: Collection[int],
    capabilities: Capabilities,
    most: int,
    groups: DomainGroups | None = None,
    room_in: Mapping[str, int] | None = None,
) -> list[Letter]:
    """The first open letters that one request can carry, at most `most`; empty when none of them may go.

    A provider that takes one form letter a request gets the form of the first open letter, and its others follow in
    later requests. The choice depends on nothing else, so it is the same wherever it is made.

    groups: which letters draw from a share of their own. room_in: how many of a share's scope the call may carry; a
    scope that is not named has room for all.
    """
    wanted = set(open_ordinals)
    room, calls = min(most, capabilities.recipients), 0
    left_in = dict(room_in or {})
    forms: set[int] = set()
    chosen: list[Letter] = []
    for letter in _in_order(letters.letters, wanted, capabilities):
        if chosen and not capabilities.mixes_forms and letter.form != chosen[0].form:
            continue
        own_call = letter.form is None or letter.form not in forms
        if own_call and calls == capabilities.calls:
            continue
        if groups is not None and (scope := share_of(groups, letter)) in left_in:
            if left_in[scope] < 1:
                continue
            left_in[scope] -= 1
        calls += own_call
        if letter.form is not None:
            forms.add(letter.form)
        chosen.append(letter)
        if len(chosen) == room:
            break
    return chosen


def _in_order(letters: Sequence[Letter], wanted: Collection[int], capabilities: Capabilities) -> Iterable[Letter]:
    """The open letters by their ordinals; where calls are of one form letter each, those of the first one first, then
    those of the next."""
    if capabilities.calls is None or not capabilities.mixes_forms:
        return (letter for letter in letters if letter.ordinal in wanted)
    together: dict[int, list[Letter]] = {}
    for place, letter in enumerate(letters):
        if letter.ordinal in wanted:
            together.setdefault(-1 - place if letter.form is None else letter.form, []).append(letter)
    return chain.from_iterable(together.values())


def share_of(groups: DomainGroups, letter: Letter) -> str:
    """The scope of the share that a letter belongs to: the mailbox's group; empty when it belongs to none."""
    group = groups.of(letter.to)
    return f"domain:{group}" if group is not None else ""


def shares_of(groups: DomainGroups | None, letters: Iterable[Letter]) -> dict[str, list[int]]:
    """The ordinals of a request by the scope that they draw from besides its lane and sender."""
    shares: dict[str, list[int]] = {}
    if groups is not None:
        for letter in letters:
            if scope := share_of(groups, letter):
                shares.setdefault(scope, []).append(letter.ordinal)
    return shares


_OF_VERDICT = {
    Verdict.ACCEPTED: Outcome.ACCEPTED,
    Verdict.NOT_SENT: Outcome.OPEN,
    Verdict.UNKNOWN: Outcome.IN_DOUBT,
}


def _outcome_of(verdict: Verdict, code: int, *, repeated: bool) -> Outcome:
    if verdict is Verdict.REFUSED:
        return Outcome(code or Outcome.PROVIDER_REFUSED)
    outcome = _OF_VERDICT[verdict]
    return Outcome.IN_DOUBT if repeated and outcome == Outcome.OPEN else outcome


def without_refusals(reply: Reply) -> Reply:
    """A reply whose refusals, of all or of some, prove nothing: whoever they name may have been accepted before."""
    if reply.verdict is Verdict.REFUSED:
        reply = Reply(Verdict.UNKNOWN, "repeated_late", exceptions=reply.exceptions)
    unsure = {
        o: (Verdict.UNKNOWN, 0, "") if said[0] is Verdict.REFUSED else said for o, said in reply.exceptions.items()
    }
    return replace(reply, exceptions=unsure)


def report_of(
    attempt_id: str,
    ordinals: Collection[int],
    reply: Reply,
    wait_s: float,
    *,
    repeated: bool,
    shares: Mapping[str, Sequence[int]],
) -> Report:
    """What a reply means, ordinal by ordinal.

    shares: as the request asked for its permits. repeated: the request repeated one that is in doubt; "not sent" then
    says nothing about the first try, so the ordinals stay in doubt.
    """
    outcomes = dict.fromkeys(ordinals, _outcome_of(reply.verdict, reply.outcome, repeated=repeated))
    for ordinal, (verdict, code, _) in reply.exceptions.items():
        if ordinal in outcomes:
            outcomes[ordinal] = _outcome_of(verdict, code, repeated=repeated)
    kinds = {outcome.kind for outcome in set(outcomes.values())}
    return Report(
        attempt_id=attempt_id,
        verdict=reply.verdict.value if len(kinds) == 1 else "mixed",
        outcomes=outcomes,
        reason=reply.reason,
        provider_ref=reply.provider_ref,
        wait_s=wait_s,
        halts=reply.halts_sender,
        throttled=reply.throttled,
        put_off=reply.put_off,
        answered=reply.answered,
        shares=shares,
    )
