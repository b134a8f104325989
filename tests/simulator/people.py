"""What people and the provider do from outside: stop and go on, unsubscribe, decide, retry, tell of letters."""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from schemas.outcomes import Outcome
from schemas.tables import DeliveryEvent, Suppression
from sendonce.control import campaigns, stops
from sendonce.control.doubts import list_doubts
from sendonce.control.faults import ControlFault
from sendonce.control.triggers import Trigger, apply_triggers
from sendonce.control.worth import chosen_reasons
from sendonce.delivery import resolver
from sendonce.delivery.halting import release_senders
from sendonce.delivery.retrying import plan_retry, retry
from sendonce.stores.base import Tx
from tests.evidence import Arrival
from tests.simulator.campaign import CAMPAIGN, KEY

if TYPE_CHECKING:
    from tests.simulator.world import World

RETRIED: list[list[str]] = [
    [],
    ["provider.refused"],
    ["render.error"],
    ["provider.refused", "exhausted"],
    ["provider.refused", "render.error", "expired"],
]
CONTROL = ("pause", "resume", "start")
SCOPES = ("all", "lane:bulk")


class People:
    """rounds: how many retries opened somebody. triggers: those that were published."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._retries = world.setup.retries
        self.rounds = 0
        self.triggers: list[Trigger] = []

    def stop(self) -> None:
        """Pause, resume, cancel or switch off, as this seed's people do."""
        world = self._world
        how, chance = world.setup.stops, world.course.chance
        try:
            state = campaigns.get_campaign(world.real, CAMPAIGN).state
            if how == "pause" and state in ("running", "paused"):
                (campaigns.pause if state == "running" else campaigns.resume)(world.store, CAMPAIGN, "test")
            elif how == "cancel" and state == "running" and chance.random() < 0.3:
                campaigns.begin_cancel(world.store, CAMPAIGN, "test")
            elif how == "triggers":
                self._triggers()
            elif how == "switch":
                scope = chance.choice(SCOPES)
                if chance.random() < 0.5:
                    stops.stop_sending(world.store, scope, "wait", "ann")
                else:
                    stops.end_stop(world.store, scope)
        except ControlFault:
            return
        finally:
            world.watch.look_at_stops()

    def _triggers(self) -> None:
        """Somebody publishes; what is about comes in any order and any number of times, also long after."""
        world = self._world
        chance = world.course.chance
        kind = "cancel" if chance.random() < 0.05 else chance.choice(CONTROL)
        self.triggers.append(Trigger(kind, CAMPAIGN, len(self.triggers) + 1))
        came = [chance.choice(self.triggers) for _ in range(chance.choice((1, 1, 2, 10)))]
        world.reach("S0")
        apply_triggers(world.store, came, "trigger")
        world.reach("S1")

    def suppress(self) -> None:
        """Somebody unsubscribes."""
        world = self._world
        batch_no = world.course.chance.randrange(world.setup.batches)
        key = f"k{batch_no}-{world.course.chance.randrange(world.setup.batch_size)}"

        def work(tx: Tx) -> None:
            if tx.get(Suppression, key, "*") is None:
                tx.insert(Suppression(key, "*", int(Outcome.SUPPRESSED_UNSUBSCRIBED), tx.now(), "test", "link"))

        world.store.transact(work, tag="suppress")

    def decide(self) -> None:
        """Somebody looks at what is held and decides, and mends senders and templates."""
        world = self._world
        for doubt in list_doubts(world.real):
            if doubt.held:
                kind = world.course.chance.choice(("assume", "resend"))
                log = world.setup.outbound_log
                resolver.decide(world.store, KEY, doubt, kind, "ann", "looked", log, world.new_id())
        release_senders(world.store, ("fake", "backup"))
        if campaigns.get_campaign(world.real, CAMPAIGN).state == "halted":
            with suppress(ControlFault):
                campaigns.resume(world.store, CAMPAIGN, "ann")

    def tell(self) -> None:
        """The provider tells of letters that it took, in any order, late, some again and again."""
        world = self._world
        if not world.setup.events or not world.log.accepted:
            return
        for _ in range(world.course.chance.choice((1, 1, 3, 46))):
            letter = world.course.chance.choice(world.log.accepted)
            self._tell_of(letter, f"event of {letter.place} {letter.message_id}")

    def _tell_of(self, letter: Arrival, event_id: str) -> None:
        """An event proves its whole request, unless that may be taken in part."""
        whole = "{}" if letter.attempt_id in self._world.in_part else '{"whole":true}'

        def work(tx: Tx) -> None:
            if tx.get(DeliveryEvent, event_id) is None:
                event = DeliveryEvent(event_id, letter.provider, "delivered", letter.at, tx.now(), whole)
                tx.insert(replace(event, message_id=letter.message_id, attempt_id=letter.attempt_id))

        self._world.store.transact(work, tag="event")

    def retry(self) -> None:
        """Somebody opens again whom the provider or we refused; dies, stalls or is cancelled in the middle."""
        world = self._world
        if not self._retries:
            return
        reasons = world.course.chance.choice(RETRIED)
        try:
            plan = plan_retry(world.real, CAMPAIGN, chosen_reasons(reasons))
            world.reach("plan")
            opened = retry(world.store, plan, "ann", progress=lambda _: world.reach("retry"))
            self.rounds += opened.recipients > 0
        except ControlFault:
            return

    def let_go(self) -> None:
        """Whoever stopped something lets it go on."""
        world = self._world
        for scope in SCOPES:
            stops.end_stop(world.real, scope)
        if campaigns.get_campaign(world.real, CAMPAIGN).state in ("paused", "halted"):
            campaigns.resume(world.real, CAMPAIGN, "test")
        world.watch.look_at_stops()

    def last_retry(self) -> bool:
        """Open once more, when all is over, whoever was refused; False if nobody is, or they were before."""
        if not self._retries:
            return False
        self.retry()
        self._retries = False
        return not self._world.over()
