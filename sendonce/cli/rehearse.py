"""`sendonce rehearse CAMPAIGN`."""

import time

import click
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from sendonce.cli.output import counted, default_language_text, duration, err, number, out, print_json, size
from sendonce.cli.session import Session, Unfinished, with_session
from sendonce.delivery.rehearsal import Failure, Rehearsal
from sendonce.delivery.rehearsal import rehearse as rehearse_campaign


@click.command()
@click.argument("campaign")
@with_session
def rehearse(session: Session, campaign: str) -> None:
    """Render every letter of a loaded CAMPAIGN and send none.

    Lists each recipient who would get no letter, by recipient_id and reason. Exit code 1 if there is one.
    """
    listed: list[Failure] = []
    started_s = time.monotonic()
    progress = Progress(
        TextColumn("rendering"),
        BarColumn(bar_width=30),
        TaskProgressColumn(),
        TextColumn("{task.fields[words]}"),
        console=err(),
        transient=True,
        disable=not err().is_terminal,
    )
    with progress:
        task = progress.add_task("", total=None, words="")

        def seen(sums: Rehearsal, failures: list[Failure]) -> None:
            done = sums.rendered + sums.failed
            progress.update(task, completed=done, total=max(1, sums.recipients), words=counted(done, "letter"))
            if session.as_json:
                listed.extend(failures)
            else:
                _list(failures)

        sums = rehearse_campaign(session.store, campaign, seen)
    seconds = time.monotonic() - started_s
    if session.as_json:
        print_json(_document(campaign, sums, listed, seconds))
    else:
        _tell(sums, seconds)
    if sums.failed:
        raise Unfinished


def _list(failures: list[Failure]) -> None:
    for failure in failures:
        reason = f"{failure.reason}: {failure.detail}" if failure.detail else failure.reason
        out().print(f"{failure.recipient_id}  {reason}", style="red", markup=False)


def _tell(sums: Rehearsal, seconds: float) -> None:
    rate = (sums.rendered + sums.failed) / seconds if seconds > 0 else None
    out().print(f"{counted(sums.rendered, 'letter')} in {duration(seconds)} ({number(rate)}/s)")
    if sums.failed:
        out().print(f"{counted(sums.failed, 'recipient')} would get none:", style="red")
        for reason, times in sorted(sums.by_reason.items(), key=lambda pair: -pair[1]):
            out().print(f"  {reason}: {number(times)}", markup=False)
    forms, packed = counted(sums.forms, "form letter"), counted(sums.packed, "letter")
    out().print(f"{forms}; {packed} packed, {number(sums.whole)} whole")
    if sums.rendered:
        average = size(sums.text_bytes / sums.rendered)
        out().print(f"{size(sums.text_bytes)} of text; {average} a letter, {size(sums.largest_bytes)} the largest")
    if sums.default_language:
        who = default_language_text(sums.default_language)
        out().print(f"{who} get the template's default language", style="yellow", markup=False)
    if sums.clipped:
        out().print(
            f"{counted(sums.clipped, 'letter is', 'letters are')} so large that Gmail shows only a part", style="yellow"
        )


def _document(campaign: str, sums: Rehearsal, failures: list[Failure], seconds: float) -> dict[str, object]:
    return {
        "campaign": campaign,
        "recipients": sums.recipients,
        "rendered": sums.rendered,
        "failed": sums.failed,
        "failed_by_reason": sums.by_reason,
        "form_letters": sums.forms,
        "packed": sums.packed,
        "whole": sums.whole,
        "bytes": sums.text_bytes,
        "largest_bytes": sums.largest_bytes,
        "largest_recipient": sums.largest_recipient or None,
        "clipped_by_gmail": sums.clipped,
        "default_language": sums.default_language,
        "seconds": round(seconds, 3),
        "failures": [
            {
                "recipient_id": failure.recipient_id,
                "batch": failure.batch,
                "reason": failure.reason,
                "detail": failure.detail,
            }
            for failure in failures
        ],
    }
