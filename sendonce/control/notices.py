"""Notices: what is to be told over Pub/Sub, written with what it tells of, in one transaction.

So nothing is told that did not happen, and whatever happened is told at least once: a job claims notices for a while
(compare-and-set on `visible_at`), publishes them, and deletes those that Pub/Sub took. Whoever dies in between leaves
them to be published again; who reads them knows them by `message_id`, or by the dead letter's `id`.

Without a topic nothing is written. A topic that is not there keeps its notices waiting, `KEPT` at most.
"""

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final, Optional

import orjson

from schemas.ids import SHARDS, shard_of
from schemas.outcomes import Outcome
from schemas.tables import Batch, DeadLetterRow, Notice
from sendonce.config import topic_in
from sendonce.moments import utc_text
from sendonce.stores.base import ANY_SHARD, Reader, Store, Tx

OUTCOMES: Final = "outcomes"
DEAD_LETTERS: Final = "dead_letters"
KINDS: Final = (OUTCOMES, DEAD_LETTERS)

# A publisher that has not said what became of a notice by then is taken for dead.
CLAIMED = timedelta(seconds=30)
# What Pub/Sub keeps of a subscription that nobody reads, by default.
KEPT = timedelta(days=7)
_DROPPED_AT_ONCE: Final = 500
# A notice that waits so long waits for somebody to mend something.
LATE = timedelta(seconds=30)


def note_outcomes(
    tx: Tx, batch: Batch, outcomes: Mapping[int, Outcome], names: Mapping[int, str], now: datetime
) -> None:
    """Recipients of the send `batch` became final in this transaction: their publisher is told, if there is a topic.

    outcomes and names (message ids) by ordinal. Nothing personal is in a notice but the key that the publisher chose.
    """
    if batch.idempotency_key is None or not outcomes or topic_in(tx, OUTCOMES) is None:
        return
    for ordinal, outcome in outcomes.items():
        body = {
            "v": 1,
            "message_id": names[ordinal],
            "idempotency_key": batch.idempotency_key,
            "outcome": outcome.kind,
            "reason": outcome.reason,
            "at": utc_text(now),
        }
        tx.put(_notice(names[ordinal], OUTCOMES, now, body, {"type": "outcome", "outcome": outcome.kind}))


def note_dead_letters(tx: Tx, letters: Iterable[DeadLetterRow]) -> None:
    """Dead letters that this transaction writes: whoever looks after them is told, if there is a topic.

    Without the raw body, which may hold personal data and stays in the store.
    """
    rows = list(letters)
    if not rows or topic_in(tx, DEAD_LETTERS) is None:
        return
    for row in rows:
        body = {
            "v": 1,
            "id": row.dead_letter_id,
            "stage": row.stage,
            "reason": row.reason,
            "detail": row.detail,
            "campaign_id": row.campaign_id,
            "batch_no": row.batch_no,
            "ordinal": row.ordinal,
            "message_id": row.message_id,
            "at": utc_text(row.at),
        }
        attributes = {"type": "dead_letter", "stage": row.stage, "reason": row.reason}
        tx.put(_notice(row.dead_letter_id, DEAD_LETTERS, row.at, body, attributes))


def _notice(
    notice_id: str, kind: str, at: datetime, body: Mapping[str, object], attributes: Mapping[str, str]
) -> Notice:
    return Notice(
        shard=shard_of(notice_id, 0),
        notice_id=notice_id,
        kind=kind,
        visible_at=at,
        created_at=at,
        body=orjson.dumps(body).decode(),
        attributes=orjson.dumps(attributes).decode(),
    )


# -- publishing --------------------------------------------------------------------------------------------------------


def claim_notices(store: Store, kind: str, most: int) -> Iterator[list[Notice]]:
    """Notices of a kind that nobody else publishes now, claimed for `CLAIMED`, in lists of at most `most`.

    Where more wait than one look shows, shard by shard in random order: several jobs then do not go for the same ones,
    and none waits for ever behind those of the shards before it.
    """
    found = _due(store, kind, ANY_SHARD, most)
    yield _claimed(store, found)
    if len(found) < most:
        return
    for shard in random.sample(range(SHARDS), SHARDS):
        while found := _due(store, kind, shard, most):
            yield _claimed(store, found)
            if len(found) < most:
                break


