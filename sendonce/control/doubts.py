"""Requests whose fate is not known: which there are. Deciding them is `delivery.resolver.decide`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Optional

from schemas.tables import Batch, Campaign
from sendonce.control.campaigns import ENDED
from sendonce.control.faults import UnknownCampaign
from sendonce.moments import utc_text_or_none
from sendonce.stores.base import ANY_SHARD, Reader, Store


@dataclass(frozen=True)
class Doubt:
    """One batch in doubt. held: it waits for a person; else a running job still looks for proof."""

    campaign_state: str
    batch: Batch

    @property
    def held(self) -> bool:
        return self.batch.state == "held"

    @property
    def since(self) -> Optional[datetime]:
        return self.batch.doubt_since

    def as_json(self) -> dict[str, Any]:
        since = self.batch.doubt_since
        return {
            "campaign": self.batch.campaign_id,
            "batch": self.batch.batch_no,
            "state": self.batch.state,
            "recipients": self.batch.n_in_doubt,
            "open": self.batch.n_open,
            "since": utc_text_or_none(since),
            "attempt_id": self.batch.attempt_id,
            "provider": self.batch.provider,
            "provider_ref": self.batch.provider_ref,
        }


def list_doubts(store: Store, campaign_id: Optional[str] = None) -> list[Doubt]:
    """Every doubt of one campaign, or of all that have not ended; oldest first. UnknownCampaign."""

    def look(reader: Reader) -> list[Doubt]:
        if campaign_id is None:
            campaigns = [row for row in reader.scan(Campaign) if row.state not in ENDED]
        else:
            found = reader.get(Campaign, campaign_id)
            if found is None:
                raise UnknownCampaign(campaign_id)
            campaigns = [found]
        return [
            Doubt(campaign.state, batch)
            for campaign in campaigns
            for state in ("in_doubt", "held")
            for batch in reader.scan(Batch, ANY_SHARD, campaign.campaign_id, state, index="batches_open")
        ]

    doubts = store.read(look)
    return sorted(
        doubts, key=lambda doubt: (doubt.since is None, doubt.since, doubt.batch.campaign_id, doubt.batch.batch_no)
    )
