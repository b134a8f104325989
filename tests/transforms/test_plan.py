"""What PlanWork counts: the sweeps of its process, whoever made them."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import apache_beam as beam
import pytest
from apache_beam.metrics import MetricsFilter
from apache_beam.runners.portability.fn_api_runner import FnApiRunner

from schemas.elements import Reference, Tick
from sendonce.delivery.sweeper import Swept
from transforms import worker as workers
from transforms.plan import PlanWork
from transforms.worker import WorkerSpec

SPEC = WorkerSpec("fake", "job", ("bulk",), can_wait=False, live=True)


@dataclass
class FakeWorker:
    """A live job's: another thread sweeps, and no look is due."""

    spec: WorkerSpec = SPEC
    swept: deque[Swept] = field(default_factory=deque)

    @property
    def looks(self) -> "FakeWorker":
        return self

    def due(self) -> bool:
        return False

    def given(self) -> list[Reference]:
        return []

    def lanes(self) -> dict[str, object]:
        return {}

    def on_tick(self) -> None:
        """Nobody listens here."""

    def on_fault(self, fault: BaseException) -> None:
        """Nobody listens here."""


@pytest.fixture
def fake() -> Iterator[FakeWorker]:
    worker = FakeWorker()
    workers._workers[SPEC] = worker  # type: ignore[assignment]
    yield worker
    del workers._workers[SPEC]


def test_what_a_live_jobs_sweeps_settled_is_counted_once(fake: FakeWorker) -> None:
    fake.swept += [Swept(expired=2, evidence=3, hold=1), Swept(assume=4), Swept(resend=5, evidence=1)]
    pipeline = beam.Pipeline(runner=FnApiRunner())
    ticks = [Tick(number, 1_768_467_600_000 + number) for number in (1, 2)]
    pipeline | "Ticks" >> beam.Create(ticks) | "PlanWork" >> PlanWork(SPEC)  # type: ignore[operator]
    result = pipeline.run()
    result.wait_until_finish()
    counters = result.metrics().query(MetricsFilter().with_namespace("sendonce"))["counters"]
    counted = {one.key.metric.name: one.committed for one in counters}
    assert {name: count for name, count in counted.items() if name.startswith(("doubts", "leases"))} == {
        "leases_expired": 2,
        "doubts_settled": 14,
        "doubts_evidence": 4,
        "doubts_hold": 1,
        "doubts_assume": 4,
        "doubts_resend": 5,
    }
    assert not fake.swept