def _due(store: Store, kind: str, shard: object, most: int) -> list[Notice]:
    """A look outside any transaction: it locks nothing that a job is about to write."""

    def look(reader: Reader) -> list[Notice]:
        return reader.scan(Notice, shard, kind, index="notices_due", upto=reader.now(), limit=most)

    return store.read(look)


def _claimed(store: Store, found: list[Notice]) -> list[Notice]:
    if not found:
        return []
    seen = {(notice.shard, notice.notice_id): notice.visible_at for notice in found}

    def work(tx: Tx) -> list[Notice]:
        until = tx.now() + CLAIMED
        mine = [
            replace(row, visible_at=until)
            for row in tx.get_many(Notice, seen)
            if row.visible_at == seen[row.shard, row.notice_id]
        ]
        tx.put(*mine)
        return mine

    return store.transact(work, tag="notices_claim")


def forget_notices(store: Store, notices: list[Notice]) -> None:
    """Pub/Sub has them. Whoever claimed them meanwhile publishes them again, which is allowed.

    One that was written anew meanwhile (a retry has another outcome) stays.
    """
    if not notices:
        return
    created = {(notice.shard, notice.notice_id): notice.created_at for notice in notices}

    def work(tx: Tx) -> None:
        tx.delete(*(row for row in tx.get_many(Notice, created) if row.created_at == created[row.shard, row.notice_id]))

    store.transact(work, tag="notices_sent")


def hand_back_notices(store: Store, notices: list[Notice]) -> None:
    """Pub/Sub did not take them: they wait again, from when they were written."""
    if not notices:
        return
    mine = {(notice.shard, notice.notice_id): notice.visible_at for notice in notices}

    def work(tx: Tx) -> None:
        rows = [row for row in tx.get_many(Notice, mine) if row.visible_at == mine[row.shard, row.notice_id]]
        tx.put(*(replace(row, visible_at=row.created_at) for row in rows))

    store.transact(work, tag="notices_back")


def drop_old_notices(store: Store) -> int:
    """Give up those that have waited for longer than `KEPT`; how many."""

    def look(reader: Reader) -> list[Notice]:
        end = reader.now() - KEPT
        return [
            notice
            for kind in KINDS
            for notice in reader.scan(Notice, ANY_SHARD, kind, index="notices_due", upto=end, limit=_DROPPED_AT_ONCE)
        ]

    dropped = 0
    while old := store.read(look):
        forget_notices(store, old)
        dropped += len(old)
    return dropped


# -- what waits --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Waiting:
    """Notices of one kind that wait. since: when the oldest was written."""

    kind: str
    count: int
    since: datetime


def waiting_notices(reader: Reader) -> list[Waiting]:
    """What waits, exactly: a look at every shard."""
    found = []
    for group in reader.tally(Notice, by=("kind",)):
        kind = group["kind"]
        firsts = [
            row.created_at
            for shard in range(SHARDS)
            for row in reader.scan(Notice, shard, kind, index="notices_due", limit=1)
        ]
        if firsts:
            found.append(Waiting(kind, group["rows"], min(firsts)))
    return found


def late_notices(reader: Reader, now: datetime) -> list[str]:
    """The kinds of which some have waited for longer than `LATE`: one look each."""
    return [
        kind for kind in KINDS if reader.scan(Notice, ANY_SHARD, kind, index="notices_due", upto=now - LATE, limit=1)
    ]


def notices_text(kind: str, count: Optional[int] = None) -> str:
    """A kind's notices in words."""
    word = {OUTCOMES: "outcome", DEAD_LETTERS: "dead-letter"}.get(kind, kind)
    return f"{word} notices" if count is None else f"{count:,} {word} notice{'' if count == 1 else 's'}"
