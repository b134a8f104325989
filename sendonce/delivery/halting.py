"""Stopping a whole campaign for a fault that every recipient would share, so that it can be mended and resumed."""

from dataclasses import replace

from schemas.tables import Campaign
from sendonce.stores.base import Store, Tx


def halt_campaign(store: Store, campaign_id: str, reason: str) -> bool:
    """Running -> halted, with the reason that `status` shows; False when the campaign was not running.

    `resume` makes it run again. Nothing is refused: a fault of ours is nobody's outcome.
    """

    def work(tx: Tx) -> bool:
        campaign = tx.get(Campaign, campaign_id)
        if campaign is None or campaign.state != "running":
            return False
        tx.put(replace(campaign, state="halted", state_reason=reason, changed_at=tx.now(), changed_by="system"))
        return True

    return store.transact(work, tag="halt")
