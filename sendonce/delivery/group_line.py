"""The line of batches that wait for a mailbox group: those whose turn it is go, the others get a time to come back.

Without it every batch that has nobody left but, say, Google's mailboxes would be rendered whenever that limit passes
anything, and all but one rendered for nothing.
"""

from collections.abc import Callable
from datetime import datetime, timedelta
from functools import cache

from schemas.tables import Limit
from sendonce.delivery.limits import Grant, ask, largest_request, limits_of, outlook, passes_by
from sendonce.delivery.terms import Terms
from sendonce.stores.base import Reader


class GroupLine:
    """One look at the groups' limits, for one plan. Reads each group's limits once."""

    def __init__(self, reader: Reader, terms: Terms, now: datetime) -> None:
        self._reader = reader
        self._terms = terms
        self._now = now
        self._limits: Callable[[str], list[Limit]] = cache(lambda scope: limits_of(reader, [scope]))
        self._largest: Callable[[str], int] = cache(self._largest_request)
        self._passes_now: Callable[[str], bool] = cache(self._grants_one_request)
        self._left: dict[str, int] = {}
        self._ahead: dict[str, int] = {}

    def place(self, scope: str, recipients: int) -> datetime | None:
        """None: a batch with that many recipients of the group goes now. Else when its turn in the line may come."""
        if scope not in self._left:
            passes = outlook(self._reader, self._limits(scope), self._terms.times.tick_s, self._now)
            self._left[scope] = passes if passes is not None else 1 << 60
        # One claim takes what one request may carry; then the batch stands in line again.
        moved = min(recipients, self._largest(scope))
        ahead = self._ahead.get(scope, 0)
        self._ahead[scope] = ahead + moved
        # A rate is waited for in full, a cap is cut to.
        needed = moved if any(limit.kind == "rate" for limit in self._limits(scope)) else 1
        if ahead + needed <= self._left[scope]:
            return None
        turn = passes_by(self._reader, self._limits(scope), ahead + needed, self._now)
        return max(turn, self._now + timedelta(seconds=self._terms.times.tick_s))

    def passes_now(self, scope: str) -> bool:
        """Whether the group's limits would grant a whole request this moment."""
        return self._passes_now(scope)

    def _grants_one_request(self, scope: str) -> bool:
        return isinstance(ask(self._reader, self._limits(scope), self._largest(scope), self._now), Grant)

    def _largest_request(self, scope: str) -> int:
        return largest_request(self._limits(scope), self._terms.times.permit_ttl_s, 1 << 30, self._now)
