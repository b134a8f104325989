"""`sendonce events import`: what providers told of letters, from files."""

from pathlib import Path

import click

from sendonce.cli.output import counted, err, number, out, print_json
from sendonce.cli.session import Session, Unfinished, with_session
from sendonce.control.event_payloads import PROVIDERS

_IGNORED = {
    "no_ids": "of letters that are not from here",
    "unknown_kind": "of a kind that says nothing of a letter",
    "no_event": "no event: SNS's own messages",
}


@click.group()
def events() -> None:
    """Delivery events: what a provider told later of the letters it took.

    They are proof for requests in doubt. Ids, kinds and times are kept; addresses never are.
    """


@events.command(name="import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--provider", type=click.Choice(PROVIDERS), help="Whose events they must be. [found by content]")
@with_session
def import_(session: Session, file: Path, provider: str | None) -> None:
    """Put the delivery events in FILE on record.

    FILE has JSON, an event or a list of events a line, or all in one: as SendGrid posts them, as SES publishes them, or
    in SNS's envelopes; compressed with gzip, too. Each event counts once, in whatever order and however often it comes.
    A running job then settles what was in doubt. Exit code 1 if a line could not be understood; the others are in.
    """
    from sendonce.control.event_import import import_events

    with err().status("Reading …") as line:
        report = import_events(
            session.store,
            file,
            provider=provider,
            progress=lambda found: line.update(f"Reading … {counted(found.events, 'event')}"),
        )
        proven = _proven(session) if report.recorded.added or report.recorded.already else 0
    recorded = report.recorded
    if session.as_json:
        print_json(
            {
                "lines": report.lines,
                "events": report.events,
                "added": recorded.added,
                "already": recorded.already,
                "unknown_campaign": recorded.unknown_campaign,
                "unknown_attempt": recorded.unknown_attempt,
                "ignored": dict(sorted(report.ignored.items())),
                "rejected": report.rejected.total(),
                "rejected_by_reason": dict(sorted(report.rejected.items())),
                "first_rejects": [one._asdict() for one in report.rejects],
                "doubts_with_proof": proven,
            }
        )
    else:
        out().print(f"{counted(recorded.added, 'event')} added, {number(recorded.already)} on record already.")
        left_out = (
            ("of campaigns that this store does not have", recorded.unknown_campaign),
            ("of attempts that this store did not make", recorded.unknown_attempt),
            *((_IGNORED[why], times) for why, times in sorted(report.ignored.items())),
        )
        for what, times in left_out:
            if times:
                out().print(f"  left out, {what}: {number(times)}", style="dim")
        for reason, times in sorted(report.rejected.items()):
            out().print(f"  not understood, {reason}: {number(times)}", style="yellow", markup=False)
        if report.rejects:
            places = [f"{one.line}{f' (entry {one.entry})' if one.entry else ''}" for one in report.rejects]
            more = " …" if report.rejected.total() > len(places) else ""
            out().print(f"  lines: {', '.join(places)}{more}", style="dim")
        if proven:
            have = "has" if proven == 1 else "have"
            out().print(
                f"{counted(proven, 'request')} in doubt {have} proof now; a running job settles it within 10 s."
            )
    if report.rejected:
        raise Unfinished


def _proven(session: Session) -> int:
    """Requests in doubt about which there is proof: the next sweep of a job settles them."""
    from sendonce.control.doubts import list_doubts
    from sendonce.delivery.resolver import evidence_of
    from sendonce.stores.opening import store_key

    key = store_key(session.store)
    found = list_doubts(session.store)
    return session.store.read(lambda reader: sum(evidence_of(reader, key, doubt) is not None for doubt in found))
