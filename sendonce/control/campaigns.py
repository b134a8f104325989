"""What may be done with a campaign, and its states: submit, pause, resume, cancel, retry.

    loading → ready → running ⇄ paused | halted → completed ─ retry → running
                 └───────┴──── cancel ────┴→ cancelling → cancelled

Each function is one transaction, may be called any number of times, and is the same for a trigger, the command line
and the web. `seq` is a publisher's number: one that is not newer than the last applied changes nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from hashlib import blake2b
from typing import Final, Optional

from schemas.tables import Campaign, Decision
from sendonce.control.early_cancels import take_early_cancel
from sendonce.control.expiry import PastEnd, check_end, end_of, with_end
from sendonce.control.faults import NotForStreams, UnknownCampaign, WrongState
from sendonce.control.guards import campaign_obstacle, start_obstacle
from sendonce.stores.base import Reader, Store, Tx

LOADING, READY, RUNNING, PAUSED, HALTED = "loading", "ready", "running", "paused", "halted"
COMPLETED, CANCELLING, CANCELLED = "completed", "cancelling", "cancelled"
ENDED: Final = frozenset((COMPLETED, CANCELLED))


_CALLED_OFF: Final = "a trigger cancelled it before it was loaded; load a new campaign to send"


@dataclass(frozen=True)
class Change:
    """What a control function did: the states before and after, and why nothing changed, if so."""

    campaign_id: str
    before: str
    after: str
    changed: bool
    note: str = ""


# For each action: from which state to which; the same state again is no change. What is not named is refused.
_SUBMIT: Final = {READY: RUNNING, RUNNING: RUNNING, PAUSED: PAUSED, HALTED: HALTED}
_PAUSE: Final = {RUNNING: PAUSED, HALTED: PAUSED, PAUSED: PAUSED}
_RESUME: Final = {PAUSED: RUNNING, HALTED: RUNNING, RUNNING: RUNNING}
_CANCEL: Final = {
    LOADING: CANCELLED,
    READY: CANCELLING,
    RUNNING: CANCELLING,
    PAUSED: CANCELLING,
    HALTED: CANCELLING,
    CANCELLING: CANCELLING,
    CANCELLED: CANCELLED,
}


def submit(
    store: Store, campaign_id: str, by: str, *, seq: Optional[int] = None, expires_at: Optional[datetime] = None
) -> Change:
    """ready → running. A campaign that was submitted before, even if paused since, is left as it is.

    expires_at: no request starts from then on; also changes the end of one that was submitted before. None: leaves the
    end as it is; `expiry.NEVER` takes it away.

    One whose cancel came before it was loaded is cancelled instead: `after` is `cancelling`, the note says why.

    UnknownCampaign; BadEnd; WrongState while it loads, and once it has ended; NotReady if its end is past, its sender
    may not work from this store, or bulk letters would go out by a real sender without unsubscribe links.
    """
    return _move(store, campaign_id, by, seq, "submit", _SUBMIT, expires_at=expires_at)


def pause(
    store: Store, campaign_id: str, by: str, *, seq: Optional[int] = None, reason: Optional[str] = None
) -> Change:
    """running or halted → paused. What is in flight ends; nothing new starts. UnknownCampaign; WrongState."""
    return _move(store, campaign_id, by, seq, "pause", _PAUSE, reason)


def resume(store: Store, campaign_id: str, by: str, *, seq: Optional[int] = None) -> Change:
    """paused or halted → running, where it stopped. UnknownCampaign; WrongState for one that never ran or has ended."""
    return _move(store, campaign_id, by, seq, "resume", _RESUME)


def begin_cancel(store: Store, campaign_id: str, by: str, *, seq: Optional[int] = None) -> Change:
    """Any state that has not ended → cancelling: from its commit on, no request starts. A decision row says who.

    `delivery.cancellation.cancel` also closes the batches. UnknownCampaign; WrongState for a completed campaign.
    """
    return _move(store, campaign_id, by, seq, "cancel", _CANCEL)


def check_retry(reader: Reader, campaign: Campaign, expires_at: Optional[datetime] = None) -> Campaign:
    """The campaign as a retry would have it: with another end, if `expires_at` names one.

    WrongState for one that was never submitted, or is cancelled; BadEnd; NotReady as for `submit`, and PastEnd.
    """
    if campaign.state not in (RUNNING, PAUSED, HALTED, COMPLETED):
        raise WrongState(campaign.campaign_id, campaign.state, "retry")
    if campaign.kind == "stream":
        raise NotForStreams(campaign.campaign_id, "retry")
    if expires_at is not None:
        check_end(expires_at, reader.now())
        campaign = with_end(campaign, expires_at)
    end = end_of(campaign)
    if end is not None and end <= reader.now():
        raise PastEnd(campaign.campaign_id, end)
    if (obstacle := campaign_obstacle(reader, campaign)) is not None:
        raise obstacle
    return campaign


def run_again(tx: Tx, campaign_id: str, by: str, *, expires_at: Optional[datetime] = None) -> None:
    """In the transaction that opens recipients of a campaign again: completed → running; other states stay.

    UnknownCampaign, and what `check_retry` raises.
    """
    found = tx.get(Campaign, campaign_id)
    if found is None:
        raise UnknownCampaign(campaign_id)
    row = check_retry(tx, found, expires_at)
    if row.state == COMPLETED:
        row = replace(row, state=RUNNING, changed_at=tx.now(), changed_by=by, finished_at=None, state_reason=None)
    if row != found:
        tx.put(row)


def get_campaign(store: Store, campaign_id: str) -> Campaign:
    """The campaign's row, or UnknownCampaign."""
    row = store.read(lambda reader: reader.get(Campaign, campaign_id))
    if row is None:
        raise UnknownCampaign(campaign_id)
    return row


