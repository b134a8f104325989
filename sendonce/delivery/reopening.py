"""Opening refused recipients of a batch again: whoever is refused, and was in no request that may have been accepted.

Slice by slice, each in one transaction that also makes a completed campaign run again, so that none is running with
nothing to do, and settles the dead letters of those it opens. A slice's decision row says that it is opened: a step
that runs again, in this process or another, finds it and does nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Final, Optional

import orjson

from schemas.elements import DeadLetter
from schemas.ordinals import unpack
from schemas.outcomes import KIND_OF, Outcome
from schemas.tables import Attempt, Batch, DeadLetterRow, Decision
from sendonce.control import rounds
from sendonce.control.campaigns import run_again
from sendonce.control.dead_letters import OPEN, REPLAYED, dead_letter_id, settled
from sendonce.control.worth import WORTH
from sendonce.delivery import batches
from sendonce.delivery.protocol import opening_again
from sendonce.delivery.rows import names_of
from sendonce.delivery.terms import batch_key
from sendonce.stores.base import Reader, Store, StoreUnavailable, Tx

# Recipients opened in one transaction: it must not hold up claims, nor outgrow a commit (their dead letters and
# messages are written in it, too).
SLICE = 1000
# When a batch is due of which only some slices are opened: later than the rest of them are, if nobody dies.
_REST_S: Final = 30.0
_LOOKED_AT: Final = 500
# After these outcomes of a request its recipients may have a letter.
_MAY_HAVE_ARRIVED: Final = (Outcome.ACCEPTED, Outcome.IN_DOUBT, Outcome.ASSUMED)
_STAGES: Final = ("render", "send")


def slice_of(ordinal: int) -> int:
    return ordinal // SLICE


@dataclass(frozen=True)
class Opening:
    """What was opened: recipients by what they had been refused for, in how many batches; and who was not, and why."""

    opened: Mapping[Outcome, int] = field(default_factory=dict)
    batches: int = 0
    under_way: int = 0
    maybe_reached: int = 0

    @property
    def recipients(self) -> int:
        return sum(self.opened.values())

    def plus(self, other: "Opening") -> "Opening":
        return Opening(
            dict(Counter(self.opened) + Counter(other.opened)),
            self.batches + other.batches,
            self.under_way + other.under_way,
            self.maybe_reached + other.maybe_reached,
        )


@dataclass(frozen=True)
class Decided:
    """What a campaign's decisions say: who was resent, by batch; which slices a round has opened."""

    resent: dict[int, frozenset[int]]
    opened: frozenset[tuple[int, int]]

    @classmethod
    def of(cls, reader: Reader, campaign_id: str, number: int) -> "Decided":
        resent: dict[int, frozenset[int]] = {}
        opened: set[tuple[int, int]] = set()
        for row in reader.scan(Decision, campaign_id, index="decisions_by_campaign"):
            if row.batch_no is None:
                continue
            if row.kind == "resend":
                covered = resent.get(row.batch_no, frozenset())
                resent[row.batch_no] = covered.union(unpack(row.ordinals or b""))
            elif row.kind == rounds.RETRY and orjson.loads(row.reason or "{}")["round"] == number:
                opened.update((row.batch_no, slice_of(ordinal)) for ordinal in unpack(row.ordinals or b""))
        return cls(resent, frozenset(opened))


def looked_at(store: Store, campaign_id: str, batch_nos: Sequence[int]) -> Iterator[tuple[Batch, frozenset[int]]]:
    """Batches, each with those of it who were resent in doubt, as they were at one moment."""

    def look(reader: Reader, some: Sequence[int]) -> list[tuple[Batch, frozenset[int]]]:
        resent = Decided.of(reader, campaign_id, 0).resent
        found = reader.get_many(Batch, [batch_key(campaign_id, batch_no) for batch_no in some])
        found.sort(key=lambda batch: batch.batch_no)
        return [(batch, resent.get(batch.batch_no, frozenset())) for batch in found]

    for start in range(0, len(batch_nos), _LOOKED_AT):
        yield from store.read(partial(look, some=batch_nos[start : start + _LOOKED_AT]))


def openable(batch: Batch) -> bool:
    """Whether a batch's recipients may be opened now: nothing of it is under way, and nobody has a reference to it."""
    return batch.state in (batches.DONE, batches.PENDING)


def refused_in(batch: Batch, part: Optional[int] = None) -> dict[int, Outcome]:
    """What each refused recipient of a batch, or of one slice of it, is on record with."""
    first, last = (0, batch.size) if part is None else (part * SLICE, (part + 1) * SLICE)
    codes = enumerate(batch.outcomes[first:last], first)
    return {ordinal: Outcome(code) for ordinal, code in codes if KIND_OF[code] == "refused"}


