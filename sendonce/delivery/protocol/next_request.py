"""What the owner of a batch may do next: send the request that it asks for, wait, make it smaller, or end."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from schemas.ordinals import pack
from schemas.outcomes import Outcome
from schemas.tables import COMMIT_TIME, Batch, Campaign, Limit, Recipient
from sendonce.config.stored import applied_revision
from sendonce.control.expiry import is_over
from sendonce.control.schedule import starts_later
from sendonce.control.stops import stops_of
from sendonce.control.suppressions import suppressed_since
from sendonce.delivery import batches, health, limits
from sendonce.delivery.protocol.aside import ended
from sendonce.delivery.protocol.closing import closed
from sendonce.delivery.protocol.finished_request import maybe_reached
from sendonce.delivery.rows import write_rows
from sendonce.delivery.terms import SETTINGS_CHANGED, Ask, Later, Move, Rendered, Report, Terms, Turn
from sendonce.stores.base import Tx

# A suppression's time may lie a little before that of a rendering which did not see it: clocks are set back, and a
# reader's store time is not always written down. Looking back further costs nothing: who is struck out is so once.
_CLOCK_MARGIN = timedelta(minutes=2)

# Why an owner makes its next request, and only that one, smaller than it wanted.
PROBE = "probe"


def proceed(
    tx: Tx,
    terms: Terms,
    before: Batch,
    mine: Batch,
    rendered: Rendered,
    ask: Ask | Later | None,
    scopes: Sequence[Limit],
    report: Report | None,
    sender: health.Health | None = None,
) -> Turn:
    """What an owner with nothing in flight may do next. `before` is the stored row, `mine` the row with news.

    sender: its health as this transaction is about to write it; None where it is as stored.
    """
    now = tx.now()
    campaign = tx.get(Campaign, mine.campaign_id)
    if campaign is None:
        raise AssertionError(f"batch {mine.campaign_id}/{mine.batch_no} has no campaign")

    def end(after: Batch, reason: str = "", until: datetime | None = None, move: Move = Move.ENDED) -> Turn:
        write(tx, terms, before, after, rendered, report)
        return Turn(move, after, until=until, reason=reason)

    if campaign.state in ("cancelling", "cancelled"):
        return end(_closed(tx, mine, rendered, Outcome.CANCELLED, batches.CANCELLED), "cancelled")
    if is_over(campaign, mine, now):
        return end(_closed(tx, mine, rendered, Outcome.EXPIRED, batches.DONE), "expired")
    refused = {o: outcome for o, outcome in rendered.outcomes.items() if mine.outcomes[o] == Outcome.OPEN}
    left_out = {**refused, **_struck(tx, mine, rendered)}
    mine = batches.apply(mine, {**left_out, **maybe_reached(tx, mine, left_out)})
    if mine.n_open == 0:
        return end(ended(tx, mine, now), "done")
    if campaign.state != "running":
        return end(batches.waiting(mine, now, campaign.state), campaign.state)
    if (start := starts_later(campaign, now)) is not None:  # planned before somebody moved the start
        return end(batches.waiting(mine, now, None), "scheduled", start)
    blocked = blocked_by(tx, terms, now, sender)
    if blocked is not None:
        return end(batches.waiting(mine, blocked.until, blocked.scope), blocked.scope, blocked.until)
    if ask is None:
        return end(batches.waiting(mine, now, None), "handed_back")
    if settings_changed(tx, terms):
        return end(batches.waiting(mine, now, None), SETTINGS_CHANGED)
    if isinstance(ask, Later):
        # Asked again: what the batch's own request held back when it was cut may be free since.
        again = limits.ask(tx, limits.limits_of(tx, [ask.scope]), 1, now)
        until = min(ask.until, again.until) if isinstance(again, limits.Wait) else ask.until
        return end(batches.waiting(mine, until, ask.scope), "limit", until)
    leased = replace(mine, heartbeat_at=COMMIT_TIME, lease_s=terms.times.lease_s, visible_at=None, **batches.NO_INTENT)
    if any(mine.outcomes[ordinal] != Outcome.OPEN for ordinal in ask.ordinals):
        return end(leased, "struck_out", move=Move.AGAIN)
    probe = health.probe(tx, terms, ask.attempt_id, now, mine.worker_id or "") if sender is None else None
    if probe is not None and len(ask.ordinals) > health.PROBE_RECIPIENTS:
        return replace(end(leased, PROBE, move=Move.AGAIN), size=health.PROBE_RECIPIENTS)
    answer = limits.ask(tx, scopes, len(ask.ordinals), now)
    if isinstance(answer, limits.Wait):
        if (answer.until - now).total_seconds() <= terms.hold_max_s:
            return end(_held_back(mine, answer.until, terms), "limit", answer.until, Move.HOLD)
        return end(batches.waiting(mine, answer.until, "limit"), "limit", answer.until)
    cuts, grants = limits.ask_shares(tx, ask.shares, now)
    if cuts or answer.n < len(ask.ordinals):
        size = answer.n if answer.n < len(ask.ordinals) else None
        return replace(end(leased, "cut", move=Move.AGAIN), size=size, cuts=cuts)
    for drawn, grant in ((scopes, answer), *grants):
        limits.take(tx, drawn, grant, ask.attempt_id, now, terms.times.longest_call_s)
    if probe is not None:
        tx.put(probe)
    intent = replace(
        leased,
        attempt_id=ask.attempt_id,
        intent_at=now,
        permit_at=now,
        intent_ordinals=pack(ask.ordinals),
        payload_hash=ask.payload_hash,
        provider=ask.provider,
    )
    return end(intent, move=Move.GO)


def settings_changed(tx: Tx, terms: Terms) -> bool:
    """Whether lanes, senders or limits were applied anew since this owner read them: it must not act by old ones."""
    return terms.revision != "" and applied_revision(tx) != terms.revision


def _held_back(mine: Batch, until: datetime, terms: Terms) -> Batch:
    """Queued again under the same plan_no: the owner keeps the rendered batch, and its reference stays the live one."""
    back = batches.waiting(mine, mine.due_at, "limit")
    visible_at = until + timedelta(seconds=terms.times.visibility_s)
    return replace(back, state=batches.QUEUED, open_state=batches.QUEUED, visible_at=visible_at)


def blocked_by(tx: Tx, terms: Terms, now: datetime, sender: health.Health | None = None) -> limits.Wait | None:
    """What keeps this lane or sender from sending now; whoever met it is due at once, for nothing is planned before."""
    stops = stops_of(tx, terms.lane, terms.sender, now)
    if sender is not None and sender.switch is None:
        stops = [stop for stop in stops if stop.scope != f"sender:{terms.sender}"]
    if not stops:
        return None
    return limits.Wait(now, stops[0].kind)


def _closed(tx: Tx, mine: Batch, rendered: Rendered, outcome: Outcome, state: str) -> Batch:
    """The batch with nobody open any more; or handed back, for a sweep to close, if somebody was in doubt beside it
    when it was rendered and is open now: a final message needs its name."""
    if all(ordinal in rendered.names for ordinal in batches.open_ordinals(mine)):
        return closed(tx, mine, outcome, tx.now(), state)
    return batches.waiting(mine, tx.now(), None)


def _struck(tx: Tx, batch: Batch, rendered: Rendered) -> dict[int, Outcome]:
    """Open ordinals whose address was suppressed after the batch was rendered.

    Whoever was in doubt then has neither letter nor name in it, and waits for the next rendering.
    """

    def open_people() -> list[Recipient]:
        people = tx.scan(Recipient, batch.shard, batch.campaign_id, batch.batch_no)
        is_open = [person for person in people if batch.outcomes[person.ordinal] == Outcome.OPEN]
        return [person for person in is_open if person.ordinal in rendered.names]

    return suppressed_since(tx, open_people, rendered.lists, rendered.at - _CLOCK_MARGIN)


def write(tx: Tx, terms: Terms, before: Batch, after: Batch, rendered: Rendered, report: Report | None) -> None:
    write_rows(tx, terms.outbound_log, before, after, rendered.names, report, tx.now(), rendered.details)
    tx.put(after)
