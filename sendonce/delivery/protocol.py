"""The delivery protocol: every transition of a batch, each one store transaction.

    step         from -> to
    plan         pending and due, or queued and lost -> queued            plan_no + 1: one live reference a batch
                 in doubt, provider de-duplicates    -> in doubt          plan_no + 1: the doubt may be asked again
    postpone     pending, waits for a mailbox group  -> pending           later due: others of the group come first
    keep         queued, my plan_no                  -> queued            later visible: the reference is only slow
    claim        queued, my plan_no                  -> sending           token + 1, the first intent and its permit
    reclaim      in doubt, my plan_no                -> sending           token + 1, the same intent, a new permit
    advance      sending, my token                   -> sending           outcomes, next intent and permit, new lease
                                                     -> done              nothing is open
                                                     -> pending | queued  paused, not begun, blocked, no permit,
                                                                          handed back
                                                     -> in doubt          the verdict is unknown
    release      queued, my plan_no                  -> pending           a held batch whose owner must stop
    expire       sending, lease over (store time)    -> in doubt          token + 1: the old owner is fenced
                                                     -> pending           no intent was open: nothing to doubt
    settle       in doubt, held                      -> done | pending | held, by proof or by a recorded decision
    cancel       pending, queued                     -> cancelled
    end_expired  pending, queued                     -> done              its end, or its campaign's, is past
    refuse       queued, my plan_no                  -> done              a send whose letters nobody can make
    reopen       done, pending                       -> pending           refused ordinals, a new round, a decision row

Every function runs inside `Store.transact`: it reads first and writes afterwards, has no other effect, and may run
several times. A request is sent only after a transaction that answered GO has committed. A lost commit reply is
mended by calling again: each step knows its own traces (token, plan_no, the row of a finished attempt).
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from schemas.elements import Reference
from schemas.ids import message_id
from schemas.ordinals import pack, unpack
from schemas.outcomes import Outcome
from schemas.tables import (
    COMMIT_TIME,
    Attempt,
    Batch,
    Campaign,
    Decision,
    Limit,
    OutboundMessage,
    Recipient,
)
from sendonce.config.stored import applied_revision
from sendonce.control.expiry import is_over
from sendonce.control.rounds import RETRY, opened_reason
from sendonce.control.schedule import starts_later
from sendonce.control.stops import stops_of
from sendonce.control.suppressions import suppressed_since
from sendonce.delivery import batches, health, limits
from sendonce.delivery.rows import attempt_row, names_of, write_rows
from sendonce.delivery.terms import LATE, SETTINGS_CHANGED, Ask, Later, Move, Rendered, Report, Terms, Turn, batch_key
from sendonce.stores.base import Reader, Tx

# A suppression's time may lie a little before that of a rendering which did not see it: clocks are set back, and a
# reader's store time is not always written down. Looking back further costs nothing: who is struck out is so once.
_CLOCK_MARGIN = timedelta(minutes=2)

# What a batch waits for whose open recipients all have their mailboxes with one group: `domain:GROUP`, its scope.
DOMAIN = "domain:"

# Why a doubt can't be settled by asking again: its bytes can't be made again, or no limit would ever pass it.
PAYLOAD_CHANGED, OVER_LIMIT = "payload_changed", "over_limit"

# Why an owner makes its next request, and only that one, smaller than it wanted.
PROBE = "probe"

# -- plan ---------------------------------------------------------------------------------------------------------


def plan(tx: Tx, terms: Terms, campaign_id: str, batch_nos: Iterable[int]) -> list[Reference]:
    """Mark batches as queued and give a reference for each that still was due; the others are left as they are."""
    now = tx.now()
    visible_at = now + timedelta(seconds=terms.times.visibility_s)
    references = []
    keys = [batch_key(campaign_id, batch_no) for batch_no in batch_nos]
    found = {batch.batch_no: batch for batch in tx.get_many(Batch, keys)}
    for _, _, batch_no in keys:
        batch = found.get(batch_no)
        if batch is None or not _plannable(batch, terms, now):
            continue
        if batch.state == batches.IN_DOUBT:
            planned = replace(batch, plan_no=batch.plan_no + 1, visible_at=visible_at)
        else:
            planned = batches.queued(batch, visible_at)
        tx.put(planned)
        references.append(Reference(campaign_id, batch_no, planned.plan_no, terms.lane))
    return references


def postpone(tx: Tx, campaign_id: str, batch_no: int, seen_due_at: datetime, due_at: datetime) -> bool:
    """Let a batch that waits for a mailbox group's limit wait until `due_at`. False: it is not as it was seen."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or found.state != batches.PENDING or found.due_at != seen_due_at:
        return False
    tx.put(replace(found, due_at=due_at))
    return True


