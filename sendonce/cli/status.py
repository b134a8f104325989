"""`sendonce list`, `sendonce status [CAMPAIGN] [--watch]`."""

import time
from collections.abc import Sequence
from typing import Final

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from sendonce.cli.looks import Looks
from sendonce.cli.output import (
    counted,
    duration,
    fitting_table,
    joined,
    kind_text,
    moment,
    number,
    out,
    percent,
    print_json,
    state_text,
    table,
)
from sendonce.cli.senders import awaited_text, health_text
from sendonce.cli.session import Session, WrongCall, with_session, with_session_whose_json_is
from sendonce.cli.words import reason_words, wait_words
from sendonce.control.campaigns import CANCELLING, COMPLETED, ENDED, RUNNING
from sendonce.control.decisions import Decided
from sendonce.control.expiry import end_of
from sendonce.control.notices import notices_text
from sendonce.control.rounds import Retried
from sendonce.control.schedule import start_of
from sendonce.control.sender_health import WELL
from sendonce.control.status import Jobs, Status, all_statuses, campaign_status
from sendonce.control.stops import MOVES, Stop
from sendonce.control.stream_names import STREAM, day_ends
from sendonce.control.worth import BY_DEFAULT

# What `list` says below its table, of campaigns that have any: more columns do not fit 80.
_ALSO = ("suppressed", "skipped", "cancelled", "assumed")
# Columns that give way to long ids: what they count is said below, too.
_GIVE_WAY = ("in doubt", "refused", "accepted")


def _also(status: Status, kinds: Sequence[str]) -> str:
    counts = ((kind, status.counts.outcomes[kind.replace(" ", "_")]) for kind in kinds)
    return ", ".join(f"{number(count)} {kind}" for kind, count in counts if count)


@click.command(name="list")
@with_session
def list_campaigns(session: Session) -> None:
    """All campaigns, newest first, and the streams of sends: one for each template, priority and day.

    Below: when campaigns start that have not begun; who was suppressed, skipped, cancelled or assumed, where anybody
    was; and the counts whose columns did not fit beside long ids.
    """
    statuses = all_statuses(session.store)
    if session.as_json:
        print_json([status.as_json() for status in statuses])
        return
    if not statuses:
        out().print("No campaigns yet. `sendonce load CAMPAIGN FILE --template T` makes one.")
        return
    columns = ("campaign", "state", "recipients", "done", "accepted", "refused", "in doubt")
    rows: list[tuple[str | Text, ...]] = [
        (
            status.campaign.campaign_id,
            state_text(status.campaign.state, status.starts_at),
            number(status.total),
            percent(status.percent),
            *(number(status.counts.outcomes[kind]) for kind in ("accepted", "refused", "in_doubt")),
        )
        for status in statuses
    ]
    made, left_out = fitting_table(columns, rows, give_way=_GIVE_WAY, right=columns[2:])
    out().print(made)
    kinds = (*reversed(left_out), *_ALSO)
    others = [
        (status.campaign.campaign_id, f"starts {moment(starts_at)}")
        for status in statuses
        if (starts_at := status.starts_at) is not None
    ]
    others += [(status.campaign.campaign_id, also) for status in statuses if (also := _also(status, kinds))]
    if others:
        out().print()
        for name, also in others:
            out().print(Text(f"{name}: {also}", "dim"))
    unwell = {found.sender: found.health for found in statuses if found.campaign.state not in ENDED}
    for health in unwell.values():
        if health.state != WELL:
            out().print(Text(health_text(health), "yellow"))


@click.command()
@click.argument("campaign", required=False)
@click.option("--watch", is_flag=True, help="Stay, and show it as it goes, until it has ended.")
@click.option("--every", "every_s", type=click.FloatRange(0.2, 60), default=1.0, help="Seconds between two looks.")
@with_session_whose_json_is("One JSON document on standard output; with --watch one a line.")
def status(session: Session, campaign: str | None, watch: bool, every_s: float) -> None:
    """How far CAMPAIGN is. Without a name: the one campaign there is, or the newest that runs, before
    streams of sends.

    Counts come from the batches themselves. Done means a final outcome; 100 % only when everybody has one.
    On Spanner what is watched may be 10 s old; the first look, and
    a call without --watch, show the present.
    """
    campaign = campaign or _only_or_running(session)
    if watch:
        _watch(session, campaign, every_s)
        return
    found = campaign_status(session.store, campaign)
    if session.as_json:
        print_json(found.as_json())
    else:
        out().print(status_view(found))


def _only_or_running(session: Session) -> str:
    statuses = all_statuses(session.store)
    if not statuses:
        raise WrongCall("the store holds no campaign yet; `sendonce load` makes one", "unknown_campaign")
    running = [found for found in statuses if found.campaign.state in (RUNNING, CANCELLING)]
    begun = [found for found in running if found.starts_at is None]
    campaigns = [found for found in begun if found.campaign.kind != STREAM]
    return (campaigns or begun or running or statuses)[0].campaign.campaign_id


