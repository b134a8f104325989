"""How long to wait before what was not sent is tried again: capped exponential back-off with full jitter."""

from collections.abc import Callable

FIRST_S = 1.0
LONGEST_S = 300.0


def wait_s(tries: int, asked_s: float | None, chance: Callable[[], float]) -> float:
    """Seconds to wait after the `tries`-th failure in a row (1 or more).

    asked_s: what the provider asked for; it is honoured, and nothing shorter is drawn. chance: uniform in [0, 1).
    Full jitter spreads the retries of many batches over the whole interval.
    """
    longest = min(LONGEST_S, FIRST_S * 2.0 ** min(tries - 1, 30))
    drawn = FIRST_S / 2 + chance() * (longest - FIRST_S / 2)
    return max(drawn, asked_s or 0.0)
