import json
from pathlib import Path
from typing import Any

import pytest

from sendonce.control.progress import estimate

CASES: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[1] / "cases/eta-zero-negative/cases.json").read_text(encoding="utf-8")
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.get("note", f"{case['done']} of {case['total']}"))
def test_percent_and_eta_never_divide_by_zero_go_negative_or_pass_100(case: dict[str, Any]) -> None:
    running = case.get("state", "running") == "running"

    found = estimate(case["total"], case["done"], case["active_s"], running=running)

    assert (found.percent, found.eta_s) == (case["percent"], case["eta_s"])


def test_percent_is_not_100_while_a_single_recipient_is_left() -> None:
    assert estimate(1_000_000, 999_999, 60).percent == 99.9
    assert estimate(1_000_000, 1_000_000, 60).percent == 100.0


def test_cancelling_the_rest_at_once_makes_no_rate() -> None:
    found = estimate(1_000_000, 1_000_000, 10.0, running=False, cancelled=999_000)

    assert (found.percent, found.rate_per_s, found.eta_s) == (100.0, 100.0, 0.0)
    assert estimate(5, 5, 10.0, running=False, cancelled=5).rate_per_s is None


def test_the_smallest_rate_gives_no_infinite_eta() -> None:
    found = estimate(10**300, 1, 1e300)

    assert found.eta_s is None
    json.dumps(found.eta_s, allow_nan=False)
