"""What has to happen without anybody asking, from leases that are over to the end of campaigns and of old rows.

Every state of a batch that is not final has a sweeper here, so that nothing is stuck because somebody died. All of
it may run in several jobs at once; each step is a compare-and-set and the second one finds nothing to do.
"""

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta
from functools import partial

from schemas.tables import Campaign
from sendonce.control.completion import settle_campaign
from sendonce.control.dead_letters import sweep_dead_letters
from sendonce.control.doubts import STATES, Doubt, doubts_of
from sendonce.control.progress import aggregate_progress
from sendonce.control.schedule import starts_later
from sendonce.control.stream_names import STREAM
from sendonce.control.stream_progress import StreamSums
from sendonce.control.streams import KEYS_PURGED_AT_ONCE, purge_keys
from sendonce.delivery import batches
from sendonce.delivery.cancellation import sweep_cancelled
from sendonce.delivery.expiry import sweep_expired
from sendonce.delivery.planner import lane_campaigns, may_be_asked, open_batches
from sendonce.delivery.protocol import aside, doubts
from sendonce.delivery.resolver import Policy, settle_doubt
from sendonce.delivery.terms import Terms
from sendonce.stores.base import Reader, Store

# Batches closed by one look of a campaign that was cancelled or is past its end: a tick stays short, the next goes on.
CLOSED_AT_ONCE = 200
PURGE_EVERY = timedelta(minutes=1)
# Summing up reads each batch, and its transaction takes a turn that a request could have.
SUMMED_EVERY = timedelta(seconds=1)
# A person's doubts may be many, and each look at one reads two rows.
HELD_LOOKED_AT_EVERY = timedelta(seconds=10)
LOOKED_AT_FIRST, LOOKED_AT_LEAST_EVERY = timedelta(seconds=1), timedelta(minutes=10)
# Dead letters erased by one look: each body may have a MiB.
ERASED_AT_ONCE = 50


@dataclass(frozen=True)
class Swept:
    """What one look at a lane changed. expired: leases; too_late: batches past their end; ended: campaigns.

    evidence, hold, assume, resend: requests in doubt, by what settled them, or left them to a person (`resolver`).
    """

    expired: int = 0
    evidence: int = 0
    hold: int = 0
    assume: int = 0
    resend: int = 0
    cancelled: int = 0
    ended: int = 0
    too_late: int = 0

    @property
    def settled(self) -> int:
        """Requests in doubt that proof settled, or the lane's policy decided on."""
        return self.evidence + self.hold + self.assume + self.resend

    def __add__(self, other: "Swept") -> "Swept":
        return Swept(*(mine + its for mine, its in zip(astuple(self), astuple(other), strict=True)))


class SweepMemory:
    """What the sweeps of one lane in one process know of those before: sums of its streams, when keys were purged.

    summed_at: when the batches of each campaign were summed up. held_at: when its held doubts were looked at.
    next_look: when each of its doubts is looked at again, by attempt.
    """

    def __init__(self) -> None:
        self.sums = StreamSums()
        self.summed_at: dict[str, datetime] = {}
        self.held_at: dict[str, datetime] = {}
        self.next_look: dict[str, dict[str, datetime]] = {}
        self.purged_at: datetime | None = None

    def keep(self, names: Collection[str]) -> None:
        """Forget all campaigns but these."""
        self.sums.keep(names)
        self.summed_at = {name: at for name, at in self.summed_at.items() if name in names}
        self.held_at = {name: at for name, at in self.held_at.items() if name in names}
        self.next_look = {name: looks for name, looks in self.next_look.items() if name in names}


def sweep_lane(
    store: Store,
    key: bytes,
    terms: Terms,
    policy: Policy,
    new_id: Callable[[], str],
    memory: SweepMemory | None = None,
) -> Swept:
    """Look once at every campaign of a lane that is not over, and at dead letters, of whichever lane, that are too old.

    new_id: a fresh decision id per call.
    memory: the same for every sweep of a lane in a process; streams are counted little by little then.
    """
    memory = memory or SweepMemory()
    sweep_dead_letters(store, ERASED_AT_ONCE)
    now, campaigns = store.read(lambda reader: (reader.now(), lane_campaigns(reader, terms.lane)))
    memory.keep({campaign.campaign_id for campaign in campaigns})
    _purge(store, memory, now)
    total = Swept()
    for campaign in campaigns:
        total += _sweep(store, key, campaign, terms, policy, new_id, memory)
    return total


