"""One run: processes are started, die and are replaced until everything has ended; then the verdict."""

import random
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.chaos import canary
from tests.chaos.failover import Failover
from tests.chaos.ground import Ground
from tests.chaos.kills import Kill, Worker, must_hurry, plan_kills, points_of
from tests.chaos.outages import Outages
from tests.chaos.person import Person
from tests.chaos.place import Glance, glance
from tests.chaos.triggers import ACK_DEADLINE_S, Publisher
from tests.chaos.watch import Journal
from tests.checker import Findings, judge

TICK_S = 0.05
# A process that is to die over a trigger needs triggers.
AGAIN_EVERY_S = 0.5
CRASHES_MAX = 5
# How many times longer a process may need to reach its failpoint before a store that takes its time.
SLOW = 3.0
STOP_S = 30.0
FAULTS = ("duplicates", "lost", "phantoms", "unaccounted", "limit_violations")


@dataclass
class Verdict:
    """`numbers` are for people and machines; `problems` say what is wrong, in one line each."""

    numbers: dict[str, Any]
    problems: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.problems


class Run:
    """Campaigns are submitted one by one, as the kills go on, so that every kill finds work to hit.

    publisher: the processes are live jobs on its subscription, and campaigns are started by what it publishes.
    failover: outages of the provider, which send letters over the fallback and back again. points: the only failpoints
    to die at; without, all that are reached, and at any time.
    """

    def __init__(
        self,
        ground: Ground,
        chance: random.Random,
        *,
        kills: int,
        processes: int,
        publisher: Publisher | None = None,
        outages: Outages | None = None,
        failover: Failover | None = None,
        points: Sequence[str] = (),
        slow: bool = False,
    ) -> None:
        self._ground = ground
        self._asked = kills
        self._chance = chance
        self._patience = SLOW if slow else 1.0
        senders = [one.name for one in ground.providers.each]
        known = points_of(senders, live=publisher is not None)
        self._plan = deque(plan_kills(chance, kills, tuple(points) or known, any_time=not points))
        self._done: list[Kill] = []
        self._waiting = deque(ground.campaigns)
        self._workers: list[Worker | None] = [None] * processes
        self._started = 0
        self._all: list[Worker] = []
        self._problems: list[str] = []
        self._providers = ground.providers
        self._publisher = publisher
        self._outages = outages
        self._failover = failover
        self._person = Person(ground.place, ground.providers, ground.sendonce)
        self._journal = Journal(ground.place)
        self._told_s = 0.0
        self._disturbed_s = 0.0
        self._began_s = time.monotonic()

    def to_the_end(self, limit_s: float) -> Verdict:
        """Run until every campaign has ended (or `limit_s` is over), then judge. Leaves no process behind."""
        self._person.start()
        if self._failover is not None:
            self._failover.start()
        try:
            self._run(time.monotonic() + limit_s)
            self._stop_all()
        finally:
            for worker in self._workers:
                if worker is not None:
                    worker.die()
            for worker in self._all:
                worker.leave_nothing()
            if self._failover is not None:
                self._failover.stop()
            self._person.stop()
            self._providers.stop()
        self._journal.look()
        return self._verdict()

    def _run(self, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            now = glance(self._ground.place)
            self._tell(now)
            if self._release(now):
                continue
            if self._outages and self._outages.due(len(self._done), self._asked) and any(self._workers):
                self._outages.strike()
                continue
            self._publish_again()
            left = now.open + now.in_doubt
            for slot, worker in enumerate(self._workers):
                hurry = must_hurry(left, now.total, self._asked - len(self._done), self._asked)
                if worker is None or not worker.alive:
                    self._workers[slot] = self._replace(worker, now)
                    continue
                if worker.at_work_since is None and worker.process.pid in now.jobs:
                    worker.at_work_since = time.monotonic()
                # A kill that finds nothing to do would prove nothing: it waits for work.
                if worker.due(hurry=hurry, patience=self._patience) and now.unfinished:
                    self._kill(worker)
                    self._workers[slot] = self._replace(worker, now)
            if len(self._problems) >= CRASHES_MAX or self._over(now):
                return
            time.sleep(TICK_S)
        self._problems.append("time is up, and not everything has ended")

    def _over(self, now: Glance) -> bool:
        if self._waiting or now.running:
            return False
        if self._publisher is None:
            return not any(self._workers)
        # What a killed job had pulled comes back at its ack deadline: the others must have had time to take it.
        ended = not set(self._ground.campaigns) - {name for name, state in now.states.items() if state == "completed"}
        return ended and time.monotonic() - self._disturbed_s > ACK_DEADLINE_S + 2

    def _release(self, now: Glance) -> bool:
        """Submit the next campaign when its share of the kills is due, or when nothing else is left to do.

        The last one waits besides until a provider that went away has come back: there must be letters to show it.
        """
        if not self._waiting:
            return False
        number = len(self._ground.campaigns) - len(self._waiting)
        due = len(self._done) >= number * self._asked // len(self._ground.campaigns)
        if self._failover is not None and len(self._waiting) == 1:
            due = due and self._failover.turns > 0
        if not due and self._busy(now, number):
            return False
        campaign = self._waiting.popleft()
        if self._publisher is None:
            self._ground.submit(campaign)
        else:
            self._publisher.release(number)
        self._disturbed_s = time.monotonic()
        return True

    def _busy(self, now: Glance, released: int) -> bool:
        """Whether a campaign runs, or its trigger is still on its way."""
        started = [now.states[campaign] != "ready" for campaign in self._ground.campaigns[:released]]
        return bool(now.running) or not all(started)

    def _publish_again(self) -> None:
        if self._publisher is None or time.monotonic() - self._disturbed_s < AGAIN_EVERY_S:
            return
        if any(worker and worker.kill and worker.kill.point in ("S0", "S1") for worker in self._workers):
            self._disturbed_s = time.monotonic()
            self._publisher.again()

    def _kill(self, worker: Worker) -> None:
        """From outside. A failpoint that was not reached takes the place of a later kill at any time."""
        assert worker.kill is not None
        if worker.kill.point and not worker.lanes_died():
            unreached, worker.kill = worker.kill, Kill("")
            later = next((kill for kill in self._plan if not kill.point), None)
            if later is not None:
                self._plan[self._plan.index(later)] = Kill(unreached.point)
        worker.die()

    def _replace(self, worker: Worker | None, now: Glance) -> Worker | None:
        """What becomes of a slot whose process has gone: another, or none if work is over or the last kills are due."""
        if worker is not None:
            self._account(worker)
            if self._publisher is not None:
                self._publisher.again()
        live = self._publisher is not None
        if not live and not self._waiting and not now.running:
            return None
        if not self._plan and len(self._done) < self._asked:
            # Who is not to die would eat up the work before those who are to die have found any.
            return None
        kill = self._plan.popleft() if self._plan else None
        self._started += 1
        arguments = ("--subscription", self._publisher.subscription, "--json") if self._publisher is not None else ()
        worker = Worker(self._ground.folder, self._started, self._ground.environment, kill, self._chance, arguments)
        self._all.append(worker)
        return worker

    def _account(self, worker: Worker) -> None:
        self._disturbed_s = time.monotonic()
        self._journal.look()
        if worker.was_killed and worker.kill is not None:
            self._done.append(worker.kill)
            return
        if worker.kill is not None:
            self._plan.append(worker.kill)
        if self._outages and self._outages.done and worker.at_work_since is None and worker.was_turned_away:
            return
        if worker.waits_for_a_person and self._publisher is None:
            return
        if worker.process.returncode != 0 or self._publisher is not None:
            self._problems.append(
                f"process {worker.number} ended with {worker.process.returncode}; its log ends with:\n{worker.tail()}"
            )

    def _stop_all(self) -> None:
        """Ask live jobs to end: everything is done, so each says so with exit code 0, within the time promised."""
        if self._publisher is None:
            return
        for worker in filter(None, self._workers):
            try:
                worker.stop(STOP_S)
            except subprocess.TimeoutExpired:
                self._problems.append(f"process {worker.number} did not stop within {STOP_S:g} s")
                continue
            if worker.process.returncode != 0:
                self._problems.append(
                    f"process {worker.number} stopped with {worker.process.returncode}; "
                    f"its log ends with:\n{worker.tail()}"
                )

    def _tell(self, now: Glance) -> None:
        passed_s = time.monotonic() - self._began_s
        every_s = 0.5 if sys.stderr.isatty() else 5.0
        if passed_s - self._told_s < every_s:
            return
        self._told_s = passed_s
        alive = sum(worker is not None and worker.alive for worker in self._workers)
        line = (
            f"{passed_s:6.1f} s  kills {len(self._done)}/{self._asked}  processes {alive}  campaigns "
            f"{now.released}/{len(self._ground.campaigns)}  open {now.open}/{now.total}  in doubt {now.in_doubt}"
        )
        print(
            f"\r{line}\x1b[K" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr
        )

    def _verdict(self) -> Verdict:
        ground = self._ground
        letters, requests = self._providers.arrivals()
        findings = judge(ground.place.records(), letters, now=datetime.now(UTC), ended=True, requests=requests)
        findings.violations += self._journal.violations
        problems = [*self._problems, *map(str, findings.violations)]
        if len(self._done) < self._asked:
            problems.append(f"only {len(self._done)} of {self._asked} kills were done before everything had ended")
        if self._failover is not None:
            problems += self._failover.problems(letters)
        twice = sum(n > 1 for n in Counter(letter.message_id for letter in letters).values())
        if twice > findings.count("duplicates"):
            problems.append(f"{twice} messages were taken twice, by decision: the person was misled")
        lost = []
        if self._publisher is not None:
            lost = self._publisher.problems(glance(ground.place).states)
            problems += lost
        allowed = (*ground.place.files, *self._providers.files, ground.recipients)
        for place in canary.find(ground.folder, ground.mark, allowed):
            problems.append(f"the canary got out: {place}")
        self._summary(findings)
        by = Counter(letter.provider for letter in letters)
        return Verdict({**self._numbers(findings, problems, len(lost)), **self._failed_over(by)}, problems)

    def _failed_over(self, by: Counter[str]) -> dict[str, int]:
        if self._failover is None:
            return {}
        own, fallback = (one.name for one in self._providers.each)
        return {"by_sender": by[own], "by_fallback": by[fallback], "turns": self._failover.turns}

    def _numbers(self, findings: Findings, problems: list[str], lost_triggers: int) -> dict[str, Any]:
        counted = {fault: findings.count(fault) for fault in FAULTS}
        return {
            "kills": len(self._done),
            "recipients": findings.recipients,
            "accepted_once": findings.accepted_once,
            **counted,
            "in_doubt": findings.outcomes["in_doubt"],
            "assumed": findings.outcomes["assumed"],
            "decisions": self._person.decisions,
            "outages": len(self._outages.done) if self._outages else 0,
            "triggers": sum(self._publisher.published.values()) if self._publisher else 0,
            "lost_triggers": lost_triggers,
            "other_problems": len(problems) - sum(counted.values()) - lost_triggers,
        }

    def _summary(self, findings: Findings) -> None:
        hit = Counter(kill.where for kill in self._done)
        print(
            f"\nkilled at {', '.join(f'{where}: {hit[where]}' for where in sorted(hit)) or 'nothing'}\n"
            f"{self._started} processes, {self._providers.repeats} requests made again, outcomes "
            f"{ {kind: count for kind, count in findings.outcomes.items() if count} }",
            file=sys.stderr,
        )
