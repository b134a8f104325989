"""Replaying dead letters: a trigger is applied again, whoever got no letter is opened again, each at most once.

What is wrong still stays open and says why.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Final

from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, DeadLetterRow
from sendonce.control import rounds
from sendonce.control.campaigns import check_retry
from sendonce.control.dead_letters import OPEN, REPLAYED, settle
from sendonce.control.faults import ControlFault, UnknownCampaign
from sendonce.control.progress import aggregate_progress
from sendonce.control.stream_names import STREAM
from sendonce.control.triggers import BadTrigger, apply_trigger, read_trigger
from sendonce.control.worth import NEVER, WORTH
from sendonce.delivery.reopening import Opener, Opening, looked_at, openable
from sendonce.delivery.terms import batch_key
from sendonce.stores.base import Store, Tx
from sendonce.stores.opening import store_key

_AT_ONCE: Final = 500
_NO_BODY: Final = "its body is erased (bodies are kept for seven days); publish the message again, or drop it"
_OF_A_SEND: Final = "a send's recipients are never opened again; publish the send again under a new key, or drop it"
_WHOLE: Final = "it stands for the whole campaign, not for one recipient; mend the cause, then `sendonce resume`"
_UNDER_WAY: Final = "the recipient's batch is being sent or in doubt; call again when it is done"
_REACHED: Final = "a request that may have been accepted was sent to the recipient; nobody may get two"


@dataclass(frozen=True)
class Replay:
    """What became of one dead letter. why: what it did, or why the letter is left open."""

    letter: DeadLetterRow
    done: bool
    why: str


def replay(
    store: Store,
    letters: Iterable[DeadLetterRow],
    by: str,
    *,
    named: bool,
    progress: Callable[[int], None] = lambda letters: None,
) -> list[Replay]:
    """Replay dead letters, in the order of their time. named: each was named by id or reason, so that somebody whom a
    retry would not open by default is opened, too. Idempotent: one that was settled meanwhile is left.

    progress: called with the number of letters dealt with so far.
    """
    found = sorted(letters, key=lambda letter: (letter.at, letter.dead_letter_id))
    told: list[Replay] = []
    for letter in found:
        if _is_message(letter):
            told.append(_apply(store, letter, by))
            progress(len(told))
    people: dict[str, list[DeadLetterRow]] = {}
    for letter in found:
        if _is_message(letter):
            continue
        if letter.campaign_id is None or letter.batch_no is None or letter.ordinal is None:
            told.append(Replay(letter, False, _WHOLE))
        else:
            people.setdefault(letter.campaign_id, []).append(letter)
    for campaign_id, some in people.items():
        told += _reopen(store, campaign_id, some, by, named, partial(_further, progress, len(told)))
        progress(len(told))
    return told


def _is_message(letter: DeadLetterRow) -> bool:
    """Whether it stands for a trigger, and not for one recipient of a send that was taken."""
    return letter.stage == "trigger" and letter.ordinal is None


def _further(progress: Callable[[int], None], before: int, done: int) -> None:
    progress(before + done)


def _settled_before(row: DeadLetterRow) -> str:
    when = f" at {row.settled_at:%Y-%m-%d %H:%M} UTC" if row.settled_at else ""
    return f"it was {row.state} by {row.settled_by}{when}"


# -- triggers -----------------------------------------------------------------------------------------------------


def _apply(store: Store, letter: DeadLetterRow, by: str) -> Replay:
    row = store.read(lambda reader: reader.get(DeadLetterRow, letter.dead_letter_id))
    if row is None or row.state != OPEN:
        return Replay(letter, False, "it is gone" if row is None else _settled_before(row))
    if row.body is None:
        return Replay(letter, False, _NO_BODY)
    try:
        change = apply_trigger(store, read_trigger(row.body, row.at), by)
    except BadTrigger as fault:
        return Replay(letter, False, f"it is still bad ({fault.reason}): {fault.detail}")
    # Applying is idempotent: killed here, the next replay finds it applied and settles the letter.
    settle(store, [letter.dead_letter_id], REPLAYED, by)
    return Replay(letter, True, "applied" if change.changed else f"nothing changed: {change.note}")


# -- recipients ---------------------------------------------------------------------------------------------------


def _reopen(
    store: Store, campaign_id: str, letters: list[DeadLetterRow], by: str, named: bool, progress: Callable[[int], None]
) -> list[Replay]:
    worth: list[DeadLetterRow] = []
    told: list[Replay] = []
    campaign = store.read(lambda reader: reader.get(Campaign, campaign_id))
    of_sends = campaign is not None and campaign.kind == STREAM
    for letter, row, outcome in _as_they_are(store, letters):
        why = _obstacle(row, outcome, named, of_sends)
        if why:
            told.append(Replay(letter, False, why))
        else:
            worth.append(letter)
    if not worth:
        return told
    ended = ""
    try:
        reopen_letters(store, campaign_id, worth, by, progress=progress)
    except ControlFault as fault:  # perhaps in the middle: somebody cancelled the campaign
        ended = str(fault)
    for some in _chunks(worth):
        told += _after(store, some, by, ended)
    return told


def _as_they_are(
    store: Store, letters: Sequence[DeadLetterRow]
) -> Iterable[tuple[DeadLetterRow, DeadLetterRow | None, Outcome | None]]:
    """Each letter with its row and its recipient's outcome as they are now."""
    for some in _chunks(letters):
        rows = _rows(store, some)
        owners = _batches(store, some)
        for letter in some:
            batch = owners.get(letter.batch_no)
            known = batch is not None and letter.ordinal is not None and letter.ordinal < batch.size
            outcome = Outcome(batch.outcomes[letter.ordinal]) if known else None  # type: ignore[union-attr, index]
            yield letter, rows.get(letter.dead_letter_id), outcome


