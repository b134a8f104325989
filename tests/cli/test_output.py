import re
from datetime import UTC, datetime
from pathlib import Path

import pytest

from sendonce.cli.output import counted, joined, moment
from sendonce.stores.base import Store
from tests.cli.conftest import Call

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


def test_lines_break_between_pieces_never_between_a_number_and_its_word() -> None:
    pieces = ["330 open", "20 accepted", "1,204 in doubt"]
    assert joined(pieces, 80).plain == "330 open · 20 accepted · 1,204 in doubt"
    assert joined(pieces, 24).plain == "330 open · 20 accepted\n1,204 in doubt"
    assert joined(pieces, 5).plain == "330 open\n20 accepted\n1,204 in doubt"


def test_what_settings_change_is_not_broken_within_a_name(sendonce: Call, store: Store, folder: Path) -> None:
    """A column too narrow for it read `letters_per_connecti|on`."""
    mail = "adapter: smtp, host: smtp.provider.example, user: env:MAIL_USER, password: env:MAIL_PASSWORD"
    for per_connection in (100, 50):
        more = f"letters_per_connection: {per_connection}, envelope_from: b@shop.example, ehlo_name: m.shop.example"
        (folder / "sendonce.yaml").write_text(f"senders: {{second-account: {{{mail}, {more}}}}}\n")
        answer = sendonce("config", "apply")
        assert (answer.code, answer.widest <= 80) == (0, True)
        assert "letters_per_connection" in answer.out.split(), answer.out
