"""Dead letters in the store: one row for what went wrong once, however often it is met."""

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from hashlib import sha256
from itertools import islice
from typing import Any, Optional

from schemas.elements import DeadLetter
from schemas.tables import DeadLetterRow
from sendonce.control.faults import ControlFault
from sendonce.control.notices import note_dead_letters
from sendonce.stores.base import Store, Tx

# How long the raw body of a bad trigger is kept: it may hold personal data.
BODY_KEPT = timedelta(days=7)
_DETAIL_MAX = 4000
# Few: a body may have a MiB.
_PAGE = 20


class UnknownDeadLetter(ControlFault):
    """No dead letter has this id, or more than one begins with it."""

    reason = "unknown_dead_letter"


def write_dead_letters(store: Store, letters: Iterable[DeadLetter]) -> int:
    """Put dead letters into the store, in one transaction; returns how many rows are new.

    The id is made of what went wrong and where, not of when: a bundle that runs again writes the same rows, and a row
    that is there already, perhaps settled by somebody, stays as it is.
    """
    known = list(letters)
    if not known:
        return 0
    return store.transact(lambda tx: put_dead_letters(tx, known), tag="dead_letters")


def put_dead_letters(tx: Tx, letters: Iterable[DeadLetter]) -> int:
    """The same inside a transaction: for what fails together with what the transaction does."""
    by_id = {_id_of(letter): letter for letter in letters}
    now = tx.now()
    new = [_row(name, letter, now) for name, letter in by_id.items() if tx.get(DeadLetterRow, name) is None]
    tx.insert(*new)
    note_dead_letters(tx, new)
    return len(new)


def list_dead_letters(
    store: Store,
    *,
    campaign_id: Optional[str] = None,
    stage: Optional[str] = None,
    after: Optional[DeadLetterRow] = None,
    limit: Optional[int] = None,
) -> Iterator[DeadLetterRow]:
    """Dead letters, newest first, without their bodies; of one campaign or one stage if named, at most `limit`.

    after: a dead letter; those that come behind it in this order. Memory is that of one page for each campaign and
    stage that has any, however many there are.
    """
    groups = store.read(lambda reader: reader.tally(DeadLetterRow, by=("campaign_id", "stage")))
    chosen = [
        (group["campaign_id"], group["stage"])
        for group in groups
        if campaign_id in (None, group["campaign_id"]) and stage in (None, group["stage"])
    ]
    streams = [_newest(store, *group, after) for group in chosen]
    return islice(heapq.merge(*streams, key=lambda row: (row.at, row.dead_letter_id), reverse=True), limit)


def _newest(
    store: Store, campaign_id: Optional[str], stage: str, after: Optional[DeadLetterRow]
) -> Iterator[DeadLetterRow]:
    """Those of one campaign and stage, newest first, page by page. Many may have one time: ids order those."""

    def page(*prefix: Any, upto: Any) -> list[DeadLetterRow]:
        rows = store.read(
            lambda reader: reader.scan(
                DeadLetterRow,
                *prefix,
                index="dead_letters_by_campaign",
                upto=upto,
                limit=_PAGE,
                newest_first=True,
            )
        )
        return [replace(row, body=None) for row in rows]

    last = after
    while True:
        same = page(campaign_id, stage, last.at, upto=last.dead_letter_id) if last is not None else []
        yield from (row for row in same if last is None or row.dead_letter_id != last.dead_letter_id)
        if len(same) == _PAGE:
            last = same[-1]
            continue
        older = page(campaign_id, stage, upto=None if last is None else last.at - timedelta(microseconds=1))
        yield from older
        if len(older) < _PAGE:
            return
        last = older[-1]


def find_dead_letter(store: Store, beginning: str) -> DeadLetterRow:
    """The dead letter whose id begins so, with its body. UnknownDeadLetter if there is none, or more than one."""
    exact = store.read(lambda reader: reader.get(DeadLetterRow, beginning))
    if exact is not None:
        return exact
    found = (
        store.read(lambda reader: reader.scan(DeadLetterRow, after=beginning, upto=f"{beginning}~", limit=2))
        if beginning
        else []
    )
    if not beginning or len(found) != 1:
        many = "more than one dead letter's id begins with" if found or not beginning else "there is no dead letter"
        raise UnknownDeadLetter(f"{many} {beginning!r}; `sendonce dead-letters list --json` shows whole ids")
    return found[0]


def _id_of(letter: DeadLetter) -> str:
    parts = (
        letter.stage,
        letter.reason,
        letter.campaign_id or "",
        "" if letter.batch_no is None else str(letter.batch_no),
        "" if letter.ordinal is None else str(letter.ordinal),
        sha256(letter.body or b"").hexdigest(),
    )
    return sha256("\x00".join(parts).encode()).hexdigest()[:40]


def _row(name: str, letter: DeadLetter, at: datetime) -> DeadLetterRow:
    return DeadLetterRow(
        dead_letter_id=name,
        stage=letter.stage,
        reason=letter.reason,
        at=at,
        detail=letter.detail[:_DETAIL_MAX],
        campaign_id=letter.campaign_id,
        batch_no=letter.batch_no,
        ordinal=letter.ordinal,
        message_id=letter.message_id,
        body=letter.body,
        expires_at=at + BODY_KEPT if letter.body is not None else None,
    )
