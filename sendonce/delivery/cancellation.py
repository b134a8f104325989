"""Cancelling: whoever has not been sent to gets the outcome `cancelled`; what is in flight or in doubt settles first.

From the commit that makes the campaign `cancelling`, no request of it starts. Batches that nobody owns are closed
here, by the command line and by every tick of a job; what an owner or a settled doubt hands back is closed by the next.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Optional

from schemas.tables import Batch, Campaign
from sendonce.config import lanes_in
from sendonce.control.campaigns import CANCELLED, CANCELLING, Change, begin_cancel, get_campaign
from sendonce.control.completion import settle_campaign
from sendonce.control.progress import aggregate_progress
from sendonce.delivery import batches
from sendonce.delivery.protocol import closing
from sendonce.stores.base import ANY_SHARD, Reader, Store
from sendonce.stores.opening import store_key

_AT_ONCE = 100


def cancel(
    store: Store,
    campaign_id: str,
    by: str,
    *,
    seq: Optional[int] = None,
    progress: Callable[[int], None] = lambda batches: None,
) -> Change:
    """Stop a campaign for good and close every batch that nobody owns. May be repeated, also after a kill.

    `after` is `cancelled` when every recipient has a final outcome, `cancelling` while requests in flight or doubts
    are still to settle. progress: called with the number of batches closed so far. UnknownCampaign; WrongState.
    """
    change = begin_cancel(store, campaign_id, by, seq=seq)
    if change.after != CANCELLING:
        return change
    closed = 0
    while swept := sweep_cancelled(store, campaign_id, _AT_ONCE):
        closed += swept
        progress(closed)
    state = settle_campaign(store, campaign_id)
    aggregate_progress(store, campaign_id, store.read(lambda reader: reader.now()))
    changed = change.changed or state == CANCELLED
    return replace(change, after=state, changed=changed, note="" if changed else change.note)


def sweep_cancelled(store: Store, campaign_id: str, limit: int) -> int:
    """Close up to `limit` batches of a cancelling campaign that nobody owns; returns how many. Safe from anywhere."""
    campaign = get_campaign(store, campaign_id)
    if campaign.state != CANCELLING:
        return 0
    key, outbound_log = store_key(store), _outbound_log(store, campaign)
    closed = 0
    for batch_no in store.read(lambda reader: unowned(reader, campaign_id, limit)):
        work = partial(closing.cancel, key=key, campaign_id=campaign_id, batch_no=batch_no, outbound_log=outbound_log)
        closed += store.transact(work, tag="cancel_batch") is not None
    return closed


def unowned(reader: Reader, campaign_id: str, limit: int) -> list[int]:
    """Numbers of up to `limit` batches without an owner in which somebody is open."""
    doubted = [
        row.batch_no
        for state in (batches.IN_DOUBT, batches.HELD)
        for row in reader.scan(Batch, ANY_SHARD, campaign_id, state, index="batches_open")
        if batches.closable(row)
    ]
    found = doubted[:limit]
    for state in (batches.PENDING, batches.QUEUED):
        left = limit - len(found)
        rows = reader.scan(Batch, ANY_SHARD, campaign_id, state, index="batches_open", limit=left) if left else []
        found += [row.batch_no for row in rows]
    return found


def _outbound_log(store: Store, campaign: Campaign) -> str:
    lane = lanes_in(store).get(campaign.priority)
    return lane.outbound_log if lane else "rows"
