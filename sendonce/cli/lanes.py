"""`sendonce lanes [--watch]`: limits, what is left of them, how fast it goes, and who waits for what."""

import time
from datetime import datetime
from typing import Any

import click
import orjson
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from sendonce.cli.looks import Looks
from sendonce.cli.output import counted, duration, moment, number, out, print_json, table
from sendonce.cli.senders import awaited_text, health_text
from sendonce.cli.session import Session, with_session_whose_json_is
from sendonce.cli.status import stop_text
from sendonce.config import lanes_in
from sendonce.delivery.lane_report import LimitUse, ScopeUse, Waiting
from sendonce.delivery.lane_use import lane_uses
from sendonce.moments import utc_text

_WAITS = {
    "paused": "are in a paused campaign",
    "halted": "are in a halted campaign",
    "scheduled": "wait for their campaign's start",
    "sender_halted": "wait until the sender is mended",
    "stopped": "wait until the stop ends",
    "throttled": "wait: the provider asked to slow down",
    "breaker_open": "wait: the provider fails",
    "limit": "wait for a limit",
    "retry": "wait for another try",
}


@click.command()
@click.option("--watch", is_flag=True, help="Stay, and show it as it goes, until Ctrl-C.")
@click.option("--every", "every_s", type=click.FloatRange(0.2, 60), default=1.0, help="Seconds between two looks.")
@with_session_whose_json_is("One JSON document on standard output; with --watch one a line.")
def lanes(session: Session, watch: bool, every_s: float) -> None:
    """Limits of every lane and sender: what is left of them, and who waits for which.

    Free: recipients that may go at once, of the bucket or of the window that ends now. Speed: recipients a second
    handed to the provider over the last minute. On Spanner what is watched may be 10 s old.

    \b
    With --json: {at, scopes}. A scope:
      scope             lane:NAME, sender:NAME, or that of another limit
      sender            the lane's; null for other scopes, as the next two
      fallback          the lane's second sender, null without one
      sender_now        by which of both its letters go now
      limits            name, limit (as written; of a warm-up its day), kind
                        (rate, cap), most, used, free, slow (1, or what
                        throttling left of a rate), next_permit_at (null: now)
      recipients_per_s  over the last minute; null where it is not known
      open              recipients without an outcome in campaigns not over;
                        of a sender, in the lanes that go by it now
      waiting           reason, recipients, scope, limit, until
      stops             scope, kind, reason, since, until, mend
      awaiting_answers  of a lane, requests that take longer than a request may:
                        lane, sender, requests, letters, since, and answer_s
                        (for how long they are waited for)
    Times are UTC. What has no limit, or no end by itself, is null.
    """
    lanes_in(session.store)  # a store without lanes says how to get them
    if not watch:
        at, scopes = lane_uses(session.store)
        if session.as_json:
            print_json(_document(at, scopes))
        else:
            out().print(_view(at, scopes))
        return
    looks = Looks()
    if session.as_json:
        while True:
            click.echo(orjson.dumps(_document(*lane_uses(session.store, looks.stale_s()))).decode())
            time.sleep(every_s)
    with Live(_view(*lane_uses(session.store, looks.stale_s())), console=out(), auto_refresh=False) as live:
        while True:
            time.sleep(every_s)
            live.update(_view(*lane_uses(session.store, looks.stale_s())), refresh=True)


def _document(at: datetime, scopes: list[ScopeUse]) -> dict[str, Any]:
    return {"at": utc_text(at), "scopes": [scope.as_json() for scope in scopes]}


def _view(at: datetime, scopes: list[ScopeUse]) -> RenderableType:
    made = table("", "limit", "free", "next permit", "speed", right=("free", "next permit", "speed"))
    for scope in scopes:
        name = _name(scope.scope) + (f" → {scope.sender_now}" if scope.sender_now else "")
        digits = 2 if scope.per_s and scope.per_s < 1 else 1
        speed = "-" if scope.per_s is None else f"{number(scope.per_s, digits)}/s"
        rows = [_limit_cells(use, at) for use in scope.limits] or [("no limit", "-", "now")]
        for row in rows:
            made.add_row(name, *row, speed)
            name = speed = ""
    notes = [note for scope in scopes for note in _notes(scope, at)]
    spare = [f"{_name(scope.scope)}: its fallback is {scope.fallback}" for scope in scopes if _spare(scope)]
    lines = [*(Text(note, "yellow") for note in notes), *(Text(line, "dim") for line in spare)]
    return Group(made, *([Text()] if lines else []), *lines)


def _spare(scope: ScopeUse) -> bool:
    """Whether a lane has a second sender that it does not go by now."""
    return scope.fallback is not None and scope.sender_now == scope.sender


def _name(scope: str) -> str:
    return scope.replace(":", " ").replace("warmup ", "warm-up ")


def _limit_cells(use: LimitUse, at: datetime) -> tuple[str, str, str]:
    free = "-" if use.free is None else f"{number(use.free)} of {number(use.most)}"
    return use.text, free, "now" if use.next_at is None else f"in {duration(_seconds(use.next_at, at))}"


def _seconds(until: datetime, at: datetime) -> float:
    return max(1.0, (until - at).total_seconds())


def _notes(scope: ScopeUse, at: datetime) -> list[str]:
    """What slows or stops a scope, and who waits in a lane; other scopes' waits stand with their lanes."""
    name = _name(scope.scope)
    notes = [
        f"{name}: the provider throttled; {use.text} is at {use.slow:.0%}, and comes back by itself"
        for use in scope.limits
        if use.slow < 1
    ]
    if scope.sender_now != scope.sender:
        notes.append(f"{name}: goes by its fallback {scope.sender_now} until sender {scope.sender} can send again")
    notes += [stop_text(stop) for stop in scope.stops]
    if scope.health is not None and scope.health.probe_due:
        notes.append(health_text(scope.health))
    if scope.scope.startswith("lane:"):
        notes += [f"{name}: {_waiting(waiting)}" for waiting in scope.waiting]
        notes += [f"{name}: {awaited_text(one)}" for one in scope.awaiting]
    return notes


def _waiting(waiting: Waiting) -> str:
    who = counted(waiting.recipients, "recipient")
    if waiting.reason == "limit" and waiting.what:
        what = f"wait for {_name(waiting.scope)}, {waiting.what}"
    else:
        what = _WAITS.get(waiting.reason, f"wait ({waiting.reason})")
    return f"{who} {what}" + (f", until {moment(waiting.until)}" if waiting.until else "")
