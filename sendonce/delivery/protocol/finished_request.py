"""What a finished request means for its recipients and for the permits that it took."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Decision, Limit
from sendonce.delivery import batches, limits
from sendonce.delivery.protocol.aside import ended
from sendonce.delivery.terms import Report, Terms
from sendonce.stores.base import Tx


def not_both(tx: Tx, batch: Batch, report: Report) -> Report:
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


def settled_permits(
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


def wait_again(
    tx: Tx, terms: Terms, batch: Batch, unsent: Sequence[int], report: Report, now: datetime, *, spends_try: bool
) -> Batch:
    """Nothing of these went out. They wait and are tried again, unless that has failed too often in a row."""
    tries = batch.tries + 1 if spends_try else batch.tries
    if tries >= terms.most_tries:
        batch = batches.apply(batch, dict.fromkeys(unsent, Outcome.EXHAUSTED))
        if batch.n_open == 0:
            return ended(tx, replace(batch, tries=tries), now)
        tries = 0  # the batch's other recipients have had no try of their own yet
    due_at = now + timedelta(seconds=report.wait_s or 0.0)
    return batches.waiting(replace(batch, tries=tries), due_at, report.reason or None)
