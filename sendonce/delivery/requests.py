"""Which letters go into the next call, and what its reply means for each of them."""

from collections.abc import Collection

from schemas.letters import Letter, Letters
from schemas.outcomes import Outcome
from sendonce.delivery.terms import Report
from sendonce.senders.base import Capabilities, Reply, Verdict


def next_letters(
    letters: Letters, open_ordinals: Collection[int], capabilities: Capabilities, most: int
) -> list[Letter]:
    """The first open letters that one call can carry, at most `most`; empty when none of them is open.

    A provider that takes one form letter a call gets the form of the first open letter, and its others follow in
    later calls. The choice depends on nothing else, so it is the same wherever it is made.
    """
    wanted = set(open_ordinals)
    room = min(most, capabilities.recipients)
    chosen: list[Letter] = []
    for letter in letters.letters:
        if letter.ordinal not in wanted:
            continue
        if chosen and not capabilities.mixes_forms and letter.form != chosen[0].form:
            continue
        if not chosen and letter.form is None and capabilities.whole is not None:
            room = min(room, capabilities.whole)
        chosen.append(letter)
        if len(chosen) == room:
            break
    return chosen


_OF_VERDICT = {
    Verdict.ACCEPTED: Outcome.ACCEPTED,
    Verdict.NOT_SENT: Outcome.OPEN,
    Verdict.UNKNOWN: Outcome.IN_DOUBT,
}


def report_of(attempt_id: str, ordinals: Collection[int], reply: Reply, wait_s: float, *, repeated: bool) -> Report:
    """What a reply means, ordinal by ordinal.

    repeated: the request repeated one that is in doubt; "not sent" then says nothing about the first try, so the
    ordinals stay in doubt.
    """
    outcomes: dict[int, Outcome] = {}
    for ordinal in ordinals:
        verdict, code, _ = reply.exceptions.get(ordinal, (reply.verdict, reply.outcome, ""))
        if verdict is Verdict.REFUSED:
            outcomes[ordinal] = Outcome(code or Outcome.PROVIDER_REFUSED)
        else:
            outcomes[ordinal] = _OF_VERDICT[verdict]
        if repeated and outcomes[ordinal] == Outcome.OPEN:
            outcomes[ordinal] = Outcome.IN_DOUBT
    kinds = {outcome.kind for outcome in outcomes.values()}
    return Report(
        attempt_id=attempt_id,
        verdict=reply.verdict.value if len(kinds) == 1 else "mixed",
        outcomes=outcomes,
        reason=reply.reason,
        provider_ref=reply.provider_ref,
        wait_s=wait_s,
        halts=reply.halts_sender,
        throttled=reply.throttled,
    )
