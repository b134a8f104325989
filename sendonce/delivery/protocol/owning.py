"""Claim, reclaim, renew, advance: what the owner of a batch does, one request after the other."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta

from schemas.elements import Reference
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import COMMIT_TIME, Attempt, Batch, Limit
from sendonce.delivery import batches, health, limits
from sendonce.delivery.protocol.doubts import OVER_LIMIT, may_ask_again
from sendonce.delivery.protocol.finished_request import not_both, settled_permits, wait_again
from sendonce.delivery.protocol.next_request import blocked_by, proceed, settings_changed, write
from sendonce.delivery.rows import attempt_row
from sendonce.delivery.terms import LATE, SETTINGS_CHANGED, Ask, Later, Move, Rendered, Report, Terms, Turn, batch_key
from sendonce.stores.base import Tx


def claim(
    tx: Tx, terms: Terms, reference: Reference, worker_id: str, rendered: Rendered, ask: Ask | Later | None
) -> Turn:
    """Take a queued batch: what rendering refused is written, and the first request gets its intent and permit."""
    found = tx.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
    if found is None or found.state != batches.QUEUED or found.plan_no != reference.plan_no:
        return _own_claim(found, reference, worker_id, ask)
    mine = batches.owned(found, worker_id)
    return proceed(tx, terms, found, mine, rendered, ask, limits.limits_of(tx, terms.scopes), None)


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
    if settings_changed(tx, terms):
        tx.put(replace(found, visible_at=None))
        return Turn(Move.ENDED, found, reason=SETTINGS_CHANGED)
    blocked = blocked_by(tx, terms, now)
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
        batches.owned(found, worker_id),
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


def renew(tx: Tx, terms: Terms, mine: Batch, *, late: bool) -> bool:
    """Begin the lease of a request in flight anew: it has left, and its owner still waits for the answer.

    `mine` names the batch, the token under which it is owned, and the request. late: its own time is over, which is
    told once. False, and nothing is written, when that is not what is in flight. Nothing may be started on a renewed
    lease: the next request gets its own.
    """
    found = tx.get(Batch, mine.shard, mine.campaign_id, mine.batch_no)
    if found is None or (found.state, found.token, found.attempt_id) != (batches.SENDING, mine.token, mine.attempt_id):
        return False
    told = health.while_waiting(tx, terms, mine.attempt_id or "", tx.now(), mine.worker_id or "", late=late)
    if told is not None:
        tx.put(told)
    tx.put(replace(found, heartbeat_at=COMMIT_TIME))
    return True


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
        return proceed(tx, terms, found, found, rendered, ask, scopes, None)
    if found.attempt_id != report.attempt_id:
        return _reported_before(tx, terms, found, worker_id, report, rendered, ask, scopes)
    now = tx.now()
    report = not_both(tx, found, report)
    after = batches.apply(found, {o: outcome for o, outcome in report.outcomes.items() if outcome != Outcome.OPEN})
    repeated = found.permit_at != found.intent_at
    earlier = tx.get(Attempt, *_place(found), report.attempt_id) if repeated else None
    tx.put(attempt_row(found, worker_id, report, now, evidence=False, earlier=earlier))
    unsent = [ordinal for ordinal, outcome in report.outcomes.items() if outcome == Outcome.OPEN]
    assert found.permit_at is not None
    scopes = settled_permits(tx, scopes, report, report.outcomes, found.permit_at)
    for scope, share in report.shares.items():
        settled_permits(tx, limits.limits_of(tx, [scope]), report, share, found.permit_at)
    sender = health.after_report(tx, terms, report, scopes, now, worker_id)
    health.write(tx, terms, sender, scopes)
    scopes = sender.limits
    doubted = [ordinal for ordinal, outcome in report.outcomes.items() if outcome == Outcome.IN_DOUBT]
    if doubted:
        after = batches.doubtful(after, doubted, now)
        later = now + timedelta(seconds=report.wait_s or 0.0)
        after = replace(after, provider_ref=report.provider_ref, due_at=later, wait_reason=report.reason or None)
        write(tx, terms, found, after, rendered, report)
        return Turn(Move.ENDED, after, reason="in_doubt")
    after = replace(after, **batches.NO_INTENT)
    if unsent:
        # A request by which somebody was settled is no failure: the row of them begins anew, and ends with the batch.
        settled = len(unsent) < len(report.outcomes)
        spends_try = not settled and report.reason != LATE and (report.answered or not sender.open)
        after = replace(after, tries=0) if settled else after
        after = wait_again(tx, terms, after, unsent, report, now, spends_try=spends_try)
        write(tx, terms, found, after, rendered, report)
        return Turn(Move.ENDED, after, reason=report.reason)
    return proceed(tx, terms, found, replace(after, tries=0), rendered, ask, scopes, report, sender)


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
    return proceed(tx, terms, found, found, rendered, ask, scopes, None)


def _place(batch: Batch) -> tuple[int, str, int]:
    return batch.shard, batch.campaign_id, batch.batch_no


def _fenced(tx: Tx, mine: Batch, worker_id: str, report: Report | None) -> Turn:
    """Not the owner any more. A verdict that was learned all the same is evidence for the resolver."""
    if report is not None and tx.get(Attempt, mine.shard, mine.campaign_id, mine.batch_no, report.attempt_id) is None:
        tx.put(attempt_row(mine, worker_id, report, tx.now(), evidence=True))
    return Turn(Move.LOST, reason="fenced")
