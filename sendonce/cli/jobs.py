"""`sendonce jobs`: who works on this store, and when each was last heard of."""

from datetime import timedelta
from typing import Any, Final

import click
from rich.text import Text

from sendonce.cli.output import ago, counted, duration, number, out, print_json, table
from sendonce.cli.session import Session, with_session
from sendonce.control.jobs import SeenJob, seen_jobs

_SHOWN: Final = timedelta(days=1)
_ENDED_SHOWN: Final = 10
_STYLES: Final = {"running": "bold blue", "stopping": "yellow", "silent": "bold red", "ended": "dim"}


@click.command()
@click.option("--all", "all_", is_flag=True, help="Also those last heard of more than a day ago, and all that ended.")
@with_session
def jobs(session: Session, all_: bool) -> None:
    """Jobs that work on this store: on which lanes, since when, and when each was last heard of.

    A job that lives says so every few seconds, also while it is stopping: then what it has in flight ends first. One
    that is silent was killed or has lost the store; what it had in hand is found by its leases, and any other job goes
    on with it. Of those that ended the last ten are shown.

    \b
    With --json, a list: job, state (running, stopping, silent, ended), lanes,
    host, pid, version, started_at, heartbeat_at, silent_s, and facts: what the
    job said of itself (subscription, triggers_applied, triggers_ignored,
    triggers_bad, restarts, and the pids of lane_processes). Times are UTC.
    """
    found = session.store.read(lambda reader: seen_jobs(reader, since=None if all_ else _SHOWN))
    if session.as_json:
        print_json([job.as_json() for job in found])
        return
    if not found:
        out().print("No job has worked here" + ("." if all_ else " within a day."))
        out().print("`sendonce run` starts one.", style="dim")
        return
    made = table("state", "lanes", "heard of", "runs for", "host and process", "triggers", right=("triggers",))
    shown = found if all_ else _without_old_ends(found)
    for job in shown:
        made.add_row(
            Text(job.state, _STYLES[job.state]),
            ", ".join(job.row.lanes.split(",")),
            ago(job.row.heartbeat_at, job.at),
            duration((job.row.heartbeat_at - job.row.started_at).total_seconds()),
            f"{job.row.host} {job.row.pid}",
            _triggers(job),
        )
    out().print(made)
    if len(shown) < len(found):
        more = counted(len(found) - len(shown), "more job")
        out().print(Text(f"\n{more} ended within a day: `sendonce jobs --all`", "dim"))
    for note in _notes(found):
        out().print(Text(note, "yellow"))


def _without_old_ends(found: list[SeenJob]) -> list[SeenJob]:
    """Those that have not ended, and the few that ended last; they come last, the newest first."""
    ended = [job for job in found if job.state == "ended"]
    return [job for job in found if job.state != "ended"] + ended[:_ENDED_SHOWN]


def _triggers(job: SeenJob) -> str:
    applied = job.facts.get("triggers_applied")
    return "-" if applied is None else number(applied)


def _notes(found: list[SeenJob]) -> list[str]:
    notes = []
    silent = [job for job in found if job.state == "silent"]
    if silent:
        who = "it was killed or has" if len(silent) == 1 else "they were killed or have"
        said = counted(len(silent), "job is", "jobs are")
        notes.append(f"\n{said} silent: {who} lost the store. Any job of the same lanes goes on with the work.")
    versions: dict[str, Any] = {job.row.version: None for job in found if job.state == "running"}
    if len(versions) > 1:
        notes.append(f"\nJobs of different versions run: {', '.join(versions)}.")
    for job in found:
        if job.state == "running" and (restarts := job.facts.get("restarts")):
            notes.append(
                f"\nThe job of process {job.row.pid} had to start its graph again {counted(restarts, 'time')}."
            )
    return notes
