"""Requests whose fate is not known: which there are. Deciding them is `delivery.resolver.decide`."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Optional, Union

from schemas.ids import shard_of
from schemas.ordinals import unpack
from schemas.outcomes import Outcome
from schemas.tables import AsideDoubt, Batch, Campaign
from sendonce.control.campaigns import ENDED
from sendonce.control.faults import UnknownCampaign
from sendonce.moments import utc_text_or_none
from sendonce.stores.base import ANY_SHARD, Reader, Store

STATES: Final = ("in_doubt", "held")
# The kind of decision row that proof leaves, and who is written under those of a lane's policy.
EVIDENCE: Final = "evidence"
POLICY: Final = "policy"


@dataclass(frozen=True)
class Doubt:
    """One request in doubt. row: its batch, or what was put beside the batch. state: `held` if it waits for a person.

    recipients: those in doubt by it. open: of its batch, who were in no such request. intent_at, permit_at: when it
    was first intended, and when its latest permit was granted. round: of its batch.
    """

    campaign_id: str
    campaign_state: str
    batch_no: int
    attempt_id: str
    state: str
    ordinals: tuple[int, ...]
    open: int
    round: int
    since: Optional[datetime]
    row: Union[Batch, AsideDoubt]

    @property
    def held(self) -> bool:
        return self.state == "held"

    @property
    def recipients(self) -> int:
        return len(self.ordinals)

    @property
    def aside(self) -> bool:
        return isinstance(self.row, AsideDoubt)

    @property
    def shard(self) -> int:
        return self.row.shard

    @property
    def provider(self) -> Optional[str]:
        return self.row.provider

    @property
    def provider_ref(self) -> Optional[str]:
        return self.row.provider_ref

    @property
    def intent_at(self) -> Optional[datetime]:
        return self.row.intent_at

    @property
    def permit_at(self) -> Optional[datetime]:
        return self.row.permit_at

    @property
    def wait_reason(self) -> Optional[str]:
        return self.row.wait_reason

    def as_json(self) -> dict[str, Any]:
        return {
            "campaign": self.campaign_id,
            "batch": self.batch_no,
            "state": self.state,
            "recipients": self.recipients,
            "open": self.open,
            "since": utc_text_or_none(self.since),
            "attempt_id": self.attempt_id,
            "provider": self.provider,
            "provider_ref": self.provider_ref,
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
        return [doubt for campaign in campaigns for doubt in doubts_of(reader, campaign)]

    return sorted(
        store.read(look),
        key=lambda doubt: (doubt.since is None, doubt.since, doubt.campaign_id, doubt.batch_no, doubt.attempt_id),
    )


def doubts_of(reader: Reader, campaign: Campaign, states: Collection[str] = STATES) -> list[Doubt]:
    """The doubts of one campaign in these states, in batches and beside them."""
    name = campaign.campaign_id
    found = [
        doubt_of(batch, campaign)
        for state in STATES
        if state in states
        for batch in reader.scan(Batch, ANY_SHARD, name, state, index="batches_open")
    ]
    beside = [row for row in reader.scan(AsideDoubt, ANY_SHARD, name) if row.state in states]
    keys = {(shard_of(name, row.batch_no), name, row.batch_no) for row in beside}
    owners = {batch.batch_no: batch for batch in reader.get_many(Batch, sorted(keys))} if keys else {}
    return found + [_beside(row, owners[row.batch_no], campaign) for row in beside]


def doubt_of(batch: Batch, campaign: Campaign) -> Doubt:
    """The doubt that a batch in doubt, or held, has itself."""
    return _doubt(batch, campaign, batch, batch.attempt_id or "", batch.state, batch.intent_ordinals or b"")


def _beside(row: AsideDoubt, batch: Batch, campaign: Campaign) -> Doubt:
    return _doubt(batch, campaign, row, row.attempt_id, row.state, row.ordinals)


def _doubt(
    batch: Batch, campaign: Campaign, row: Union[Batch, AsideDoubt], attempt_id: str, state: str, intent: bytes
) -> Doubt:
    doubted = tuple(ordinal for ordinal in unpack(intent) if batch.outcomes[ordinal] == Outcome.IN_DOUBT)
    return Doubt(
        campaign_id=batch.campaign_id,
        campaign_state=campaign.state,
        batch_no=batch.batch_no,
        attempt_id=attempt_id,
        state=state,
        ordinals=doubted,
        open=batch.n_open,
        round=batch.round,
        since=row.doubt_since,
        row=row,
    )
