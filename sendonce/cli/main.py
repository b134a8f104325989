"""The command `sendonce`: finds the command, runs it, and turns every fault into a message and an exit code.

Exit codes: 0 done, 1 the work failed or is unfinished, 2 the call was wrong. Each command's module is loaded when it
is called, so that `status` does not wait for pandas or Beam.
"""

import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, Final

import click

from sendonce import __version__

DONE: Final = 0
FAILED: Final = 1
WRONG: Final = 2

# Section, command, where it lives, what `sendonce --help` says of it.
_COMMANDS: Final = {
    "Start": {
        "init": ("sendonce.cli.init:init", "Make the store and a settings file in this folder."),
        "demo": ("sendonce.cli.demo:demo", "Send a made-up campaign into a folder and count every outcome."),
    },
    "A campaign": {
        "load": ("sendonce.cli.load:load", "Read a recipients file and seal it as a campaign."),
        "unload": ("sendonce.cli.unload:unload", "Take a campaign out that was never submitted."),
        "rehearse": ("sendonce.cli.rehearse:rehearse", "Render every letter of a loaded campaign, send none."),
        "submit": ("sendonce.cli.campaigns:submit", "Start a loaded campaign."),
        "run": ("sendonce.cli.run:run", "Send what is due, until nothing is left."),
        "pause": ("sendonce.cli.campaigns:pause", "Stop a campaign for now; what is in flight ends."),
        "resume": ("sendonce.cli.campaigns:resume", "Go on with a paused or halted campaign."),
        "cancel": ("sendonce.cli.campaigns:cancel", "Stop a campaign for good."),
        "stop": ("sendonce.cli.stop:stop", "Stop everything, a lane or a sender; --off ends it."),
    },
    "What became of it": {
        "list": ("sendonce.cli.status:list_campaigns", "All campaigns, newest first."),
        "status": ("sendonce.cli.status:status", "One campaign in full; --watch stays."),
        "lanes": ("sendonce.cli.lanes:lanes", "Limits of lanes and senders: what is left, who waits."),
        "outcome": ("sendonce.cli.outcomes:outcome", "What became of one recipient."),
        "export": ("sendonce.cli.outcomes:export", "Every recipient's outcome as CSV or NDJSON."),
        "doubts": ("sendonce.cli.doubts:doubts", "Requests whose fate is not known; decide them."),
        "events": ("sendonce.cli.events:events", "Import what providers told of letters: proof for doubts."),
        "retry": ("sendonce.cli.retry:retry", "Send again to those who were refused for a reason that passes."),
        "dead-letters": ("sendonce.cli.dead_letters:dead_letters", "What could not be processed; replay or drop it."),
    },
    "Letters": {
        "templates": ("sendonce.cli.templates:templates", "List templates; put them into the store."),
        "preview": ("sendonce.cli.preview:preview", "Write one letter to look at."),
        "test-send": ("sendonce.cli.trial:test_send", "Send a test letter to an address of your own."),
        "check": ("sendonce.cli.templates:check", "Look for faults in a template."),
    },
    "Who gets nothing": {
        "suppressions": ("sendonce.cli.suppressions:suppressions", "Import, add, remove, list; why an address."),
        "web": ("sendonce.cli.web:web", "Serve the unsubscribe links of letters."),
        "unsubscribe": ("sendonce.cli.web:unsubscribe", "Make a new key for unsubscribe links."),
    },
    "Care": {
        "jobs": ("sendonce.cli.jobs:jobs", "Who works on this store, and when heard of last."),
        "config": ("sendonce.cli.config:config", "Show settings; put lanes and senders into the store."),
        "migrate": ("sendonce.cli.init:migrate", "Bring a store of an older version up to date."),
        "doctor": ("sendonce.cli.doctor:doctor", "Look over this installation and say what to mend."),
    },
}


class _Commands(click.Group):
    """Commands by section, each loaded when it is called."""

    def list_commands(self, context: click.Context) -> list[str]:
        return [name for section in _COMMANDS.values() for name in section]

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        for section in _COMMANDS.values():
            if name in section:
                module, _, attribute = section[name][0].partition(":")
                found: click.Command = getattr(importlib.import_module(module), attribute)
                return found
        return None

    def resolve_command(
        self, context: click.Context, arguments: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = arguments[0] if arguments else ""
        if name and not name.startswith("-") and self.get_command(context, name) is None:
            close = difflib.get_close_matches(name, self.list_commands(context), n=1)
            mend = f"did you mean {close[0]}?" if close else "`sendonce --help` lists them"
            raise click.UsageError(f"there is no command {name!r}; {mend}", context)
        return super().resolve_command(context, arguments)

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in _COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([(name, words) for name, (_, words) in section.items()], col_max=12)


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    epilog="`sendonce COMMAND --help` says more. Start with `sendonce demo`.",
)
@click.version_option(__version__, prog_name="sendonce", message="%(prog)s %(version)s")
def cli() -> None:
    """Email campaigns to millions; every recipient ends in exactly one recorded outcome."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and exit."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit code. Everything foreseen ends in a message, not a traceback."""
    as_json = "--json" in arguments
    _make_writable()
    try:
        cli.main(arguments, prog_name="sendonce", standalone_mode=False)
        sys.stdout.flush()
        return DONE
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.NoSuchOption as fault:
        fault.show()
        return _answer(as_json, fault.format_message(), "usage", WRONG)
    except click.ClickException as fault:
        fault.show()
        return _answer(as_json, fault.format_message(), getattr(fault, "reason", "usage"), fault.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return _say(as_json, f"Stopped. `sendonce {' '.join(arguments)}` goes on from here.", "stopped", FAILED)
    except BrokenPipeError:
        _write_no_more()
        return FAILED
    except Exception as fault:
        from sendonce.cli.faults import explain

        known = explain(fault)
        if known is None:
            raise
        return _say(as_json, *known)


def _make_writable() -> None:
    """Standard streams that take whatever is said: somebody may have closed them, and paths need not be UTF-8."""
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (until the process ends)
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _write_no_more() -> None:
    """The reader has gone, or the disk is full: nothing can be said, and Python must not try at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _say(as_json: bool, message: str, reason: str, code: int) -> int:
    if message:
        click.echo(message if reason == "stopped" else f"Error: {message}", err=True)
    return _answer(as_json, message, reason, code)


def _answer(as_json: bool, message: str, reason: str, code: int) -> int:
    if as_json and message:
        from sendonce.cli.output import print_json

        document: dict[str, Any] = {"error": {"reason": reason, "message": message}}
        try:
            print_json(document)
        except OSError:
            _write_no_more()
    return code