def _obstacle(row: DeadLetterRow | None, outcome: Outcome | None, named: bool, of_sends: bool) -> str:
    if row is None:
        return "it is gone"
    if row.state != OPEN:
        return _settled_before(row)
    if of_sends:
        return _OF_A_SEND
    if outcome is None:
        return "its campaign is not in the store"
    if outcome not in WORTH:
        return f"the recipient is {outcome.reason or outcome.kind} now: {NEVER[outcome.kind]}"
    worth = WORTH[outcome]
    if worth.by_default or named:
        return ""
    return f"{outcome.reason}: {worth.why} (--reason or an id replays it all the same)"


def _after(store: Store, letters: Sequence[DeadLetterRow], by: str, ended: str) -> list[Replay]:
    """What became of letters whose recipients were to be opened. ended: why the rest were not, if that is known."""
    rows, owners = _rows(store, letters), _batches(store, letters)
    told = []
    for letter in letters:
        row = rows.get(letter.dead_letter_id)
        if row is not None and row.state != OPEN:
            mine = row.state == REPLAYED and row.settled_by == by
            told.append(Replay(letter, mine, "open again" if mine else _settled_before(row)))
            continue
        batch = owners.get(letter.batch_no)
        left = _REACHED if batch is not None and openable(batch) else _UNDER_WAY
        told.append(Replay(letter, False, ended or left))
    return told


def _rows(store: Store, letters: Sequence[DeadLetterRow]) -> dict[str, DeadLetterRow]:
    keys = [(letter.dead_letter_id,) for letter in letters]
    return {row.dead_letter_id: row for row in store.read(lambda reader: reader.get_many(DeadLetterRow, keys))}


def _batches(store: Store, letters: Sequence[DeadLetterRow]) -> dict[int | None, Batch]:
    keys = {batch_key(str(letter.campaign_id), letter.batch_no or 0) for letter in letters}
    return {batch.batch_no: batch for batch in store.read(lambda reader: reader.get_many(Batch, keys))}


def _chunks(letters: Sequence[DeadLetterRow]) -> Iterable[list[DeadLetterRow]]:
    left = iter(letters)
    while some := list(islice(left, _AT_ONCE)):
        yield some


def reopen_letters(
    store: Store,
    campaign_id: str,
    letters: Collection[DeadLetterRow],
    by: str,
    *,
    progress: Callable[[int], None] = lambda recipients: None,
) -> Opening:
    """Open the recipients of these dead letters of one campaign again, in a round of its own, and settle the letters.

    A letter that somebody settled meanwhile, and whoever is not refused any more, is left as it is. UnknownCampaign;
    what `check_retry` raises.
    """
    by_batch: dict[int, dict[int, list[str]]] = {}
    for letter in letters:
        assert letter.batch_no is not None
        assert letter.ordinal is not None
        by_batch.setdefault(letter.batch_no, {}).setdefault(letter.ordinal, []).append(letter.dead_letter_id)

    def begin(tx: Tx) -> int:
        campaign = tx.get(Campaign, campaign_id)
        if campaign is None:
            raise UnknownCampaign(campaign_id)
        check_retry(tx, campaign)
        number = len(rounds.rounds_of(tx, campaign_id)) + 1
        reasons = {letter.reason for letter in letters}
        tx.insert(rounds.round_row(campaign_id, number, reasons, by, tx.now(), done=True, letters=True))
        return number

    number = store.transact(begin, tag="replay_begin")
    opener = Opener(store, store_key(store), campaign_id, number, by, None)
    total = Opening()
    for batch, resent in looked_at(store, campaign_id, sorted(by_batch)):
        total = total.plus(opener.open(batch, frozenset(WORTH), resent, by_batch[batch.batch_no]))
        progress(total.recipients)
    aggregate_progress(store, campaign_id, store.read(lambda reader: reader.now()))
    return total
