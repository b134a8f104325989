"""How long is waited: never at once, never too long, spread over the whole interval, and as the provider asked."""

import math
import random
from statistics import mean

import pytest

from sendonce.delivery import retry


def test_the_interval_doubles_to_its_cap_and_stays_there() -> None:
    assert [retry.longest_s(tries) for tries in (1, 2, 3, 9, 10, 100, 10**6)] == [1, 2, 4, 256, 300, 300, 300]


@pytest.mark.parametrize("tries", [1, 2, 5, 10, 12, 1000])
def test_full_jitter_is_spread_evenly_over_the_interval(tries: int) -> None:
    chance = random.Random(tries)
    drawn = [retry.wait_s(tries, None, chance.random) for _ in range(4000)]
    low, high = retry.FIRST_S / 2, retry.longest_s(tries)
    assert low <= min(drawn)
    assert max(drawn) <= high
    tenths = [0] * 10
    for wait in drawn:
        tenths[min(9, int((wait - low) / (high - low) * 10))] += 1
    assert min(tenths) > 320, "400 are expected in each tenth; 320 is four standard deviations off"
    assert mean(drawn) == pytest.approx((low + high) / 2, rel=0.05)


def test_what_the_provider_asked_for_is_the_least_that_is_waited() -> None:
    assert retry.wait_s(1, 60.0, lambda: 0.999) == 60.0
    assert retry.wait_s(10, 2.0, lambda: 0.5) == pytest.approx(150.25)


@pytest.mark.parametrize(
    ("asked", "waited"),
    [(None, 0.5), (math.inf, 3600.0), (1e300, 3600.0), (-5.0, 0.5), (-math.inf, 0.5), (math.nan, 0.5), (0.0, 0.5)],
)
def test_no_wish_of_a_provider_stops_a_campaign_or_makes_it_run_hot(asked: float | None, waited: float) -> None:
    assert retry.wait_s(1, asked, lambda: 0.0) == waited
