"""`sendonce submit | pause | resume | cancel CAMPAIGN`."""

import click

from sendonce.cli.output import err, number, out, print_json, state_text
from sendonce.cli.session import Session, Unfinished, with_session
from sendonce.control import campaigns
from sendonce.control.campaigns import CANCELLING, Change


@click.command()
@click.argument("campaign")
@with_session
def submit(session: Session, campaign: str) -> None:
    """Start a loaded CAMPAIGN: from now on every job sends it.

    Submitting twice is harmless. A campaign that was paused since stays paused.
    """
    change = campaigns.submit(session.store, campaign, session.by)
    _tell(session, change, "`sendonce run` sends it; `sendonce status` shows how far it is.")


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
    _tell(session, campaigns.resume(session.store, campaign, session.by), "A running job goes on with it.")


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
            progress=lambda closed: line.update(f"Cancelling … {number(closed)} batches closed"),
        )
    _tell(session, change, "")
    if change.after == CANCELLING:
        if not session.as_json:
            err().print(
                "Requests in flight or in doubt settle first. `sendonce run` settles them,\n"
                "`sendonce doubts list` shows those that wait for a person."
            )
        raise Unfinished


def _tell(session: Session, change: Change, hint: str) -> None:
    if session.as_json:
        print_json(
            {
                "campaign": change.campaign_id,
                "before": change.before,
                "state": change.after,
                "changed": change.changed,
                "note": change.note or None,
            }
        )
        return
    if change.changed:
        out().print(f"{change.campaign_id}: {change.before} → ", state_text(change.after), sep="")
        if hint:
            out().print(hint, style="dim")
    else:
        out().print(f"{change.campaign_id}: nothing changed; {change.note}")
