"""Rows for tests of a store: one of any table, with values that are easy to lose on the way."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

from schemas import ids
from schemas.tables import TABLES, Batch, Campaign, Column, Decision, OutboundMessage, Recipient, Suppression

NOON = datetime(2026, 1, 15, 12, 0, 0, 123456, tzinfo=UTC)
AWKWARD = "Zoë 😀 '\"\x00\n%s"


def batch(batch_no: int, campaign_id: str = "spring", **changes: Any) -> Batch:
    fields: dict[str, Any] = {
        "shard": ids.shard_of(campaign_id, batch_no),
        "campaign_id": campaign_id,
        "batch_no": batch_no,
        "size": 3,
        "timezone": "UTC",
        "state": "pending",
        "open_state": "pending",
        "due_at": NOON,
        "outcomes": bytes(3),
        "n_open": 3,
    }
    return Batch(**fields | changes)


def recipient(batch_no: int, ordinal: int, campaign_id: str = "spring", **changes: Any) -> Recipient:
    fields: dict[str, Any] = {
        "shard": ids.shard_of(campaign_id, batch_no),
        "campaign_id": campaign_id,
        "batch_no": batch_no,
        "ordinal": ordinal,
        "recipient_id": f"r-{batch_no}-{ordinal}",
        "email": f"u{ordinal}@one.example",
        "address_key": "0" * 32,
        "locale": "en",
        "timezone": "UTC",
        "template_variables": "{}",
    }
    return Recipient(**fields | changes)


def message(number: int, campaign_id: str = "spring", **changes: Any) -> OutboundMessage:
    fields: dict[str, Any] = {
        "message_id": f"m{number:04d}",
        "campaign_id": campaign_id,
        "batch_no": 0,
        "ordinal": number,
        "outcome": 2,
        "at": NOON,
    }
    return OutboundMessage(**fields | changes)


def campaign(campaign_id: str = "spring", state: str = "running", **changes: Any) -> Campaign:
    words = dict.fromkeys(("sender", "from_address", "template", "template_hash", "snapshot_hash", "created_by"), "x")
    fields: dict[str, Any] = words | {
        "campaign_id": campaign_id,
        "kind": "campaign",
        "state": state,
        "priority": "bulk",
        "options": "{}",
        "recipients": 3,
        "batches": 1,
        "created_at": NOON,
        "changed_at": NOON,
        "changed_by": "x",
    }
    return Campaign(**fields | changes)


def decision(number: int, **changes: Any) -> Decision:
    fields: dict[str, Any] = {
        "decision_id": f"d{number}",
        "campaign_id": "spring",
        "kind": "resend",
        "at": NOON + timedelta(seconds=number),
        "by": "x",
    }
    return Decision(**fields | changes)


def suppression(address_key: str, list_name: str) -> Suppression:
    return Suppression(address_key, list_name, 16, NOON, "x", "test")


def row_of(kind: type, number: int, *, nulls: bool = False) -> Any:
    """A row of any table; every nullable column is None with `nulls`, and has a value without."""
    return kind(*(None if nulls and column.nullable else _value(column, number) for column in TABLES[kind].columns))


def _value(column: Column, number: int) -> Any:
    if column.type is str:
        return f"{AWKWARD}{number}"
    if column.type is bytes:
        return bytes([0, 255, number])
    if column.type is datetime:
        hanoi = timezone(timedelta(hours=7))
        return (NOON + timedelta(days=number, microseconds=1)).astimezone(hanoi)
    return {int: number, float: number + 0.1, bool: number % 2 == 1}[column.type]
