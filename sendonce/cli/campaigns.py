"""`sendonce submit | pause | resume | cancel CAMPAIGN`."""

import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from sendonce.cli.output import counted, duration, err, moment, number, out, print_json, state_text
from sendonce.cli.session import Session, Unfinished, WrongCall, with_session
from sendonce.cli.status import silent_text, stopping_text
from sendonce.control import campaigns
from sendonce.control.campaigns import CANCELLING, READY, RUNNING, Change
from sendonce.control.expiry import NEVER, end_of, read_end, with_end
from sendonce.control.forecast import Forecast, forecast
from sendonce.control.guards import letter_problems, start_obstacle
from sendonce.control.schedule import NOW, read_start, starts_later, with_start
from sendonce.control.status import running_jobs
from sendonce.moments import utc_text_or_none


@click.command()
@click.argument("campaign")
@click.option("--yes", is_flag=True, help="Do not ask. Needed in scripts, where the sender is a real one.")
@click.option("--at", metavar="TIME", help="Start then, at most 366 days ahead: 2026-12-24T18:00+01:00.")
@click.option("--expires", metavar="TIME", help="Send nothing from then on: 2026-12-24T18:00+01:00, or `never`.")
@with_session
def submit(session: Session, campaign: str, yes: bool, at: str | None, expires: str | None) -> None:
    """Start a loaded CAMPAIGN: from now on, or from --at, every job sends it.

    Shows to how many, by which sender, from whom and until when, and what the last rehearsal found; asks first unless
    the sender is the outbox. Submitting twice is harmless. A campaign that was paused since stays paused.

    Until --at nothing is sent, and a job must run then. While it has not begun, submitting again with another --at
    moves it, and without --at and --expires starts it now. A TIME that is past means now.

    Whoever was not sent to before --expires gets the outcome `expired`, whatever held things up. TIME has an offset or
    a zone ("2026-12-24 18:00 Europe/Paris"); submitting again with another one changes the end.
    """
    end = read_end(expires) if expires is not None else None
    start = read_start(at) if at is not None else NOW if end is None else None
    row = campaigns.get_campaign(session.store, campaign)
    now = session.store.read(lambda reader: reader.now())
    begins = starts_later(row, now) is not None and start is not None and start <= now
    plan = forecast(session.store, campaign) if row.state == READY or begins else None
    if plan is not None:
        row = with_start(row if end is None else with_end(row, end), start, now, moves=True)
        plan = replace(plan, campaign=row, starts_at=start if start is not None and start > now else None)
        if obstacle := session.store.read(lambda reader: start_obstacle(reader, row)):
            raise obstacle
        if at is not None and start is not None and start <= now:
            err().print(Text("The time given is past, so it starts now.", "yellow"))
        if not session.as_json:
            out().print(_plan(plan))
        if plan.real:
            for place, problem in letter_problems(row):
                err().print(Text(f"Its {place} {problem}.", "yellow"), soft_wrap=True)
        if warning := _unrehearsed(plan):
            err().print(Text(warning, "yellow"))
        if plan.real and not yes:
            _ask(plan)
    change = campaigns.submit(session.store, campaign, session.by, at=start, expires_at=end)
    hint = change.note or "`sendonce run` sends it; `sendonce status` shows how far it is."
    if change.starts_at is not None and change.after == RUNNING:
        hint = f"It starts {moment(change.starts_at)}; a job must run then: `sendonce run`."
    elif end is not None and plan is None and change.changed and not change.note:
        hint = "It ends no more." if end == NEVER else f"It ends {moment(end)}."
    if plan is None:
        _tell(session, change, hint)
    else:
        rehearsal = plan.rehearsal.as_json() if plan.rehearsal else None
        _tell(session, change, hint, {"plan": plan.as_json(), "rehearsal": rehearsal})


def _ask(plan: Forecast) -> None:
    if not sys.stdin.isatty():
        raise WrongCall(
            f"{plan.sender} is a real sender, and nobody is here to be asked; `sendonce submit "
            f"{plan.campaign.campaign_id} --yes` starts it",
            "not_confirmed",
        )
    when = f" from {moment(plan.starts_at)} on" if plan.starts_at is not None else ""
    click.confirm(f"Send to {counted(plan.recipients, 'recipient')} by {plan.sender}{when}?", abort=True, err=True)