def keep(tx: Tx, references: Sequence[Reference], visibility_s: float) -> list[Reference]:
    """Keep queued batches invisible for longer: their references are not lost, only slow. Without the stale ones."""
    keys = [batch_key(reference.campaign_id, reference.batch_no) for reference in references]
    found = {(batch.campaign_id, batch.batch_no): batch for batch in tx.get_many(Batch, keys)}
    visible_at = tx.now() + timedelta(seconds=visibility_s)
    alive = []
    for reference in references:
        batch = found.get((reference.campaign_id, reference.batch_no))
        if batch is None or batch.plan_no != reference.plan_no:
            continue
        if batch.state in (batches.QUEUED, batches.IN_DOUBT):
            tx.put(replace(batch, visible_at=visible_at))
            alive.append(reference)
    return alive


def _plannable(batch: Batch, terms: Terms, now: datetime) -> bool:
    if batch.state == batches.PENDING:
        return batch.due_at <= now or waits_for_limit(batch)
    if batch.state == batches.QUEUED:
        return batch.visible_at is not None and batch.visible_at <= now
    if batch.state == batches.IN_DOUBT:
        unseen = batch.visible_at is None or batch.visible_at <= now
        return unseen and batch.due_at <= now and may_ask_again(batch, terms, now)
    return False


def waits_for_limit(batch: Batch) -> bool:
    """Whether a limit sent a batch away: its due time is what the limit said then, and may come earlier since."""
    return batch.wait_reason == "limit" or (batch.wait_reason or "").startswith(DOMAIN)


def may_ask_again(batch: Batch, terms: Terms, now: datetime) -> bool:
    """Whether a batch in doubt can be settled by its own request, sent once more under the same key.

    The provider must take the same key once, and its window must still be open when the repeat arrives. A payload
    that could not be made again byte for byte rules it out for good.
    """
    if terms.asks_again_s is None or batch.intent_at is None or batch.wait_reason in (PAYLOAD_CHANGED, OVER_LIMIT):
        return False
    if batch.provider != terms.provider:  # the lane sends by another account or to another place now
        return False
    return (now - batch.intent_at).total_seconds() + terms.times.longest_call_s < terms.asks_again_s


# -- claim, reclaim, advance --------------------------------------------------------------------------------------


def claim(
    tx: Tx, terms: Terms, reference: Reference, worker_id: str, rendered: Rendered, ask: Ask | Later | None
) -> Turn:
    """Take a queued batch: what rendering refused is written, and the first request gets its intent and permit."""
    found = tx.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    if found is None or found.state != batches.QUEUED or found.plan_no != reference.plan_no:
        return _own_claim(found, reference, worker_id, ask)
    mine = replace(
        found,
        state=batches.SENDING,
        open_state=batches.SENDING,
        token=found.token + 1,
        worker_id=worker_id,
        claimed_at=COMMIT_TIME,
    )
    return _proceed(tx, terms, found, mine, rendered, ask, limits.limits_of(tx, terms.scopes), None)


def _own_claim(found: Batch | None, reference: Reference, worker_id: str, ask: Ask | Later | None) -> Turn:
    """A claim whose commit reply was lost finds its own intent; any other batch that is not queued is lost."""
    mine = (
        found is not None
        and isinstance(ask, Ask)
        and found.state == batches.SENDING
        and found.plan_no == reference.plan_no
        and found.worker_id == worker_id
        and found.attempt_id == ask.attempt_id
    )
    return Turn(Move.GO, found) if mine else Turn(Move.LOST, reason="stale_reference")


