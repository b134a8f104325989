"""Which requests count as failures in a row: those by which nobody got anything."""

from collections import Counter

from schemas.outcomes import Outcome
from sendonce.senders.base import Prepared, Reply, Verdict
from tests.delivery.world import World
from tests.fakes import FakeSender


class Greylisting(FakeSender):
    """Its server takes every letter, but some only from their second try on: 450 at RCPT before."""

    tried: Counter[int]

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        self.tried.update(prepared.request.ordinals)
        later = [o for o in prepared.request.ordinals if o % 10 == 0 and self.tried[o] == 1]
        exceptions = dict.fromkeys(later, (Verdict.NOT_SENT, 0, "smtp 450 at RCPT"))
        return Reply(Verdict.ACCEPTED, "smtp_450" if later else "", exceptions=exceptions)


def test_nobody_is_given_up_after_one_try_because_others_were_told_to_come_later(world: World) -> None:
    """The fault: one 450 in each of twelve requests, 95 % of them taken, and the last one was refused as exhausted."""
    world.campaign([400])
    sender = Greylisting(world.log, recipients=20)
    sender.tried = Counter()
    for _ in range(200):
        if not world.plan_due():
            world.pass_s(400)
        if world.batch().state == "done":
            break
        world.deliver(sender)
    batch = world.batch()
    given_up = {o: sender.tried[o] for o, code in enumerate(batch.outcomes) if code == Outcome.EXHAUSTED}
    assert given_up == {}
    assert batch.n_accepted == 400
