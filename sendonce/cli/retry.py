"""`sendonce retry CAMPAIGN --failed`: whoever was refused for a reason that passes is sent to again."""

from collections.abc import Mapping
from typing import Any

import click
from rich.text import Text

from schemas.outcomes import Outcome
from sendonce.cli.asking import ask
from sendonce.cli.output import counted, err, number, out, print_json, table
from sendonce.cli.session import Session, WrongCall, with_session
from sendonce.cli.words import reason_words
from sendonce.control.expiry import read_end
from sendonce.control.worth import WORTH, chosen_reasons, warnings_of
from sendonce.delivery.reopening import Opening
from sendonce.delivery.retrying import RetryPlan, plan_retry
from sendonce.delivery.retrying import retry as open_again


@click.command()
@click.argument("campaign")
@click.option("--failed", is_flag=True, help="Whoever was refused. --reason says it, too.")
@click.option("--reason", "reasons", multiple=True, metavar="REASON", help="Only of this reason; may be repeated.")
@click.option("--expires", metavar="TIME", help="Give the campaign this end, as for `submit`; `never` takes it away.")
@click.option("--dry-run", is_flag=True, help="Only say whom it would open.")
@click.option("--yes", is_flag=True, help="Do not ask. Needed in scripts.")
@with_session
def retry(
    session: Session,
    campaign: str,
    failed: bool,
    reasons: tuple[str, ...],
    expires: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Send again to those of CAMPAIGN who were refused for a reason that passes, as a new round.

    Without --reason: `exhausted` and `provider.mailbox_full`. What fails in the same way again is left unless it is
    named, with a warning. Whoever was, or may have been, accepted is never sent to again; suppressions recorded
    meanwhile hold. A completed campaign runs again. Killed in the middle: the same call goes on with the same round.
    """
    if not failed and not reasons:
        raise WrongCall(
            "say whom to send to again: --failed means whoever was refused, --reason those of one reason", "usage"
        )
    chosen = chosen_reasons(reasons)
    end = read_end(expires) if expires is not None else None
    plan = plan_retry(session.store, campaign, chosen, expires_at=end)
    if not session.as_json:
        _show(plan)
    if dry_run:
        _tell(session, plan, None)
        return
    if plan.recipients:
        named = "".join(f" --reason {reason}" for reason in reasons) + (f" --expires '{expires}'" if expires else "")
        question = f"Send again to {counted(plan.recipients, 'recipient')} of {campaign}, as round {plan.number}?"
        ask(question, f"sendonce retry {campaign} --failed{named}", yes=yes)
    with err().status("Opening …") as line:
        opening = open_again(
            session.store,
            plan,
            session.by,
            expires_at=end,
            progress=lambda done: line.update(f"Opening … {counted(done, 'recipient')}"),
        )
    _tell(session, plan, opening)


def _show(plan: RetryPlan) -> None:
    made = table("refused because", "code", "recipients", "", right=("recipients",))
    for outcome, times in _most_first(plan.to_open):
        made.add_row(reason_words(outcome.reason), Text(outcome.reason, "dim"), number(times), Text("again", "green"))
    for outcome, times in _most_first(plan.left):
        made.add_row(reason_words(outcome.reason), Text(outcome.reason, "dim"), number(times), "left")
    if made.row_count:
        out().print(made)
    for outcome, _ in _most_first(plan.left):
        out().print(Text(f"{outcome.reason} is left: {WORTH[outcome].why}", "dim"))
    for reason, why in warnings_of(plan.to_open).items():
        out().print(Text(f"{reason} will most likely be refused again: {why}", "yellow"))
    if plan.goes_on:
        out().print(f"Round {plan.number} goes on, which {plan.goes_on} began.", markup=False)


def _tell(session: Session, plan: RetryPlan, opening: Opening | None) -> None:
    if session.as_json:
        print_json(_as_json(plan, opening))
        return
    under_way = plan.under_way if opening is None else opening.under_way
    reached = plan.maybe_reached if opening is None else opening.maybe_reached
    if reached:
        text = f"{counted(reached, 'recipient')} may have a letter already, from a request sent again in doubt: left."
        out().print(Text(text, "dim"))
    if under_way:
        text = f"{counted(under_way, 'recipient')} more: their batches are being sent or in doubt; call again later."
        out().print(Text(text, "yellow"))
    if opening is None:
        out().print(f"Would open {counted(plan.recipients, 'recipient')}, as round {plan.number}. Nothing changed.")
    elif not opening.recipients:
        out().print("Nobody to send to again.")
    else:
        done = f"{counted(opening.recipients, 'recipient')} open again, round {plan.number}. `sendonce run` sends."
        out().print(done)


def _as_json(plan: RetryPlan, opening: Opening | None) -> dict[str, Any]:
    opened = plan.to_open if opening is None else opening.opened
    return {
        "campaign": plan.campaign.campaign_id,
        "dry_run": opening is None,
        "round": plan.number if opening is None or opening.recipients or plan.goes_on else None,
        "reopened": sum(opened.values()),
        "batches": None if opening is None else opening.batches,
        "reasons": {outcome.reason: times for outcome, times in _most_first(opened)},
        "warnings": warnings_of(opened),
        "left": {
            outcome.reason: {"recipients": times, "why": WORTH[outcome].why}
            for outcome, times in _most_first(plan.left)
        },
        "under_way": plan.under_way if opening is None else opening.under_way,
        "maybe_reached": plan.maybe_reached if opening is None else opening.maybe_reached,
    }


def _most_first(times: Mapping[Outcome, int]) -> list[tuple[Outcome, int]]:
    return sorted(times.items(), key=lambda pair: (-pair[1], pair[0]))
