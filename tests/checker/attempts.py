"""I2, I3, I5 and I6: attempts in the store against letters at the provider."""

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime

from schemas import ordinals
from schemas.outcomes import KIND_OF, Outcome
from schemas.tables import Attempt
from tests.checker.case import CLOCK_GRAIN, MAY_HAVE_ARRIVED, Case, Place, Violation, name_of
from tests.evidence import Arrival

# A retry opens only whoever was refused: it excuses no second acceptance.
AGAIN = ("resend",)


def no_second_acceptance(case: Case) -> Iterator[Violation]:
    """I2 at the provider."""
    for message, letters in case.letters_of.items():
        place = case.place_of.get(message)
        if place is None or len(letters) == 1:
            continue
        first, *more = sorted(letters, key=lambda letter: letter.at)
        undecided = [letter for letter in more if not case.decided(place, AGAIN, _known_until(case, place, letter))]
        if first.attempt_id in case.late_requests and case.decided(place, ("retry",)):
            # Its repeat, under the same key, was refused while the first stood still before the socket; then a retry
            # opened whom the store had every proof of being refused.
            undecided = []
        if undecided:
            yield Violation(
                "I2",
                f"{name_of(place)} message {message}",
                f"taken {len(letters)} times, {len(undecided)} without a decision: {first.place} "
                f"(attempt {first.attempt_id}), then "
                + ", ".join(f"{letter.place} (attempt {letter.attempt_id})" for letter in more),
                "duplicates",
            )


def _known_until(case: Case, place: Place, letter: Arrival) -> datetime:
    """Until when a decision must be on record to have let this letter go: when its attempt began."""
    began = None if letter.attempt_id in case.late_requests else _began(case, place, letter)
    return began or letter.at


def no_second_attempt(case: Case) -> Iterator[Violation]:
    """I2 in the store: after an attempt that may have been accepted, another one needs a decision."""
    for key, attempts in case.attempts.items():
        steps = [(row.attempt_id, row.started_at, row.ordinals, _may_be_accepted(row)) for row in attempts]
        done = {row.attempt_id for row in attempts}
        for intent in case.open_intents(key):
            if intent.attempt_id not in done:
                covered = intent.ordinals
                steps.append((intent.attempt_id, intent.began, covered, frozenset(ordinals.unpack(covered))))
        steps.sort(key=lambda step: step[1:2])
        earlier: dict[int, str] = {}
        for attempt_id, began, covered, may_be_accepted in steps:
            for ordinal in ordinals.unpack(covered):
                before = earlier.get(ordinal, attempt_id)
                if before != attempt_id and not case.decided((*key, ordinal), AGAIN, began):
                    yield Violation(
                        "I2",
                        name_of((*key, ordinal)),
                        f"attempt {attempt_id} began though attempt {before} may have been accepted",
                    )
            earlier |= dict.fromkeys(may_be_accepted, attempt_id)


def _may_be_accepted(attempt: Attempt) -> frozenset[int]:
    """The ordinals of an attempt that the provider has, or may have, accepted."""
    covered = ordinals.unpack(attempt.ordinals)
    if attempt.outcomes is not None and len(attempt.outcomes) == len(covered):
        pairs = zip(covered, attempt.outcomes, strict=True)
        return frozenset(ordinal for ordinal, code in pairs if code in MAY_HAVE_ARRIVED)
    return frozenset(covered if attempt.verdict in ("accepted", "unknown") else ())


def _knows(case: Case, place: Place, attempt_id: str) -> bool:
    """True if the store has a trace of this attempt for this recipient, whatever became of it.

    A doubt that was settled without a reply leaves no finished attempt: its decision, or the message's row, names it,
    or somebody saw its intent.
    """
    covered = [row.ordinals for row in case.attempts.get(place[:2], ()) if row.attempt_id == attempt_id]
    covered += [intent.ordinals for intent in case.open_intents(place[:2]) if intent.attempt_id == attempt_id]
    # Who was settled by proof before a repeat is not in the repeat's row.
    decided = any(
        decision.attempt_id == attempt_id and place[2] in ordinals.unpack(decision.ordinals or b"")
        for decision in case.decisions.get(place[0], ())
        if decision.batch_no == place[1]
    )
    if covered:
        return decided or any(place[2] in ordinals.unpack(bits) for bits in covered)
    row = case.messages.get(case.message_id[place])
    return decided or attempt_id in case.intended or bool(row and row.attempt_id == attempt_id)