def reclaim(
    tx: Tx,
    terms: Terms,
    reference: Reference,
    worker_id: str,
    payload_hash: str,
    provider: str,
    shares: Mapping[str, Sequence[int]],
) -> Turn:
    """Take a batch in doubt to repeat its open intent, byte for byte, at a provider that de-duplicates.

    The intent stays as it is, first attempt id included; only owner, lease and permit are new. The repeat is no new
    request (it was intended before any cancel or pause), so the campaign's state is not asked. shares: as in `Ask`.
    """
    found = tx.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    if found is None or found.plan_no != reference.plan_no or found.attempt_id is None:
        return Turn(Move.LOST, reason="stale_reference")
    now = tx.now()
    same = (found.payload_hash, found.provider) == (payload_hash, provider)
    if found.state == batches.SENDING and found.worker_id == worker_id and same:  # the reply to this step was lost
        return Turn(Move.GO, found)
    if found.state != batches.IN_DOUBT or not same or not may_ask_again(found, terms, now):
        return Turn(Move.LOST, reason="doubt_changed")
    if _settings_changed(tx, terms):
        tx.put(replace(found, visible_at=None))
        return Turn(Move.ENDED, found, reason=SETTINGS_CHANGED)
    blocked = _blocked(tx, terms, now)
    draws = [(limits.limits_of(tx, terms.scopes), len(unpack(found.intent_ordinals or b"")))]
    draws += [(limits.limits_of(tx, [scope]), len(share)) for scope, share in shares.items()]
    answers = [limits.ask_again(tx, scopes, n, found.attempt_id, found.permit_at, now) for scopes, n in draws]
    if None in answers and blocked is None:
        tx.put(replace(found, wait_reason=OVER_LIMIT, visible_at=None))
        return Turn(Move.ENDED, found, reason=OVER_LIMIT)
    waits = [answer for answer in (blocked, *answers) if isinstance(answer, limits.Wait)]
    if waits:
        until = max(wait.until for wait in waits)
        tx.put(replace(found, due_at=until, visible_at=None))
        return Turn(Move.ENDED, found, until=until, reason="limit")
    for (scopes, _), answer in zip(draws, answers, strict=True):
        assert isinstance(answer, limits.Grant)
        limits.take(tx, scopes, answer, found.attempt_id, now, terms.times.longest_call_s, before=found.permit_at)
    mine = replace(
        found,
        state=batches.SENDING,
        open_state=batches.SENDING,
        token=found.token + 1,
        worker_id=worker_id,
        claimed_at=COMMIT_TIME,
        heartbeat_at=COMMIT_TIME,
        lease_s=terms.times.lease_s,
        permit_at=now,
        visible_at=None,
    )
    probe = health.probe(tx, terms, found.attempt_id, now, worker_id)
    if probe is not None:
        tx.put(probe)
    tx.put(mine)
    return Turn(Move.GO, mine)


