"""How old each of many looks at a store may be, where somebody only watches."""

import time
from collections.abc import Callable
from typing import Final

# Spanner answers a look of this age from the nearest replica that is free, and no writer waits for it.
# https://cloud.google.com/spanner/docs/timestamp-bounds
STALE_S: Final = 10.0


class Looks:
    """The looks of one watch. The first shows the present, so whoever just did something sees it; the later ones may

    fall back behind it, more and more up to `STALE_S`, but each shows a later moment than the one before. Nothing is
    decided by such a look. A store without stale reads gives the present each time.
    """

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._began_s: float | None = None

    def stale_s(self) -> float:
        """How old the next look may be, in seconds."""
        now_s = self._clock_s()
        if self._began_s is None:
            self._began_s = now_s
        return min(STALE_S, (now_s - self._began_s) / 2)
