"""Taking a campaign out of the store that was loaded and never started, so that its id can be loaded again.

From the first transaction on it is `loading`, so nothing can start it: a start, pause or resume that comes meanwhile
is refused, a cancel makes it `cancelled`, which is final. After the last one it is unknown: a start is refused, a
cancel is kept and cancels whoever starts the id later (`early_cancels`). After a kill, the same again goes on, and a
load of the id clears what is left.
"""

import secrets
from collections.abc import Callable

from schemas.tables import Campaign
from sendonce.control.campaigns import get_campaign
from sendonce.control.load_faults import LoadFailed
from sendonce.control.snapshots import Snapshot
from sendonce.stores.base import Store


def unload(store: Store, campaign_id: str, progress: Callable[[int], None] = lambda removed: None) -> int:
    """Remove a campaign in state `ready` with its snapshot; returns its number of recipients. Templates stay.

    progress: called with the number of recipients removed so far. UnknownCampaign; WrongState in any other state;
    LoadFault while another process loads or unloads it; LoadFailed if it was cancelled meanwhile.
    """
    campaign = get_campaign(store, campaign_id)
    snapshot = Snapshot(store, campaign, secrets.token_hex(8))
    snapshot.take_back()
    snapshot.abandon(progress)
    if store.read(lambda reader: reader.get(Campaign, campaign_id)) is not None:
        raise LoadFailed("it was cancelled meanwhile", f"campaign {campaign_id}", "its id is used up; choose another")
    return campaign.recipients