def advance(
    tx: Tx,
    terms: Terms,
    mine: Batch,
    worker_id: str,
    report: Report | None,
    rendered: Rendered,
    ask: Ask | Later | None,
) -> Turn:
    """Write down a finished request, and in the same transaction the next one's intent and permit.

    `mine` names the batch and the token under which it is owned. Without `report`, only the next request is asked
    for (it was cut, or somebody was struck out); without `ask`, the batch is handed back. An owner that was fenced
    leaves its verdict as evidence and gets LOST.
    """
    found = tx.get(Batch, mine.shard, mine.campaign_id, mine.batch_no)
    if found is None or found.state != batches.SENDING or found.token != mine.token:
        return _fenced(tx, mine, worker_id, report)
    scopes = limits.limits_of(tx, terms.scopes)
    if report is None:
        if isinstance(ask, Ask) and found.attempt_id == ask.attempt_id:  # the reply to this very step was lost
            return Turn(Move.GO, found)
        return _proceed(tx, terms, found, found, rendered, ask, scopes, None)
    if found.attempt_id != report.attempt_id:
        return _reported_before(tx, terms, found, worker_id, report, rendered, ask, scopes)
    now = tx.now()
    report = _not_both(tx, found, report)
    after = batches.apply(found, {o: outcome for o, outcome in report.outcomes.items() if outcome != Outcome.OPEN})
    tx.put(attempt_row(found, worker_id, report, now, evidence=False))
    unsent = [ordinal for ordinal, outcome in report.outcomes.items() if outcome == Outcome.OPEN]
    assert found.permit_at is not None
    scopes = _settled_permits(tx, scopes, report, report.outcomes, found.permit_at)
    for scope, share in report.shares.items():
        _settled_permits(tx, limits.limits_of(tx, [scope]), report, share, found.permit_at)
    sender = health.after_report(tx, terms, report, scopes, now, worker_id)
    health.write(tx, terms, sender, scopes)
    scopes = sender.limits
    doubted = [ordinal for ordinal, outcome in report.outcomes.items() if outcome == Outcome.IN_DOUBT]
    if doubted:
        after = batches.doubtful(after, doubted, now)
        later = now + timedelta(seconds=report.wait_s or 0.0)
        after = replace(after, provider_ref=report.provider_ref, due_at=later, wait_reason=report.reason or None)
        _write(tx, terms, found, after, rendered, report)
        return Turn(Move.ENDED, after, reason="in_doubt")
    after = replace(after, **batches.NO_INTENT)
    if unsent:
        spends_try = not sender.open and report.reason != LATE
        after = _unsent(terms, after, unsent, report, now, spends_try=spends_try)
        _write(tx, terms, found, after, rendered, report)
        return Turn(Move.ENDED, after, reason=report.reason)
    return _proceed(tx, terms, found, replace(after, tries=0), rendered, ask, scopes, report, sender)


def _not_both(tx: Tx, batch: Batch, report: Report) -> Report:
    """A refusal says nothing of an earlier request that a decision had sent again: it may have been accepted.

    Whoever was in such a request is on record as assumed, never as refused: nobody can say that they got nothing.
    """
    refused = [ordinal for ordinal, outcome in report.outcomes.items() if outcome.kind == "refused"]
    # Every claim and every settled doubt raises the token: under the first one nothing was sent again.
    if not refused or batch.token <= 1:
        return report
    decisions = tx.scan(Decision, batch.campaign_id, index="decisions_by_campaign")
    again = {
        ordinal
        for decision in decisions
        if decision.kind == "resend" and decision.batch_no == batch.batch_no
        for ordinal in unpack(decision.ordinals or b"")
    }
    changed = {ordinal: Outcome.ASSUMED for ordinal in refused if ordinal in again}
    return replace(report, outcomes={**report.outcomes, **changed}) if changed else report


def _settled_permits(
    tx: Tx, scopes: list[Limit], report: Report, ordinals: Iterable[int], permit_at: datetime
) -> list[Limit]:
    """What a finished request leaves of its permits for these ordinals; the limits as they are afterwards.

    Permits of a request that provably was not taken go back, but not when the provider asked to slow down, nor when it
    took or refused a part: then all of it arrived there at least once.
    """
    arrived = report.throttled or any(outcome != Outcome.OPEN for outcome in report.outcomes.values())
    unsent = sum(1 for ordinal in ordinals if report.outcomes.get(ordinal) == Outcome.OPEN)
    if unsent and not arrived:
        return limits.give_back(tx, scopes, report.attempt_id, permit_at, unsent)
    limits.used(tx, scopes, report.attempt_id, permit_at)
    return scopes


