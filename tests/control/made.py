"""Sealed campaigns written straight into a store, and outcomes for their batches, without rendering or sending."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from schemas.ids import address_key, shard_of
from schemas.ordinals import pack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign, Recipient
from sendonce.config import apply_config, load_config
from sendonce.delivery import batches
from sendonce.stores.base import Store, Tx
from sendonce.stores.opening import store_key


def seal(store: Store, campaign_id: str, sizes: list[int], *, state: str = "ready", priority: str = "bulk") -> Campaign:
    """A sealed campaign with one batch for each size; recipients are `1`, `2`, … in order. Lanes are the defaults."""
    apply_config(store, load_config(None, {}), "test")
    key = store_key(store)

    def work(tx: Tx) -> Campaign:
        now = tx.now()
        campaign = Campaign(
            campaign_id=campaign_id,
            kind="campaign",
            state=state,
            priority=priority,
            sender="outbox",
            from_address="Shop <news@shop.example>",
            template="newsletter",
            template_hash="0" * 64,
            options="{}",
            snapshot_hash="",
            recipients=sum(sizes),
            batches=len(sizes),
            created_at=now,
            created_by="test",
            changed_at=now,
            changed_by="test",
            sealed_at=now,
            started_at=now if state == "running" else None,
        )
        tx.insert(campaign)
        number = 0
        for batch_no, size in enumerate(sizes):
            shard = shard_of(campaign_id, batch_no)
            outcomes = bytes(size)
            tx.insert(
                Batch(shard, campaign_id, batch_no, size, "UTC", "pending", "pending", now, outcomes, n_open=size)
            )
            for ordinal in range(size):
                number += 1
                email = f"u{number}@one.example"
                tx.insert(
                    Recipient(
                        shard,
                        campaign_id,
                        batch_no,
                        ordinal,
                        str(number),
                        email,
                        address_key(key, email),
                        "en",
                        "UTC",
                        "{}",
                    )
                )
        return campaign

    return store.transact(work, tag="seal")


def outcomes(
    store: Store, campaign_id: str, batch_no: int, changes: Mapping[int, Outcome], state: str | None = None
) -> Batch:
    """Give ordinals of a batch their outcomes. Without `state`: done when nothing is open, else as it was."""

    def work(tx: Tx) -> Batch:
        batch = tx.get(Batch, shard_of(campaign_id, batch_no), campaign_id, batch_no)
        assert batch is not None
        after = batches.apply(batch, changes)
        if state is not None:
            after = replace(after, state=state, open_state=None if state in batches.FINAL else state)
            if state in (batches.IN_DOUBT, batches.HELD):
                after = doubted(after, tx.now())
        elif after.n_open + after.n_in_doubt == 0:
            after = batches.finished(after, tx.now())
        tx.put(after)
        return after

    return store.transact(work, tag="outcomes")


def doubted(batch: Batch, now: datetime) -> Batch:
    """The batch, with the request by which its recipients are in doubt."""
    intent = pack(batches.with_outcome(batch, Outcome.IN_DOUBT))
    return replace(
        batch, attempt_id="01KF0H41000000000000000000", intent_at=now, permit_at=now, intent_ordinals=intent,
        payload_hash="0" * 64, provider="mail", doubt_since=now,
    )  # fmt: skip


def campaign_row(store: Store, campaign_id: str) -> Campaign:
    row = store.read(lambda reader: reader.get(Campaign, campaign_id))
    assert row is not None
    return row


def batch_row(store: Store, campaign_id: str, batch_no: int) -> Batch:
    row = store.read(lambda reader: reader.get(Batch, shard_of(campaign_id, batch_no), campaign_id, batch_no))
    assert row is not None
    return row


class Clock:
    """Store time that only the test moves."""

    def __init__(self, at: datetime) -> None:
        self.at = at

    def __call__(self) -> datetime:
        return self.at
