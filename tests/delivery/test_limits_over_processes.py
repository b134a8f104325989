"""Limits hold in real time over processes with clocks of their own, restarts and shards: any mix that Hypothesis finds.

Real time is a clock since boot that all processes of the machine share; each process has a wall clock that is wrong by
hours, and is set now and then. Requests arrive some time after their permit, or never.
"""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from schemas.tables import Limit
from sendonce.delivery import limits
from sendonce.delivery.limits import Grant, Wait
from sendonce.stores.base import Store, Tx
from sendonce.stores.opening import init_store, open_store
from sendonce.stores.sqlite_time import SinceBoot

TTL_S, TIMEOUT_S = 2.0, 5.0
NOON = datetime(2026, 1, 15, 12, tzinfo=UTC)
SCOPES = ("lane:bulk", "sender:mail", "domain:slow")


@dataclass
class Process:
    """One process: its wall clock is off by `off_s`."""

    off_s: float = 0.0


@dataclass
class Machine:
    """Real time, the processes, and what reached the provider: (real second, how many) by scope."""

    folder: Path
    real_s: float = 0.0
    processes: list[Process] = field(default_factory=lambda: [Process(), Process(3600.0), Process(-7200.0)])
    stores: dict[int, Store] = field(default_factory=dict)
    arrived: list[tuple[float, int, bool]] = field(default_factory=list)
    attempts: int = 0

    def store(self, number: int) -> Store:
        if number not in self.stores:
            process = self.processes[number]

            def clock() -> datetime:
                return NOON + timedelta(seconds=self.real_s + process.off_s)

            boot: Callable[[], SinceBoot] = lambda: SinceBoot("boot", int(self.real_s * 1e6))  # noqa: E731
            self.stores[number] = open_store(f"sqlite:///{self.folder / 'store.db'}", clock=clock, boot_clock=boot)
        return self.stores[number]

    def restart(self, number: int, off_s: float) -> None:
        """Killed and started again, with the clock as it is now."""
        if (store := self.stores.pop(number, None)) is not None:
            store.close()
        self.processes[number].off_s = off_s

    def request(self, number: int, n: int, slow: bool, late_s: float, fate: str) -> None:
        """Ask for n permits (if `slow`, of that group too), as a claim does; send within the permit's time; report."""
        store = self.store(number)
        self.attempts += 1
        attempt = f"a{self.attempts}"

        def claim(tx: Tx) -> tuple[int, datetime] | None:
            now = tx.now()
            wide = limits.limits_of(tx, SCOPES[:2])
            narrow = limits.limits_of(tx, SCOPES[2:]) if slow else []
            answers = [limits.ask(tx, wide, n, now), limits.ask(tx, narrow, n, now)]
            if any(isinstance(answer, Wait) or answer.n < n for answer in answers):
                return None
            for drawn, answer in zip((wide, narrow), answers, strict=True):
                assert isinstance(answer, Grant)
                limits.take(tx, drawn, answer, attempt, now, TTL_S + TIMEOUT_S)
            return n, now

        granted = store.transact(claim, tag="claim")
        if granted is None:
            return
        if fate == "never":  # killed after its intent: nobody reports, nothing arrives
            return
        self.real_s += late_s
        if fate != "not sent":
            self.arrived.append((self.real_s, n, slow))
        if fate == "unreported":
            return

        def report(tx: Tx) -> None:
            for scopes in (SCOPES[:2], SCOPES[2:] if slow else ()):
                drawn = limits.limits_of(tx, scopes)
                if fate == "not sent":
                    limits.give_back(tx, drawn, attempt, granted[1], n)
                else:
                    limits.used(tx, drawn, attempt, granted[1])

        store.transact(report, tag="advance")


PROCESS = st.integers(0, 2)
STEPS = st.one_of(
    st.tuples(
        st.just("request"),
        PROCESS,
        st.integers(1, 6),
        st.booleans(),
        st.floats(0, TTL_S),
        st.sampled_from(("sent", "sent", "sent", "not sent", "unreported", "never")),
    ),
    st.tuples(st.just("pass"), st.floats(0, 12)),
    st.tuples(st.just("restart"), PROCESS, st.sampled_from((-86_400.0, -3600.0, 0.0, 7.0, 3600.0, 86_400.0))),
    st.tuples(st.just("set clock"), PROCESS, st.sampled_from((-3600.0, 0.0, 3600.0, 40_000.0))),
)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    most=st.integers(1, 12),
    window_s=st.sampled_from((5.0, 30.0)),
    per_s=st.sampled_from((0.5, 2.0)),
    burst=st.integers(1, 8),
    steps=st.lists(STEPS, min_size=10, max_size=60),
)
def test_no_window_of_real_time_holds_more_than_its_limits(
    most: int,
    window_s: float,
    per_s: float,
    burst: int,
    steps: list[tuple],  # type: ignore[type-arg]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder))
        init_store(f"sqlite:///{machine.folder / 'store.db'}").close()
        rows = [
            Limit("sender:mail", f"cap:{window_s:g}", "cap", most=most, window_s=window_s),
            Limit("lane:bulk", "rate", "rate", per_s=per_s * 4, burst=burst * 2),
            Limit("domain:slow", "rate", "rate", per_s=per_s, burst=burst),
        ]
        machine.store(0).transact(lambda tx: tx.put(*rows), tag="test")
        for step, *arguments in steps:
            if step == "request":
                machine.request(*arguments)
            elif step == "pass":
                machine.real_s += arguments[0]
            elif step == "restart":
                machine.restart(*arguments)
            else:
                machine.processes[arguments[0]].off_s += arguments[1]
        for store in machine.stores.values():
            store.close()

    assert_cap(machine.arrived, most, window_s)
    everything = [(at, n) for at, n, _ in machine.arrived]
    assert_rate(everything, per_s * 4, burst * 2)
    assert_rate([(at, n) for at, n, slow in machine.arrived if slow], per_s, burst)


def assert_cap(arrived: list[tuple[float, int, bool]], most: int, window_s: float) -> None:
    for at, _, _ in arrived:
        assert sum(n for when, n, _ in arrived if at - window_s < when <= at) <= most


def assert_rate(arrived: list[tuple[float, int]], per_s: float, burst: int) -> None:
    for start, _ in arrived:
        for end, _ in arrived:
            if end >= start:
                inside = sum(n for at, n in arrived if start <= at <= end)
                assert inside <= burst + per_s * (end - start + TTL_S) + 1e-6