def _watch(session: Session, campaign: str, every_s: float) -> None:
    import orjson

    looks = Looks()

    def look() -> Status:
        return campaign_status(session.store, campaign, in_full=False, stale_s=looks.stale_s())

    found = look()
    if session.as_json:
        while True:
            click.echo(orjson.dumps(found.as_json()).decode())
            if found.campaign.state in ENDED:
                return
            time.sleep(every_s)
            found = look()
    with Live(status_view(found), console=out(), auto_refresh=False, transient=False) as live:
        while found.campaign.state not in ENDED:
            time.sleep(every_s)
            found = look()
            live.update(status_view(found), refresh=True)


def status_view(found: Status) -> RenderableType:
    """A campaign on one screen, 80 columns wide."""
    campaign, outcomes = found.campaign, found.counts.outcomes
    head = Text.assemble((campaign.campaign_id, "bold"), "  ", state_text(campaign.state, found.starts_at))
    if campaign.state_reason:
        head.append(f"  {campaign.state_reason}", "dim")
    parts: list[RenderableType] = [head, _bar(found), _pace(found), Text()]
    if found.retries is not None:
        parts.insert(-1, _retries(found.retries))
    if found.decided is not None and found.decided.requests:
        parts.insert(-1, _decided(found.decided))
    parts.append(_two_columns(_outcomes(outcomes), _batches(found)))
    if found.reasons:
        parts += [Text(), reasons_table(found.reasons)]
    if hints := _hints(found):
        parts += [Text(), *(Text(hint, "yellow") for hint in hints)]
    return Group(*parts)


def _bar(found: Status) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    done = number(found.counts.done)
    text = f"{percent(found.percent)}  {done} of {number(found.total)}"
    grid.add_row(
        ProgressBar(
            total=max(1, found.total or 1),
            completed=found.counts.done,
            width=40,
            complete_style="blue",
            finished_style="green",
        ),
        text,
    )
    return grid


def _pace(found: Status) -> Text:
    pieces = []
    ended = found.campaign.state in ENDED
    if found.rate_per_s:
        pieces.append(f"{number(found.rate_per_s, 1)}/s{' on average' if ended else ''}")
    if found.eta_s:
        pieces.append(f"{duration(found.eta_s)} left")
    if found.campaign.finished_at:
        pieces.append(f"ended {moment(found.campaign.finished_at)}")
    elif found.starts_at:
        pieces.append(f"starts {moment(found.starts_at)}, in {duration(found.starts_in_s)}")
    elif (start := start_of(found.campaign)) is not None:
        pieces.append(f"{'submitted' if start == found.campaign.started_at else 'started'} {moment(start)}")
    if not found.campaign.finished_at and (end := end_of(found.campaign)) is not None:
        pieces.append(f"expires {moment(end)}")
    if not found.starts_at:
        pieces.append(f"active {duration(found.active_s)}")
    return joined(pieces, out().width, "dim")


def _retries(retries: Retried) -> Text:
    opened = counted(retries.last, "recipient")
    text = f"round {retries.number}: {opened} opened again by {retries.by}, {moment(retries.at)}"
    if retries.recipients != retries.last:
        text += f" · {number(retries.recipients)} in all rounds"
    return Text(text, "dim")


_DECIDED: Final = {
    ("evidence", "evidence"): "settled by proof",
    ("policy", "hold"): "left to a person",
    ("policy", "assume"): "assumed by the lane",
    ("policy", "resend"): "sent again by the lane",
    ("person", "assume"): "assumed by a person",
    ("person", "resend"): "sent again by a person",
}


def _decided(decided: Decided) -> Text:
    counts = ((decided.requests[place], words) for place, words in _DECIDED.items())
    pieces = [f"{number(count)} {words}" for count, words in counts if count]
    return Text(f"requests in doubt: {', '.join(pieces)}", "dim")


def _outcomes(outcomes: dict[str, int]) -> Table:
    made = table("outcome", "recipients", right=("recipients",))
    for kind, count in outcomes.items():
        made.add_row(kind_text(kind, count), Text(number(count), "dim" if not count else ""))
    return made


def reasons_table(reasons: dict[str, int]) -> Table:
    """Why recipients got no letter, the most frequent first."""
    made = table("no letter because", "code", "recipients", right=("recipients",))
    for reason, times in reasons.items():
        made.add_row(reason_words(reason), Text(reason, "dim"), number(times))
    return made


def _batches(found: Status) -> Table:
    made = table("batches", "", right=("",))
    for state, count in found.counts.batches.items():
        made.add_row(state.replace("_", " "), number(count), style="" if count else "dim")
    return made


