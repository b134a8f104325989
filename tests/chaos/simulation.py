"""The delivery core in a simulated world: one clock, one provider, several owners, and faults drawn from a seed.

Everything runs in one thread. Owners meet because a fault can let others work (and time pass) in the middle of a step.
A failing seed fails again in the same way. What is real: the protocol, the planner, the sweeper, the resolver and the
SQLite store. What is not: time, the provider, and the letters' texts.
"""

import json
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import orjson

from schemas import ids
from schemas.elements import Reference, RenderedBatch
from schemas.letters import FormLetter, Letter, Letters, Refusal, slot_key
from schemas.outcomes import Outcome, tally
from schemas.tables import TABLES, Attempt, Batch, Campaign, Limit, Recipient, Setting, Suppression, Switch
from sendonce import failpoints
from sendonce.config import Lane
from sendonce.control import campaigns
from sendonce.control.doubts import list_doubts
from sendonce.control.expiry import with_end
from sendonce.control.faults import ControlFault
from sendonce.control.worth import chosen_reasons
from sendonce.delivery import health, reopening, resolver
from sendonce.delivery.deliver import Clocks, Deliverer
from sendonce.delivery.letters import element_of
from sendonce.delivery.planner import plan_lane
from sendonce.delivery.resolver import Policy
from sendonce.delivery.retrying import plan_retry, retry
from sendonce.delivery.sweeper import sweep_lane
from sendonce.delivery.terms import Terms, batch_key
from sendonce.mailboxes import DomainGroups
from sendonce.senders.base import Prepared, Reply, Verdict
from sendonce.stores.base import Reader, Store, StoreUnavailable, Tx
from sendonce.stores.opening import init_store, open_store, store_key
from sendonce.times import Times
from tests.checker import Findings, changes, judge
from tests.checker.case import Violation
from tests.evidence import Records
from tests.fakes import START, FakeSender, ManualClock, ProviderLog, Scripted

Result = TypeVar("Result")
CAMPAIGN = "simulated"
GROUPS = {"slow": ["slow.example"], "scarce": ["*.scarce.example"]}
DOMAINS = ("one.example", "slow.example", "mx.scarce.example", "slow.example")
REFUSED = Reply(Verdict.REFUSED, outcome=int(Outcome.PROVIDER_REFUSED))
RETRIED: list[list[str]] = [
    [],
    ["provider.refused"],
    ["render.error"],
    ["provider.refused", "exhausted"],
    ["provider.refused", "render.error", "expired"],
]
# (how often, what the provider answers, whether it took the letters)
REPLIES: list[tuple[int, Reply, bool]] = [
    (60, Reply(Verdict.ACCEPTED, provider_ref="ref"), True),
    (6, Reply(Verdict.UNKNOWN, "timeout"), True),
    (6, Reply(Verdict.UNKNOWN, "timeout"), False),
    (6, Reply(Verdict.NOT_SENT, "connect"), False),
    (4, Reply(Verdict.NOT_SENT, "http_429", retry_after_s=2.0, throttled=True), False),
    (4, REFUSED, False),
]


class Killed(BaseException):
    """The owner's process is gone. Not an Exception: nothing in the core may catch it."""


@dataclass(frozen=True)
class Setup:
    """What differs between seeds besides the faults."""

    in_doubt: str
    window_s: float | None
    mixes_forms: bool
    per_call: int
    batch_size: int
    batches: int
    outbound_log: str
    limits: tuple[Limit, ...]
    stops: str
    groups: bool
    retries: bool = False
    failures_to_open: int = health.FAILURES_TO_OPEN
    fallback: bool = False


