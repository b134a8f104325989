"""Sends as publishers write them, and a store that takes them: lanes, a sender, and a template that was pushed."""

import json
from datetime import datetime
from typing import Any

from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, DeadLetterRow, IdempotencyKey, OutboundMessage, Recipient
from sendonce.config import Config, apply_config
from sendonce.control.pushed_templates import push_template
from sendonce.control.triggers import Taken, apply_triggers, read_or_bad
from sendonce.rendering.catalogue import TemplateSource, source_of
from sendonce.stores.base import ANY_SHARD, Store

STREAM_ID = "stream.otp.critical.2026-01-15"
FILES = {
    "template.yaml": (
        "priority: critical\nvariables:\n  code: {type: text, required: true, example: '123456'}\n"
        "locales: [en]\ndefault_locale: en\ndefault_timezone: Europe/Paris\n"
    ),
    "subject.j2": "Your code",
    "body.txt.j2": "{{ recipient.id }}: {{ code }}\n",
    "body.html.j2": "<p>{{ code }}</p>\n",
}


def template(name: str = "otp", **files: str) -> TemplateSource:
    """Other files by their names, with `_` for each dot of the name: `body_txt_j2`."""
    return source_of(name, {**FILES, **{path.replace("_", "."): text for path, text in files.items()}})


def ready(store: Store, *, config: dict[str, Any] | None = None) -> None:
    """The default lanes and sender, an address to send from, and the template `otp`."""
    settings = {
        "from": "Shop <codes@shop.example>",
        "senders": {"outbox": {"adapter": "outbox", "path": "outbox"}},
        **(config or {}),
    }
    apply_config(store, Config.model_validate(settings), "test")
    push_template(store, template(), "test")


def to(number: int | str, **more: Any) -> dict[str, Any]:
    return {"recipient_id": f"u{number}", "email": f"u{number}@one.example", "variables": {"code": "424242"}, **more}


def body(key: str, recipients: list[dict[str, Any]] | None = None, **more: Any) -> bytes:
    """A message body; a field that is None is left out."""
    value = {
        "v": 1,
        "type": "send",
        "idempotency_key": key,
        "template": "otp",
        "priority": "critical",
        "recipients": [to(1)] if recipients is None else recipients,
        **more,
    }
    return json.dumps({name: field for name, field in value.items() if field is not None}).encode()


def take(store: Store, *bodies: bytes, published_at: datetime | None = None) -> list[Taken]:
    return apply_triggers(store, [read_or_bad(one, published_at) for one in bodies], "trigger")


def take_one(store: Store, one: bytes, **more: Any) -> Taken:
    (taken,) = take(store, one, **more)
    return taken


def rows(store: Store, kind: type, *prefix: Any) -> list[Any]:
    return store.read(lambda reader: reader.scan(kind, *prefix))


def batches(store: Store, stream: str = STREAM_ID) -> list[Batch]:
    return rows(store, Batch, ANY_SHARD, stream)


def only_batch(store: Store, stream: str = STREAM_ID) -> Batch:
    (batch,) = batches(store, stream)
    return batch


def batch_of(store: Store, key: str) -> Batch:
    (found,) = [batch for batch in rows(store, Batch) if batch.idempotency_key == key]
    return found


def people(store: Store, batch: Batch) -> list[Recipient]:
    return rows(store, Recipient, batch.shard, batch.campaign_id, batch.batch_no)


def reasons(batch: Batch) -> list[str]:
    """Reason, or kind where there is none, by ordinal."""
    return [Outcome(code).reason or Outcome(code).kind for code in batch.outcomes]


def stream(store: Store, campaign_id: str = STREAM_ID) -> Campaign:
    (row,) = rows(store, Campaign, campaign_id)
    return row


def whole(store: Store) -> dict[str, list[Any]]:
    """Everything that taking sends writes."""
    return {
        kind.__name__: rows(store, kind)
        for kind in (Campaign, Batch, Recipient, IdempotencyKey, OutboundMessage, DeadLetterRow)
    }
