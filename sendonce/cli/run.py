"""`sendonce run`: work through what is due, on this machine."""

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import click
import orjson

from sendonce.cli.beam import live_runner, local_runner
from sendonce.cli.main import FAILED
from sendonce.cli.output import counted, duration, err, out, print_json
from sendonce.cli.senders import health_text
from sendonce.cli.session import Session, Unfinished, WrongCall, with_session
from sendonce.cli.triggers import all_taken, read_triggers, tell_triggers, triggers_as_json
from sendonce.cli.watching import Watch
from sendonce.config import LANE_NAMES, ConfigFault, check_environment, read_lanes
from sendonce.control.jobs import new_job_id
from sendonce.control.sender_health import SenderHealth, unwell_senders

# What a live job's stop takes at most.
STOPS_S: Final = 30
_WAITS = {
    "held": "doubts wait for a person: `sendonce doubts list`",
    "in_doubt": "doubts wait for proof, or for their lane's policy: `sendonce doubts list`",
    "paused": "a campaign is paused: `sendonce resume CAMPAIGN`",
    "halted": "a campaign is halted: `sendonce status CAMPAIGN` says why, and what to do",
    "sender_halted": "a sender is halted, and a person must mend it",
    "stopped": "sending was stopped by a person",
}


@click.command()
@click.option("--once", is_flag=True, help="One round of what is due now, then stop.")
@click.option("--lanes", metavar="A,B", default=",".join(LANE_NAMES), show_default=True, help="Only these lanes.")
@click.option(
    "--triggers",
    metavar="FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Apply these triggers first: one JSON object per line, as on Pub/Sub.",
)
@click.option(
    "--subscription",
    metavar="NAME",
    help="Go on until stopped, with triggers from projects/P/subscriptions/S. [SENDONCE_SUBSCRIPTION, settings file]",
)
@with_session
def run(session: Session, once: bool, lanes: str, triggers: Path | None, subscription: str | None) -> None:
    """Send what is due, until nothing is left open; with a subscription, until it is stopped.

    Any number of these may run on one store. Ctrl-C ends what is in flight and stops; so does SIGTERM. With a
    subscription that takes 30 s at most; without one as long as the answers take, a mail server's in bulk 10 minutes.
    Once more stops at once, and leaves in doubt what is in flight. Whatever happens to it, the next run goes on where
    this one stopped. Exit code 1 if something is left or a trigger was bad.
    """
    try:
        chosen = read_lanes(lanes)
    except ConfigFault as fault:
        raise WrongCall(str(fault)) from None
    if subscription and (once or triggers):
        raise WrongCall("--once and --triggers are for runs that end; leave --subscription out, or them")
    session.subscription_option = subscription
    check_environment(session.store, session.config)
    if session.config.subscription and not (once or triggers):
        _run_live(session, chosen, session.config.subscription)
        return
    messages = read_triggers(triggers) if triggers else []
    store = session.store

    job_id = new_job_id()
    with stop_signals(as_json=session.as_json) as stop, Watch(store, lanes=chosen, job_id=job_id, stop=stop) as watch:
        report = local_runner().run_bounded(
            store.url, lanes=chosen, once=once, triggers=messages, stop=stop, progress=watch.round, job_id=job_id
        )

    unwell = store.read(lambda reader: unwell_senders(reader, chosen)) if report.unfinished else []
    if session.as_json:
        print_json(
            {
                "ended": report.ended,
                "rounds": report.rounds,
                "seconds": round(report.seconds, 3),
                "unfinished": report.unfinished,
                "waits_for": list(report.waits_for),
                "senders": [health.as_json() for health in unwell],
                "triggers": triggers_as_json(messages, report.triggers) if triggers else None,
            }
        )
    else:
        if triggers:
            tell_triggers(messages, report.triggers)
        _tell(report, unwell)
    if report.unfinished or not all_taken(messages, report.triggers):
        raise Unfinished


