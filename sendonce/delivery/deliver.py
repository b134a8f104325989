"""One rendered batch, from its claim to the last request that may go now: the owner's side of the protocol."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial

import orjson

from schemas.elements import Reference, RenderedBatch
from schemas.ids import attempt_id
from schemas.letters import Letter, Letters
from schemas.letters import load as load_letters
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign
from sendonce.control.suppressions import lists_of
from sendonce.delivery import batches, retry
from sendonce.delivery.leases import LeaseKeeper
from sendonce.delivery.letters import facts_of, rendered_at
from sendonce.delivery.limits import largest_request, limits_of
from sendonce.delivery.protocol import doubts, next_request, owning
from sendonce.delivery.requests import next_letters, report_of, shares_of, without_refusals
from sendonce.delivery.routes import route
from sendonce.delivery.shares import Shares
from sendonce.delivery.terms import LATE, Ask, Later, Move, Rendered, Report, Terms, Turn, batch_key
from sendonce.failpoints import failpoint
from sendonce.senders.base import Patient, Prepared, Reply, Request, Sender, Unsendable, Verdict
from sendonce.stores.base import Reader, Result, Store, StoreUnavailable, Tx


@dataclass(frozen=True)
class Clocks:
    """Time and chance as the owner sees them.

    own_s: a clock that goes on while the machine sleeps (CLOCK_BOOTTIME); deadlines are judged by it, never by
    comparing machines. wall_ms: Unix milliseconds, for attempt ids and Date headers. randomness: n random bytes.
    chance: uniform in [0, 1).
    """

    own_s: Callable[[], float]
    wall_ms: Callable[[], int]
    randomness: Callable[[int], bytes]
    chance: Callable[[], float]


@dataclass(frozen=True)
class Delivery:
    """How a delivery ended. `until`: with HOLD, when to claim again. `requests`: how many calls were made.

    outcomes: recipients by kind that became final (or in doubt) here, for counters. refused: those whom the provider,
    or the adapter, refused: ordinal, message id, outcome. left: how many are open in the batch now.
    """

    move: Move
    reason: str
    requests: int
    outcomes: dict[str, int]
    until: datetime | None = None
    refused: list[tuple[int, str, Outcome]] = field(default_factory=list)
    left: int = 0


@dataclass(frozen=True)
class Way:
    """A way that a lane's letters may go."""

    terms: Terms
    sender: Sender


class Deliverer:
    """Delivers batches of one lane through its sender, or through its fallback (`routes.route`). Holds no state between
    batches; safe for several threads.

    fallback: the sender of `terms.fallback`.
    """

    def __init__(
        self,
        store: Store,
        sender: Sender,
        terms: Terms,
        worker_id: str,
        clocks: Clocks,
        render: Callable[[Reference], tuple[Letters, datetime] | None],
        stopping: Callable[[], bool] = lambda: False,
        fallback: Sender | None = None,
    ) -> None:
        self._store = store
        self._terms = terms
        self._own = Way(terms, sender)
        self._other = Way(terms.fallback, fallback) if terms.fallback is not None and fallback is not None else None
        self._worker_id = worker_id
        self._clocks = clocks
        self._render = render
        self._stopping = stopping
        self._leases = LeaseKeeper(store)

    def deliver(self, element: RenderedBatch) -> Delivery:
        """Claim the batch and send its open recipients, request by request, until it is done or must wait.

        A stale element is dropped. Never sends without a committed intent, and not after its own deadline. Raises
        what the store raises; whatever was in flight then is found by its lease.
        """
        reference = Reference(element.campaign_id, element.batch_no, element.plan_no, element.priority)
        if element.letters is not None:
            letters, at = load_letters(element.letters), rendered_at(element)
        else:
            rendered = self._render(reference)
            if rendered is None:
                return Delivery(Move.LOST, "stale_reference", 0, {})
            letters, at = rendered
        batch, way, lists, most, shares = self._look(reference, letters)
        if batch is None or batch.plan_no != reference.plan_no:
            return Delivery(Move.LOST, "stale_reference", 0, {})
        run = _Run(self, way, reference, letters, facts_of(letters, at, lists), most, shares, batch)
        return run.repeat_doubt() if batch.state == batches.IN_DOUBT else run.go()

    def _look(self, reference: Reference, letters: Letters) -> tuple[Batch | None, Way, tuple[str, ...], int, Shares]:
        """The batch as it is, the way that it goes, its campaign's suppression lists, and how large a request and its
        shares may be now."""
        scopes = list(shares_of(self._terms.groups, letters.letters))

        def work(reader: Reader) -> tuple[Batch | None, Way, tuple[str, ...], int, Shares]:
            now = reader.now()
            batch = reader.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
            way = self._way(reader, batch, now)
            terms = way.terms
            ttl_s, room = terms.times.permit_ttl_s, way.sender.capabilities.recipients
            campaign = reader.get(Campaign, reference.campaign_id)
            lists = lists_of(orjson.loads(campaign.options) if campaign is not None else {})
            most = largest_request(limits_of(reader, terms.scopes), ttl_s, room, now)
            largest = {scope: largest_request(limits_of(reader, [scope]), ttl_s, room, now) for scope in scopes}
            return batch, way, lists, most, Shares(largest, self._clocks.own_s)

        return self._store.read(work)

    def _way(self, reader: Reader, batch: Batch | None, now: datetime) -> Way:
        """What is in doubt is asked again where it was asked; all else goes by who can send."""
        if self._other is None:
            return self._own
        if batch is not None and batch.state == batches.IN_DOUBT:
            return self._other if batch.provider == self._other.terms.provider else self._own
        return self._other if route(reader, self._terms, now) is self._other.terms else self._own

    def way_is_over(self, way: Way) -> bool:
        """Whether what goes by the fallback should go by the lane's own sender again, or its probe should."""
        if way is self._own:
            return False
        return self._store.read(lambda reader: route(reader, self._terms, reader.now())) is self._terms