def _plan(plan: Forecast) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    adapter = "" if plan.adapter == plan.sender else f" ({plan.adapter})"
    facts = [
        ("recipients", number(plan.recipients)),
        ("sender", f"{plan.sender}{adapter}"),
        *((("fallback", plan.fallback),) if plan.fallback is not None else ()),
        ("from", plan.campaign.from_address),
        *((("reply to", plan.reply_to),) if plan.reply_to is not None else ()),
        ("unsubscribe", plan.unsubscribe or "no links"),
        *(("limit", text) for text in plan.limits),
        *((("starts", moment(plan.starts_at)),) if plan.starts_at is not None else ()),
        ("takes", "not known yet" if plan.seconds is None else _at_least(plan.seconds, plan.starts_at)),
        *(("ends", text) for text in _end(plan)),
    ]
    if plan.guards.allowed is not None:
        facts.append(("guard", "only recipients_allowed get a letter"))
    if plan.guards.redirect_to:
        facts.append(("guard", f"every letter goes to {plan.guards.redirect_to}"))
    facts += [("stop", f"{stop.what} is {stop.kind}: {stop.reason}") for stop in plan.stops]
    if plan.rehearsal is not None and not plan.rehearsal.failed:
        facts.append(
            ("rehearsed", f"{counted(plan.rehearsal.rendered, 'letter')} at {moment(plan.rehearsal.at)}, none fails")
        )
    for name, text in facts:
        grid.add_row(name, Text(text))
    return grid


def _unrehearsed(plan: Forecast) -> str:
    """What whoever starts a campaign should know about its letters; empty when all of them can be made."""
    command = f"`sendonce rehearse {plan.campaign.campaign_id}`"
    if plan.rehearsal is None:
        return f"Not rehearsed: {command} renders every letter, sends none, and names each that would fail."
    if plan.rehearsal.failed:
        who = counted(plan.rehearsal.failed, "recipient")
        return f"{who} would get no letter, says the rehearsal of {moment(plan.rehearsal.at)}: {command} names them."
    return ""


def _end(plan: Forecast) -> list[str]:
    end = end_of(plan.campaign)
    if end is None:
        return []
    start = plan.starts_at or datetime.now(UTC)
    late = plan.seconds is not None and start + timedelta(seconds=plan.seconds) > end
    return [f"{moment(end)}{', before everybody can be sent to: the rest gets `expired`' if late else ''}"]


def _at_least(seconds: float, start: datetime | None) -> str:
    ends = (start or datetime.now(UTC)) + timedelta(seconds=seconds)
    return f"{duration(seconds)} or more, until {ends:%Y-%m-%d %H:%M} UTC{'' if start else ' if it starts now'}"


@click.command()
@click.argument("campaign")
@click.option("--reason", metavar="TEXT", help="Shown by `status` while it is paused.")
@with_session
def pause(session: Session, campaign: str, reason: str | None) -> None:
    """Stop CAMPAIGN for now. Requests in flight end; nothing new starts."""
    change = campaigns.pause(session.store, campaign, session.by, reason=reason)
    _tell(session, change, f"`sendonce resume {campaign}` goes on where it stopped.")


@click.command()
@click.argument("campaign")
@with_session
def resume(session: Session, campaign: str) -> None:
    """Go on with a paused or halted CAMPAIGN where it stopped."""
    change = campaigns.resume(session.store, campaign, session.by)
    lane = campaigns.get_campaign(session.store, campaign).priority
    jobs = session.store.read(lambda reader: running_jobs(reader, lane))
    hint = "A running job goes on with it." if jobs.count else "`sendonce run` goes on with it."
    if change.starts_at is not None:
        hint = f"It starts {moment(change.starts_at)}, as before."
    elif jobs.silent:
        hint = silent_text(jobs)
    elif jobs.stopping and not jobs.count:
        hint = f"{stopping_text(lane)}."
    _tell(session, change, hint)


@click.command()
@click.argument("campaign")
@with_session
def cancel(session: Session, campaign: str) -> None:
    """Stop CAMPAIGN for good. Whoever was not sent to gets the outcome `cancelled`.

    Requests in flight and in doubt settle first: until then the campaign is `cancelling`, and calling again is
    harmless. Exit code 1 while something is left to settle.
    """
    from sendonce.delivery.cancellation import cancel as cancel_campaign

    with err().status("Cancelling …") as line:
        change = cancel_campaign(
            session.store,
            campaign,
            session.by,
            progress=lambda closed: line.update(f"Cancelling … {counted(closed, 'batch', 'batches')} closed"),
        )
    _tell(session, change, "")
    if change.after == CANCELLING:
        if not session.as_json:
            err().print(
                "Requests in flight or in doubt settle first. `sendonce run` settles them,\n"
                "`sendonce doubts list` shows those that wait for a person."
            )
        raise Unfinished


def _tell(session: Session, change: Change, hint: str, more: dict[str, Any] | None = None) -> None:
    if session.as_json:
        print_json(
            {
                "campaign": change.campaign_id,
                "before": change.before,
                "state": change.after,
                "changed": change.changed,
                "starts_at": utc_text_or_none(change.starts_at),
                "note": change.note or None,
                **(more or {}),
            }
        )
        return
    if change.changed:
        came = "" if change.before == change.after else f"{change.before} → "
        out().print(f"{change.campaign_id}: {came}", state_text(change.after, change.starts_at), sep="")
        if hint:
            out().print(hint, style="dim")
    else:
        out().print(f"{change.campaign_id}: nothing changed; {change.note}")
