"""Dead letters in the store: one row for what went wrong once, however often it is met.

open → replayed | dropped, by a person. What was replayed and goes wrong again is open again; what was dropped stays so.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from itertools import islice
from typing import Any, Optional

from schemas.elements import DeadLetter
from schemas.tables import DeadLetterRow
from sendonce.control.faults import ControlFault
from sendonce.control.notices import note_dead_letters
from sendonce.stores.base import Reader, Store, Tx

# How long the raw body of a bad trigger is kept: it may hold personal data. Settled, it goes at once.
BODY_KEPT = timedelta(days=7)
# How long the row itself is kept, in whatever state. What became of a recipient stands in the batch, for ever.
ROW_KEPT = timedelta(days=90)
OPEN, REPLAYED, DROPPED = "open", "replayed", "dropped"
STATES = (OPEN, REPLAYED, DROPPED)
STAGES = ("trigger", "plan", "render", "send")
_DETAIL_MAX = 4000
# Few: a body may have a MiB.
_PAGE = 20
_PAGE_MOST = 640
# Spanner takes 100 MiB a commit, and takes long over much less.
_BYTES_AT_ONCE = 8_000_000
_ROWS_AT_ONCE = 500


class UnknownDeadLetter(ControlFault):
    """No dead letter has this id, or more than one begins with it."""

    reason = "unknown_dead_letter"


def write_dead_letters(store: Store, letters: Iterable[DeadLetter]) -> int:
    """Put dead letters into the store; returns how many rows are new. Each transaction holds what a commit may.

    The id is made of what went wrong and where, not of when: a bundle that runs again writes the same rows, and a row
    that is there already stays as it is. Only one that was replayed is open again: it went wrong once more.
    """
    return sum(
        store.transact(partial(put_dead_letters, letters=some), tag="dead_letters") for some in _commits(letters)
    )


def _commits(letters: Iterable[DeadLetter]) -> Iterator[list[DeadLetter]]:
    some: list[DeadLetter] = []
    size = 0
    for letter in letters:
        weight = len(letter.body or b"")
        if some and (len(some) >= _ROWS_AT_ONCE or size + weight > _BYTES_AT_ONCE):
            yield some
            some, size = [], 0
        some.append(letter)
        size += weight
    if some:
        yield some


def put_dead_letters(tx: Tx, letters: Iterable[DeadLetter]) -> int:
    """The same inside a transaction: for what fails together with what the transaction does."""
    by_id = {dead_letter_id(letter): letter for letter in letters}
    now = tx.now()
    held = {name: tx.get(DeadLetterRow, name) for name in by_id}
    new = [_row(name, by_id[name], now) for name, row in held.items() if row is None or row.state == REPLAYED]
    tx.put(*new)
    note_dead_letters(tx, new)
    return len(new)


@dataclass(frozen=True)
class Wanted:
    """Which dead letters. until: none that is younger; since: none that is older. Empty: all of them."""

    campaign_id: Optional[str] = None
    stage: Optional[str] = None
    reason: Optional[str] = None
    states: Collection[str] = (OPEN,)
    until: Optional[datetime] = None
    since: Optional[datetime] = None

    def has(self, row: DeadLetterRow) -> bool:
        return row.state in self.states and self.reason in (None, row.reason)


def list_dead_letters(
    store: Store,
    wanted: Wanted = Wanted(),
    *,
    after: Optional[DeadLetterRow] = None,
    limit: Optional[int] = None,
) -> Iterator[DeadLetterRow]:
    """The dead letters that are wanted, newest first, without their bodies, at most `limit`.

    after: a dead letter; those that come behind it in this order. Memory is that of one page for each campaign and
    stage that has any, however many there are.
    """
    groups = store.read(lambda reader: reader.tally(DeadLetterRow, by=("campaign_id", "stage")))
    chosen = [
        (group["campaign_id"], group["stage"])
        for group in groups
        if wanted.campaign_id in (None, group["campaign_id"]) and wanted.stage in (None, group["stage"])
    ]
    streams = [_newest(store, *group, after, wanted) for group in chosen]
    merged = heapq.merge(*streams, key=lambda row: (row.at, row.dead_letter_id), reverse=True)
    return islice(filter(wanted.has, merged), limit)


def _newest(
    store: Store, campaign_id: Optional[str], stage: str, after: Optional[DeadLetterRow], wanted: Wanted
) -> Iterator[DeadLetterRow]:
    """Those of one campaign and stage, newest first, page by page. Many may have one time: ids order those."""
    size = _PAGE

    def page(*prefix: Any, upto: Any) -> list[DeadLetterRow]:
        rows = store.read(
            lambda reader: reader.scan(
                DeadLetterRow,
                *prefix,
                index="dead_letters_by_campaign",
                upto=upto,
                limit=size,
                newest_first=True,
            )
        )
        return [replace(row, body=None) for row in rows]

    last = after
    if last is not None and wanted.until is not None and last.at > wanted.until:
        last = None
    while True:
        same = page(campaign_id, stage, last.at, upto=last.dead_letter_id) if last is not None else []
        yield from (row for row in same if last is None or row.dead_letter_id != last.dead_letter_id)
        if len(same) == size:
            last = same[-1]
            continue
        upto = wanted.until if last is None else last.at - timedelta(microseconds=1)
        older = page(campaign_id, stage, upto=upto)
        for row in older:
            if wanted.since is not None and row.at < wanted.since:
                return
            yield row
        if len(older) < size:
            return
        last = older[-1]
        # The first page is often all that anybody looks at; only triggers have bodies.
        size = size if stage == "trigger" else min(2 * size, _PAGE_MOST)


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


def settled(row: DeadLetterRow, state: str, at: datetime, by: str) -> DeadLetterRow:
    """The row once somebody has settled it. Its body is needed no more."""
    return replace(row, state=state, settled_at=at, settled_by=by, body=None, expires_at=row.at + ROW_KEPT)


def settle(store: Store, names: Collection[str], state: str, by: str) -> int:
    """Mark open dead letters as `replayed` or `dropped`, in one transaction; returns how many still were open."""

    def work(tx: Tx) -> int:
        now = tx.now()
        found = [row for row in tx.get_many(DeadLetterRow, [(name,) for name in names]) if row.state == OPEN]
        tx.put(*(settled(row, state, now, by) for row in found))
        return len(found)

    return store.transact(work, tag=f"dead_letters_{state}")


def sweep_dead_letters(store: Store, limit: int) -> int:
    """Erase bodies, and delete rows, whose time is over, at most `limit`; returns how many. Safe from anywhere."""

    def over(reader: Reader) -> list[DeadLetterRow]:
        return reader.scan(DeadLetterRow, index="dead_letters_by_end", upto=reader.now(), limit=limit)

    # A first look without locks: most find nothing.
    if not store.read(over):
        return 0

    def work(tx: Tx) -> int:
        found = over(tx)
        with_body = [row for row in found if row.body is not None]
        tx.put(*(replace(row, body=None, expires_at=row.at + ROW_KEPT) for row in with_body))
        tx.delete(*(row for row in found if row.body is None))
        return len(found)

    return store.transact(work, tag="dead_letters_sweep")


def dead_letter_id(letter: DeadLetter) -> str:
    """Of what went wrong and where: the same for the same fault, whenever it is met."""
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
        expires_at=at + (BODY_KEPT if letter.body is not None else ROW_KEPT),
    )
