"""Outages without loss: a store or a Pub/Sub that is silent, connections that end, answers that get lost on the way."""

import random
import sys
import time
from collections.abc import Callable

from tests.emulated import Emulator
from tests.providers.proxy import AFTER, BEFORE, Proxy

SILENT_S = (5.0, 20.0)
AWAY_S = (2.0, 8.0)
# What of a call to the store gets lost: these stand in it as the transaction's tag.
STEPS = (b"claim", b"advance", b"plan")


class Outages:
    """`number` of them, of every kind in turn, spread over the kills of a run."""

    def __init__(
        self,
        number: int,
        chance: random.Random,
        *,
        spanner: Emulator | None,
        proxy: Proxy | None,
        pubsub: Emulator | None,
    ) -> None:
        self._chance = chance
        self._number = number
        self.done: list[str] = []
        kinds: list[tuple[str, Callable[[], None]]] = []
        if spanner is not None:
            kinds.append(("store silent", lambda: self._silent(spanner)))
        if proxy is not None:
            kinds.append(("answer of the store lost", lambda: self._lose(proxy, AFTER)))
            kinds.append(("store unreachable", lambda: self._away(proxy)))
            kinds.append(("call to the store lost", lambda: self._lose(proxy, BEFORE)))
        if pubsub is not None:
            kinds.append(("Pub/Sub silent", lambda: self._silent(pubsub)))
        chance.shuffle(kinds)
        self._kinds = kinds

    def due(self, killed: int, kills: int) -> bool:
        """Whether the next one belongs here: they lie evenly between the kills."""
        done = len(self.done)
        return bool(self._kinds) and done < self._number and killed * (self._number + 1) >= kills * (done + 1)

    def strike(self) -> None:
        """Let one happen, from its beginning to its end."""
        name, act = self._kinds[len(self.done) % len(self._kinds)]
        began_s = time.monotonic()
        act()
        self.done.append(name)
        print(f"outage: {name}, {time.monotonic() - began_s:.1f} s", file=sys.stderr)

    def _silent(self, emulator: Emulator) -> None:
        emulator.pause()
        try:
            time.sleep(self._chance.uniform(*SILENT_S))
        finally:
            emulator.go_on()

    def _away(self, proxy: Proxy) -> None:
        with proxy.away():
            time.sleep(self._chance.uniform(*AWAY_S))

    def _lose(self, proxy: Proxy, when: str) -> None:
        proxy.lose(self._chance.choice(STEPS), when)
        if self._chance.random() < 0.5:
            proxy.cut()