def _two_columns(left: Table, right: Table) -> Table:
    grid = Table.grid(padding=(0, 6))
    grid.add_row(left, right)
    return grid


def stop_text(stop: Stop) -> str:
    """What is stopped, why, until when, and what a person can do about it."""
    opened = stop.kind == "breaker_open"
    how = "has its breaker open" if opened else f"is {stop.kind.split('_')[-1]}"
    what = f"{stop.what.replace(':', ' ')} {how}{f': {stop.reason}' if stop.reason else ''}"
    if opened and stop.until is not None:
        return f"{what}; tried again at {moment(stop.until)}{f'; {stop.mend}' if stop.mend else ''}"
    if stop.until is not None:
        return f"{what}, until {moment(stop.until)}"
    return f"{what}; {stop.mend}, then `sendonce run`" if stop.mend else what


def silent_text(jobs: Jobs) -> str:
    """What is known of jobs that have not been heard of for a while."""
    return f"A job was last heard of {duration(jobs.heard_s)} ago; if it was killed, `sendonce run` goes on."


def stopping_text(lane: str) -> str:
    return f"The job of the lane {lane} is stopping: what it has in flight ends first. Then `sendonce run` goes on"


def _hints(found: Status) -> list[str]:
    """What keeps the campaign from going on, and what a person can do about it."""
    name, batches = found.campaign.campaign_id, found.counts.batches
    moved = found.sender_now != found.sender
    hints = [
        f"{counted(count, 'batch', 'batches')}: {wait_words(reason)}"
        for reason, count in found.counts.waiting.items()
        if reason != found.campaign.state and not (moved and reason in MOVES)
    ]
    hints += [awaited_text(one) for one in found.awaited]
    hints += [stop_text(stop) for stop in found.stops if stop.scope != f"sender:{found.sender}"]
    if found.health.state != WELL and found.campaign.state not in ENDED:
        hints.append(health_text(found.health))
        if moved:
            hints.append(f"Meanwhile what was not sent goes by sender {found.sender_now}")
    if found.retries is not None and not found.retries.done and found.campaign.state not in (CANCELLING, "cancelled"):
        hints.append(
            f"Round {found.retries.number} is not opened whole: the same `sendonce retry` of {found.retries.by} goes on"
        )
    if found.campaign.state == COMPLETED and (again := _worth_it(found.reasons or {})):
        hints.append(f"{counted(again, 'refused recipient')} may do better now: `sendonce retry {name} --failed`")
    if found.campaign.state == "ready":
        hints.append(f"Not started: `sendonce submit {name}`")
    if found.starts_at is not None and found.campaign.state == RUNNING:
        hints.append(f"`sendonce submit {name} --at TIME` moves its start, without --at it starts now")
    if found.campaign.state == "halted" and found.campaign.state_reason == "template_fault":
        hints.append(
            "No letter can be made from the template that it was loaded with, so going on halts it again: "
            f"`sendonce cancel {name}`, mend the template (`sendonce check`), load under a new id"
        )
    elif found.campaign.state in ("paused", "halted"):
        hints.append(f"`sendonce resume {name}` goes on")
    if batches["held"]:
        hints.append(
            f"{counted(batches['held'], 'batch waits', 'batches wait')} for a person: `sendonce doubts show {name}`"
        )
    elif in_doubt := found.counts.outcomes["in_doubt"]:
        hints.append(f"{counted(in_doubt, 'recipient')} in doubt: `sendonce doubts show {name}` tells what is known")
    stream = found.campaign.kind == STREAM
    moves = found.campaign.state in (RUNNING, CANCELLING) and not (stream and found.counts.unsettled == 0)
    if stream and found.campaign.state not in ENDED:
        hints.append(f"Takes sends until {moment(day_ends(found.campaign))}, then ends by itself")
    if moves and found.starts_at is not None and not found.jobs.count:
        hints.append(f"A job of the lane {found.campaign.priority} must run then: `sendonce run`")
    elif moves and not found.jobs.count and found.jobs.stopping:
        hints.append(stopping_text(found.campaign.priority))
    elif moves and not found.jobs.count:
        hints.append(f"No job of the lane {found.campaign.priority} is running: `sendonce run`")
    elif moves and found.jobs.silent:
        hints.append(silent_text(found.jobs))
    hints += [
        f"{notices_text(kind).capitalize()} wait: `sendonce doctor` says why" for kind in found.late_notices or ()
    ]
    if found.oldest_due and found.oldest_due > found.at:
        hints.append(f"The next batch is due at {moment(found.oldest_due)}")
    return hints


def _worth_it(reasons: dict[str, int]) -> int:
    """How many were refused for what passes by itself."""
    return sum(reasons.get(outcome.reason, 0) for outcome in BY_DEFAULT)
