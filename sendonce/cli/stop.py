"""`sendonce stop --all | --lane L | --sender S [--reason TEXT] [--off]`: nothing of it sends from now on."""

import click

from sendonce.cli.output import moment, out, print_json
from sendonce.cli.session import Session, WrongCall, with_session
from sendonce.control.stops import end_stop, stop_sending, stops_by_people


@click.command()
@click.option("--all", "everything", is_flag=True, help="Everything, in every process on this store.")
@click.option("--lane", metavar="NAME", help="One lane: critical, high or bulk.")
@click.option("--sender", metavar="NAME", help="One sender, whatever lane uses it.")
@click.option("--reason", default="", metavar="TEXT", help="Shown by `status` as long as it holds.")
@click.option("--off", is_flag=True, help="End the stop: it sends again.")
@with_session
def stop(session: Session, everything: bool, lane: str | None, sender: str | None, reason: str, off: bool) -> None:
    """Stop sending, in force at the next claim of every job; with --off, let it send again.

    Requests in flight end. Campaigns stay as they are and go on where they stopped. Without an option: shows what is
    stopped.
    """
    chosen = ["all"] if everything else []
    chosen += [f"lane:{lane}"] if lane is not None else []
    chosen += [f"sender:{sender}"] if sender is not None else []
    if len(chosen) > 1:
        raise WrongCall("choose one of --all, --lane and --sender")
    if not chosen:
        if off or reason:
            raise WrongCall("say what: --all, --lane NAME or --sender NAME")
        _show(session)
        return
    (scope,) = chosen
    changed = end_stop(session.store, scope) if off else stop_sending(session.store, scope, reason, session.by)
    if session.as_json:
        print_json({"scope": scope, "stopped": not off, "changed": changed})
        return
    what = "everything" if everything else scope.replace(":", " ")
    if off:
        out().print(f"{what}: sends again." if changed else f"{what}: was not stopped; nothing changed.", markup=False)
    elif changed:
        out().print(f"{what}: stopped. Requests in flight end; nothing new starts.", markup=False)
        out().print("The same with --off lets it send again.", style="dim")
    else:
        out().print(f"{what}: was stopped already; nothing changed.", markup=False)


def _show(session: Session) -> None:
    stops = stops_by_people(session.store)
    if session.as_json:
        print_json([stop.as_json() for stop in stops])
        return
    if not stops:
        out().print("Nothing is stopped.")
    for found in stops:
        reason = f": {found.reason}" if found.reason else ""
        out().print(f"{found.what.replace(':', ' ')} since {moment(found.since)}{reason}", markup=False)
