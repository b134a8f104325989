"""How much of each share the requests of one owner may carry: what limits of mailbox groups left of them."""

from collections.abc import Callable, Mapping

from sendonce.delivery.limits import Cut
from sendonce.delivery.terms import Later


class Shares:
    """While one owner has a batch. A share without permits is left out of requests until it has some; others go."""

    def __init__(self, largest: Mapping[str, int], own_s: Callable[[], float]) -> None:
        """largest: the most recipients that one request may ask for, by the share's scope. own_s: the owner's clock."""
        self._room = dict(largest)
        self._own_s = own_s
        self._blocked: dict[str, tuple[Cut, float]] = {}

    def cut(self, cuts: Mapping[str, Cut]) -> None:
        """Note what an ask got instead of all that it wanted."""
        for scope, cut in cuts.items():
            if cut.n:
                self._room[scope] = cut.n
            else:
                self._blocked[scope] = (cut, self._own_s() + cut.wait_s)

    def room(self) -> dict[str, int]:
        """How many recipients of each share the next request may carry."""
        now_s = self._own_s()
        self._blocked = {scope: block for scope, block in self._blocked.items() if block[1] > now_s}
        return {scope: 0 if scope in self._blocked else room for scope, room in self._room.items()}

    def later(self) -> Later | None:
        """What whoever is left waits for, when `room` let nobody into a request; None if that was for no share."""
        if not self._blocked:
            return None
        scope, (cut, _) = min(self._blocked.items(), key=lambda blocked: blocked[1][0].until)
        return Later(cut.until, scope)
