"""What `dead-letters replay` and `drop` do with the letters that were chosen: say, ask, do, tell."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from schemas.outcomes import Outcome
from schemas.tables import DeadLetterRow
from sendonce.cli.asking import ask
from sendonce.cli.output import counted, err, number, out, print_json, table
from sendonce.cli.session import Session, Unfinished
from sendonce.cli.words import reason_words
from sendonce.control.dead_letters import DROPPED, OPEN, settle
from sendonce.control.worth import warnings_of

_AT_ONCE = 500
_IDS_TOLD = 20


def replay_letters(
    session: Session,
    found: Sequence[DeadLetterRow],
    command: str,
    *,
    many: bool,
    named: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Replay, after asking if there are many. Exit code 1 if one is left open."""
    lasting = warnings_of(_refusals(found)) if named else {}
    if not session.as_json:
        for reason, why in lasting.items():
            err().print(Text(f"{reason} will most likely be refused again: {why}", "yellow"))
    if not _go_on(session, "replay", found, command, many=many, dry_run=dry_run, yes=yes):
        return
    from sendonce.delivery.replay import replay

    with err().status("Replaying …") as line:
        told = replay(
            session.store,
            found,
            session.by,
            named=named,
            progress=lambda done: line.update(f"Replaying … {number(done)} of {number(len(found))}"),
        )
    done = [one for one in told if one.done]
    left = [one for one in told if not one.done]
    if session.as_json:
        print_json(
            {
                "chosen": len(found),
                "replayed": len(done),
                "left": len(left),
                "warnings": lasting,
                "did": dict(Counter(one.why for one in done)),
                "why_left": [
                    {
                        "why": why,
                        "letters": times,
                        "ids": [one.letter.dead_letter_id for one in left if one.why == why][:_IDS_TOLD],
                    }
                    for why, times in Counter(one.why for one in left).most_common()
                ],
            }
        )
    else:
        for why, times in Counter(one.why for one in done).most_common():
            out().print(Text(f"{counted(times, 'dead letter')} replayed: {why}"))
        for why, times in Counter(one.why for one in left).most_common():
            out().print(Text(f"{counted(times, 'dead letter')} left: {why}", "yellow"))
        if any(one.letter.ordinal is not None for one in done):
            out().print("`sendonce run` sends.", style="dim")
    if left:
        raise Unfinished


def _refusals(found: Sequence[DeadLetterRow]) -> set[Outcome]:
    """The outcomes of the recipients that dead letters stand for."""
    reasons = {row.reason for row in found if row.ordinal is not None}
    return {outcome for outcome in Outcome if outcome.reason in reasons}


def drop_letters(
    session: Session, found: Sequence[DeadLetterRow], command: str, *, many: bool, dry_run: bool, yes: bool
) -> None:
    """Drop, after asking if there are many. What somebody settled before stays as it is."""
    if not _go_on(session, "drop", found, command, many=many, dry_run=dry_run, yes=yes):
        return
    dropped = 0
    with err().status("Dropping …") as line:
        for start in range(0, len(found), _AT_ONCE):
            names = [row.dead_letter_id for row in found[start : start + _AT_ONCE]]
            dropped += settle(session.store, names, DROPPED, session.by)
            line.update(f"Dropping … {number(start + len(names))} of {number(len(found))}")
    before = len(found) - dropped
    if session.as_json:
        print_json({"chosen": len(found), "dropped": dropped, "settled_before": before})
        return
    out().print(f"{counted(dropped, 'dead letter')} dropped.")
    if before:
        out().print(f"{counted(before, 'dead letter')} had been settled before.", style="dim")


def _go_on(
    session: Session, verb: str, found: Sequence[DeadLetterRow], command: str, *, many: bool, dry_run: bool, yes: bool
) -> bool:
    """Show what was chosen and ask; False if there is nothing to do, or it was only to be shown."""
    kinds = Counter((row.stage, row.reason) for row in found)
    if session.as_json and (dry_run or not found):
        chosen: list[dict[str, Any]] = [
            {"stage": stage, "reason": reason, "letters": times} for (stage, reason), times in kinds.most_common()
        ]
        print_json({"dry_run": dry_run, "chosen": len(found), "letters": chosen})
        return False
    if not found:
        out().print(f"No {OPEN} dead letters like that.")
        return False
    if not session.as_json and (many or dry_run):
        made = table("stage", "reason", "code", "dead letters", right=("dead letters",))
        for (stage, reason), times in kinds.most_common():
            made.add_row(stage, reason_words(reason), Text(reason, "dim"), number(times))
        out().print(made)
    if dry_run:
        out().print(f"Would {verb} {counted(len(found), 'dead letter')}. Nothing changed.")
        return False
    if many:
        ask(f"{verb.capitalize()} {counted(len(found), 'dead letter')}?", f"sendonce dead-letters {command}", yes=yes)
    return True