def _unsent(
    terms: Terms, batch: Batch, unsent: Sequence[int], report: Report, now: datetime, *, spends_try: bool
) -> Batch:
    """Nothing of these went out. They wait and are tried again, unless that has failed too often in a row."""
    tries = batch.tries + 1 if spends_try else batch.tries
    if tries >= terms.most_tries:
        batch = batches.apply(batch, dict.fromkeys(unsent, Outcome.EXHAUSTED))
        if batch.n_open == 0:
            return batches.finished(replace(batch, tries=tries), now)
        tries = 0  # the batch's other recipients have had no try of their own yet
    due_at = now + timedelta(seconds=report.wait_s or 0.0)
    return batches.waiting(replace(batch, tries=tries), due_at, report.reason or None)


def _reported_before(
    tx: Tx,
    terms: Terms,
    found: Batch,
    worker_id: str,
    report: Report,
    rendered: Rendered,
    ask: Ask | Later | None,
    scopes: Sequence[Limit],
) -> Turn:
    """The batch is mine but the intent is another: an earlier commit of this very step went through unseen."""
    if tx.get(Attempt, found.shard, found.campaign_id, found.batch_no, report.attempt_id) is None:
        raise AssertionError(f"batch {found.campaign_id}/{found.batch_no}: a report without an intent")
    if isinstance(ask, Ask) and found.attempt_id == ask.attempt_id:
        return Turn(Move.GO, found)
    return _proceed(tx, terms, found, found, rendered, ask, scopes, None)


def _fenced(tx: Tx, mine: Batch, worker_id: str, report: Report | None) -> Turn:
    """Not the owner any more. A verdict that was learned all the same is evidence for the resolver."""
    if report is not None and tx.get(Attempt, mine.shard, mine.campaign_id, mine.batch_no, report.attempt_id) is None:
        tx.put(attempt_row(mine, worker_id, report, tx.now(), evidence=True))
    return Turn(Move.LOST, reason="fenced")


def _proceed(
    tx: Tx,
    terms: Terms,
    before: Batch,
    mine: Batch,
    rendered: Rendered,
    ask: Ask | Later | None,
    scopes: Sequence[Limit],
    report: Report | None,
    sender: health.Health | None = None,
) -> Turn:
    """What an owner with nothing in flight may do next. `before` is the stored row, `mine` the row with news.

    sender: its health as this transaction is about to write it; None where it is as stored.
    """
    now = tx.now()
    campaign = tx.get(Campaign, mine.campaign_id)
    if campaign is None:
        raise AssertionError(f"batch {mine.campaign_id}/{mine.batch_no} has no campaign")

    def end(after: Batch, reason: str = "", until: datetime | None = None, move: Move = Move.ENDED) -> Turn:
        _write(tx, terms, before, after, rendered, report)
        return Turn(move, after, until=until, reason=reason)

    if campaign.state in ("cancelling", "cancelled"):
        return end(_closed(mine, Outcome.CANCELLED, now, batches.CANCELLED), "cancelled")
    if is_over(campaign, mine, now):
        return end(_closed(mine, Outcome.EXPIRED, now, batches.DONE), "expired")
    refused = {o: outcome for o, outcome in rendered.outcomes.items() if mine.outcomes[o] == Outcome.OPEN}
    mine = batches.apply(mine, {**refused, **_struck(tx, mine, rendered)})
    if mine.n_open == 0:
        return end(batches.finished(mine, now), "done")
    if campaign.state != "running":
        return end(batches.waiting(mine, now, campaign.state), campaign.state)
    if (start := starts_later(campaign, now)) is not None:  # planned before somebody moved the start
        return end(batches.waiting(mine, now, None), "scheduled", start)
    blocked = _blocked(tx, terms, now, sender)
    if blocked is not None:
        return end(batches.waiting(mine, blocked.until, blocked.scope), blocked.scope, blocked.until)
    if ask is None:
        return end(batches.waiting(mine, now, None), "handed_back")
    if _settings_changed(tx, terms):
        return end(batches.waiting(mine, now, None), SETTINGS_CHANGED)
    if isinstance(ask, Later):
        # Asked again: what the batch's own request held back when it was cut may be free since.
        again = limits.ask(tx, limits.limits_of(tx, [ask.scope]), 1, now)
        until = min(ask.until, again.until) if isinstance(again, limits.Wait) else ask.until
        return end(batches.waiting(mine, until, ask.scope), "limit", until)
    leased = replace(mine, heartbeat_at=COMMIT_TIME, lease_s=terms.times.lease_s, visible_at=None, **batches.NO_INTENT)
    if any(mine.outcomes[ordinal] != Outcome.OPEN for ordinal in ask.ordinals):
        return end(leased, "struck_out", move=Move.AGAIN)
    probe = health.probe(tx, terms, ask.attempt_id, now, mine.worker_id or "") if sender is None else None
    if probe is not None and len(ask.ordinals) > health.PROBE_RECIPIENTS:
        return replace(end(leased, PROBE, move=Move.AGAIN), size=health.PROBE_RECIPIENTS)
    answer = limits.ask(tx, scopes, len(ask.ordinals), now)
    if isinstance(answer, limits.Wait):
        if (answer.until - now).total_seconds() <= terms.hold_max_s:
            return end(_held_back(mine, answer.until, terms), "limit", answer.until, Move.HOLD)
        return end(batches.waiting(mine, answer.until, "limit"), "limit", answer.until)
    cuts, grants = limits.ask_shares(tx, ask.shares, now)
    if cuts or answer.n < len(ask.ordinals):
        size = answer.n if answer.n < len(ask.ordinals) else None
        return replace(end(leased, "cut", move=Move.AGAIN), size=size, cuts=cuts)
    for drawn, grant in ((scopes, answer), *grants):
        limits.take(tx, drawn, grant, ask.attempt_id, now, terms.times.longest_call_s)
    if probe is not None:
        tx.put(probe)
    intent = replace(
        leased,
        attempt_id=ask.attempt_id,
        intent_at=now,
        permit_at=now,
        intent_ordinals=pack(ask.ordinals),
        payload_hash=ask.payload_hash,
        provider=ask.provider,
    )
    return end(intent, move=Move.GO)


