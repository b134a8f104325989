"""When a campaign is over: every recipient of its snapshot has a final outcome, counted in the store, and only then.

That no work was found at the moment is no reason: a batch may wait for its time, a permit or a person.
"""

from dataclasses import replace
from typing import Final

from schemas.tables import Campaign
from sendonce.control.campaigns import CANCELLED, CANCELLING, COMPLETED, HALTED, PAUSED, RUNNING
from sendonce.control.progress import count, progress_of
from sendonce.stores.base import Reader, Store, Tx

# A paused or halted campaign whose last requests in flight settled everything has nothing left to resume.
_ENDS: Final = {RUNNING: COMPLETED, PAUSED: COMPLETED, HALTED: COMPLETED, CANCELLING: CANCELLED}


def settle_campaign(store: Store, campaign_id: str) -> str:
    """Close the campaign if all its recipients have final outcomes; returns its state afterwards (empty: unknown).

    running, paused, halted → completed; cancelling → cancelled. Anything else, and a stream (which gets new work any
    time) unless it is cancelled, stays as it is. Safe to call at any time and from several places at once.
    """

    def ends(reader: Reader) -> tuple[Campaign | None, bool]:
        campaign = reader.get(Campaign, campaign_id)
        if campaign is None or campaign.state not in _ENDS:
            return campaign, False
        if campaign.kind == "stream" and campaign.state != CANCELLING:
            return campaign, False
        return campaign, _all_final(reader, campaign)

    # A first look without locks: most calls find work left, and a sum over all batches should not block claims.
    campaign, ended = store.read(ends)
    if not ended:
        return campaign.state if campaign else ""

    def close(tx: Tx) -> str:
        campaign, ended = ends(tx)
        if campaign is None or not ended:
            return campaign.state if campaign else ""
        now = tx.now()
        state = _ENDS[campaign.state]
        # The last sums are written with the end itself: once a campaign is over, no sweeper looks at it again.
        tx.put(progress_of(tx, campaign, now))
        tx.put(replace(campaign, state=state, changed_at=now, changed_by="system", finished_at=now, state_reason=None))
        return state

    return store.transact(close, tag="settle_campaign")


def _all_final(reader: Reader, campaign: Campaign) -> bool:
    counts = count(reader, campaign.campaign_id)
    whole = campaign.kind == "stream" or (
        campaign.sealed_at is not None
        and counts.recipients == campaign.recipients
        and sum(counts.batches.values()) == campaign.batches
    )
    closed = counts.batches["done"] + counts.batches["cancelled"] == sum(counts.batches.values())
    return whole and closed and counts.unsettled == 0