def setup_for(chance: random.Random) -> Setup:
    rate = chance.choice((2.0, 5.0, 20.0))
    setup = Setup(
        in_doubt=chance.choice(("hold", "assume", "resend")),
        window_s=chance.choice((None, None, 60.0, math.inf)),
        mixes_forms=chance.random() < 0.5,
        per_call=chance.choice((1, 3, 100)),
        batch_size=chance.choice((1, 4, 9)),
        batches=chance.randint(1, 5),
        outbound_log=chance.choice(("rows", "packed")),
        limits=chance.choice(
            (
                (),
                (Limit("lane:bulk", "rate", "rate", per_s=rate, burst=chance.randint(1, 8)),),
                (
                    Limit("lane:bulk", "rate", "rate", per_s=rate, burst=chance.randint(1, 8)),
                    Limit("sender:fake", "cap:20", "cap", most=chance.randint(1, 12), window_s=20.0),
                ),
            )
        ),
        stops=chance.choice(("", "", "pause", "cancel")),
        groups=False,
    )
    return replace(setup, **_with_groups(chance, setup)) if chance.random() < 0.4 else setup


def _with_groups(chance: random.Random, setup: Setup) -> dict[str, Any]:
    """Recipients with three operators, of which one or two have limits of their own; now and then a warm-up."""
    rate = chance.choice((0.5, 2.0, 10.0))
    more = [Limit("domain:slow", "rate", "rate", per_s=rate, burst=chance.randint(1, 5))]
    if chance.random() < 0.5:
        more.append(Limit("domain:scarce", "cap:30", "cap", most=chance.randint(1, 4), window_s=30.0))
    if chance.random() < 0.4:
        plan = sorted(chance.randint(1, 9) for _ in range(chance.randint(1, 4)))
        starts_at = START + timedelta(seconds=chance.choice((-50, 0, 20)))
        warm_up = Limit("warmup:fake", "cap:60", "cap", most=plan[-1], window_s=60.0, starts_at=starts_at)
        more.append(replace(warm_up, plan=orjson.dumps(plan).decode()))
    return {"groups": True, "limits": (*setup.limits, *more)}


class FaultyStore:
    """A store that is sometimes away before a commit, sometimes after it, and sometimes runs the work twice."""

    def __init__(self, store: Store, world: "World") -> None:
        self._store = store
        self._world = world
        self.url = store.url
        self.rows_at_once = store.rows_at_once

    def transact(self, work: Callable[[Tx], Result], *, tag: str) -> Result:
        fault = self._world.draw(("", 90), ("before", 4), ("after", 4), ("twice", 2))
        if fault == "before":
            raise StoreUnavailable("away")
        if fault == "twice":
            self._world.aborted(self._store, work)
        result = self._store.transact(work, tag=tag)
        if fault == "after":
            raise StoreUnavailable("away after the commit", maybe_applied=True)
        return result

    def read(self, work: Callable[[Reader], Result], *, stale_s: float = 0.0) -> Result:
        return self._store.read(work, stale_s=stale_s)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class SometimesAway(FakeSender):
    """A sender whose provider is away at times: it refuses connections, or hears requests and says nothing."""

    def __init__(self, world: "World", **abilities: Any) -> None:
        super().__init__(world.log, **abilities)
        self._world = world

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        if away := self._world.away():
            self.script.appendleft(replace(away, before=self._world._before))
        return super().send(prepared, timeout_s)


