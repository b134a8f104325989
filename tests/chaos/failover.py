"""A lane's own provider goes away again and again, and must come back each time: over its fallback and home again."""

import random
import sys
import threading
import time
from collections.abc import Sequence

from tests.chaos.place import Place, breaker, glance, movable
from tests.chaos.provider import Provider, ServedProvider
from tests.chaos.provider_faults import SILENT, UNAVAILABLE, UP
from tests.evidence import Arrival

LOOK_EVERY_S = 0.2
GONE = "gone"
# An outage lasts until the breaker has opened and somebody's letter went by the fallback; all but the first
# a little longer, so that a probe may fail. Then there must be work left for the way back.
LONGER_S = (0.0, 4.0)
SHARE_LEFT_MIN = 0.25
# What a person would see as a provider that is away for good.
AT_MOST_S = 60.0


class Failover:
    """Outages of the own provider, of every kind in turn, in a thread of their own until `stop`.

    turns: how many of them ended with a letter that the own provider took again; away: how many were begun.
    """

    def __init__(self, own: ServedProvider, fallback: Provider, place: Place, chance: random.Random) -> None:
        self._own, self._fallback = own, fallback
        self._place = place
        self._chance = random.Random(chance.getrandbits(32))
        self._kinds = [GONE, UNAVAILABLE, SILENT]
        self._chance.shuffle(self._kinds)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="failover", daemon=True)
        self.turns = 0
        self.away = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        while self._until(self._has_work):
            if self._turn(self._kinds[self.away % len(self._kinds)]):
                self.turns += 1

    def _has_work(self) -> bool:
        now = glance(self._place)
        return now.running > 0 and movable(self._place) > SHARE_LEFT_MIN * now.total and self._own.taken() > 0

    def _turn(self, kind: str) -> bool:
        """One outage and what follows; whether letters went by the own provider after it."""
        self.away += 1
        began_s = time.monotonic()
        by_fallback = len(self._fallback.arrivals()[0])
        self._begin(kind)
        moved = self._until(lambda: self._moved(by_fallback), AT_MOST_S)
        if self.turns and self._stop.wait(self._chance.uniform(*LONGER_S)):
            moved = False
        self._end(kind)
        before = self._own.taken()
        back = moved and self._until(lambda: self._own.taken() > before and not breaker(self._place, self._own.name))
        told = "over the fallback and back" if back else "not back again" if moved else "nothing moved"
        print(f"{self._own.name} {kind}, {told}, {time.monotonic() - began_s:.1f} s", file=sys.stderr)
        return back

    def _begin(self, kind: str) -> None:
        if kind == GONE:
            self._own.vanish()
        else:
            self._own.order(kind)

    def _end(self, kind: str) -> None:
        if kind == GONE:
            self._own.appear()
        else:
            self._own.order(UP)

    def _moved(self, before: int) -> bool:
        return breaker(self._place, self._own.name) and len(self._fallback.arrivals()[0]) > before

    def _until(self, so, within_s: float = float("inf")) -> bool:  # type: ignore[no-untyped-def]
        """Wait until something is so. False if time or the run is over before."""
        ends_s = time.monotonic() + within_s
        while not self._stop.wait(LOOK_EVERY_S):
            if so():
                return True
            if time.monotonic() > ends_s:
                return False
        return False

    def problems(self, letters: Sequence[Arrival]) -> list[str]:
        """What the run did not prove."""
        own, fallback = self._own.name, self._fallback.name
        by = [letter.provider for letter in sorted(letters, key=lambda letter: letter.at)]
        found = []
        if fallback not in by:
            found.append(f"no letter went by the fallback, {fallback}: nothing is proven")
        elif own not in by[by.index(fallback) :]:
            found.append(f"no letter went by {own} after one by {fallback}: the way back is not proven")
        if not self.turns:
            found.append(f"of {self.away} outages of {own} none ended with its coming back")
        return found
