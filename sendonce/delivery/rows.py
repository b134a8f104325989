"""The rows that a step of the protocol leaves besides the batch's own: finished requests and final messages."""

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Final

from schemas.ids import message_id
from schemas.ordinals import pack, unpack
from schemas.outcomes import Outcome
from schemas.tables import Attempt, Batch, OutboundMessage, Recipient
from sendonce.control.finals import sends_final
from sendonce.delivery import batches
from sendonce.delivery.terms import Report
from sendonce.stores.base import Reader, Tx


def names_of(reader: Reader, key: bytes, batch: Batch, ordinals: Collection[int] | None = None) -> dict[int, str]:
    """The message ids of a batch, or of some of its recipients, by ordinal. `key` is the store's own."""
    place = (batch.shard, batch.campaign_id, batch.batch_no)
    if ordinals is None:
        people = reader.scan(Recipient, *place)
    else:
        people = reader.get_many(Recipient, [(*place, ordinal) for ordinal in ordinals])
    return {person.ordinal: message_id(key, batch.campaign_id, person.recipient_id) for person in people}


def attempt_row(
    batch: Batch, worker_id: str, report: Report, now: datetime, *, evidence: bool, earlier: Attempt | None = None
) -> Attempt:
    """The row of a finished request. earlier: what its first try left, if this one repeated those in doubt by it."""
    outcomes: dict[int, int] = dict(report.outcomes)
    if earlier is not None and earlier.outcomes is not None:
        outcomes = {**dict(zip(unpack(earlier.ordinals), earlier.outcomes, strict=True)), **outcomes}
    ordinals = sorted(outcomes)
    return Attempt(
        shard=batch.shard,
        campaign_id=batch.campaign_id,
        batch_no=batch.batch_no,
        attempt_id=report.attempt_id,
        ordinals=pack(ordinals),
        token=batch.token,
        worker_id=worker_id,
        provider=batch.provider or "",
        payload_hash=batch.payload_hash or "",
        verdict=report.verdict,
        started_at=batch.intent_at or now,
        finished_at=now,
        evidence=evidence,
        reason=report.reason or None,
        provider_ref=report.provider_ref,
        outcomes=bytes(outcomes[ordinal] for ordinal in ordinals),
    )


# Attempt, provider and the provider's reference of what no request made final.
_NOBODY: Final[tuple[str | None, str | None, str | None]] = (None, None, None)


def write_rows(
    tx: Tx,
    outbound_log: str,
    before: Batch,
    after: Batch,
    names: Mapping[int, str],
    report: Report | None,
    now: datetime,
    details: Mapping[int, str] | None = None,
) -> None:
    """One row per message that became final: the same row again if the step runs again. Of a send, `sends_final`.

    details: why somebody was refused, by ordinal; names templates and variables, never a value.
    """
    reported = report.outcomes if report is not None else {}
    by_report = (report.attempt_id, before.provider, report.provider_ref) if report is not None else _NOBODY
    by_intent = (before.attempt_id, before.provider, before.provider_ref)
    campaign_id, batch_no, accepted = after.campaign_id, after.batch_no, (Outcome.ACCEPTED, Outcome.ASSUMED)
    rows = []
    finals = batches.newly_final(before, after)
    for ordinal, outcome in finals.items():
        if outbound_log == "packed" and outcome is Outcome.ACCEPTED:
            continue
        source, detail = _NOBODY, None
        if ordinal in reported:
            source = by_report
        elif outcome in accepted:
            source = by_intent
        elif details and outcome.kind == "refused" and ordinal in details:
            detail = details[ordinal] or None
        # There are a thousand of them, and the store's lock is held.
        rows.append(OutboundMessage(names[ordinal], campaign_id, batch_no, ordinal, int(outcome), now, *source, detail))
    tx.put(*rows)
    sends_final(tx, after, finals, names, now)
