"""`sendonce doubts show`: what is known of a campaign's requests in doubt, and what each choice risks."""

from collections import Counter
from contextlib import suppress
from datetime import datetime
from typing import Final, Optional

import click
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sendonce.cli.output import ago, counted, duration, moment, number, out, print_json
from sendonce.cli.session import Session, WrongCall, with_session
from sendonce.config import ConfigFault, lanes_in, senders_in
from sendonce.control.campaigns import get_campaign
from sendonce.control.doubts import list_doubts
from sendonce.delivery import doubt_report
from sendonce.delivery.doubt_report import LaneRule, Told
from sendonce.delivery.protocol.doubts import OVER_LIMIT, PAYLOAD_CHANGED
from sendonce.stores.base import Reader
from sendonce.stores.opening import store_key

# Doubts that are shown one by one; --json has all.
_SHOWN: Final = 20
# Ids of so few messages are shown, to look for at the provider; --json has all.
_IDS_SHOWN: Final = 3

# Where a provider shows what it took, and by what a request is found there.
_LOOK: Final = {
    "sendgrid": "SendGrid's Email Activity: the unique argument attempt_id",
    "ses": "where the configuration set publishes events: the tag attempt_id",
    "resend": "Resend's list of emails: the tag attempt_id",
    "webhook": "your receiver's log: the Idempotency-Key is the attempt",
    "smtp": "the mail server's log or archive: the header X-Sendonce-Attempt, or Message-ID with the message's id",
    "outbox": "the outbox's folder: the header X-Sendonce-Attempt",
}

# What is known of an answer, by the reason that stands with the doubt.
_CAME: Final = {
    None: "its job was cut off before an answer was on record",
    PAYLOAD_CHANGED: "no answer that proves anything, and its letters cannot be made again byte for byte",
    OVER_LIMIT: "no answer that proves anything, and no limit would pass it once more",
}


@click.command()
@click.argument("campaign")
@click.option("--batch", type=int, metavar="N", help="Only this batch.")
@with_session
def show(session: Session, campaign: str, batch: int | None) -> None:
    """What is known of CAMPAIGN's doubts, and what your choices risk.

    Of each: who was asked and when, where to look, and what happens by itself. Whom it is about is told by number and
    message id, never by address.
    """
    found = [doubt for doubt in list_doubts(session.store, campaign) if batch in (None, doubt.batch_no)]
    if batch is not None and not found:
        raise WrongCall(f"batch {batch} of {campaign} is not in doubt; see `sendonce doubts list`", "no_doubt")
    rule, problem = _rule(session, get_campaign(session.store, campaign).priority) if found else (None, "")
    adapters = {name: str(settings.adapter) for name, settings in senders_in(session.store).items()}
    wanted = found if session.as_json else found[:_SHOWN]
    key = store_key(session.store)

    def look(reader: Reader) -> list[Told]:
        return [doubt_report.tell(reader, key, doubt, rule, adapters) for doubt in wanted]

    told = session.store.read(look)
    if session.as_json:
        print_json([one.as_json() for one in told])
        return
    if not told:
        out().print("No doubts.")
        return
    of_batch = Counter(doubt.batch_no for doubt in found)
    for one in told:
        out().print(_view(one, of_batch[one.doubt.batch_no], problem))
        out().print()
    if len(found) > len(told):
        out().print(f"… and {counted(len(found) - len(told), 'more request')}: --batch N, or --json", style="dim")


def _rule(session: Session, priority: str) -> tuple[Optional[LaneRule], str]:
    """What the lane does with doubts, and why that is not known here."""
    lane = lanes_in(session.store).get(priority)
    if lane is None:
        return None, f"the store has no lane {priority}"
    from sendonce.delivery.lanes import running_lanes

    try:
        running = running_lanes(session.store, (priority,))[priority]
    except ConfigFault as fault:
        return LaneRule(None, lane.in_doubt), str(fault)
    with suppress(Exception):  # nothing was sent by them
        for made in running.made():
            made.sender.close()
    return LaneRule(running.terms, lane.in_doubt), ""


