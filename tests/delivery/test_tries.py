"""Which requests count as failures in a row: those by which nobody got anything."""

from collections import Counter

from schemas.outcomes import Outcome
from schemas.tables import Switch
from sendonce.senders.base import Prepared, Reply, Verdict
from tests.delivery.world import TERMS, World
from tests.fakes import FakeSender, Scripted


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


def test_a_mailbox_that_is_put_off_for_ever_is_given_up_and_opens_no_breaker(world: World) -> None:
    """The fault: five 450 in a row opened the breaker, and a failure that finds it open spends no try: the campaign
    never ended, and the sender sent nothing but probes."""
    world.campaign([1])
    later = Scripted(Reply(Verdict.NOT_SENT, "smtp_450", put_off=True))
    for _ in range(TERMS.most_tries):
        world.pass_s(400)
        assert not world.store.read(lambda reader: reader.scan(Switch))
        world.deliver(world.sender([later]))
    assert (world.batch().state, world.batch().outcomes) == ("done", bytes([Outcome.EXHAUSTED]))
    assert not world.store.read(lambda reader: reader.scan(Switch))


def test_a_letter_that_is_told_later_for_ever_is_given_up_though_its_sender_fails(world: World) -> None:
    """A campaign whose last letter always got a 451 of its own never ended: its failures had opened the breaker."""
    world.campaign([1])
    later = Scripted(Reply(Verdict.NOT_SENT, "smtp_451", answered=True))
    tries = 0
    while world.batch().state != "done":
        assert tries < 2 * TERMS.most_tries, "it never ends"
        if world.plan_due():
            world.deliver(world.sender([later]))
            tries += 1
        world.pass_s(60)
    assert (tries, world.batch().outcomes) == (TERMS.most_tries, bytes([Outcome.EXHAUSTED]))


def test_letters_wait_for_a_sender_that_is_away_however_long(world: World) -> None:
    world.campaign([1])
    tries = 0
    while tries < 3 * TERMS.most_tries:
        if world.plan_due():
            world.deliver(world.sender([Scripted(Reply(Verdict.NOT_SENT, "connect"))]))
            tries += 1
        world.pass_s(60)
    assert world.kinds() == "o"
