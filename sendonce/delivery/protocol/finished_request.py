"""What a finished request means for its recipients and for the permits that it took."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Decision, Limit
from sendonce.delivery import batches, limits
from sendonce.delivery.protocol.aside import ended
from sendonce.delivery.terms import Report, Terms
from sendonce.stores.base import Tx

_SAYS_NOTHING_CAME: Final = ("refused", "skipped", "suppressed", "cancelled")


def not_both(tx: Tx, batch: Batch, report: Report) -> Report:
    """A refusal says nothing of an earlier request that a decision had sent again: it may have been accepted."""
    changed = maybe_reached(tx, batch, report.outcomes)
    return replace(report, outcomes={**report.outcomes, **changed}) if changed else report


def maybe_reached(tx: Tx, batch: Batch, outcomes: Mapping[int, Outcome]) -> dict[int, Outcome]:
    """Those of these outcomes that must not stand, and what stands instead.

    Whoever was in a request that a decision sent again is on record as assumed, never as refused, suppressed or
    cancelled: nobody can say that they got nothing.
    """
    ended = [ordinal for ordinal, outcome in outcomes.items() if outcome.kind in _SAYS_NOTHING_CAME]
    # Every claim and every settled doubt raises the token: under the first one nothing was sent again.
    if not ended or batch.token <= 1:
        return {}
    decisions = tx.scan(Decision, batch.campaign_id, index="decisions_by_campaign")
    again = {
        ordinal
        for decision in decisions
        if decision.kind == "resend" and decision.batch_no == batch.batch_no
        for ordinal in unpack(decision.ordinals or b"")
    }
    return {ordinal: Outcome.ASSUMED for ordinal in ended if ordinal in again}


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
        given_up = dict.fromkeys(unsent, Outcome.EXHAUSTED)
        batch = batches.apply(batch, {**given_up, **maybe_reached(tx, batch, given_up)})
        if batch.n_open == 0:
            return ended(tx, replace(batch, tries=tries), now)
        tries = 0  # the batch's other recipients have had no try of their own yet
    due_at = now + timedelta(seconds=report.wait_s or 0.0)
    return batches.waiting(replace(batch, tries=tries), due_at, report.reason or None)
