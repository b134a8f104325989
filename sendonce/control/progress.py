"""How far a campaign is: sums over its batches, never counters that are raised on the way.

Done means a final outcome. What is planned, on its way or in doubt is not done.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Optional

from schemas.ids import SHARDS
from schemas.outcomes import KINDS, REASON_OF
from schemas.tables import Batch, Campaign, OutboundMessage, Progress
from sendonce.control.campaigns import RUNNING
from sendonce.control.schedule import start_of
from sendonce.control.stream_names import STREAM
from sendonce.stores.base import ANY_SHARD, Any_, Reader, Store, Tx

# A longer silence between two looks at a running campaign means that no job ran: it is no active time.
ACTIVE_GAP_S: Final = 30.0

# Batches of a stream that are counted one by one at every look: 20 ms.
LARGE: Final = 20_000

BATCH_STATES: Final = ("pending", "queued", "sending", "in_doubt", "held", "done", "cancelled")


@dataclass(frozen=True)
class Estimate:
    """percent: 0 to 100 with one decimal, 100 only when all is done. rate_per_s, eta_s: None until they are known."""

    percent: Optional[float]
    rate_per_s: Optional[float]
    eta_s: Optional[float]


@dataclass(frozen=True)
class Counts:
    """Sums over a campaign's batches. outcomes: recipients by kind; batches: by state; waiting: batches by reason."""

    outcomes: dict[str, int]
    batches: dict[str, int]
    waiting: dict[str, int]

    @property
    def recipients(self) -> int:
        return sum(self.outcomes.values())

    @property
    def unsettled(self) -> int:
        """Recipients without a final outcome."""
        return self.outcomes["open"] + self.outcomes["in_doubt"]

    @property
    def done(self) -> int:
        return self.recipients - self.unsettled


def estimate(total: Optional[int], done: int, active_s: float, *, running: bool = True, cancelled: int = 0) -> Estimate:
    """Percent, rate and time left, of recipients.

    total None: still loading. active_s: without pauses. cancelled: of those done; closing them costs no time, so they
    are no part of the rate.

    Never negative, never infinite, never over 100: odd input (a clock that stepped back, more done than there is)
    gives the nearest value that is true, or None.
    """
    worked = done - cancelled
    rate = worked / active_s if active_s > 0 and worked > 0 else None
    if total is None:
        return Estimate(None, rate, None)
    if done >= total:
        return Estimate(100.0, rate, 0.0)
    percent = min(99.9, round(100 * max(0, done) / total, 1))
    eta_s = (total - done) / rate if rate and running else None
    if eta_s is not None and not math.isfinite(eta_s):
        eta_s = None
    return Estimate(percent, rate, eta_s)


def count(reader: Reader, campaign_id: str, shard: int | Any_ = ANY_SHARD) -> Counts:
    """Sum a campaign's batches as they stand, or those in one shard."""
    outcomes = dict.fromkeys(KINDS, 0)
    batches = dict.fromkeys(BATCH_STATES, 0)
    waiting: dict[str, int] = {}
    sums = [f"n_{kind}" for kind in KINDS]
    for group in reader.tally(Batch, shard, campaign_id, by=("state", "wait_reason"), sums=sums):
        batches[group["state"]] += group["rows"]
        if group["wait_reason"]:
            waiting[group["wait_reason"]] = waiting.get(group["wait_reason"], 0) + group["rows"]
        for kind in KINDS:
            outcomes[kind] += group[f"n_{kind}"]
    return Counts(outcomes, batches, waiting)


def together(parts: Iterable[Counts]) -> Counts:
    """The sums over several parts of a campaign."""
    outcomes, batches, waiting = Counter[str](), Counter[str](), Counter[str]()
    for part in parts:
        outcomes.update(part.outcomes)
        batches.update(part.batches)
        waiting.update(part.waiting)
    return Counts(
        {kind: outcomes[kind] for kind in KINDS}, {state: batches[state] for state in BATCH_STATES}, dict(waiting)
    )


def quick_count(reader: Reader, campaign_id: str) -> Counts:
    """`count`, for those who look often or at many: of a stream with very many batches, as a job summed them up last.

    It then knows no reasons to wait, and cancelled batches as done.
    """
    progress = reader.get(Progress, campaign_id)
    campaign = reader.get(Campaign, campaign_id) if progress is not None and progress.batches_done >= LARGE else None
    if progress is None or campaign is None or campaign.kind != STREAM:
        return count(reader, campaign_id)
    outcomes = {kind: int(getattr(progress, f"n_{kind}")) for kind in KINDS}
    states = {state: int(getattr(progress, f"batches_{state}")) for state in BATCH_STATES if state != "cancelled"}
    return Counts(outcomes, {**states, "cancelled": 0}, {})


