"""A cancel that comes before its campaign is kept: whoever starts the campaign later cancels it instead.

Triggers arrive in any order, and a campaign may be loaded after somebody called it off. Only triggers are kept: a
person who cancels a campaign that is not there has mistyped its name and is told so. What is kept never ends by itself.
"""

from dataclasses import replace
from hashlib import blake2b
from typing import Final, Optional

import orjson

from schemas.tables import Campaign, TriggerRow
from sendonce.stores.base import Reader, Store, Tx

_WAITING: Final = "waiting"


def keep_early_cancel(store: Store, campaign_id: str, seq: Optional[int]) -> Optional[bool]:
    """Keep a cancel for a campaign that the store does not have: True if it is new, False if one is kept already.

    None, and nothing is kept, if the campaign has come meanwhile: it can be cancelled itself. One transaction, so that
    a cancel beside a load is either kept or meets the campaign.
    """

    def work(tx: Tx) -> Optional[bool]:
        if tx.get(Campaign, campaign_id) is not None:
            return None
        if tx.get(TriggerRow, _row_id(campaign_id)) is not None:
            return False
        body = {"v": 1, "type": "cancel", "campaign_id": campaign_id, **({} if seq is None else {"seq": seq})}
        tx.put(TriggerRow(_row_id(campaign_id), tx.now(), orjson.dumps(body), "{}", _WAITING))
        return True

    return store.transact(work, tag="keep_cancel")


def take_early_cancel(tx: Tx, campaign_id: str) -> bool:
    """Whether a cancel was kept for a campaign; it counts as applied from this transaction on."""
    row = tx.get(TriggerRow, _row_id(campaign_id))
    if row is None or row.open_state != _WAITING:
        return False
    tx.put(replace(row, open_state=None, result="cancelled", applied_at=tx.now()))
    return True


def called_off(reader: Reader, campaign_id: str) -> bool:
    """Whether a cancel waits for a campaign: whoever starts it cancels it."""
    row = reader.get(TriggerRow, _row_id(campaign_id))
    return row is not None and row.open_state == _WAITING


def _row_id(campaign_id: str) -> str:
    """One row for each campaign, however often its cancel comes."""
    return blake2b(f"early cancel\x00{campaign_id}".encode(), digest_size=16).hexdigest()