def _row_of(case: Case, place: Place, attempt_id: str) -> Attempt | None:
    for attempt in case.attempts.get(place[:2], ()):
        if attempt.attempt_id == attempt_id and place[2] in ordinals.unpack(attempt.ordinals):
            return attempt
    return None


def _asked(case: Case, place: Place, attempt_id: str) -> str:
    """By which sender an attempt was made, as the store has it; empty if nothing of it is left there."""
    attempt = _row_of(case, place, attempt_id)
    providers = [intent.provider for intent in case.open_intents(place[:2]) if intent.attempt_id == attempt_id]
    return next(iter([attempt.provider] if attempt is not None else providers), "").partition("/")[0]


def _began(case: Case, place: Place, letter: Arrival) -> datetime | None:
    """When the intent of a letter's attempt was written.

    None while the attempt is open: a doubt that is asked again writes its intent again, with a later time.
    """
    attempt = _row_of(case, place, letter.attempt_id)
    if attempt is None or case.is_open(place, letter.attempt_id):
        return None
    return case.began(attempt)


def letters_were_intended(case: Case) -> Iterator[Violation]:
    """I3: each letter is for a recipient, under an attempt that was on record before, and its outcome admits it."""
    for letter in case.letters:
        if problem := _phantom(case, letter):
            yield Violation("I3", f"{letter.place} message {letter.message_id}", problem, "phantoms")


def _phantom(case: Case, letter: Arrival) -> str:
    place = case.place_of.get(letter.message_id)
    if place is None:
        return "no recipient of any snapshot has this message"
    if letter.batch_no is not None and (letter.campaign_id, letter.batch_no) != place[:2]:
        return f"says {letter.campaign_id} batch {letter.batch_no}, but belongs to {name_of(place)}"
    if not _knows(case, place, letter.attempt_id):
        return f"the store knows no attempt {letter.attempt_id!r} for {name_of(place)}"
    asked = _asked(case, place, letter.attempt_id)
    if letter.provider and asked and asked != letter.provider:
        return f"came by {letter.provider}, but attempt {letter.attempt_id} was made to {asked}"
    began = _began(case, place, letter)
    if began and began > letter.at + CLOCK_GRAIN:
        return f"taken at {letter.at}, before the intent of attempt {letter.attempt_id} at {began}"
    code = case.outcome.get(place, Outcome.OPEN)
    in_flight = case.is_open(place, letter.attempt_id)
    if code in MAY_HAVE_ARRIVED or in_flight or case.decided(place, ("resend",)):
        return ""
    if KIND_OF.get(code) == "refused" and letter.attempt_id in case.late_requests:
        # Its repeat, under the same key, was refused while the first stood still before the socket: nobody could know.
        return ""
    return f"taken, but {name_of(place)} is on record as {KIND_OF.get(code, code)}"


def accepted_means_taken(case: Case) -> Iterator[Violation]:
    """I5."""
    for place, code in case.outcome.items():
        if code != Outcome.ACCEPTED:
            continue
        message = case.message_id[place]
        letters = case.letters_of.get(message, [])
        where = f"{name_of(place)} message {message}"
        row = case.messages.get(message)
        if not letters:
            yield Violation("I5", where, "on record as accepted, but the provider has no such letter", "lost")
        elif row and row.attempt_id and row.attempt_id not in {letter.attempt_id for letter in letters}:
            yield Violation(
                "I5", where, f"on record as accepted by attempt {row.attempt_id}, which the provider has not seen"
            )


def one_payload_each(case: Case) -> Iterator[Violation]:
    """I6: what the store wrote down before sending, and what the provider took."""
    hashes: dict[str, set[str]] = defaultdict(set)
    for attempts in case.attempts.values():
        for attempt in attempts:
            hashes[attempt.attempt_id].add(attempt.payload_hash)
    for key in case.batches:
        for intent in case.open_intents(key):
            if intent.payload_hash:
                hashes[intent.attempt_id].add(intent.payload_hash)
    for letter in case.letters:
        if letter.payload_hash:
            hashes[letter.attempt_id].add(letter.payload_hash)
    for attempt_id, found in hashes.items():
        if len(found) > 1:
            yield Violation("I6", f"attempt {attempt_id}", f"{len(found)} payload hashes: {', '.join(sorted(found))}")
