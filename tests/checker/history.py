"""I4, I8, I9 and I10: what must not run backwards, overstay, or begin too late."""

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import pairwise

from schemas import ordinals
from schemas.outcomes import KIND_OF, REASON_OF, Outcome
from schemas.tables import Batch, Decision, OutboundMessage, Suppression
from tests.checker.case import Case, Place, Violation
from tests.evidence import Records

_REFUSALS = {REASON_OF[outcome] for outcome in Outcome if KIND_OF[outcome] == "refused"}


def tokens_rise(case: Case) -> Iterator[Violation]:
    """I4 as far as one moment shows it: attempts in the order in which they were written down, and the batch last.

    Evidence comes from owners that were fenced: it is written under the token that they had.
    """
    for (campaign_id, batch_no), attempts in case.attempts.items():
        where = f"{campaign_id} batch {batch_no}"
        written = sorted((row for row in attempts if not row.evidence), key=lambda row: row.finished_at)
        for before, after in pairwise(written):
            if after.token < before.token and after.finished_at > before.finished_at:
                yield Violation(
                    "I4", where, f"attempt {after.attempt_id} has token {after.token}, an earlier one {before.token}"
                )
        batch = case.batches.get((campaign_id, batch_no))
        highest = max(attempt.token for attempt in attempts)
        if batch and highest > batch.token:
            yield Violation("I4", where, f"token {batch.token}, but an attempt had {highest}")


def nothing_past_its_lease(case: Case, now: datetime) -> Iterator[Violation]:
    """I8."""
    for (campaign_id, batch_no), batch in case.batches.items():
        if batch.state != "sending":
            continue
        renewed = batch.heartbeat_at or batch.claimed_at
        where = f"{campaign_id} batch {batch_no}"
        if renewed is None or batch.lease_s is None:
            yield Violation("I8", where, "sending without a lease")
        elif renewed + timedelta(seconds=batch.lease_s) < now:
            yield Violation("I8", where, f"sending, though its lease of {batch.lease_s:g} s began at {renewed}")


def nothing_after_a_stop(case: Case) -> Iterator[Violation]:
    """I9: by the campaign's present pause, by the decision to cancel, and by suppressions of an address everywhere."""
    suppressed_since = {row.address_key: row.created_at for row in case.records.of(Suppression) if row.list_name == "*"}
    stopped_since = _stops(case)
    for key, attempts in case.attempts.items():
        for attempt in attempts:
            began = case.began(attempt)
            where = f"{key[0]} batch {key[1]} attempt {attempt.attempt_id}"
            if key[0] in stopped_since and began > stopped_since[key[0]]:
                yield Violation("I9", where, f"began after its campaign was stopped at {stopped_since[key[0]]}")
            for ordinal in ordinals.unpack(attempt.ordinals):
                recipient = case.recipient.get((*key, ordinal))
                since = suppressed_since.get(recipient.address_key) if recipient else None
                if since and began > since:
                    yield Violation("I9", f"{where} ordinal {ordinal}", "began after the address was suppressed")


def _stops(case: Case) -> dict[str, datetime]:
    stopped_since = {
        campaign_id: campaign.changed_at
        for campaign_id, campaign in case.campaigns.items()
        if campaign.state in ("paused", "cancelling", "cancelled")
    }
    for campaign_id, decisions in case.decisions.items():
        for decision in decisions:
            if decision.kind == "cancel" and decision.batch_no is None:
                stopped_since[campaign_id] = min(decision.at, stopped_since.get(campaign_id, decision.at))
    return stopped_since


def retries_are_rounds(case: Case) -> Iterator[Violation]:
    """I10 as far as one moment shows it: whoever a retry opened had been refused, once a round, and its batch knows."""
    for campaign_id, decisions in case.decisions.items():
        opened: set[tuple[int, int, int]] = set()
        for decision in decisions:
            if decision.kind != "retry" or campaign_id not in case.campaigns:
                continue
            said = json.loads(decision.reason or "{}")
            batch = case.batches.get((campaign_id, decision.batch_no if decision.batch_no is not None else -1))
            where = f"{campaign_id} batch {decision.batch_no} round {said.get('round')}"
            if batch is None or batch.round < said["round"]:
                yield Violation("I10", where, "a retry that its batch knows nothing of")
                continue
            if said["reason"] not in _REFUSALS:
                yield Violation("I10", where, f"opened again though {said['reason']} is no refusal")
            places = {(batch.batch_no, said["round"], ordinal) for ordinal in ordinals.unpack(decision.ordinals or b"")}
            if not places or places & opened:
                yield Violation("I10", where, "nobody, or somebody twice, opened in one round")
            opened |= places


def changes(before: Records, after: Records) -> list[Violation]:
    """What two moments of one store show together: I4 (tokens, plans and rounds only rise) and I10 (final stays)."""
    later = {(row.campaign_id, row.batch_no): row for row in after.of(Batch)}
    known = {decision.decision_id for decision in before.of(Decision)}
    retried = _retried([decision for decision in after.of(Decision) if decision.decision_id not in known])
    found: list[Violation] = []
    for batch in before.of(Batch):
        where = f"{batch.campaign_id} batch {batch.batch_no}"
        now = later.get((batch.campaign_id, batch.batch_no))
        found += (
            [Violation("I10", where, "the batch is gone")]
            if now is None
            else _batch_changes(where, batch, now, retried)
        )
    messages = {row.message_id: row for row in after.of(OutboundMessage)}
    for row in before.of(OutboundMessage):
        same = messages.get(row.message_id)
        place = (row.campaign_id, row.batch_no, row.ordinal)
        reopened = place in retried and KIND_OF.get(row.outcome) == "refused"
        if (same is None or same.outcome != row.outcome) and not reopened:
            found.append(
                Violation(
                    "I10",
                    f"{row.campaign_id} message {row.message_id}",
                    f"its row said {row.outcome}, and now {same.outcome if same else 'is gone'}",
                )
            )
    return found


def _retried(decisions: list[Decision]) -> set[Place]:
    return {
        (decision.campaign_id, decision.batch_no if decision.batch_no is not None else -1, ordinal)
        for decision in decisions
        if decision.kind == "retry"
        for ordinal in ordinals.unpack(decision.ordinals or b"")
    }


def _batch_changes(where: str, batch: Batch, now: Batch, retried: set[Place]) -> Iterator[Violation]:
    for name in ("token", "plan_no", "round"):
        if getattr(now, name) < getattr(batch, name):
            yield Violation("I4", where, f"{name} fell from {getattr(batch, name)} to {getattr(now, name)}")
    for ordinal, (was, is_now) in enumerate(zip(batch.outcomes, now.outcomes, strict=False)):
        refused = KIND_OF.get(was) == "refused"
        reopened = refused and (batch.campaign_id, batch.batch_no, ordinal) in retried and now.round > 0
        if was > Outcome.IN_DOUBT and was != is_now and not reopened:
            yield Violation(
                "I10",
                f"{where} ordinal {ordinal}",
                f"was {KIND_OF.get(was, was)}, is now {KIND_OF.get(is_now, is_now)}",
            )