def _run_live(session: Session, lanes: tuple[str, ...], subscription: str) -> None:
    store = session.store
    runner = live_runner()
    with stop_signals(as_json=session.as_json, within=f"within {STOPS_S} s") as stop, Watch(store, lanes=lanes):
        words = f"Live: triggers from {subscription}. Ctrl-C stops."
        report = runner.run_live(
            store.url,
            subscription,
            lanes=lanes,
            stop=stop,
            alone=True,
            begun=lambda: err().print(words, style="dim", markup=False, soft_wrap=True),
        )
    some = "" if set(lanes) == set(LANE_NAMES) else f"--lanes {','.join(lanes)} "
    go_on = f"sendonce run {some}--subscription {subscription}"
    if session.as_json:
        print_json(
            {
                "ended": "stopped",
                "seconds": round(report.seconds, 3),
                "unfinished": report.unfinished,
                "waits_for": list(report.waits_for),
                "handed_back": report.handed_back,
                "in_flight": report.in_flight,
                "restarts": report.restarts,
                "triggers": {"applied": report.applied, "ignored": report.ignored, "bad": report.bad},
                "goes_on": go_on,
            }
        )
    else:
        out().print(
            f"Stopped after {duration(report.seconds)}. "
            f"Triggers: {report.applied} applied, {report.ignored} ignored, {report.bad} bad."
        )
        if report.unfinished is None:
            out().print("The store does not answer: what is open is not known.", style="yellow")
        elif report.unfinished:
            out().print(f"{counted(report.unfinished, 'recipient is', 'recipients are')} not finished.")
        for reason in report.waits_for:
            out().print(f"· {_WAITS.get(reason, reason)}", style="yellow", markup=False)
        if report.in_flight:
            out().print("· requests were still in flight; they come into doubt when their leases end", style="yellow")
        out().print(f"`{go_on}` goes on from here.", style="dim", markup=False, soft_wrap=True)
    if report.in_flight or report.unfinished is None:
        # Python would wait for threads that wait for a provider or the store, past the 30 s that a stop may take.
        sys.stdout.flush()
        os._exit(1)
    if report.unfinished:
        raise Unfinished


def _tell(report: Any, unwell: list[SenderHealth]) -> None:
    took = f"in {duration(report.seconds)}"
    if not report.unfinished:
        out().print(f"Done {took}; nothing is left to send." if report.rounds else "Nothing to send.")
        return
    out().print(f"{counted(report.unfinished, 'recipient is', 'recipients are')} not finished, {took}.")
    for reason in report.waits_for:
        out().print(f"· {_WAITS.get(reason, reason)}", style="yellow", markup=False)
    for health in unwell:
        out().print(f"· {health_text(health)}", style="yellow", markup=False)
    if report.ended in ("stopped", "once"):
        out().print("`sendonce run` goes on from here.", style="dim")


@contextmanager
def stop_signals(*, as_json: bool = False, within: str = "") -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set, so that a run ends what is in flight. The second signal ends the process.

    within: how long a stop takes at most, in words. as_json: whether the second one's answer is a document.
    """
    stop = threading.Event()
    ends = f"ends first, {within}" if within else "ends first"

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            _end_at_once(as_json)
        stop.set()
        err().print(
            f"Stopping: what is in flight {ends}. Once more stops at once, and leaves it in doubt.",
            style="yellow",
            soft_wrap=True,
        )

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        # Once somebody has asked, the process is ending, and "once more" holds until it has.
        for number, handler in before.items() if not stop.is_set() else ():
            signal.signal(number, handler)


def _end_at_once(as_json: bool) -> None:
    """End the process, whatever its threads wait for: an exception would wait for them on its way out.

    Written past the buffers of Python, which may be in use by what the signal came between.
    """
    words = (
        "Stopped at once: what was in flight comes into doubt when its lease ends. `sendonce run` goes on from here."
    )
    with suppress(OSError):
        cursor = "\x1b[?25h\n" if os.isatty(2) else ""  # the bars hide it
        os.write(2, f"{cursor}{words}\n".encode())
        if as_json:
            os.write(1, orjson.dumps({"error": {"reason": "stopped", "message": words}}) + b"\n")
    os._exit(FAILED)
