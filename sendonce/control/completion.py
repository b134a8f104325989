"""When a campaign is over: every recipient of its snapshot has a final outcome, counted in the store, and only then.

That no work was found at the moment is no reason: a batch may wait for its time, a permit or a person.
"""

from dataclasses import replace
from typing import Final

from schemas.tables import Batch, Campaign, Progress
from sendonce.control.campaigns import CANCELLED, CANCELLING, COMPLETED, HALTED, PAUSED, RUNNING
from sendonce.control.progress import Counts, count, progress_of
from sendonce.control.schedule import starts_later
from sendonce.control.stream_names import STREAM, day_ends
from sendonce.stores.base import ANY_SHARD, Reader, Store, Tx

# A paused or halted campaign whose last requests in flight settled everything has nothing left to resume.
_ENDS: Final = {RUNNING: COMPLETED, PAUSED: COMPLETED, HALTED: COMPLETED, CANCELLING: CANCELLED}


def settle_campaign(store: Store, campaign_id: str) -> str:
    """Close the campaign if all its recipients have final outcomes; returns its state afterwards (empty: unknown).

    running, paused, halted → completed; cancelling → cancelled. Anything else stays as it is, and so does a stream
    until its day is over, unless it is cancelled. Safe to call at any time and from several places at once.
    """

    def look(reader: Reader) -> tuple[Campaign | None, Counts | None]:
        campaign = reader.get(Campaign, campaign_id)
        if campaign is None or not _may_end(reader, campaign):
            return campaign, None
        counts = count(reader, campaign_id)
        return campaign, counts if _all_final(campaign, counts) else None

    # A first look without locks: most calls find work left, and a sum over all batches should not block claims.
    campaign, counts = store.read(look)
    if counts is None:
        return campaign.state if campaign else ""

    def close(tx: Tx) -> str:
        campaign = tx.get(Campaign, campaign_id)
        if campaign is None or not _may_end(tx, campaign):
            return campaign.state if campaign else ""
        # Counted again, also of a day that is over: a send that was being taken at midnight may have come since.
        last = count(tx, campaign_id)
        if not _all_final(campaign, last):
            return campaign.state
        now = tx.now()
        state = _ENDS[campaign.state]
        # The last sums are written with the end itself: once a campaign is over, no sweeper looks at it again.
        tx.put(progress_of(tx, campaign, last, tx.get(Progress, campaign_id), now))
        ended = replace(campaign, state=state, changed_at=now, changed_by="system", finished_at=now, state_reason=None)
        if campaign.kind == STREAM:
            ended = replace(ended, recipients=last.recipients, batches=sum(last.batches.values()))
        tx.put(ended)
        return state

    return store.transact(close, tag="settle_campaign")


def _may_end(reader: Reader, campaign: Campaign) -> bool:
    """Whether a look at every batch is worth it: it has begun, nothing is open in the index of what is, and no send can

    come.
    """
    if campaign.state not in _ENDS or starts_later(campaign, reader.now()) is not None:
        return False
    if campaign.kind == STREAM and campaign.state != CANCELLING and reader.now() < day_ends(campaign):
        return False
    return not reader.scan(Batch, ANY_SHARD, campaign.campaign_id, index="batches_open", limit=1)


def _all_final(campaign: Campaign, counts: Counts) -> bool:
    whole = campaign.kind == STREAM or (
        campaign.sealed_at is not None
        and counts.recipients == campaign.recipients
        and sum(counts.batches.values()) == campaign.batches
    )
    closed = counts.batches["done"] + counts.batches["cancelled"] == sum(counts.batches.values())
    return whole and closed and counts.unsettled == 0