class _Run:
    """The life of one batch in one owner's hands."""

    def __init__(
        self,
        owner: Deliverer,
        way: Way,
        reference: Reference,
        letters: Letters,
        facts: Rendered,
        most: int,
        shares: Shares,
        seen: Batch,
    ) -> None:
        self._store = owner._store
        self._way_is_over = partial(owner.way_is_over, way)
        self._sender = way.sender
        self._terms = way.terms
        self._worker_id = owner._worker_id
        self._clocks = owner._clocks
        self._stopping = owner._stopping
        self._leases = owner._leases
        self._reference = reference
        self._letters = letters
        self._facts = facts
        self._most = most
        self._shares = shares
        self._seen = seen
        self._refused_at_render = frozenset(facts.outcomes)
        self._requests = 0
        self._after_probe = 0

    def go(self) -> Delivery:
        """Claim the batch, then go on as its owner."""
        prepared, ask = self._next(self._seen, {})
        turn, started_s = self._commit(
            "claim", lambda tx: owning.claim(tx, self._terms, self._reference, self._worker_id, self._facts, ask)
        )
        return self._own(turn, prepared, started_s)

    def repeat_doubt(self) -> Delivery:
        """Send the request in doubt once more, byte for byte, then go on with the rest of the batch."""
        batch = self._seen
        chosen = [
            letter for letter in self._letters.letters if letter.ordinal in set(unpack(batch.intent_ordinals or b""))
        ]
        prepared = None
        if chosen and batch.attempt_id is not None:
            prepared = self._try_prepare(batch.attempt_id, chosen)
        if prepared is None or prepared.payload_hash != batch.payload_hash:
            self._commit("skip_rung", lambda tx: doubts.skip_rung(tx, *_key(batch)))
            return self._end(Turn(Move.ENDED, reason=doubts.PAYLOAD_CHANGED))
        same = prepared
        shares = shares_of(self._terms.groups, chosen)
        turn, started_s = self._commit(
            "reclaim",
            lambda tx: owning.reclaim(
                tx, self._terms, self._reference, self._worker_id, same.payload_hash, self._sender.identity, shares
            ),
        )
        return self._own(turn, prepared, started_s, repeated=True)

    def _own(self, turn: Turn, prepared: Prepared | None, started_s: float, *, repeated: bool = False) -> Delivery:
        while turn.move in (Move.GO, Move.AGAIN):
            assert turn.batch is not None
            mine = turn.batch
            report = None
            if turn.move is Move.GO:
                assert prepared is not None
                failpoint("S3")
                report = self._call(mine, prepared, started_s, repeated=repeated)
                repeated = False
                self._most, self._after_probe = self._after_probe or self._most, 0
            else:
                self._after_probe = self._most if turn.reason == next_request.PROBE else self._after_probe
                self._most = self._most if turn.size is None else turn.size
                self._shares.cut(turn.cuts)
            prepared, ask = self._next(mine, report.outcomes if report else {}, report)
            turn, started_s = self._advance(mine, report, ask)
            if report is not None:
                failpoint("S7")
        return self._end(turn)

    def _advance(self, mine: Batch, report: Report | None, ask: Ask | Later | None) -> tuple[Turn, float]:
        return self._commit(
            "advance", lambda tx: owning.advance(tx, self._terms, mine, self._worker_id, report, self._facts, ask)
        )

    def _call(self, mine: Batch, prepared: Prepared, started_s: float, *, repeated: bool) -> Report:
        times = self._terms.times
        passed_s = self._clocks.own_s() - started_s
        attempt, ordinals = prepared.request.attempt_id, prepared.request.ordinals
        shares = shares_of(self._terms.groups, prepared.request.chosen)
        if repeated:
            ordinals = [ordinal for ordinal in ordinals if mine.outcomes[ordinal] == Outcome.IN_DOUBT]
        if passed_s > min(times.permit_ttl_s, times.lease_s - times.request_timeout_s - times.margin_s):
            reply = Reply(Verdict.NOT_SENT, LATE)
            return report_of(attempt, ordinals, reply, 0.0, repeated=repeated, shares=shares)
        reply = self._send(mine, prepared)
        if failpoint("S6") == "drop_reply":
            reply = Reply(Verdict.UNKNOWN, "reply_lost")
        if repeated and self._clocks.own_s() - started_s > times.longest_call_s:
            # The repeat may have reached the provider after its window: then it says nothing about the first try.
            reply = without_refusals(reply)
        self._requests += 1
        wait_s = retry.wait_s(mine.tries + 1, reply.retry_after_s, self._clocks.chance)
        return report_of(attempt, ordinals, reply, wait_s, repeated=repeated, shares=shares)

    def _send(self, mine: Batch, prepared: Prepared) -> Reply:
        times = self._terms.times
        if times.answer_s > 0 and isinstance(self._sender, Patient):
            with self._leases.kept(mine, self._terms):
                return self._sender.send_and_wait(prepared, times.request_timeout_s, times.answer_s)
        return self._sender.send(prepared, times.request_timeout_s)

    def _next(
        self, batch: Batch, news: Mapping[int, Outcome], report: Report | None = None
    ) -> tuple[Prepared | None, Ask | Later | None]:
        """The next request, made before the transaction that asks for it; none at the end, or to hand back."""
        if self._stopping() or (report is not None and (_must_stop(report) or self._way_is_over())):
            return None, None
        closed = {**self._facts.outcomes, **news}
        left = [ordinal for ordinal in batches.open_ordinals(batch) if ordinal not in closed]
        groups = self._terms.groups
        while left:
            room_in = self._shares.room()
            chosen = next_letters(self._letters, left, self._sender.capabilities, self._most, groups, room_in)
            if not chosen:
                return None, self._shares.later()
            prepared = self._try_prepare(attempt_id(self._clocks.wall_ms(), self._clocks.randomness(10)), chosen)
            if prepared is not None:
                shares = shares_of(groups, chosen)
                return prepared, Ask(
                    prepared.request.attempt_id,
                    prepared.request.ordinals,
                    prepared.payload_hash,
                    self._sender.identity,
                    shares,
                )
            left = [ordinal for ordinal in left if ordinal not in self._facts.outcomes]
        return None, None

    def _try_prepare(self, attempt: str, chosen: list[Letter]) -> Prepared | None:
        """The bytes of a call; None after noting a letter that no call can carry as refused."""
        request = Request(self._reference.campaign_id, self._reference.batch_no, attempt, self._letters, chosen)
        try:
            return self._sender.prepare(request)
        except Unsendable as fault:
            refused = {**self._facts.outcomes, fault.ordinal: Outcome(fault.outcome)}
            self._facts = replace(self._facts, outcomes=refused)
            return None

    def _commit(self, tag: str, work: Callable[[Tx], Result]) -> tuple[Result, float]:
        """Run a step of the protocol; also returns this process's clock from before the run that may have committed.

        Lease and permit begin in that run, so the runs that a store aborted before it take nothing from them. A lost
        commit reply is settled by running the step again: it knows its own traces, and those are of the first time.
        """
        started_s = self._clocks.own_s()

        def run(tx: Tx) -> Result:
            nonlocal started_s
            started_s = self._clocks.own_s()
            return work(tx)

        try:
            return self._store.transact(run, tag=tag), started_s
        except StoreUnavailable as fault:
            if not fault.maybe_applied:
                raise
            return self._store.transact(work, tag=tag), started_s

    def _end(self, turn: Turn) -> Delivery:
        changed: dict[str, int] = {}
        refused = []
        if turn.batch is not None:
            named = {code: (Outcome(code), Outcome(code).kind) for code in set(turn.batch.outcomes)}
            for ordinal, (old, new) in enumerate(zip(self._seen.outcomes, turn.batch.outcomes, strict=True)):
                if old == new:
                    continue
                outcome, kind = named[new]
                changed[kind] = changed.get(kind, 0) + 1
                if kind == "refused" and ordinal not in self._refused_at_render:
                    refused.append((ordinal, self._facts.names[ordinal], outcome))
        left = turn.batch.n_open if turn.batch is not None else 0
        return Delivery(turn.move, turn.reason, self._requests, changed, turn.until, refused, left)


def _must_stop(report: Report) -> bool:
    """Something was not sent or is in doubt: the batch goes back, nothing is asked for."""
    return any(not outcome.final for outcome in set(report.outcomes.values()))


def _key(batch: Batch) -> tuple[str, int]:
    return batch.campaign_id, batch.batch_no
