"""How many letters the next request may carry, learned from requests that were refused whole without naming anybody.

A sender that takes the same key once must not divide a request within its attempt: a kill in the middle has the whole
request repeated under its key, and if the provider takes now what it refused before, whoever was in an accepted part
gets a second letter. So such a sender makes one call an attempt. What was refused whole is not sent, and the next
requests are smaller, down to one letter; a letter that is refused alone is refused. They grow again as they are taken.
"""

import math
import threading
from dataclasses import replace
from typing import Final

from sendonce.senders.base import Reply, Verdict

# Letters refused alone, one after the other, without one that was taken: then it is the account that is refused.
_ENOUGH: Final = 8
# A quarter, not a half: a hundred letters are one after three refusals, so that one letter opens no circuit breaker.
_LESS: Final = 4


class RequestSizes:
    """Learns for one sender in one process. Safe for threads.

    most: letters that a request carries at first. max_bytes: what is known to be too large. `now`: how many the next
    request may carry.
    """

    def __init__(self, most: int, max_bytes: float = math.inf) -> None:
        self._most = most
        self._max_bytes = max_bytes
        self._alone = 0
        self._changing = threading.Lock()
        self.now = most

    def taken(self, n: int, n_bytes: int) -> None:
        """A request was answered letter by letter, or taken whole."""
        with self._changing:
            self._alone = 0
            if n >= self.now:
                self.now = max(self.now, min(self._most, 2 * self.now, self._that_fit(n, n_bytes)))

    def refused_whole(self, reply: Reply, n: int, n_bytes: int, *, for_size: bool = False) -> Reply:
        """What a refusal of a whole request means; `reply` is what it means for a letter that is alone in it.

        for_size: it was too large, so its bytes count, and not who is in it.
        """
        with self._changing:
            if n > 1:
                less = n // _LESS
                if for_size and n_bytes > self._max_bytes:
                    less = self._that_fit(n, n_bytes)
                elif for_size:
                    self._max_bytes = n_bytes / 2
                self.now = min(self.now, max(1, less))
                return Reply(Verdict.NOT_SENT, reply.reason)
            if for_size:
                return reply
            self._alone += 1
            if self._alone < _ENOUGH:
                return reply
            self._alone = 0
            return replace(reply, verdict=Verdict.NOT_SENT, reason="refused_all", outcome=0, halts_sender=True)

    def _that_fit(self, n: int, n_bytes: int) -> int:
        """How many letters of this size fit into a request, with a tenth left for those that are longer."""
        return int(min(self._most, 0.9 * self._max_bytes * n / n_bytes))