class World:
    """One run. `play` does `steps` random steps with faults, then lets everything end without, and judges.

    changes: fields of `Setup` that are not left to the seed.
    """

    def __init__(self, seed: int, folder: Path, **changes: Any) -> None:
        self.chance = random.Random(seed)
        self.setup = replace(setup_for(self.chance), **changes)
        self.clock = ManualClock()
        url = f"sqlite:///{folder / f'{seed}.db'}"
        init_store(url).close()
        self.real = open_store(url, clock=self.clock.now)
        self.store: Store = FaultyStore(self.real, self)
        self.key = store_key(self.real)
        self.log = ProviderLog(self.clock.now)
        self.faults = True
        self.depth = 0
        self.owners = 0
        self.late: set[str] = set()
        self.unfenced: list[str] = []
        self.probes = 0
        self.beside_probe: list[str] = []
        # Drawn apart, so that a seed's faults stay what they were.
        apart = random.Random(f"end of {seed}")
        self.ends_at = START + timedelta(seconds=apart.uniform(1, 90)) if apart.random() < 0.3 else None
        # Whoever was refused is opened again in two seeds of five.
        self.apart = random.Random(f"retries of {seed}")
        if self.apart.random() < 0.4:
            self.setup = replace(self.setup, **{"retries": True, **changes})
        self.rounds = 0
        self.away_until = START
        self.changed: list[Violation] = []
        self.elements: list[RenderedBatch] = []
        # No idle time: a doubt waits for its policy for hours, and the simulation jumps there.
        times = Times(0.2, 5.0, 2.0, 6.0, 2.0, 2.0, 6.0, 1.0)
        self.terms = Terms(
            lane="bulk",
            sender="fake",
            provider="fake",
            scopes=("lane:bulk", "sender:fake", *(("warmup:fake",) if self.setup.groups else ())),
            groups=DomainGroups(GROUPS) if self.setup.groups else None,
            times=times,
            asks_again_s=self.setup.window_s,
            outbound_log=self.setup.outbound_log,
        )
        if self.setup.fallback:
            backup = replace(self.terms, sender="backup", provider="backup", scopes=("lane:bulk", "sender:backup"))
            self.terms = replace(self.terms, fallback=backup)
        self.policy = Policy(self.setup.in_doubt, self.setup.outbound_log)
        self._load()

    # -- the campaign --------------------------------------------------------------------------------------------

    def _load(self) -> None:
        setup = self.setup
        lane = Lane(name="bulk", sender="fake", in_doubt=setup.in_doubt, outbound_log=setup.outbound_log)  # type: ignore[arg-type]
        rows: list[Any] = [
            *setup.limits,
            Setting("lane", "bulk", lane.model_dump_json(), START, "test"),
            *(
                Setting("domain", name, orjson.dumps({"name": name, "domains": domains}).decode(), START, "test")
                for name, domains in (GROUPS.items() if setup.groups else ())
            ),
        ]
        for batch_no in range(setup.batches):
            shard = ids.shard_of(CAMPAIGN, batch_no)
            codes = bytes(setup.batch_size)
            rows.append(
                Batch(
                    shard, CAMPAIGN, batch_no, len(codes), "UTC", "pending", "pending", START, codes,
                    **{f"n_{kind}": count for kind, count in tally(codes).items()},  # type: ignore[arg-type]
                )
            )  # fmt: skip
            rows += [
                Recipient(
                    shard, CAMPAIGN, batch_no, ordinal, f"r{batch_no}-{ordinal}",
                    f"r{batch_no}-{ordinal}@{DOMAINS[(batch_no + ordinal) % len(DOMAINS)]}",
                    f"k{batch_no}-{ordinal}", "en", "UTC", "{}",
                )
                for ordinal in range(len(codes))
            ]  # fmt: skip
        campaign = Campaign(
            CAMPAIGN, "campaign", "running", "bulk", "fake", "news@shop.example", "t", "h", "{}", "s",
            setup.batches * setup.batch_size, setup.batches, START, "test", START, "test", sealed_at=START,
        )  # fmt: skip
        rows.append(campaign if self.ends_at is None else with_end(campaign, self.ends_at))
        self.real.write_many(rows)

    def _letters(self, reference: Reference) -> tuple[Letters, Any] | None:
        """What rendering would give: two form letters, and one recipient in seven refused."""

        def read(reader: Reader) -> Any:
            batch = reader.get(Batch, *batch_key(reference.campaign_id, reference.batch_no))
            people = reader.scan(Recipient, batch_key(CAMPAIGN, reference.batch_no)[0], CAMPAIGN, reference.batch_no)
            gone = {row.address_key for row in reader.scan(Suppression)}
            return batch, people, gone, reader.now()

        batch, people, gone, now = self.real.read(read)
        if batch is None or batch.plan_no != reference.plan_no:
            return None
        forms = [FormLetter("p", 1, "Hello", f"{number} {slot_key('p', 0)}", "") for number in range(2)]
        letters: list[Letter] = []
        refusals: list[Refusal] = []
        for person in people:
            name = ids.message_id(self.key, CAMPAIGN, person.recipient_id)
            if person.address_key in gone and batch.outcomes[person.ordinal] == Outcome.OPEN:
                refusals.append(Refusal(person.ordinal, name, int(Outcome.SUPPRESSED_UNSUBSCRIBED), ""))
            elif (person.batch_no * 31 + person.ordinal) % 7 == 3:
                refusals.append(Refusal(person.ordinal, name, int(Outcome.RENDER_ERROR), "render.error"))
            else:
                letters.append(
                    Letter(person.ordinal, name, person.email, "", person.ordinal % 2, [person.recipient_id])
                )
        return Letters("news@shop.example", "", forms, letters, refusals), now

    # -- chance --------------------------------------------------------------------------------------------------

    def draw(self, *choices: tuple[str, int]) -> str:
        """One of the names by weight; the first when faults are off."""
        if not self.faults:
            return choices[0][0]
        return self.chance.choices([name for name, _ in choices], [weight for _, weight in choices])[0]

    def reach(self, point: str) -> str | None:
        """In place of the armed failpoints, and between the steps of a retry: die, stall while others work, or lose a
        reply."""
        pause = 20 if point == "S3" else 8
        what = self.draw(("", 80), ("kill", 6), ("pause", pause), ("drop", 4 if point in ("S5", "S6") else 0))
        if what == "kill":
            raise Killed(point)
        if what == "pause":
            self.pause()
        return failpoints.DROP_REPLY if what == "drop" else None

    def pause(self) -> float:
        """Time passes and others work, while this owner stands still; gives the seconds."""
        before_s = self.clock.boottime()
        self.clock.advance(self.chance.choice((0.5, 1.5, 4.0, 9.0, 9.0, 1200.0)))
        if self.depth < 2:
            self.depth += 1
            for _ in range(self.chance.randint(0, 8)):
                self.step()
            self.depth -= 1
        return self.clock.boottime() - before_s

    def aborted(self, store: Store, work: Callable[[Tx], Any]) -> None:
        """The store runs the work, aborts, and will run it again."""

        class Abort(Exception):
            pass

        def fail(tx: Tx) -> None:
            work(tx)
            raise Abort

        try:
            store.transact(fail, tag="aborted")
        except Abort:
            return

    # -- steps ---------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """One thing that some process does; a fault ends the process, never the world."""
        self.clock.advance(self.chance.choice((0.01, 0.1, 0.1, 0.5)))
        what = self.draw(("work", 60), ("sweep", 24), ("stop", 3), ("suppress", 3), ("person", 10))
        if not self.faults:
            self.clock.advance(self.chance.choice((0.1, 1.0, 30.0)))
        elif self.setup.fallback and self.apart.random() < 0.2:
            self.away_until = self.clock.now() + timedelta(seconds=self.apart.choice((2.0, 10.0, 60.0)))
        try:
            if what == "work":
                self.work()
            elif what == "sweep":
                self.sweep()
            elif what == "stop":
                self.stop()
            elif what == "suppress":
                self.suppress()
            else:
                self.person()
            if self.faults and self.setup.retries and self.apart.random() < 0.06:
                self.retry()
        except (Killed, StoreUnavailable):
            return

    def retry(self) -> None:
        """Somebody opens again whom the provider or we refused; dies, stalls or is cancelled in the middle."""
        reasons = self.apart.choice(RETRIED)
        before = self.records()
        try:
            plan = plan_retry(self.real, CAMPAIGN, chosen_reasons(reasons))
            self.reach("plan")
            self.rounds += retry(self.store, plan, "ann", progress=lambda _: self.reach("retry")).recipients > 0
        except ControlFault:
            return
        finally:
            self.changed += changes(before, self.records())

    def records(self) -> Records:
        return Records(self.real.read(lambda reader: {kind: reader.scan(kind) for kind in TABLES}))

    def work(self) -> None:
        """Plan, and deliver one of the elements that are about; some come twice, some late, some never.

        Without faults all are delivered, in order.
        """
        plan = plan_lane(self.store, self.terms, 100).references
        self.reach("S2")
        for reference in plan:
            rendered = self._letters(reference)
            if rendered is not None:
                self.elements.append(element_of(reference, *rendered))
        if not self.faults:
            for element in self.elements:
                self.owner().deliver(element)
            self.elements.clear()
        if not self.elements:
            return
        number = self.chance.randrange(len(self.elements))
        what = self.draw(("take", 85), ("copy", 10), ("lose", 5))
        element = self.elements[number] if what == "copy" else self.elements.pop(number)
        if what != "lose":
            self.owner().deliver(element)

    def owner(self) -> Deliverer:
        self.owners += 1
        abilities: dict[str, Any] = {
            "recipients": self.setup.per_call,
            "mixes_forms": self.setup.mixes_forms,
            "idempotency_window_s": self.setup.window_s,
        }
        sender = SometimesAway(self, script=self._fates(), **abilities)
        other = None
        if self.setup.fallback:
            other = FakeSender(self.log, name="backup", script=self._fates(), **abilities)
        clocks = Clocks(
            own_s=self.clock.boottime,
            wall_ms=lambda: int(self.clock.now().timestamp() * 1000),
            randomness=self.chance.randbytes,
            chance=self.chance.random,
        )
        name = f"owner-{self.owners}"
        return Deliverer(self.store, sender, self.terms, name, clocks, self._letters, fallback=other)

    def away(self) -> Scripted | None:
        """What a provider that is away does to a request now; None while it is not away."""
        if not (self.faults and self.setup.fallback and self.clock.now() < self.away_until):
            return None
        if self.apart.random() < 0.6:
            return Scripted(Reply(Verdict.NOT_SENT, "connect"), accepts=())
        return Scripted(Reply(Verdict.UNKNOWN, "timeout"), accepts=_all_or_none(self.apart.random() < 0.5))

    def _fates(self) -> Iterator[Scripted]:
        for _ in range(60):
            weights = [weight for weight, _, _ in REPLIES] if self.faults else [1, *[0] * (len(REPLIES) - 1)]
            _, reply, taken = self.chance.choices(REPLIES, weights)[0]
            accepts = None if taken and reply.verdict is Verdict.ACCEPTED else _all_or_none(taken)
            yield Scripted(reply, accepts, before=self._before, after=lambda prepared: self._after())

    def _before(self, prepared: Prepared) -> None:
        request = prepared.request
        batch = self.real.read(lambda reader: reader.get(Batch, *batch_key(CAMPAIGN, request.batch_no)))
        if batch is None or (batch.state, batch.attempt_id) != ("sending", request.attempt_id):
            self.unfenced.append(request.attempt_id)
        self._check_probe(request.attempt_id, batch)
        what = self.draw(("", 88), ("kill", 6), ("pause", 6))
        if what == "kill":
            raise Killed("S4")
        # A pause between the last check and the write makes a late request; limits can't hold for it.
        if what == "pause" and self.pause() > self.terms.times.permit_ttl_s:
            self.late.add(prepared.request.attempt_id)

    def _check_probe(self, attempt_id: str, batch: Batch | None) -> None:
        """While one request probes an open breaker, no other is granted."""
        switch = self.real.read(lambda reader: reader.get(Switch, "sender:fake"))
        if switch is None or switch.kind != health.PROBING or switch.until_at is None or batch is None:
            return
        probing_from = switch.until_at - timedelta(seconds=self.terms.times.lease_s)
        probe = json.loads(switch.detail)["probe"]
        if attempt_id == probe:
            self.probes += 1
        elif batch.provider == "fake" and batch.permit_at is not None and batch.permit_at > probing_from:
            self.beside_probe.append(attempt_id)

    def _after(self) -> None:
        if self.reach("S5") == failpoints.DROP_REPLY:
            raise Killed("S5")

    def sweep(self) -> None:
        sweep_lane(self.store, self.key, self.terms, self.policy, lambda: self.chance.randbytes(8).hex())

    def stop(self) -> None:
        """Pause, resume or cancel, as this seed's campaign does."""
        state = campaigns.get_campaign(self.real, CAMPAIGN).state
        if self.setup.stops == "pause" and state in ("running", "paused"):
            (campaigns.pause if state == "running" else campaigns.resume)(self.store, CAMPAIGN, "test")
        elif self.setup.stops == "cancel" and state == "running" and self.chance.random() < 0.3:
            campaigns.begin_cancel(self.store, CAMPAIGN, "test")

    def suppress(self) -> None:
        """Somebody unsubscribes."""
        batch_no = self.chance.randrange(self.setup.batches)
        key = f"k{batch_no}-{self.chance.randrange(self.setup.batch_size)}"

        def work(tx: Tx) -> None:
            if tx.get(Suppression, key, "*") is None:
                tx.insert(Suppression(key, "*", int(Outcome.SUPPRESSED_UNSUBSCRIBED), tx.now(), "test", "link"))

        self.store.transact(work, tag="suppress")

    def person(self) -> None:
        """Somebody looks at what is held and decides."""
        for doubt in list_doubts(self.real):
            if not doubt.held:
                continue
            kind = self.chance.choice(("assume", "resend"))
            decision = self.chance.randbytes(8).hex()
            resolver.decide(self.store, self.key, doubt, kind, "ann", "looked", self.terms.outbound_log, decision)

    # -- the whole -----------------------------------------------------------------------------------------------

    def play(self, steps: int) -> Findings:
        with self._failpoints():
            for _ in range(steps):
                self.step()
            self.faults = False
            state = campaigns.get_campaign(self.real, CAMPAIGN).state
            if state == "paused":
                campaigns.resume(self.real, CAMPAIGN, "test")
            for _ in range(400):
                self.step()
                self.sweep()
                self.person()
                if self.over() and not self.last_retry():
                    break
                self.clock.advance(self.chance.choice((1.0, 60.0, 6 * 3600.0)))
        return self.judge()

    def last_retry(self) -> bool:
        """Open once more, when all is over, whoever was refused; False if nobody is, or they were before."""
        if not self.setup.retries:
            return False
        self.setup = replace(self.setup, retries=False)
        self.retry()
        return not self.over()

    @contextmanager
    def _failpoints(self) -> Iterator[None]:
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

    def judge(self) -> Findings:
        findings = judge(
            self.records(),
            self.log.accepted,
            now=self.clock.now() + timedelta(seconds=1),
            ended=True,
            late_requests=self.late,
        )
        overtaken = [
            Violation("I4", f"attempt {attempt}", "began after others took its batch") for attempt in self.unfenced
        ]
        # A repeat that stood still between its last check and the socket until the provider's window was over: nobody
        # but the provider could still tell it from a new request. Listed as late, like every pause there (I7).
        finite = self.setup.window_s is not None and not math.isinf(self.setup.window_s)
        kept = [
            violation
            for violation in findings.violations
            if not (finite and violation.invariant == "I2" and any(late in violation.what for late in self.late))
        ]
        probes = [Violation("breaker", f"attempt {attempt}", "granted beside a probe") for attempt in self.beside_probe]
        too_late = [
            Violation("I9", f"attempt {row.attempt_id}", "intended after the campaign's end")
            for row in self.real.read(lambda reader: reader.scan(Attempt))
            if self.ends_at is not None and row.started_at >= self.ends_at
        ]
        return replace(findings, violations=[*kept, *overtaken, *probes, *too_late, *self.changed])


def _all_or_none(taken: bool) -> Any:
    return range(10_000) if taken else ()
