"""Every reason that people meet has words, short enough for a table of 80 columns."""

import pytest

from schemas.outcomes import Outcome
from sendonce.cli.words import reason_words, wait_words


@pytest.mark.parametrize("code", sorted({outcome.reason for outcome in Outcome if outcome.reason}))
def test_every_reason_of_an_outcome_has_words(code: str) -> None:
    assert reason_words(code) != code
    assert len(reason_words(code)) <= 36


def test_a_reason_without_words_is_its_own() -> None:
    assert reason_words("no.such") == "no.such"
    assert wait_words("limit") == "waits for a limit"
    assert wait_words("domain:google").startswith("only mailboxes of the group google")
