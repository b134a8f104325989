"""The rows of a send that is taken: its batch, its recipients, and who is final at once. Nothing is read here."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from schemas.ids import address_key, send_recipient_id, shard_of
from schemas.outcomes import Outcome, tally
from schemas.tables import Batch, Campaign, OutboundMessage, Recipient
from sendonce.control.campaigns import CANCELLED, CANCELLING
from sendonce.control.finals import NO_ADDRESS, NO_VARIABLES
from sendonce.control.pushed_templates import Pushed
from sendonce.control.sends import Send, To


def batch_row(
    send: Send, stream: Campaign, batch_no: int, pushed: Pushed, expires_at: datetime, now: datetime
) -> Batch:
    """The send as a batch of its stream: due now, or final if it is past its end or nobody in it can be sent to."""
    outcomes = _outcomes(send, stream, expires_at, now)
    counts: dict[str, Any] = {f"n_{kind}": number for kind, number in tally(outcomes).items()}
    is_open = Outcome.OPEN in outcomes
    zones = {to.timezone or pushed.default_timezone for to in send.recipients}
    return Batch(
        shard=shard_of(stream.campaign_id, batch_no),
        campaign_id=stream.campaign_id,
        batch_no=batch_no,
        size=len(outcomes),
        timezone=zones.pop() if len(zones) == 1 else "UTC",
        state="pending" if is_open else "done",
        open_state="pending" if is_open else None,
        due_at=now,
        outcomes=outcomes,
        template_hash=pushed.template_hash,
        expires_at=expires_at,
        finished_at=None if is_open else now,
        idempotency_key=send.idempotency_key,
        **counts,
    )


def _outcomes(send: Send, stream: Campaign, expires_at: datetime, now: datetime) -> bytes:
    if expires_at <= now:
        return bytes([Outcome.EXPIRED]) * len(send.recipients)
    if stream.state in (CANCELLING, CANCELLED):
        return bytes([Outcome.CANCELLED]) * len(send.recipients)
    return bytes(to.outcome for to in send.recipients)


def people_rows(send: Send, batch: Batch, pushed: Pushed, key: bytes) -> list[Recipient]:
    """The send's part of the stream's snapshot. Of who is final already, nothing is kept that would be wiped."""
    return [_person(to, ordinal, send, batch, pushed, key) for ordinal, to in enumerate(send.recipients)]


def _person(to: To, ordinal: int, send: Send, batch: Batch, pushed: Pushed, key: bytes) -> Recipient:
    is_open = batch.outcomes[ordinal] == Outcome.OPEN
    return Recipient(
        shard=batch.shard,
        campaign_id=batch.campaign_id,
        batch_no=batch.batch_no,
        ordinal=ordinal,
        recipient_id=send_recipient_id(to.recipient_id, send.key_hash),
        email=to.email if is_open else NO_ADDRESS,
        address_key=address_key(key, to.key_form) if to.key_form else "",
        locale=to.locale or pushed.default_locale,
        timezone=to.timezone or pushed.default_timezone,
        template_variables=to.variables if is_open else NO_VARIABLES,
    )


def message_rows(send: Send, batch: Batch, names: Mapping[int, str], now: datetime) -> list[OutboundMessage]:
    """A row for each who is final from the start. names: their message ids by ordinal."""
    return [
        OutboundMessage(
            message_id=name,
            campaign_id=batch.campaign_id,
            batch_no=batch.batch_no,
            ordinal=place,
            outcome=batch.outcomes[place],
            at=now,
            detail=send.recipients[place].detail if batch.outcomes[place] == send.recipients[place].outcome else None,
        )
        for place, name in names.items()
    ]


def note_of(send: Send, batch: Batch) -> str:
    """What whoever looks at the taking may want to know: defaults that were used, recipients who are final at once."""
    said = [f"{number} with {name.replace('_', ' ')}" for name, number in sorted(send.warnings.items())]
    kinds: dict[str, int] = {}
    for code in batch.outcomes:
        outcome = Outcome(code)
        if outcome.final:
            kinds[outcome.reason or outcome.kind] = kinds.get(outcome.reason or outcome.kind, 0) + 1
    return ", ".join([*said, *(f"{number} {kind}" for kind, number in kinds.items())])