def _settings_changed(tx: Tx, terms: Terms) -> bool:
    """Whether lanes, senders or limits were applied anew since this owner read them: it must not act by old ones."""
    return terms.revision != "" and applied_revision(tx) != terms.revision


def _held_back(mine: Batch, until: datetime, terms: Terms) -> Batch:
    """Queued again under the same plan_no: the owner keeps the rendered batch, and its reference stays the live one."""
    back = batches.waiting(mine, mine.due_at, "limit")
    visible_at = until + timedelta(seconds=terms.times.visibility_s)
    return replace(back, state=batches.QUEUED, open_state=batches.QUEUED, visible_at=visible_at)


def _closed(batch: Batch, outcome: Outcome, now: datetime, state: str) -> Batch:
    """Final at once: everything open gets one outcome. Without anything open it simply is done."""
    left = batches.open_ordinals(batch)
    closed = batches.apply(batch, dict.fromkeys(left, outcome))
    return batches.finished(closed, now, state if left else batches.DONE)


def _blocked(tx: Tx, terms: Terms, now: datetime, sender: health.Health | None = None) -> limits.Wait | None:
    """What keeps this lane or sender from sending now; whoever met it is due at once, for nothing is planned before."""
    stops = stops_of(tx, terms.lane, terms.sender, now)
    if sender is not None and sender.switch is None:
        stops = [stop for stop in stops if stop.scope != f"sender:{terms.sender}"]
    if not stops:
        return None
    return limits.Wait(now, stops[0].kind)


def _struck(tx: Tx, batch: Batch, rendered: Rendered) -> dict[int, Outcome]:
    """Open ordinals whose address was suppressed after the batch was rendered."""

    def open_people() -> list[Recipient]:
        people = tx.scan(Recipient, batch.shard, batch.campaign_id, batch.batch_no)
        return [person for person in people if batch.outcomes[person.ordinal] == Outcome.OPEN]

    return suppressed_since(tx, open_people, rendered.lists, rendered.at - _CLOCK_MARGIN)


