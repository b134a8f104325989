"""`sendonce events import`: what providers told of letters, from files."""

from pathlib import Path
from secrets import token_hex

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
    Whoever they prove to be accepted is no longer in doubt. Exit code 1 if a line could not be understood; the others
    are in.
    """
    from sendonce.control.event_import import import_events

    with err().status("Reading …") as line:
        report = import_events(
            session.store,
            file,
            provider=provider,
            progress=lambda found: line.update(f"Reading … {counted(found.events, 'event')}"),
        )
        settled, recipients = _settle(session) if report.recorded.added or report.recorded.already else (0, 0)
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
                "settled": {"requests": settled, "recipients": recipients},
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
        if settled:
            out().print(f"{counted(recipients, 'recipient')} of {counted(settled, 'request')} no longer in doubt.")
    if report.rejected:
        raise Unfinished


def _settle(session: Session) -> tuple[int, int]:
    """Settle those in doubt of whom there is proof: how many requests they were in, how many they are.

    Jobs do so, too, but look at old doubts every few minutes only.
    """
    from sendonce.cli.doubts import outbound_log_of
    from sendonce.control.doubts import list_doubts
    from sendonce.delivery.resolver import settle_by_proof
    from sendonce.stores.opening import store_key

    key, log_of = store_key(session.store), outbound_log_of(session)
    counts = [
        settle_by_proof(session.store, key, doubt, log_of(doubt.campaign_id), token_hex(16))
        for doubt in list_doubts(session.store)
    ]
    return sum(count > 0 for count in counts), sum(counts)
