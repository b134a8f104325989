"""One run: processes are started, die and are replaced until everything has ended; then the verdict."""

import random
import sys
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from tests.chaos import canary
from tests.chaos.ground import Ground
from tests.chaos.kills import Kill, Worker, must_hurry, plan_kills
from tests.chaos.watch import Journal, OutboxWatch
from tests.checker import Findings, judge
from tests.evidence import read_sqlite

TICK_S = 0.05
CRASHES_MAX = 5
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
    """Campaigns are submitted one by one, as the kills go on, so that every kill finds work to hit."""

    def __init__(self, ground: Ground, chance: random.Random, *, kills: int, processes: int) -> None:
        self._ground = ground
        self._asked = kills
        self._plan = deque(plan_kills(chance, kills))
        self._done: list[Kill] = []
        self._waiting = deque(ground.campaigns)
        self._workers: list[Worker | None] = [None] * processes
        self._started = 0
        self._problems: list[str] = []
        self._watch = OutboxWatch(ground.outbox, ground.folder / "seen")
        self._journal = Journal(ground.store)
        self._told_s = 0.0
        self._began_s = time.monotonic()

    def to_the_end(self, limit_s: float) -> Verdict:
        """Run until every campaign has ended (or `limit_s` is over), then judge. Leaves no process behind."""
        self._watch.start()
        try:
            self._run(time.monotonic() + limit_s)
        finally:
            for worker in self._workers:
                if worker is not None:
                    worker.die()
            self._watch.stop()
        self._journal.look()
        return self._verdict()

    def _run(self, deadline_s: float) -> None:
        while time.monotonic() < deadline_s:
            now = self._ground.glance()
            self._tell(now)
            if self._release(now):
                continue
            left = now["open"] + now["in_doubt"]
            for slot, worker in enumerate(self._workers):
                hurry = must_hurry(left, now["total"], self._asked - len(self._done), self._asked)
                if worker is None or not worker.alive:
                    self._workers[slot] = self._replace(worker, now)
                    continue
                if worker.at_work_since is None and worker.process.pid in now["jobs"]:
                    worker.at_work_since = time.monotonic()
                # A kill that finds nothing to do would prove nothing: it waits for work.
                if worker.due(hurry=hurry) and now["unfinished"]:
                    self._kill(worker)
                    self._workers[slot] = self._replace(worker, now)
            if len(self._problems) >= CRASHES_MAX or self._over(now):
                return
            time.sleep(TICK_S)
        self._problems.append("time is up, and not everything has ended")

    def _over(self, now: dict[str, Any]) -> bool:
        return not self._waiting and not now["running"] and not any(self._workers)

    def _release(self, now: dict[str, Any]) -> bool:
        """Submit the next campaign when its share of the kills is due, or when nothing else is left to do."""
        if not self._waiting:
            return False
        number = len(self._ground.campaigns) - len(self._waiting)
        if len(self._done) < number * self._asked // len(self._ground.campaigns) and now["running"]:
            return False
        self._ground.submit(self._waiting.popleft())
        return True

    def _kill(self, worker: Worker) -> None:
        """From outside. A failpoint that was not reached takes the place of a later kill at any time."""
        assert worker.kill is not None
        if worker.kill.point:
            unreached, worker.kill = worker.kill, Kill("")
            later = next((kill for kill in self._plan if not kill.point), None)
            if later is not None:
                self._plan[self._plan.index(later)] = Kill(unreached.point)
        worker.die()

    def _replace(self, worker: Worker | None, now: dict[str, Any]) -> Worker | None:
        """What becomes of a slot whose process has gone: another, or none if work is over or the last kills are due."""
        if worker is not None:
            self._account(worker)
        if not self._waiting and not now["running"]:
            return None
        if not self._plan and len(self._done) < self._asked:
            # Who is not to die would eat up the work before those who are to die have found any.
            return None
        kill = self._plan.popleft() if self._plan else None
        self._started += 1
        return Worker(self._ground.folder, self._started, self._ground.environment, kill)

    def _account(self, worker: Worker) -> None:
        self._journal.look()
        if worker.was_killed and worker.kill is not None:
            self._done.append(worker.kill)
            return
        if worker.kill is not None:
            self._plan.append(worker.kill)
        if worker.process.returncode != 0:
            self._problems.append(
                f"process {worker.number} ended with {worker.process.returncode}; its log ends with:\n{worker.tail()}"
            )

    def _tell(self, now: dict[str, Any]) -> None:
        passed_s = time.monotonic() - self._began_s
        every_s = 0.5 if sys.stderr.isatty() else 5.0
        if passed_s - self._told_s < every_s:
            return
        self._told_s = passed_s
        alive = sum(worker is not None and worker.alive for worker in self._workers)
        line = (
            f"{passed_s:6.1f} s  kills {len(self._done)}/{self._asked}  processes {alive}  campaigns "
            f"{now['released']}/{len(self._ground.campaigns)}  open {now['open']}/{now['total']}  "
            f"in doubt {now['in_doubt']}"
        )
        print(
            f"\r{line}\x1b[K" if sys.stderr.isatty() else line, end="" if sys.stderr.isatty() else "\n", file=sys.stderr
        )

    def _verdict(self) -> Verdict:
        letters, requests = self._watch.arrivals()
        findings = judge(read_sqlite(self._ground.store), letters, now=datetime.now(UTC), ended=True, requests=requests)
        findings.violations += self._journal.violations
        problems = [*self._problems, *map(str, findings.violations)]
        if len(self._done) < self._asked:
            problems.append(f"only {len(self._done)} of {self._asked} kills were done before everything had ended")
        ground = self._ground
        allowed = (ground.store, ground.outbox, ground.recipients, self._watch.folder)
        for place in canary.find(ground.folder, ground.mark, allowed):
            problems.append(f"the canary got out: {place}")
        self._summary(findings)
        return Verdict(self._numbers(findings, problems), problems)

    def _numbers(self, findings: Findings, problems: list[str]) -> dict[str, Any]:
        counted = {fault: findings.count(fault) for fault in FAULTS}
        return {
            "kills": len(self._done),
            "recipients": findings.recipients,
            "accepted_once": findings.accepted_once,
            **counted,
            "in_doubt": findings.outcomes["in_doubt"],
            "other_problems": len(problems) - sum(counted.values()),
        }

    def _summary(self, findings: Findings) -> None:
        hit = Counter(kill.where for kill in self._done)
        print(
            f"\nkilled at {', '.join(f'{where}: {hit[where]}' for where in sorted(hit)) or 'nothing'}\n"
            f"{self._started} processes, {self._watch.repeats} requests made again, outcomes "
            f"{ {kind: count for kind, count in findings.outcomes.items() if count} }",
            file=sys.stderr,
        )
