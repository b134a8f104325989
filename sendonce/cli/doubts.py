"""`sendonce doubts list | show | resend | assume`: requests whose fate is not known."""

import os
import time
from collections.abc import Callable

import click

from schemas.ids import attempt_id
from sendonce.cli.doubts_show import show
from sendonce.cli.output import ago, counted, number, out, print_json, table
from sendonce.cli.session import Session, WrongCall, with_session
from sendonce.config import lanes_in
from sendonce.control.campaigns import CANCELLING, get_campaign
from sendonce.control.doubts import Doubt, list_doubts


@click.group()
def doubts() -> None:
    """Requests whose fate is not known: the provider may have accepted them, or not.

    A running job settles what it can prove. What it cannot waits for you.
    """


doubts.add_command(show)


@doubts.command(name="list")
@click.argument("campaign", required=False)
@with_session
def list_(session: Session, campaign: str | None) -> None:
    """The doubts of CAMPAIGN, or of every campaign."""
    found = list_doubts(session.store, campaign)
    if session.as_json:
        print_json([doubt.as_json() for doubt in found])
        return
    if not found:
        out().print("No doubts.")
        return
    now = session.store.read(lambda reader: reader.now())
    made = table("campaign", "batch", "recipients", "since", "provider", "waits for", right=("batch", "recipients"))
    for doubt in found:
        made.add_row(
            doubt.campaign_id,
            str(doubt.batch_no),
            number(doubt.recipients),
            ago(doubt.since, now),
            doubt.provider or "-",
            "you" if doubt.held else "proof",
        )
    out().print(made)
    out().print(
        "\n`sendonce doubts show CAMPAIGN` tells what is known of each. `sendonce doubts\n"
        "assume CAMPAIGN` counts them as `assumed`; `sendonce doubts resend CAMPAIGN`\n"
        "sends again, and whoever was reached gets a second letter.",
        style="dim",
    )


_one_batch = click.option("--batch", type=int, metavar="N", help="Only this batch. All that are in doubt otherwise.")
_reason = click.option("--reason", default="", metavar="TEXT", help="Why; kept with the decision.")


@doubts.command()
@click.argument("campaign")
@_one_batch
@_reason
@with_session
def assume(session: Session, campaign: str, batch: int | None, reason: str) -> None:
    """Count those in doubt as `assumed`.

    Nothing more is sent to them. `assumed` is never counted as accepted.
    """
    _decide(session, "assume", _chosen(session, campaign, batch), reason)


@doubts.command()
@click.argument("campaign")
@_one_batch
@_reason
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_session
def resend(session: Session, campaign: str, batch: int | None, reason: str, yes: bool) -> None:
    """Send again to those in doubt.

    Whoever was reached gets a second letter.
    """
    chosen = _chosen(session, campaign, batch)
    if get_campaign(session.store, campaign).state == CANCELLING:
        raise WrongCall(
            f"campaign {campaign} is being cancelled and sends nothing more; use `sendonce doubts assume`",
            "wrong_state",
        )
    recipients = sum(doubt.recipients for doubt in chosen)
    if not yes and chosen:
        click.confirm(
            f"Up to {counted(recipients, 'person', 'people')} may get a second letter. Send again?",
            abort=True,
            err=True,
        )
    _decide(session, "resend", chosen, reason)


def _chosen(session: Session, campaign: str, batch: int | None) -> list[Doubt]:
    found = [doubt for doubt in list_doubts(session.store, campaign) if batch in (None, doubt.batch_no)]
    if batch is not None and not found:
        raise WrongCall(f"batch {batch} of {campaign} is not in doubt; see `sendonce doubts list`", "no_doubt")
    return found


def _decide(session: Session, kind: str, chosen: list[Doubt], reason: str) -> None:
    from sendonce.delivery.resolver import decide, settle_by_proof
    from sendonce.stores.opening import store_key

    key, log_of = store_key(session.store), outbound_log_of(session)
    decided, recipients = set(), 0
    for doubt in chosen:
        log = log_of(doubt.campaign_id)
        # Of whom there is proof that nobody has looked at yet, there is nothing to decide.
        proven = settle_by_proof(session.store, key, doubt, log, _new_id())
        if decide(session.store, key, doubt, kind, session.by, reason, log, _new_id()):
            decided.add((doubt.campaign_id, doubt.batch_no))
            recipients += doubt.recipients - proven
    if session.as_json:
        print_json({"decision": kind, "batches": len(decided), "recipients": recipients})
    elif not decided:
        out().print("No doubts to decide.")
    else:
        done = "counted as assumed" if kind == "assume" else "open again; `sendonce run` sends to them"
        out().print(f"{counted(recipients, 'recipient')} in {counted(len(decided), 'batch', 'batches')}: {done}.")


def outbound_log_of(session: Session) -> Callable[[str], str]:
    """What is written of messages that become final, by campaign."""
    lanes = lanes_in(session.store)

    def log_of(campaign_id: str) -> str:
        lane = lanes.get(get_campaign(session.store, campaign_id).priority)
        return lane.outbound_log if lane is not None else "rows"

    return log_of


def _new_id() -> str:
    return attempt_id(time.time_ns() // 1_000_000, os.urandom(10))
