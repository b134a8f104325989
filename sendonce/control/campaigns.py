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

from schemas.elements import Reference
from schemas.tables import Campaign, Decision
from sendonce.control.early_cancels import take_early_cancel
from sendonce.control.expiry import PastEnd, check_end, end_of, with_end
from sendonce.control.faults import NotForStreams, UnknownCampaign, WrongState
from sendonce.control.guards import campaign_obstacle, start_obstacle
from sendonce.control.schedule import NOW, check_begins_before_end, never_started, start_of, starts_later, with_start
from sendonce.control.stream_names import STREAM
from sendonce.moments import utc_text
from sendonce.stores.base import Reader, Store, Tx

LOADING, READY, RUNNING, PAUSED, HALTED = "loading", "ready", "running", "paused", "halted"
COMPLETED, CANCELLING, CANCELLED = "completed", "cancelling", "cancelled"
ENDED: Final = frozenset((COMPLETED, CANCELLED))

_CALLED_OFF: Final = "a trigger cancelled it before it was loaded; load a new campaign to send"


@dataclass(frozen=True)
class Change:
    """What a control function did: the states before and after, and why nothing changed, if so.

    starts_at: of a campaign that has not begun now, when it starts. planned: of a send that was planned at once.
    """

    campaign_id: str
    before: str
    after: str
    changed: bool
    note: str = ""
    starts_at: Optional[datetime] = None
    planned: Optional[Reference] = None


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
    store: Store,
    campaign_id: str,
    by: str,
    *,
    at: Optional[datetime] = None,
    expires_at: Optional[datetime] = None,
) -> Change:
    """ready → running. A campaign that was submitted before, even if paused since, keeps its state.

    at: no request starts before; at most `schedule.FURTHEST` ahead, and one that is past means at once. Also moves the
    time of one that was submitted before and has not begun; of one that has it changes nothing. None: at once, or when
    it was submitted for.

    expires_at: no request starts from then on; also changes the end of one that was submitted before. None: leaves the
    end as it is; `expiry.NEVER` takes it away.

    One whose cancel came before it was loaded is cancelled instead: `after` is `cancelling`, the note says why.

    UnknownCampaign; BadStart; BadEnd; WrongState while it loads, and once it has ended; NotReady if its end is past,
    its sender may not work from this store, or bulk letters would go out by a real sender without unsubscribe links.
    """
    return _move(store, campaign_id, by, None, "submit", _SUBMIT, expires_at=expires_at, at=at, moves_start=True)


def start(
    store: Store, campaign_id: str, by: str, *, seq: Optional[int] = None, at: Optional[datetime] = None
) -> Change:
    """`submit`, as a trigger means it: without `at` at once, also if it was to start later.

    A trigger may come again, and late: one without a `seq` moves no time that was set before.
    """
    moves = seq is not None
    return _move(store, campaign_id, by, seq, "submit", _SUBMIT, at=at or NOW, moves_start=moves)


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
    if campaign.kind == STREAM:
        raise NotForStreams(campaign.campaign_id, "retry")
    if expires_at is not None:
        check_end(expires_at, reader.now())
        campaign = with_end(campaign, expires_at)
        check_begins_before_end(campaign, reader.now())
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
    at: Optional[datetime] = None,
    moves_start: bool = False,
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
        now, before = tx.now(), row
        if expires_at is not None:
            check_end(expires_at, now)
            row = with_end(row, expires_at)
        if action == "submit" and not called_off:
            row = with_start(row, at, now, moves=moves_start)
        if expires_at is not None:
            check_begins_before_end(row, now)
        restarted = start_of(row) != start_of(before)
        moved = restarted or end_of(row) != end_of(before)
        begins = action == "submit" and after == RUNNING and (changed or restarted)
        if begins and (obstacle := start_obstacle(tx, row)) is not None:
            raise obstacle
        if changed:
            started = row.started_at or (now if after == RUNNING and start_of(row) is None else None)
            ended = now if after in ENDED else None
            row = replace(
                row, changed_at=now, changed_by=by, started_at=started, finished_at=ended, state_reason=reason
            )
            if action == "cancel" and starts_later(before, now) is not None:
                row = never_started(row)
            if action == "cancel" or called_off:
                canceller = "trigger" if called_off else by
                tx.put(Decision(decision_id("cancel", campaign_id), campaign_id, "cancel", now, canceller))
        elif restarted:
            row = replace(row, changed_at=now, changed_by=by)
        row = replace(row, state=after, seq=row.seq if seq is None else seq)
        if changed or moved or seq is not None:
            tx.put(row)
        if called_off:
            note = _CALLED_OFF
        else:
            note = _when(before, row, at, now, moves_start) if action == "submit" else ""
            note = note or ("" if changed else _already(after))
        return Change(campaign_id, before.state, after, changed or moved, note, starts_later(row, now))

    return store.transact(work, tag=action)


def decision_id(action: str, campaign_id: str) -> str:
    """The same for the same decision: a campaign is cancelled once."""
    return blake2b(f"{action}\x00{campaign_id}".encode(), digest_size=16).hexdigest()


def _when(before: Campaign, after: Campaign, at: Optional[datetime], now: datetime, moves: bool) -> str:
    """What is to be said of the time at which a campaign starts that was submitted; empty if nothing."""
    was, later = starts_later(before, now), starts_later(after, now)
    if later is not None and after.state == RUNNING:
        stays = was is not None and not moves and at != was
        return f"it starts at {utc_text(later)}{'; a start that moves it needs a seq' if stays else ''}"
    if later is not None and was != later:
        return f"it starts at {utc_text(later)}, once it is resumed"
    if was is not None and later is None:
        return f"it starts {'now' if after.state == RUNNING else 'when it is resumed'}, not at {utc_text(was)}"
    if at is not None and at > now and (began := start_of(before)) is not None:
        return f"it began at {utc_text(began)}, so another time changes nothing"
    return ""


def _already(state: str) -> str:
    if state in (PAUSED, HALTED):
        return f"it is {state}; `sendonce resume` goes on"
    return f"it is {state} already"
