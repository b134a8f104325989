"""`sendonce unload CAMPAIGN`."""

import sys

import click

from sendonce.cli.output import counted, err, out, print_json
from sendonce.cli.session import Session, WrongCall, with_session
from sendonce.control.campaigns import LOADING, READY, get_campaign
from sendonce.control.faults import WrongState
from sendonce.control.snapshots import UNLOADING
from sendonce.control.unload import unload as unload_campaign


@click.command()
@click.argument("campaign")
@click.option("--yes", is_flag=True, help="Do not ask. Needed in scripts.")
@with_session
def unload(session: Session, campaign: str, yes: bool) -> None:
    """Take a loaded CAMPAIGN out of the store again, with its recipients. Only while it was never submitted.

    Its id can then be loaded anew. If it is killed, the same again goes on.
    """
    row = get_campaign(session.store, campaign)
    if row.state != READY and (row.state, row.state_reason) != (LOADING, UNLOADING):
        raise WrongState(campaign, row.state, "unload")
    who = counted(row.recipients, "recipient")
    if not yes:
        if not sys.stdin.isatty():
            raise WrongCall(
                f"this removes {who}, and nobody is here to be asked; `sendonce unload {campaign} --yes` does it",
                "not_confirmed",
            )
        click.confirm(f"Remove campaign {campaign} and its {who} from the store?", abort=True, err=True)
    with err().status("Removing …") as line:
        removed = unload_campaign(
            session.store, campaign, lambda done: line.update(f"Removing … {counted(done, 'recipient')}")
        )
    (session.rejects_folder / f"{campaign}.ndjson").unlink(missing_ok=True)
    if session.as_json:
        print_json({"campaign": campaign, "recipients": removed, "unloaded": True})
    else:
        out().print(
            f"{campaign}: removed with {counted(removed, 'recipient')}; its id can be loaded again.", markup=False
        )
