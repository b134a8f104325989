"""The triggers of a file: read for a run, and what became of each."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from sendonce.cli.output import number, out

_BAD_SHOWN: Final = 10


def read_triggers(path: Path) -> list[Any]:
    """One `TriggerMessage` a line, named FILE:LINE. Whether each is valid is for the pipeline to say."""
    from schemas.elements import TriggerMessage

    lines = path.read_bytes().splitlines()
    return [TriggerMessage(line, "{}", f"{path.name}:{number}") for number, line in enumerate(lines, 1) if line.strip()]


def all_taken(messages: Sequence[Any], results: Sequence[Any]) -> bool:
    """Whether the run came to every trigger and understood it."""
    return len(results) == len(messages) and all(result.ended != "bad" for result in results)


def triggers_as_json(messages: Sequence[Any], results: Sequence[Any]) -> dict[str, Any]:
    """Counts, and each bad trigger with its place and reason. No bodies: they are in the dead letters."""
    return {
        **_counts(messages, results),
        "problems": [
            {"place": result.message_id, "reason": result.reason, "detail": result.detail}
            for result in results
            if result.ended == "bad"
        ],
    }


def tell_triggers(messages: Sequence[Any], results: Sequence[Any]) -> None:
    """The same for people."""
    counts = _counts(messages, results)
    said = [f"{number(count)} {name.replace('_', ' ')}" for name, count in counts.items() if count]
    out().print(f"Triggers: {', '.join(said) or 'none in the file'}.")
    bad = [result for result in results if result.ended == "bad"]
    for result in bad[:_BAD_SHOWN]:
        out().print(Text(f"· {result.message_id}: {result.reason}: {result.detail}", "red"))
    if len(bad) > _BAD_SHOWN:
        out().print(f"· and {number(len(bad) - _BAD_SHOWN)} more", style="red")
    if bad:
        out().print("`sendonce dead-letters list --stage trigger` keeps them.", style="dim")


def _counts(messages: Sequence[Any], results: Sequence[Any]) -> dict[str, int]:
    ended = Counter(result.ended for result in results)
    return {name: ended[name] for name in ("applied", "ignored", "bad")} | {"not_reached": len(messages) - len(results)}
