"""The provider, and one process's sender before it: what it answers, what it really took, and what it tells later."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from schemas.outcomes import Outcome
from sendonce.senders.base import Prepared, Reply, Verdict
from tests.fakes import FakeSender, ProviderLog, Scripted
from tests.simulator.course import Course

REFUSED = int(Outcome.PROVIDER_REFUSED)
# What the provider does to a request, by weight. The first is that it takes it and says so.
FATES = (
    ("accepted", 640),
    ("reply lost", 60),
    ("unknown, not taken", 60),
    ("cannot connect", 60),
    ("throttled until", 25),
    ("throttled", 15),
    ("refused", 40),
    ("some refused", 30),
    ("some not sent", 20),
    ("some unknown", 20),
    ("mixed", 30),
    ("credentials", 10),
)
_WHOLE: Mapping[str, Reply] = {
    "accepted": Reply(Verdict.ACCEPTED, provider_ref="ref"),
    "reply lost": Reply(Verdict.UNKNOWN, "timeout"),
    "unknown, not taken": Reply(Verdict.UNKNOWN, "http_502"),
    "cannot connect": Reply(Verdict.NOT_SENT, "connect"),
    "throttled until": Reply(Verdict.NOT_SENT, "http_429", retry_after_s=2.0, throttled=True),
    "throttled": Reply(Verdict.NOT_SENT, "http_429", throttled=True),
    "refused": Reply(Verdict.REFUSED, outcome=REFUSED),
    "credentials": Reply(Verdict.NOT_SENT, "credentials", halts_sender=True),
}
# What becomes of each recipient, where not all are served alike.
_SOME: Mapping[str, Sequence[Verdict]] = {
    "some refused": (Verdict.ACCEPTED, Verdict.REFUSED),
    "some not sent": (Verdict.ACCEPTED, Verdict.NOT_SENT),
    "some unknown": (Verdict.ACCEPTED, Verdict.UNKNOWN),
    "mixed": tuple(Verdict),
}


class Around(Protocol):
    """What happens around a request."""

    course: Course
    log: ProviderLog
    left_out: dict[str, dict[int, tuple[Verdict, int, str]]]
    in_part: set[str]

    def provider_is_away(self, sender: str) -> bool: ...

    def before_request(self, prepared: Prepared) -> None: ...

    def after_request(self, prepared: Prepared) -> None: ...


class SimulatedSender(FakeSender):
    """A provider that knows a repeat by its key gives each recipient the answer of the first time, and takes whom it
    had said nothing sure about and not taken.
    """

    def __init__(self, world: Around, **abilities: Any) -> None:
        super().__init__(world.log, **abilities)
        self._world = world

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        self.script.append(self._fate(prepared))
        return super().send(prepared, timeout_s)

    def _fate(self, prepared: Prepared) -> Scripted:
        world, chance = self._world, self._world.course.chance
        if world.provider_is_away(self.name):
            what = world.course.fault("away", ("cannot connect", 60), ("unknown, not taken", 20), ("reply lost", 20))
        else:
            what = world.course.fault("answer", *FATES)
        ordinals = prepared.request.ordinals
        if what in _SOME:
            # Who is known by a key has decided about everybody: a repeat is answered alike.
            decides = self.capabilities.idempotency_window_s is not None
            verdicts = [one for one in _SOME[what] if not (decides and one is Verdict.NOT_SENT)]
            said = {ordinal: chance.choice(verdicts) for ordinal in ordinals}
            taken = [
                o for o in ordinals if said[o] is Verdict.ACCEPTED or (said[o] is Verdict.UNKNOWN and _heads(chance))
            ]
            reply, accepts = _each(said), tuple(taken)
        else:
            reply = _WHOLE[what]
            accepts = tuple(ordinals) if what in ("accepted", "reply lost") else ()
        return Scripted(reply, accepts, before=world.before_request, after=world.after_request)

    def _taken(self, prepared: Prepared, fate: Scripted) -> Reply:
        attempt = prepared.request.attempt_id
        window_s, known = self.capabilities.idempotency_window_s, self.log.keys.get(attempt)
        if window_s is None or known is None or (self.log.now() - known[1]).total_seconds() >= window_s:
            reply = super()._taken(prepared, fate)
            if fate.reply.exceptions:
                self._world.in_part.add(attempt)
                self.log.keys.setdefault(attempt, (prepared.payload_hash, self.log.now()))
            self._world.left_out[attempt] = {
                ordinal: said for ordinal, said in fate.reply.exceptions.items() if said[0] is not Verdict.UNKNOWN
            }
            return reply
        if known[0] != prepared.payload_hash:
            return super()._taken(prepared, fate)
        self.log.note("repeated", self.name, prepared)
        taken = {letter.message_id for letter in self.log.accepted if letter.attempt_id == attempt}
        left_out = self._world.left_out[attempt]
        left = [letter.ordinal for letter in prepared.request.chosen if letter.message_id not in taken]
        self.log.accept(prepared, set(left) - left_out.keys(), self.name)
        return Reply(Verdict.ACCEPTED, exceptions=left_out)


def _each(said: Mapping[int, Verdict]) -> Reply:
    """A reply that says for each recipient what became of it."""
    others = {ordinal: verdict for ordinal, verdict in said.items() if verdict is not Verdict.ACCEPTED}
    return Reply(
        Verdict.ACCEPTED,
        exceptions={
            ordinal: (verdict, REFUSED if verdict is Verdict.REFUSED else 0, "") for ordinal, verdict in others.items()
        },
    )


def _heads(chance: random.Random) -> bool:
    return chance.random() < 0.5
