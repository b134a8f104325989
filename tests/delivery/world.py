"""A store, a provider that remembers, and owners before them: the delivery core without Beam and without templates."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from schemas.elements import Reference, RenderedBatch
from schemas.ids import message_id
from schemas.letters import Letter, Letters, Refusal
from schemas.outcomes import Outcome
from schemas.tables import Attempt, Batch, Campaign, Limit, OutboundMessage, Recipient
from sendonce.control.doubts import Doubt, list_doubts
from sendonce.delivery.deliver import Clocks, Deliverer, Delivery
from sendonce.delivery.fair import FairShare
from sendonce.delivery.letters import element_of
from sendonce.delivery.planner import _choose, plan_lane
from sendonce.delivery.resolver import Policy
from sendonce.delivery.sweeper import Swept, sweep_lane
from sendonce.delivery.terms import Terms
from sendonce.stores.opening import init_store, open_store, store_key
from sendonce.times import BULK
from tests.control.made import Clock, batch_row, campaign_row, seal
from tests.fakes import FakeSender, ProviderLog, Scripted

TERMS = Terms(lane="bulk", sender="fake", provider="fake", scopes=("lane:bulk", "sender:fake"), times=BULK)
CAMPAIGN = "spring"


class World:
    """One store under a clock that only the test moves (wall and own time together, unless it says otherwise)."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self.clock = clock
        self.began = clock.at
        url = f"sqlite:///{folder / 'store.db'}"
        init_store(url).close()
        self.store = open_store(url, clock=clock)
        self.key = store_key(self.store)
        self.log = ProviderLog(lambda: self.clock.at)
        self.own_skew_s = 0.0
        self._ids = 0

    def close(self) -> None:
        self.store.close()

    def campaign(self, sizes: list[int], *, state: str = "running", campaign_id: str = CAMPAIGN) -> Campaign:
        return seal(self.store, campaign_id, sizes, state=state)

    def sender(self, script: Iterable[Scripted] = (), **abilities: object) -> FakeSender:
        return FakeSender(self.log, script=script, **abilities)  # type: ignore[arg-type]

    def plan(self, terms: Terms = TERMS, window: int = 10_000) -> list[Reference]:
        return plan_lane(self.store, terms, window).references

    def plan_one(self, terms: Terms = TERMS) -> Reference:
        (reference,) = self.plan(terms, 1)
        return reference

    def plan_due(self) -> bool:
        """Whether any batch of the lane is due and may send now."""
        return bool(self.store.read(lambda reader: _choose(reader, TERMS, 10_000, FairShare()).now))

    def letters(self, reference: Reference, refused: dict[int, Outcome] | None = None) -> Letters:
        batch = self.batch(reference.batch_no, reference.campaign_id)
        people = self.people(batch)
        letters, refusals = [], []
        for person in people:
            name = message_id(self.key, batch.campaign_id, person.recipient_id)
            if refused and person.ordinal in refused:
                refusals.append(Refusal(person.ordinal, name, int(refused[person.ordinal]), "refused by the test"))
            else:
                text = f"Hello {person.recipient_id}"
                letters.append(Letter(person.ordinal, name, person.email, "", subject="Hi", text=text))
        return Letters("Shop <news@shop.example>", "", [], letters, refusals)

    def people(self, batch: Batch) -> list[Recipient]:
        return self.store.read(lambda reader: reader.scan(Recipient, batch.shard, batch.campaign_id, batch.batch_no))

    def render(self, reference: Reference, refused: dict[int, Outcome] | None = None) -> RenderedBatch:
        return element_of(reference, self.letters(reference, refused), self.now())

    def owner(
        self,
        sender: FakeSender,
        terms: Terms = TERMS,
        *,
        worker: str = "w1",
        stopping: bool = False,
        fallback: FakeSender | None = None,
    ) -> Deliverer:
        def own_s() -> float:
            return (self.clock.at - self.began).total_seconds() + self.own_skew_s

        clocks = Clocks(
            own_s=own_s,
            wall_ms=lambda: int(self.clock.at.timestamp() * 1000),
            randomness=self._random,
            chance=lambda: 0.5,
        )
        return Deliverer(self.store, sender, terms, worker, clocks, lambda reference: None, lambda: stopping, fallback)

    def deliver(self, sender: FakeSender, terms: Terms = TERMS, **more: object) -> Delivery:
        """Plan the first due batch, render it, deliver it."""
        terms = replace(terms, asks_again_s=sender.capabilities.idempotency_window_s)
        reference = self.plan_one(terms)
        return self.owner(sender, terms, **more).deliver(self.render(reference))  # type: ignore[arg-type]

    def sweep(self, terms: Terms = TERMS, *, in_doubt: str = "hold") -> Swept:
        policy = Policy(in_doubt, terms.outbound_log)
        return sweep_lane(self.store, self.key, terms, policy, self._id)

    def limit(self, *limits: Limit) -> None:
        self.store.transact(lambda tx: tx.put(*limits), tag="test")

    def batch(self, batch_no: int = 0, campaign_id: str = CAMPAIGN) -> Batch:
        return batch_row(self.store, campaign_id, batch_no)

    def doubts(self) -> list[Doubt]:
        """Every doubt there is, oldest first."""
        return list_doubts(self.store)

    def campaign_row(self, campaign_id: str = CAMPAIGN) -> Campaign:
        return campaign_row(self.store, campaign_id)

    def set_state(self, state: str, campaign_id: str = CAMPAIGN) -> None:
        changed = replace(self.campaign_row(campaign_id), state=state)
        self.store.transact(lambda tx: tx.put(changed), tag="test")

    def attempts(self, batch_no: int = 0) -> list[Attempt]:
        batch = self.batch(batch_no)
        return self.store.read(lambda reader: reader.scan(Attempt, batch.shard, batch.campaign_id, batch_no))

    def outbound(self) -> list[OutboundMessage]:
        return self.store.read(lambda reader: reader.scan(OutboundMessage, CAMPAIGN, index="outbound_by_campaign"))

    def kinds(self, batch_no: int = 0) -> str:
        """The outcomes of a batch, a letter each: a accepted, r refused, o open, d in doubt, c cancelled, s, k, u."""
        letters = {"suppressed": "s", "skipped": "k", "in_doubt": "d", "assumed": "u"}
        kinds = (Outcome(code).kind for code in self.batch(batch_no).outcomes)
        return "".join(letters.get(kind, kind[0]) for kind in kinds)

    def now(self) -> datetime:
        return self.store.read(lambda reader: reader.now())

    def pass_s(self, seconds: float) -> None:
        self.clock.at += timedelta(seconds=seconds)

    def _random(self, n: int) -> bytes:
        self._ids += 1
        return self._ids.to_bytes(n, "big")

    def _id(self) -> str:
        self._ids += 1
        return f"decision-{self._ids}"