def _purge(store: Store, memory: SweepMemory, now: datetime) -> None:
    """Old idempotency keys go, some at each sweep while there are any."""
    if memory.purged_at is not None and now - memory.purged_at < PURGE_EVERY:
        return
    if purge_keys(store) < KEYS_PURGED_AT_ONCE:
        memory.purged_at = now


def _sweep(
    store: Store,
    key: bytes,
    campaign: Campaign,
    terms: Terms,
    policy: Policy,
    new_id: Callable[[], str],
    memory: SweepMemory,
) -> Swept:
    campaign_id = campaign.campaign_id

    def late(reader: Reader) -> list[int]:
        now = reader.now()
        sending = open_batches(reader, campaign_id, batches.SENDING)
        return [batch.batch_no for batch in sending if doubts.lease_is_over(batch, now)]

    expired = 0
    for batch_no in store.read(late):
        work = partial(doubts.expire, campaign_id=campaign_id, batch_no=batch_no)
        expired += store.transact(work, tag="expire") is not None
    rungs = _doubts(store, key, campaign, terms, policy, new_id, memory)
    cancelled = sweep_cancelled(store, campaign_id, CLOSED_AT_ONCE)
    too_late = sweep_expired(store, key, campaign, terms.outbound_log, CLOSED_AT_ONCE)
    now = store.read(lambda reader: reader.now())
    if campaign.kind == STREAM:
        memory.sums.look(store, campaign, now)
    elif starts_later(campaign, now) is None:  # before it begins nothing changes, perhaps for weeks
        summed_at = memory.summed_at.get(campaign_id)
        if summed_at is None or now - summed_at >= SUMMED_EVERY:
            aggregate_progress(store, campaign_id, now)
            memory.summed_at[campaign_id] = now
    ended = settle_campaign(store, campaign_id) in ("completed", "cancelled")
    return Swept(expired, **rungs, cancelled=cancelled, ended=int(ended), too_late=too_late)


def _doubts(
    store: Store,
    key: bytes,
    campaign: Campaign,
    terms: Terms,
    policy: Policy,
    new_id: Callable[[], str],
    memory: SweepMemory,
) -> Counter[str]:
    """Settle what can be settled, and let nobody wait for the rest who was not in it. How many took which rung.

    Each doubt is looked at at once, and then the less often the older it is: it may last for days, and proof of it
    comes from outside, if at all.
    """
    name = campaign.campaign_id
    now = store.read(lambda reader: reader.now())
    looked_at = memory.held_at.get(name)
    also_held = looked_at is None or now - looked_at >= HELD_LOOKED_AT_EVERY
    if also_held:
        memory.held_at[name] = now
    found = store.read(lambda reader: doubts_of(reader, campaign, STATES if also_held else (batches.IN_DOUBT,)))
    before: dict[str, datetime] = memory.next_look.get(name, {})
    rungs: Counter[str] = Counter()
    # Those that are held are forgotten in between: they come less often anyway.
    looks = memory.next_look[name] = {doubt.attempt_id: before.get(doubt.attempt_id, now) for doubt in found}
    for doubt in found:
        if now < looks[doubt.attempt_id]:
            continue
        age = now - (doubt.since or now)
        keeps_waiting = doubt.open and not doubt.aside
        looks[doubt.attempt_id] = now + (LOOKED_AT_FIRST if keeps_waiting else _rest(age))
        rung = settle_doubt(store, key, doubt, terms, policy, new_id())
        if rung:
            rungs[rung] += 1
        if not rung and keeps_waiting and not _asked_soon(store, doubt, terms):
            work = partial(aside.set_aside, campaign_id=name, batch_no=doubt.batch_no)
            store.transact(work, tag="set_aside")
    return rungs


def _rest(age: timedelta) -> timedelta:
    """Until when a doubt of this age is let be: a tenth of it."""
    return min(max(age / 10, LOOKED_AT_FIRST), LOOKED_AT_LEAST_EVERY)


def _asked_soon(store: Store, doubt: Doubt, terms: Terms) -> bool:
    """Whether a doubt will be asked again by the way that all others of its batch go: then they come right after it."""

    def look(reader: Reader) -> bool:
        now = reader.now()
        return doubts.may_ask_again(doubt, terms, now) and may_be_asked(reader, terms, doubt.provider, now)

    return not doubt.held and store.read(look)