def release(tx: Tx, reference: Reference, due_at: datetime) -> bool:
    """Give a queued batch back to the store before anybody claimed it; False when the reference is stale."""
    found = tx.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    if found is None or found.state != batches.QUEUED or found.plan_no != reference.plan_no:
        return False
    tx.put(batches.waiting(found, due_at, found.wait_reason))
    return True


def skip_rung(tx: Tx, campaign_id: str, batch_no: int) -> None:
    """Note that the bytes of a request in doubt can't be made again: the resolver takes the next rung."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is not None and found.state == batches.IN_DOUBT:
        tx.put(replace(found, wait_reason=PAYLOAD_CHANGED, visible_at=None))


def refuse(tx: Tx, key: bytes, reference: Reference, outcome: Outcome, detail: str, outbound_log: str) -> Batch | None:
    """End a send of which no letter can be made: whoever is open gets `outcome`, and the rest of its stream goes on.

    Of one in doubt the next rung is taken instead, as by `skip_rung`; what is open beside it ends at its next plan.
    None: the reference is stale.
    """
    found = tx.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    if found is None or found.plan_no != reference.plan_no:
        return None
    if found.state == batches.IN_DOUBT:
        after = replace(found, wait_reason=PAYLOAD_CHANGED, visible_at=None)
        tx.put(after)
        return after
    if found.state != batches.QUEUED:
        return None
    after = replace(_closed(found, outcome, tx.now(), batches.DONE), token=found.token + 1)
    details = dict.fromkeys(batches.open_ordinals(found), detail)
    write_rows(tx, outbound_log, found, after, names_of(tx, key, found), None, tx.now(), details)
    tx.put(after)
    return after


def _write(tx: Tx, terms: Terms, before: Batch, after: Batch, rendered: Rendered, report: Report | None) -> None:
    write_rows(tx, terms.outbound_log, before, after, rendered.names, report, tx.now(), rendered.details)
    tx.put(after)


# -- expire, settle, cancel ---------------------------------------------------------------------------------------


def expire(tx: Tx, campaign_id: str, batch_no: int) -> Batch | None:
    """A batch whose lease is over by store time: its open intent is in doubt, never "not sent". None: it is not so."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    now = tx.now()
    if found is None or found.state != batches.SENDING or not lease_is_over(found, now):
        return None
    if found.attempt_id is None:
        after = replace(batches.waiting(found, now, None), token=found.token + 1)
    else:
        after = batches.doubtful(found, unpack(found.intent_ordinals or b""), now)
    tx.put(after)
    return after


def lease_is_over(batch: Batch, now: datetime) -> bool:
    if batch.heartbeat_at is None or batch.lease_s is None:
        return True
    return batch.heartbeat_at + timedelta(seconds=batch.lease_s) < now


def settle(
    tx: Tx,
    key: bytes,
    campaign_id: str,
    batch_no: int,
    outcomes: Mapping[int, Outcome],
    outbound_log: str,
    decision: Decision | None,
) -> Batch | None:
    """End a doubt: by proof (`decision` is None), or by a decision, which is a row before anything acts on it.

    outcomes: what each ordinal in doubt becomes: ACCEPTED, ASSUMED, a refusal, or OPEN (it will be sent again).
    Ordinals that are no longer in doubt are left alone. None: the batch is neither in doubt nor held.
    """
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or found.state not in (batches.IN_DOUBT, batches.HELD):
        return None
    now = tx.now()
    changes = {o: outcome for o, outcome in outcomes.items() if found.outcomes[o] == Outcome.IN_DOUBT}
    names = names_of(tx, key, found)
    after = batches.apply(found, changes)
    if after.n_in_doubt:
        after = replace(after, due_at=now, visible_at=None)
    elif after.n_open:
        after = batches.waiting(after, now, None)
    else:
        after = batches.finished(after, now)
    if decision is not None:
        tx.insert(replace(decision, attempt_id=found.attempt_id, ordinals=pack(changes), at=now))
    write_rows(tx, outbound_log, found, after, names, None, now)
    tx.put(replace(after, token=found.token + 1))
    return after


