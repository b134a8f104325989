import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sendonce.cli.output import counted, moment

COMMANDS = Path(__file__).parents[2] / "sendonce" / "cli"


@pytest.mark.parametrize(
    ("count", "said"), [(0, "0 batches"), (1, "1 batch"), (2, "2 batches"), (1_000_000, "1,000,000 batches")]
)
def test_one_is_singular_and_all_else_plural(count: int, said: str) -> None:
    assert counted(count, "batch", "batches") == said
    assert counted(count, "row") == said.replace("batches", "rows").replace("batch", "row")


def test_a_moment_names_its_zone() -> None:
    assert moment(datetime(2026, 1, 15, 9, tzinfo=UTC)) == "2026-01-15 09:00:00 UTC"


def test_no_command_puts_a_noun_after_a_number_by_itself() -> None:
    """`{number(n)} batches` says "1 batches"; `counted` does not."""
    by_hand = re.compile(
        r"\{(?:number|len)\([^{}]*\)\} (?:\w+ )?(?:batches|rows|recipients|letters|files|errors|people)\b"
    )
    found = [
        f"{path.name}: {match[0]}" for path in COMMANDS.glob("*.py") for match in by_hand.finditer(path.read_text())
    ]
    assert not found
