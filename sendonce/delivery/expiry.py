"""The end of campaigns and of batches: what nobody owns by then is closed as expired, whatever keeps it from sending.

A batch that is being sent meets its end at its next advance. The rest would wait for as long as its lane is stopped,
its sender halted, its limit used up or a doubt beside them unsettled; here it ends all the same. Who is in doubt stays.
"""

from functools import partial

from schemas.tables import Batch, Campaign
from sendonce.control.campaigns import HALTED, PAUSED, RUNNING
from sendonce.control.expiry import is_over
from sendonce.control.stream_names import STREAM
from sendonce.delivery import batches
from sendonce.delivery.cancellation import unowned
from sendonce.delivery.protocol import closing
from sendonce.stores.base import ANY_SHARD, Reader, Store


def sweep_expired(store: Store, key: bytes, campaign: Campaign, outbound_log: str, limit: int) -> int:
    """Close up to `limit` batches whose end is past and that nobody owns; returns how many. Safe from anywhere."""
    if campaign.state not in (RUNNING, PAUSED, HALTED):
        return 0
    closed = 0
    for batch_no in store.read(lambda reader: _over(reader, campaign, limit)):
        work = partial(
            closing.end_expired,
            key=key,
            campaign_id=campaign.campaign_id,
            batch_no=batch_no,
            outbound_log=outbound_log,
        )
        closed += store.transact(work, tag="expire_batch") is not None
    return closed


def _over(reader: Reader, campaign: Campaign, limit: int) -> list[int]:
    now = reader.now()
    if is_over(campaign, None, now):
        return unowned(reader, campaign.campaign_id, limit)
    if campaign.kind != STREAM:
        return []
    found: list[int] = []
    for state in (batches.PENDING, batches.QUEUED, batches.IN_DOUBT, batches.HELD):
        # Doubts stay where they are; those of them that have nobody open must not stand before the others.
        most = limit - len(found) if state in (batches.PENDING, batches.QUEUED) else None
        over = reader.scan(
            Batch, ANY_SHARD, campaign.campaign_id, state, index="batches_expiring", upto=now, limit=most
        )
        found += [row.batch_no for row in over if batches.closable(row)]
        if len(found) >= limit:
            break
    return found[:limit]
