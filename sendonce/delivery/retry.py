"""How long to wait before what was not sent is tried again: capped exponential back-off with full jitter."""

import math
from collections.abc import Callable

FIRST_S = 1.0
LONGEST_S = 300.0
# What a provider may ask for at most: a clock that is off, or a bad header, must not stop a campaign for days.
LONGEST_ASKED_S = 3600.0


def longest_s(tries: int) -> float:
    """The longest wait after the `tries`-th failure in a row (1 or more): it doubles from `FIRST_S` to `LONGEST_S`."""
    return min(LONGEST_S, FIRST_S * 2.0 ** min(tries - 1, 30))


def wait_s(tries: int, asked_s: float | None, chance: Callable[[], float]) -> float:
    """Seconds to wait after the `tries`-th failure in a row (1 or more).

    asked_s: what the provider asked for; it is honoured up to `LONGEST_ASKED_S`, and nothing shorter is drawn. What is
    no number counts as not asked. chance: uniform in [0, 1).

    Full jitter spreads the retries of many batches over the whole interval; half of `FIRST_S` is left of its start, so
    that nothing is tried again at once.
    """
    drawn = FIRST_S / 2 + chance() * (longest_s(tries) - FIRST_S / 2)
    asked = 0.0 if asked_s is None or math.isnan(asked_s) else min(asked_s, LONGEST_ASKED_S)
    return max(drawn, asked)
