"""The delivery core in a simulated world: one clock, one provider, several processes, and faults drawn from a seed.

Everything runs in one thread. Processes meet because a fault can let others work (and time pass) in the middle of a
step. What is real: protocol, planner, owner, sweeper, resolver, retry, control. What is not: time, the store (one in
memory with the same contract), the provider, and the letters' texts.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from schemas.elements import Reference, RenderedBatch
from schemas.tables import Batch, Decision, OutboundMessage
from sendonce import failpoints
from sendonce.control import campaigns
from sendonce.delivery import health, reopening
from sendonce.delivery.deliver import Clocks, Deliverer
from sendonce.delivery.halting import halt_campaign
from sendonce.delivery.letters import element_of
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.resolver import Policy
from sendonce.delivery.sweeper import SweepMemory, sweep_lane
from sendonce.senders.base import Prepared, Verdict
from sendonce.stores.base import StoreUnavailable
from sendonce.stores.sqlite_time import SinceBoot
from tests.checker import Violation, changes
from tests.evidence import Records
from tests.fakes import START, ManualClock, ProviderLog
from tests.simulator.campaign import CAMPAIGN, KEY, render, rows_of, terms_of
from tests.simulator.course import Course
from tests.simulator.faulty_store import FaultyStore, Killed
from tests.simulator.memory_store import MemoryStore
from tests.simulator.people import People
from tests.simulator.provider import SimulatedSender
from tests.simulator.setups import Setup, setup_for
from tests.simulator.watch import Watch

STEPS = 36
# Looks at the end, each with hours between if need be, until everything must be over.
LAST_LOOKS = 400


class World:
    """One run: `play` does random steps with faults, then lets everything end without.

    changes: fields of `Setup` that are not left to the seed. without: names of steps and faults to leave out.
    """

    def __init__(self, seed: int, *, without: Collection[str] = (), **changes: Any) -> None:
        self.setup: Setup = setup_for(seed, **changes)
        self.clock = ManualClock()
        # The store's machine has a clock that people set; nobody sets the time since boot.
        self.ahead = timedelta()
        self.course = Course(seed, self.clock.now, frozenset(without))
        self.real = MemoryStore(
            lambda: self.clock.now() + self.ahead,
            boot_clock=lambda: SinceBoot("simulated", round(self.clock.boottime() * 1e6)),
            key=KEY,
        )
        self.store = FaultyStore(self.real, self)
        self.aborts = self.setup.aborts
        self.log = ProviderLog(self.clock.now)
        self.left_out: dict[str, dict[int, tuple[Verdict, int, str]]] = {}
        self.in_part: set[str] = set()
        self.terms = terms_of(self.setup)
        self.policy = Policy(self.setup.in_doubt, self.setup.outbound_log)
        self.memory = SweepMemory()
        self.watch = Watch(self.real, self.terms)
        self.owners = 0
        self.people = People(self)
        self.store_away_until = self.provider_away_until = START
        self.changed: list[Violation] = []
        # Elements that nobody delivered yet, and those that somebody did: a runner may bring either again.
        self.elements: list[RenderedBatch] = []
        self.delivered: list[RenderedBatch] = []
        # The store's time at each entry of the provider's log.
        self.store_times: dict[str, datetime] = {}
        # What a step does, and how often.
        self.doings: dict[str, tuple[int, Callable[[], None]]] = {
            "work": (60, self.work),
            "sweep": (22, self.sweep),
            "stop": (4, self.people.stop),
            "suppress": (3, self.people.suppress),
            "decide": (8, self.people.decide),
            "tell": (6, self.people.tell),
            "retry": (4, self.people.retry),
        }
        self.real.write_many(rows_of(self.setup))

    # -- faults --------------------------------------------------------------------------------------------------

    def store_is_away(self) -> bool:
        return self.course.faults and self.clock.now() < self.store_away_until

    def provider_is_away(self, sender: str) -> bool:
        return self.course.faults and sender == "fake" and self.clock.now() < self.provider_away_until

    def reach(self, point: str) -> str | None:
        """In place of the armed failpoints, and between the steps of a retry: die, stall while others work, or lose a
        reply."""
        pause = 20 if point == "S3" else 8
        what = self.course.fault(
            point, ("", 80), ("kill", 6), ("pause", pause), ("drop", 4 if point in ("S5", "S6") else 0)
        )
        if what == "kill":
            raise Killed(point)
        if what == "pause":
            self.stand_still()
        return failpoints.DROP_REPLY if what == "drop" else None

    def stand_still(self) -> float:
        """Time passes and others work, while this process stands still; gives the seconds."""
        chance, before_s = self.course.chance, self.clock.boottime()
        self.clock.advance(chance.choice((0.5, 1.5, 4.0, 9.0, 9.0, 1200.0)))
        for _ in range(chance.randint(0, 6) if self.course.depth < 3 else 0):
            self.step()
        return self.clock.boottime() - before_s

    def before_request(self, prepared: Prepared) -> None:
        attempt = prepared.request.attempt_id
        self.watch.request_begins(attempt, prepared.request.batch_no, by_own_clock=self.setup.jumps)
        what = self.course.fault("S4", ("", 88), ("kill", 6), ("pause", 6))
        if what == "kill":
            raise Killed("S4")
        # A pause between the last check and the write makes a late request; limits can't hold for it.
        late = what == "pause" and self.stand_still() > self.terms.times.permit_ttl_s
        # Where the log will say that the letters were taken.
        place = f"log:{len(self.log.actions) + 1}"
        self.store_times[place] = self.store_now()
        if late:
            self.watch.late.add(attempt)
            self.watch.late_places.add(place)

    def after_request(self, prepared: Prepared) -> None:
        if self.reach("S5") == failpoints.DROP_REPLY:
            raise Killed("S5")

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One thing that some process does; a fault ends the process, never the world."""
        with self.course.step() as taken:
            if taken:
                self._step()

    def _step(self) -> None:
        course, chance = self.course, self.course.chance
        self.clock.advance(chance.choice((0.01, 0.1, 0.1, 0.5)))
        if not course.faults:
            self.clock.advance(chance.choice((0.1, 1.0, 30.0)))
            self.work()
            return
        self._weather()
        if self.watch.stops or self.setup.stops:
            self.watch.look_at_stops()
        what = course.choose(*((name, weight) for name, (weight, _) in self.doings.items()))
        try:
            self.doings[what][1]()
        except (Killed, StoreUnavailable):
            return

    def _weather(self) -> None:
        """Outages, and clocks that somebody sets."""
        course, chance = self.course, self.course.chance
        if course.happens("store", "away", 2):
            self.store_away_until = self.clock.now() + timedelta(seconds=chance.choice((0.3, 1.0, 8.0)))
        if course.happens("provider", "away", 15 if self.setup.fallback else 2):
            self.provider_away_until = self.clock.now() + timedelta(seconds=chance.choice((2.0, 10.0, 60.0)))
        if self.setup.jumps and course.happens("the store's clock", "jump", 8):
            self.ahead = timedelta(seconds=chance.choice((-3600.0, -5.0, 0.0, 5.0, 3600.0)))

    def work(self) -> None:
        """Plan, and deliver one of the elements that are about; some come twice, some late, some never.

        Without faults all are delivered, in order.
        """
        plan = plan_lane(self.store, self.terms, 100).references
        if plan:
            self.reach("S2")
        for reference in plan:
            self._render(reference)
        if not self.course.faults:
            for element in self.elements:
                self.owner().deliver(element)
            self.elements.clear()
            return
        chance = self.course.chance
        what = self.course.fault("element", ("take", 82), ("again", 10), ("twice", 3), ("lose", 5))
        if what == "again" and self.delivered:
            self.owner().deliver(chance.choice(self.delivered))
        elif self.elements:
            element = self.elements.pop(chance.randrange(len(self.elements)))
            if what == "twice":
                self.elements.append(element)
            if what != "lose":
                self.delivered.append(element)
                self.owner().deliver(element)

    def _render(self, reference: Reference) -> None:
        """A template may be poison, or its letters come out otherwise than those of a request that is in doubt."""
        how = self.course.fault("rendering", ("", 960), ("other letters", 30), ("poison", 10))
        if how == "poison":
            halt_campaign(self.store, reference, "the template cannot be rendered")
            return
        rendered = render(self.real, reference, "Good morning" if how else "Hello")
        if rendered is not None:
            self.elements.append(element_of(reference, *rendered))

    def owner(self) -> Deliverer:
        self.owners += 1
        abilities: dict[str, Any] = {
            "recipients": self.setup.per_call,
            "mixes_forms": self.setup.mixes_forms,
            "idempotency_window_s": self.setup.window_s,
        }
        backup = SimulatedSender(self, name="backup", **abilities) if self.setup.fallback else None
        return Deliverer(
            self.store,
            SimulatedSender(self, **abilities),
            self.terms,
            f"owner-{self.owners}",
            self._clocks(),
            lambda reference: render(self.real, reference),
            stopping=lambda: self.course.happens("owner", "drain", 3),
            fallback=backup,
        )

    def _clocks(self) -> Clocks:
        """An owner's: time since boot starts anywhere, and the wall clock may be an hour wrong."""
        chance = self.course.chance
        booted_s = chance.uniform(0, 1e6)
        wrong_s = chance.uniform(-3600, 3600) if self.setup.skewed else 0.0
        return Clocks(
            own_s=lambda: self.clock.boottime() + booted_s,
            wall_ms=lambda: int((self.clock.now().timestamp() + wrong_s) * 1000),
            randomness=chance.randbytes,
            chance=chance.random,
        )

    def sweep(self) -> None:
        """One process sweeps on and on; another one that has just begun knows nothing of it."""
        memory = self.memory if self.course.chance.random() < 0.7 else None
        sweep_lane(self.store, KEY, self.terms, self.policy, self.new_id, memory)

    def new_id(self) -> str:
        return self.course.chance.randbytes(8).hex()

    # -- the whole -----------------------------------------------------------------------------------------------

    def play(self, steps: int = STEPS) -> None:
        before = self.moment()
        with self._armed():
            for number in range(1, steps + 1):
                self.step()
                if number % 4 == 0:
                    before = self.compare(before)
            self.course.faults = False
            self.people.let_go()
            for number in range(LAST_LOOKS):
                with self.course.step():
                    self._step()
                    self.sweep()
                    self.people.decide()
                    if number % 16 == 0:
                        before = self.compare(before)
                    if self.over() and not self.people.last_retry():
                        break
                    self.clock.advance(self.course.chance.choice((1.0, 60.0, 6 * 3600.0)))
        self.compare(before)

    def moment(self) -> Records:
        return Records(
            self.real.read(lambda reader: {kind: reader.scan(kind) for kind in (Batch, Decision, OutboundMessage)})
        )

    def compare(self, before: Records) -> Records:
        now = self.moment()
        self.changed += changes(before, now)
        return now

    @contextmanager
    def _armed(self) -> Iterator[None]:
        before, failures, size = failpoints._armed, health.FAILURES_TO_OPEN, reopening.SLICE
        reopening.SLICE = 2
        failpoints._armed = self  # type: ignore[assignment]
        health.FAILURES_TO_OPEN = self.setup.failures_to_open
        try:
            yield
        finally:
            failpoints._armed, health.FAILURES_TO_OPEN, reopening.SLICE = before, failures, size

    def over(self) -> bool:
        return campaigns.get_campaign(self.real, CAMPAIGN).state in ("completed", "cancelled")

    def ways(self) -> tuple[int, int]:
        """How many letters went by the fallback, and how many by the lane's own sender after the first of those."""
        by = [letter.provider for letter in self.log.accepted]
        first = by.index("backup") if "backup" in by else len(by)
        return by.count("backup"), by[first:].count("fake")

    def store_now(self) -> datetime:
        return self.real.read(lambda reader: reader.now())