def count_reasons(reader: Reader, campaign_id: str) -> dict[str, int]:
    """Recipients by the reason of their outcome (`render.bad_variable`, `unsubscribed`, …), the most frequent first.

    Reads every batch's outcome bytes, one byte a recipient; of a stream every message's row, for its batches are more
    than bytes. For a look now and then, not for every tick.
    """
    codes: Counter[int] = Counter()
    campaign = reader.get(Campaign, campaign_id)
    if campaign is not None and campaign.kind == STREAM:
        groups = reader.tally(OutboundMessage, campaign_id, by=("outcome",), index="outbound_by_campaign")
        codes.update({group["outcome"]: group["rows"] for group in groups})
    else:
        for shard in range(SHARDS):
            for batch in reader.scan(Batch, shard, campaign_id):
                if batch.n_refused or batch.n_skipped or batch.n_suppressed:
                    codes.update(batch.outcomes)
    return {REASON_OF[code]: times for code, times in codes.most_common() if REASON_OF[code]}


def active_seconds(reader: Reader, campaign: Campaign, before: Optional[Progress], now: datetime) -> float:
    """Seconds that the campaign has been worked at, without pauses and without the times when no job ran.

    before: the last aggregation; it begins with the first, or with the first claim if that was earlier, and not when
    the campaign was submitted. Between it and the last change of state the campaign ran if it does not run now.
    """
    start = start_of(campaign)
    if start is None:
        return 0.0
    since = max(before.at, start) if before else _first_claim(reader, campaign, start) or now
    until = now
    if campaign.state == RUNNING:
        since = max(since, campaign.changed_at)
    else:
        until = min(now, campaign.changed_at)
    passed_s = max(0.0, (until - since).total_seconds())
    return (before.active_s if before else 0.0) + min(passed_s, ACTIVE_GAP_S)


def _first_claim(reader: Reader, campaign: Campaign, start: datetime) -> Optional[datetime]:
    """When work at a campaign began of which no sums were written yet; None before. A stream begins with a send."""
    if campaign.kind == STREAM:
        return start
    groups = reader.tally(Batch, ANY_SHARD, campaign.campaign_id, by=("claimed_at",))
    return min((group["claimed_at"] for group in groups if group["claimed_at"] is not None), default=None)


def aggregate_progress(store: Store, campaign_id: str, now: datetime) -> Optional[Progress]:
    """Overwrite a campaign's progress row with sums over its batches as of store time `now`; None if it is unknown.

    Safe to run at any time and anywhere: the row is whole, and an older one never replaces a newer.
    """

    def look(reader: Reader) -> Optional[Progress]:
        campaign = reader.get(Campaign, campaign_id)
        if campaign is None:
            return None
        return progress_of(reader, campaign, count(reader, campaign_id), reader.get(Progress, campaign_id), now)

    progress = store.read(look)
    return put_progress(store, progress) if progress is not None else None


def put_progress(store: Store, progress: Progress) -> Progress:
    """Write a progress row unless there is a newer one; what stands there then."""

    def write(tx: Tx) -> Progress:
        held = tx.get(Progress, progress.campaign_id)
        if held is not None and held.at > progress.at:
            return held
        tx.put(progress)
        return progress

    return store.transact(write, tag="progress")


def progress_of(
    reader: Reader, campaign: Campaign, counts: Counts, before: Optional[Progress], now: datetime
) -> Progress:
    """A campaign's sums as of store time `now`, not yet written. before: what is written.

    Of a stream the total is what has come so far: its row says it only at its end.
    """
    active_s = active_seconds(reader, campaign, before, now)
    total = counts.recipients if campaign.kind == STREAM else campaign.recipients
    found = estimate(total, counts.done, active_s, cancelled=counts.outcomes["cancelled"])
    return Progress(
        campaign_id=campaign.campaign_id,
        at=now,
        total=total,
        batches_pending=counts.batches["pending"],
        batches_queued=counts.batches["queued"],
        batches_sending=counts.batches["sending"],
        batches_in_doubt=counts.batches["in_doubt"],
        batches_held=counts.batches["held"],
        batches_done=counts.batches["done"] + counts.batches["cancelled"],
        active_s=active_s,
        rate_per_s=found.rate_per_s,
        n_open=counts.outcomes["open"],
        n_in_doubt=counts.outcomes["in_doubt"],
        n_accepted=counts.outcomes["accepted"],
        n_refused=counts.outcomes["refused"],
        n_skipped=counts.outcomes["skipped"],
        n_suppressed=counts.outcomes["suppressed"],
        n_cancelled=counts.outcomes["cancelled"],
        n_assumed=counts.outcomes["assumed"],
    )
