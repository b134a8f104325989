"""`sendonce test-send TEMPLATE|CAMPAIGN ADDRESS…`: letters to look at in a real mailbox."""

import time

import click

from schemas.outcomes import Outcome
from schemas.tables import Campaign
from sendonce.cli.output import out, print_json
from sendonce.cli.session import Session, Unfinished, WrongCall, with_session
from sendonce.delivery import trial
from sendonce.rendering.catalogue import find_template

# Long enough for a permit under any usual limit, short enough to sit and wait for.
_PATIENCE_S = 60.0


@click.command(name="test-send")
@click.argument("target", metavar="TEMPLATE|CAMPAIGN")
@click.argument("addresses", metavar="ADDRESS...", nargs=-1, required=True)
@click.option("--as", "recipient", metavar="RECIPIENT", help="A campaign's letter to this recipient_id. [its first]")
@with_session
def test_send(session: Session, target: str, addresses: tuple[str, ...], recipient: str | None) -> None:
    """Send a test letter to each ADDRESS now, by the sender of its lane.

    TEMPLATE with its examples, or CAMPAIGN as one of its recipients would get it. The test is a small campaign of its
    own: it takes permits, obeys suppressions and guards, and is kept with its outcomes. Exit code 1 unless all are
    accepted.
    """
    from transforms.worker import own_clocks

    store, clocks = session.store, own_clocks()
    known = store.read(lambda reader: reader.get(Campaign, target)) is not None
    if known:
        letter = trial.of_campaign(store, target, recipient)
    elif recipient is not None:
        raise WrongCall(
            f"--as names a recipient of a campaign, and there is no campaign {target!r}", "unknown_campaign"
        )
    else:
        links = session.config.unsubscribe
        letter = trial.of_template(
            find_template(target, session.config.template_folders()),
            from_address=session.config.from_address,
            unsubscribe_base_url=links.base_url if links else "",
            store=store,
        )
    name = trial.seal_trial(store, letter, addresses, session.by, clocks)
    outcomes = trial.send_trial(store, name, clocks, time.sleep, _PATIENCE_S)
    _tell(session, name, outcomes)
    if any(outcome is not Outcome.ACCEPTED for outcome in outcomes):
        raise Unfinished


def _tell(session: Session, name: str, outcomes: list[Outcome]) -> None:
    if session.as_json:
        shown = [{"outcome": outcome.kind, "reason": outcome.reason or None} for outcome in outcomes]
        print_json({"campaign": name, "letters": shown})
        return
    for number, outcome in enumerate(outcomes, 1):
        out().print(f"{number}. {outcome.reason or outcome.kind.replace('_', ' ')}", markup=False)
    if Outcome.OPEN in outcomes:
        out().print("Not sent yet: `sendonce status` says what it waits for, `sendonce run` goes on.", style="yellow")
    out().print(f"Kept as {name}: `sendonce outcome {name} test-1`", style="dim", markup=False)