def _move(
    store: Store,
    campaign_id: str,
    by: str,
    seq: Optional[int],
    action: str,
    moves: Mapping[str, str],
    reason: Optional[str] = None,
    expires_at: Optional[datetime] = None,
) -> Change:
    def work(tx: Tx) -> Change:
        row = tx.get(Campaign, campaign_id)
        if row is None:
            raise UnknownCampaign(campaign_id)
        if seq is not None and row.seq is not None and seq <= row.seq:
            return Change(
                campaign_id, row.state, row.state, False, f"seq {seq} is not newer than {row.seq}, applied before"
            )
        called_off = action == "submit" and row.state == READY and take_early_cancel(tx, campaign_id)
        after = CANCELLING if called_off else moves.get(row.state)
        if after is None:
            raise WrongState(campaign_id, row.state, action)
        changed = after != row.state
        now, end_before = tx.now(), end_of(row)
        if expires_at is not None:
            check_end(expires_at, now)
            row = with_end(row, expires_at)
        moved = end_of(row) != end_before
        if after == RUNNING and changed and action == "submit" and (obstacle := start_obstacle(tx, row)) is not None:
            raise obstacle
        if changed:
            started = row.started_at or (now if after == RUNNING else None)
            ended = now if after in ENDED else None
            row = replace(
                row, changed_at=now, changed_by=by, started_at=started, finished_at=ended, state_reason=reason
            )
            if action == "cancel" or called_off:
                canceller = "trigger" if called_off else by
                tx.put(Decision(decision_id("cancel", campaign_id), campaign_id, "cancel", now, canceller))
        before, row = row.state, replace(row, state=after, seq=row.seq if seq is None else seq)
        if changed or moved or seq is not None:
            tx.put(row)
        note = _CALLED_OFF if called_off else "" if changed else _already(after)
        return Change(campaign_id, before, after, changed or moved, note)

    return store.transact(work, tag=action)


def decision_id(action: str, campaign_id: str) -> str:
    """The same for the same decision: a campaign is cancelled once."""
    return blake2b(f"{action}\x00{campaign_id}".encode(), digest_size=16).hexdigest()


def _already(state: str) -> str:
    if state in (PAUSED, HALTED):
        return f"it is {state}; `sendonce resume` goes on"
    return f"it is {state} already"