def _view(told: Told, of_batch: int, problem: str) -> RenderableType:
    """of_batch: doubts of its batch, which a choice by --batch is about."""
    doubt = told.doubt
    head = Text.assemble(
        (doubt.campaign_id, "bold"),
        f"  batch {doubt.batch_no}  ",
        (counted(doubt.recipients, "recipient"), "bold yellow"),
        "  waits for you" if told.next == doubt_report.PERSON else "",
    )
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    asked = told.sender + (f" ({told.adapter})" if told.adapter else " (not configured any more)")
    grid.add_row("  asked", f"{asked}, {moment(doubt.intent_at)}, {ago(doubt.intent_at, told.at)}")
    if told.asked_again:
        grid.add_row("", f"asked again at {moment(doubt.permit_at)}")
    grid.add_row("  attempt", doubt.attempt_id)
    if doubt.provider_ref:
        grid.add_row("  reference", doubt.provider_ref)
    if len(told.message_ids) <= _IDS_SHOWN:
        grid.add_row("  message", "\n".join(told.message_ids))
    grid.add_row("  known", _known(told))
    grid.add_row("  look in", _LOOK.get(told.adapter or "", "the log of whoever was asked, for the attempt's id"))
    grid.add_row("  next", Text(_next(told, problem)))
    where = f"{doubt.campaign_id} --batch {doubt.batch_no}"
    all_of_it = f" (all {of_batch} requests of the batch)" if of_batch > 1 else ""
    people = number(told.unproven)
    if told.unproven:
        grid.add_row("  or you", f"`sendonce doubts assume {where}`{all_of_it}")
        grid.add_row("", f"nothing more is sent: up to {people} may have got nothing")
        if told.may_resend:
            grid.add_row("", f"`sendonce doubts resend {where}`{all_of_it}")
            grid.add_row("", f"sent once more: up to {people} may get two letters")
        else:
            grid.add_row("", "to send again is no choice: the campaign is being cancelled")
    return Group(head, grid)


def _known(told: Told) -> str:
    if told.proven:
        rest = f"; nothing of the other {number(told.unproven)}" if told.unproven else ""
        return f"proof for {number(told.proven)} of {number(told.doubt.recipients)}{rest}"
    reason = told.doubt.wait_reason
    came = _CAME.get(reason, f"what came back proves nothing ({reason})")
    told_of = "events tell of others of the request only" if told.events else "no event tells of its letters"
    again = "; some were sent to twice before" if told.resent else ""
    return f"{came}; {told_of}{again}"


def _next(told: Told, problem: str) -> str:
    at = told.next_at
    if told.next == doubt_report.PROOF:
        return "a running job settles those with proof (`sendonce run`)"
    if told.next == doubt_report.ASK_AGAIN:
        return (
            "a running job asks again under the same key: nobody gets two letters. "
            f"The provider takes it {_until(told.asks_again_until, told.at)}"
        )
    if told.next == doubt_report.ASSUME:
        return f"the lane counts them as assumed {_when(at, told.at)} (in_doubt: assume)"
    if told.next == doubt_report.RESEND:
        return f"the lane sends to them once more {_when(at, told.at)} (in_doubt: resend)"
    if told.next == doubt_report.UNKNOWN:
        return f"not known here: {problem}"
    return "nothing, until you decide or an event tells (`sendonce events import FILE`)"


def _until(until: Optional[datetime], now: datetime) -> str:
    if until is None or until.year == datetime.max.year:
        return "at any time"
    return f"for {duration((until - now).total_seconds())} more"


def _when(at: Optional[datetime], now: datetime) -> str:
    if at is None or at <= now:
        return "at the next look of a running job"
    return f"in {duration((at - now).total_seconds())}"