@dataclass(frozen=True)
class Opener:
    """Opens batches of one campaign for one round. expires_at: the campaign's new end, if it gets one."""

    store: Store
    key: bytes
    campaign_id: str
    number: int
    by: str
    expires_at: Optional[datetime]

    def open(
        self,
        batch: Batch,
        chosen: frozenset[Outcome],
        resent: frozenset[int],
        letters: Optional[Mapping[int, Collection[str]]] = None,
    ) -> Opening:
        """Open a batch's refused of the chosen outcomes, slice by slice. letters: only of these, by ordinal."""
        wanted = [ordinal for ordinal, outcome in refused_in(batch).items() if outcome in chosen]
        if letters is not None:
            wanted = [ordinal for ordinal in wanted if ordinal in letters]
        parts = sorted({slice_of(ordinal) for ordinal in wanted})
        total = Opening()
        for part in parts:
            rest_s = _REST_S if part != parts[-1] else 0.0
            work = partial(
                self._slice, batch_no=batch.batch_no, part=part, chosen=chosen, letters=letters, rest_s=rest_s,
                resent=resent, seen_token=batch.token,
            )  # fmt: skip
            total = total.plus(self._commit(work))
        return replace(total, batches=1 if total.recipients else 0)

    def _commit(self, work: Callable[..., Opening]) -> Opening:
        try:
            return self.store.transact(partial(work, again=False), tag="retry")
        except StoreUnavailable as fault:
            if not fault.maybe_applied:
                raise
            return self.store.transact(partial(work, again=True), tag="retry")

    def _slice(
        self,
        tx: Tx,
        *,
        batch_no: int,
        part: int,
        chosen: frozenset[Outcome],
        letters: Optional[Mapping[int, Collection[str]]],
        rest_s: float,
        resent: frozenset[int],
        seen_token: int,
        again: bool,
    ) -> Opening:
        """One transaction. again: the reply to this very step was lost, so its own traces count as its work."""
        batch = tx.get(Batch, *batch_key(self.campaign_id, batch_no))
        assert batch is not None
        name = partial(rounds.opened_id, self.campaign_id, self.number, batch_no, part)
        traces = tx.get_many(Decision, [(name(outcome),) for outcome in WORTH])
        if traces:
            return _from_traces(traces) if again else Opening()
        refused = {
            ordinal: outcome
            for ordinal, outcome in refused_in(batch, part).items()
            if outcome in chosen and (letters is None or ordinal in letters)
        }
        # A new token: somebody owned the batch since the look, so a doubt may have been resent meanwhile.
        if not openable(batch) or batch.token != seen_token:
            return Opening(under_way=len(refused))
        spared = _maybe_reached(tx, batch, resent).intersection(refused)
        refused = {ordinal: outcome for ordinal, outcome in refused.items() if ordinal not in spared}
        dead = tx.get_many(DeadLetterRow, [(one,) for one in self._letter_ids(batch_no, refused, letters)])
        if letters is not None:
            still_open = {row.ordinal for row in dead if row.state == OPEN}
            refused = {ordinal: outcome for ordinal, outcome in refused.items() if ordinal in still_open}
        if not refused:
            return Opening(maybe_reached=len(spared))
        now = tx.now()
        names = names_of(tx, self.key, batch, refused)
        run_again(tx, self.campaign_id, self.by, expires_at=self.expires_at)
        due_at = now + timedelta(seconds=rest_s)
        opening_again.reopen(tx, batch, refused, names, self.number, self.by, due_at, name)
        tx.put(*(settled(row, REPLAYED, now, self.by) for row in dead if row.state == OPEN))
        return Opening(dict(Counter(refused.values())), 0, 0, len(spared))

    def _letter_ids(
        self, batch_no: int, refused: Mapping[int, Outcome], letters: Optional[Mapping[int, Collection[str]]]
    ) -> list[str]:
        if letters is not None:
            return [name for ordinal in refused for name in letters[ordinal]]
        return [
            dead_letter_id(DeadLetter(stage, outcome.reason, "", self.campaign_id, batch_no, ordinal))
            for ordinal, outcome in refused.items()
            for stage in _STAGES
        ]


def _from_traces(traces: Collection[Decision]) -> Opening:
    opened: Counter[Outcome] = Counter()
    by_reason = {outcome.reason: outcome for outcome in WORTH}
    for row in traces:
        opened[by_reason[orjson.loads(row.reason or "{}")["reason"]]] += len(unpack(row.ordinals or b""))
    return Opening(dict(opened))


def _maybe_reached(reader: Reader, batch: Batch, resent: frozenset[int]) -> frozenset[int]:
    """Who was in a request that may have been accepted, whatever became of them since."""
    reached = set(resent)
    for attempt in reader.scan(Attempt, batch.shard, batch.campaign_id, batch.batch_no):
        covered = unpack(attempt.ordinals)
        codes = attempt.outcomes or bytes([Outcome.IN_DOUBT] * len(covered))
        reached.update(ordinal for ordinal, code in zip(covered, codes, strict=True) if code in _MAY_HAVE_ARRIVED)
    return frozenset(reached)
