"""A small installation on a real store, with the real graph and the outbox behind it."""

import email.policy
import mailbox
from email.message import EmailMessage
from email.parser import BytesParser
from pathlib import Path
from typing import Any

import orjson

from pipelines.local import RunReport, run_bounded
from schemas.ids import address_key, shard_of
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, DeadLetterRow, Recipient
from sendonce.config import Config, apply_config
from sendonce.rendering.catalogue import source_of, to_row
from sendonce.stores.base import ANY_SHARD, Tx
from sendonce.stores.opening import init_store, store_key

TEMPLATE = {
    "template.yaml": (
        "priority: bulk\nvariables:\n  name: {type: text, required: true, example: Ann}\n"
        "locales: [en]\ndefault_locale: en\n"
    ),
    "subject.j2": "Hello {{ name }}",
    "body.txt.j2": (
        "Dear {{ name }},\n{% if recipient.locale == 'fr' %}Bonjour.{% else %}Good day.{% endif %}\n"
        "{{ unsubscribe_url }}\n"
    ),
    "body.html.j2": "<p>Dear {{ name }}</p>\n",
}


class Shop:
    """Campaigns go straight into the store; `run` is the real bounded run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'store.db'}"
        self.store = init_store(self.url)
        self.key = store_key(self.store)
        self.configure()

    def configure(
        self, *, guards: dict[str, Any] | None = None, sender: dict[str, Any] | None = None, **bulk: Any
    ) -> None:
        """Apply a configuration with these settings of the bulk lane and its sender, and these besides (`guards`)."""
        outbox = {"adapter": "outbox", "path": str(self.folder / "outbox"), **(sender or {})}
        settings = {"senders": {"outbox": outbox}, "lanes": {"bulk": bulk}, **(guards or {})}
        config = Config.model_validate(settings)
        apply_config(self.store, config, "test")

    def campaign(
        self,
        campaign_id: str,
        people: list[dict[str, Any]],
        *,
        batch_size: int = 10,
        state: str = "running",
        files: dict[str, str] = TEMPLATE,
        options: dict[str, Any] | None = None,
    ) -> None:
        source = source_of("letter", files)
        slices = [people[start : start + batch_size] for start in range(0, len(people), batch_size)]

        def work(tx: Tx) -> None:
            now = tx.now()
            settled = {"unsubscribe_base_url": "https://shop.example/u", **(options or {})}
            tx.put(to_row(source, now, "test"))
            tx.insert(
                Campaign(
                    campaign_id=campaign_id,
                    kind="campaign",
                    state=state,
                    priority="bulk",
                    sender="outbox",
                    from_address="Shop <news@shop.example>",
                    template="letter",
                    template_hash=source.template_hash,
                    options=orjson.dumps(settled).decode(),
                    snapshot_hash="",
                    recipients=len(people),
                    batches=len(slices),
                    created_at=now,
                    created_by="test",
                    changed_at=now,
                    changed_by="test",
                    sealed_at=now,
                    started_at=now if state == "running" else None,
                )
            )
            for batch_no, some in enumerate(slices):
                size, shard = len(some), shard_of(campaign_id, batch_no)
                tx.insert(
                    Batch(
                        shard, campaign_id, batch_no, size, "UTC", "pending", "pending", now, bytes(size), n_open=size
                    )
                )
                tx.insert(*(self._recipient(campaign_id, batch_no, n, person) for n, person in enumerate(some)))

        self.store.transact(work, tag="test")

    def _recipient(self, campaign_id: str, batch_no: int, ordinal: int, person: dict[str, Any]) -> Recipient:
        address = person.get("email", f"{person['id']}@one.example")
        variables = orjson.dumps(person.get("variables", {"name": f"Name {person['id']}"})).decode()
        return Recipient(
            shard_of(campaign_id, batch_no),
            campaign_id,
            batch_no,
            ordinal,
            str(person["id"]),
            address,
            address_key(self.key, address),
            person.get("locale", "en"),
            "UTC",
            variables,
        )

    def run(self, **more: Any) -> RunReport:
        return run_bounded(self.url, **more)

    def state(self, campaign_id: str) -> tuple[str, str | None]:
        row = self.store.read(lambda reader: reader.get(Campaign, campaign_id))
        assert row is not None
        return row.state, row.state_reason

    def outcomes(self, campaign_id: str) -> dict[str, str]:
        """Reason, or kind where there is none, by recipient id."""
        batches = self.batches(campaign_id)
        found = {}
        for batch in batches:
            people = self.store.read(lambda reader, b=batch: reader.scan(Recipient, b.shard, b.campaign_id, b.batch_no))
            for person in people:
                outcome = Outcome(batch.outcomes[person.ordinal])
                found[person.recipient_id] = outcome.reason or outcome.kind
        return found

    def batches(self, campaign_id: str) -> list[Batch]:
        rows = self.store.read(lambda reader: reader.scan(Batch, ANY_SHARD, campaign_id))
        return sorted(rows, key=lambda batch: batch.batch_no)

    def dead_letters(self) -> list[DeadLetterRow]:
        return self.store.read(lambda reader: reader.scan(DeadLetterRow))

    def letters(self) -> list[EmailMessage]:
        """Every letter in the outbox, in the order of files and places."""
        return letters_in(self.folder / "outbox")


def letters_in(outbox: Path) -> list[EmailMessage]:
    """Every letter in an outbox, read as a mail reader would."""
    parser = BytesParser(policy=email.policy.default)
    return [
        parser.parsebytes(bytes(raw))  # type: ignore[misc]
        for path in sorted(outbox.rglob("*.mbox"))
        for raw in mailbox.mbox(path, create=False)
    ]


def people(count: int, first: int = 1) -> list[dict[str, Any]]:
    return [{"id": f"p{number:04d}"} for number in range(first, first + count)]
