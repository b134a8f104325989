"""Retry: a campaign's refused recipients, of the reasons that are worth it, are opened again as a new round.

Killed and called again, or called by two people at once, the same round goes on.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Optional

from schemas.ids import SHARDS
from schemas.outcomes import Outcome
from schemas.tables import Batch, Campaign
from sendonce.control import rounds
from sendonce.control.campaigns import check_retry
from sendonce.control.faults import ControlFault, UnknownCampaign
from sendonce.control.progress import aggregate_progress
from sendonce.control.worth import names_of
from sendonce.delivery.reopening import Decided, Opener, Opening, looked_at, openable, refused_in, slice_of
from sendonce.stores.base import Reader, Store, Tx
from sendonce.stores.opening import store_key


class RoundTaken(ControlFault):
    """Somebody began the same round for other reasons, between the look and the call."""

    reason = "round_taken"


@dataclass(frozen=True)
class RetryPlan:
    """What a retry would do. number: of its round. goes_on: who began it, if it was begun and not all of it is opened.

    to_open, left: recipients by outcome, chosen or not. under_way: chosen, but their batch is being sent or in doubt.
    maybe_reached: chosen, but a request that may have been accepted was sent again, so they may have a letter.
    """

    campaign: Campaign
    number: int
    chosen: frozenset[Outcome]
    to_open: dict[Outcome, int]
    left: dict[Outcome, int]
    under_way: int
    maybe_reached: int
    goes_on: str
    batch_nos: list[int] = field(repr=False)

    @property
    def recipients(self) -> int:
        return sum(self.to_open.values())


def plan_retry(
    store: Store, campaign_id: str, chosen: frozenset[Outcome], *, expires_at: Optional[datetime] = None
) -> RetryPlan:
    """Whom a retry for these reasons would open now. Changes nothing.

    expires_at: the campaign's new end. UnknownCampaign; what `check_retry` raises.
    """
    return store.read(lambda reader: _plan(reader, campaign_id, chosen, expires_at))


def _plan(reader: Reader, campaign_id: str, chosen: frozenset[Outcome], expires_at: Optional[datetime]) -> RetryPlan:
    found = reader.get(Campaign, campaign_id)
    if found is None:
        raise UnknownCampaign(campaign_id)
    campaign = check_retry(reader, found, expires_at)
    begun = rounds.rounds_of(reader, campaign_id)
    last = next((one for one in reversed(begun) if not one.letters), None)
    same = last if last is not None and not last.done and last.reasons == names_of(chosen) else None
    number = same.number if same else len(begun) + 1
    decisions = Decided.of(reader, campaign_id, number)
    to_open: Counter[Outcome] = Counter()
    left: Counter[Outcome] = Counter()
    under_way = maybe_reached = 0
    batch_nos = []
    for shard in range(SHARDS):
        for batch in reader.scan(Batch, shard, campaign_id):
            if not batch.n_refused:
                continue
            refused = refused_in(batch)
            left.update(outcome for outcome in refused.values() if outcome not in chosen)
            wanted = {
                ordinal: outcome
                for ordinal, outcome in refused.items()
                if outcome in chosen and (batch.batch_no, slice_of(ordinal)) not in decisions.opened
            }
            spared = decisions.resent.get(batch.batch_no, frozenset()).intersection(wanted)
            maybe_reached += len(spared)
            if not openable(batch):
                under_way += len(wanted) - len(spared)
                continue
            to_open.update(outcome for ordinal, outcome in wanted.items() if ordinal not in spared)
            if wanted:
                batch_nos.append(batch.batch_no)
    return RetryPlan(
        campaign, number, chosen, dict(to_open), dict(left), under_way, maybe_reached, same.by if same else "",
        sorted(batch_nos),
    )  # fmt: skip


def retry(
    store: Store,
    plan: RetryPlan,
    by: str,
    *,
    expires_at: Optional[datetime] = None,
    progress: Callable[[int], None] = lambda recipients: None,
) -> Opening:
    """Open what a plan found, as its round. What was opened in the round before, by whomever, is no part of the answer.

    May be called again, also after a kill, and by several at once: whoever planned the same round helps to open it.
    progress: called with the number of recipients opened so far. RoundTaken; what `check_retry` raises, also in the
    middle, if the campaign was cancelled then.
    """
    campaign_id = plan.campaign.campaign_id
    if not plan.recipients and not plan.goes_on:
        return Opening(under_way=plan.under_way, maybe_reached=plan.maybe_reached)
    total = Opening(under_way=plan.under_way)
    if not store.transact(lambda tx: _begin(tx, plan, by), tag="retry_begin"):
        return total
    opener = Opener(store, store_key(store), campaign_id, plan.number, by, expires_at)
    for batch, resent in looked_at(store, campaign_id, plan.batch_nos):
        total = total.plus(opener.open(batch, plan.chosen, resent))
        progress(total.recipients)
    store.transact(lambda tx: _end(tx, plan), tag="retry_end")
    aggregate_progress(store, campaign_id, store.read(lambda reader: reader.now()))
    return total


def _begin(tx: Tx, plan: RetryPlan, by: str) -> bool:
    """Whether there is something to open in the round: False when somebody has opened all of it meanwhile."""
    campaign_id, reasons = plan.campaign.campaign_id, names_of(plan.chosen)
    found = rounds.get_round(tx, campaign_id, plan.number)
    if found is None:
        tx.insert(rounds.round_row(campaign_id, plan.number, reasons, by, tx.now(), done=False))
        return True
    if found.letters or found.reasons != reasons:
        raise RoundTaken(
            f"{found.by} has just begun round {plan.number} of campaign {campaign_id} for other reasons; call again"
        )
    return not found.done


def _end(tx: Tx, plan: RetryPlan) -> None:
    campaign_id = plan.campaign.campaign_id
    found = rounds.get_round(tx, campaign_id, plan.number)
    assert found is not None
    tx.put(rounds.round_row(campaign_id, plan.number, found.reasons, found.by, found.at, done=True))