def hold(tx: Tx, campaign_id: str, batch_no: int, decision: Decision) -> Batch | None:
    """Leave a doubt to a person: nothing but `doubts resend` or `doubts assume` moves the batch from here."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or found.state != batches.IN_DOUBT:
        return None
    after = replace(found, state=batches.HELD, open_state=batches.HELD, visible_at=None)
    doubted = batches.with_outcome(found, Outcome.IN_DOUBT)
    tx.insert(replace(decision, attempt_id=found.attempt_id, ordinals=pack(doubted), at=tx.now()))
    tx.put(after)
    return after


def cancel(tx: Tx, key: bytes, campaign_id: str, batch_no: int, outbound_log: str) -> Batch | None:
    """Close what is open in a batch that nobody owns. What is being sent, in doubt or held settles first."""
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    if found is None or not batches.closable(found):
        return None
    return _close_unowned(tx, key, found, Outcome.CANCELLED, batches.CANCELLED, outbound_log)


def end_expired(tx: Tx, key: bytes, campaign_id: str, batch_no: int, outbound_log: str) -> Batch | None:
    """Close what is open in a batch that nobody owns and whose end is past, whatever blocks its lane or sender.

    Of a batch in doubt or held only the open intent's recipients go on waiting; its others were never in a request.
    """
    found = tx.get(Batch, *batch_key(campaign_id, batch_no))
    campaign = tx.get(Campaign, campaign_id)
    if found is None or campaign is None or not batches.closable(found):
        return None
    if not is_over(campaign, found, tx.now()):
        return None
    return _close_unowned(tx, key, found, Outcome.EXPIRED, batches.DONE, outbound_log)


def _close_unowned(tx: Tx, key: bytes, found: Batch, outcome: Outcome, state: str, outbound_log: str) -> Batch:
    now = tx.now()
    names = names_of(tx, key, found)
    if found.n_in_doubt:
        after = batches.apply(found, dict.fromkeys(batches.open_ordinals(found), outcome))
    else:
        after = replace(_closed(found, outcome, now, state), token=found.token + 1)
    write_rows(tx, outbound_log, found, after, names, None, now)
    tx.put(after)
    return after


# -- reopen -------------------------------------------------------------------------------------------------------


def messages_of(reader: Reader, key: bytes, batch: Batch, ordinals: Collection[int]) -> dict[int, str]:
    """The message ids of some recipients of a batch, by ordinal. `key` is the store's own."""
    places = [(batch.shard, batch.campaign_id, batch.batch_no, ordinal) for ordinal in ordinals]
    people = reader.get_many(Recipient, places)
    return {person.ordinal: message_id(key, batch.campaign_id, person.recipient_id) for person in people}


def reopen(
    tx: Tx,
    found: Batch,
    refused: Mapping[int, Outcome],
    names: Mapping[int, str],
    round_no: int,
    by: str,
    due_at: datetime,
    decision_id: Callable[[Outcome], str],
) -> Batch:
    """Open refused recipients of a batch that nobody owns and in which nothing is in flight: a retry.

    refused: what each is on record with; a decision row for each of these outcomes is written with it. names: their
    message ids; their messages are final no more, so those rows go. Whether they are worth it, and may not have been
    reached by any request, is the caller's to know (`reopening`).
    """
    if found.state not in (batches.DONE, batches.PENDING):
        raise AssertionError(f"batch {found.campaign_id}/{found.batch_no} is {found.state}: not to be opened again")
    now = tx.now()
    after = batches.reopened(found, refused, round_no, due_at)
    for outcome in sorted(set(refused.values())):
        ordinals = [ordinal for ordinal, was in refused.items() if was == outcome]
        tx.insert(
            Decision(
                decision_id(outcome), found.campaign_id, RETRY, now, by, batch_no=found.batch_no,
                ordinals=pack(ordinals), reason=opened_reason(round_no, outcome),
            )
        )  # fmt: skip
    gone = [
        OutboundMessage(names[ordinal], found.campaign_id, found.batch_no, ordinal, int(outcome), now)
        for ordinal, outcome in refused.items()
    ]
    tx.delete(*gone)
    tx.put(after)
    return after
