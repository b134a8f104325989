"""The send step's own logic: one batch may wait, for as long as it must and no longer."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.testing.test_stream import TestStream
from apache_beam.testing.util import assert_that, equal_to

from schemas.elements import RenderedBatch
from schemas.outcomes import Outcome
from sendonce.delivery.deliver import Delivery
from sendonce.delivery.terms import Move
from transforms import worker as workers
from transforms.send import RateLimitedSend
from transforms.worker import WorkerSpec

SPEC = WorkerSpec("fake", "job", ("bulk",), can_wait=True)


def batch(number: int) -> RenderedBatch:
    return RenderedBatch("spring", number, 1, "bulk", 0, b"")


def at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


@dataclass
class FakeWorker:
    """Answers deliveries from a script by batch number, and notes what was asked of it, in order."""

    script: dict[int, list[Delivery]]
    asked: list[int] = field(default_factory=list)
    released: list[tuple[int, str]] = field(default_factory=list)
    passed: dict[str, int] = field(default_factory=dict)
    sending_s: dict[str, float] = field(default_factory=dict)

    def deliverer(self, priority: str) -> "FakeWorker":
        return self

    def deliver(self, element: RenderedBatch) -> Delivery:
        self.asked.append(element.batch_no)
        return self.script[element.batch_no].pop(0)

    @property
    def store(self) -> "FakeWorker":
        return self

    @property
    def keeper(self) -> "FakeWorker":
        return self

    @property
    def notices(self) -> "FakeWorker":
        return self

    def look(self) -> None:
        """For notices."""

    def drop(self, *references: object) -> None:
        """Nothing is kept here."""

    def transact(self, work: object, *, tag: str) -> None:
        self.released.append((self.asked[-1] if self.asked else -1, tag))

    def on_fault(self, fault: BaseException) -> None:
        """Nobody listens here."""


@pytest.fixture
def fake() -> Iterator[FakeWorker]:
    worker = FakeWorker({})
    workers._workers[SPEC] = worker  # type: ignore[assignment]
    yield worker
    del workers._workers[SPEC]


DONE = Delivery(Move.ENDED, "done", 1, {"accepted": 3})


def hold(until_s: float) -> Delivery:
    return Delivery(Move.HOLD, "limit", 0, {}, at(until_s))


def run(stream: TestStream) -> None:
    options = PipelineOptions([])
    options.view_as(StandardOptions).streaming = True
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        (
            pipeline
            | "In" >> stream.with_output_types(tuple[str, RenderedBatch])
            | "RateLimitedSend" >> RateLimitedSend(SPEC)
        )


def test_a_batch_that_is_done_leaves_no_state_and_no_timer(fake: FakeWorker) -> None:
    fake.script = {1: [DONE]}
    run(TestStream().add_elements([("bulk/0", batch(1))]).advance_processing_time(60).advance_watermark_to_infinity())
    assert (fake.asked, fake.released) == ([1], [])
    assert fake.passed == {"bulk": 3}
    assert fake.sending_s.keys() == {"bulk"}


def test_a_batch_waits_for_its_permit_and_is_tried_again_when_it_is_due(fake: FakeWorker) -> None:
    fake.script = {1: [hold(2), hold(4), DONE]}
    stream = (
        TestStream()
        .add_elements([("bulk/0", batch(1))])
        .advance_processing_time(1)
        .advance_processing_time(2)
        .advance_processing_time(2)
        .advance_watermark_to(100)
        .advance_watermark_to_infinity()
    )
    run(stream)
    assert (fake.asked, fake.released) == ([1, 1, 1], [])


def test_a_second_batch_that_would_have_to_wait_goes_back_to_the_store(fake: FakeWorker) -> None:
    fake.script = {1: [hold(5), DONE], 2: [hold(5)]}
    stream = (
        TestStream()
        .add_elements([("bulk/0", batch(1))])
        .add_elements([("bulk/0", batch(2))])
        .advance_processing_time(10)
        .advance_watermark_to(100)
        .advance_watermark_to_infinity()
    )
    run(stream)
    assert fake.asked == [1, 2, 1]
    assert fake.released == [(2, "release")]


def test_keys_wait_apart(fake: FakeWorker) -> None:
    fake.script = {1: [hold(5), DONE], 2: [hold(5), DONE]}
    stream = (
        TestStream()
        .add_elements([("bulk/0", batch(1)), ("bulk/1", batch(2))])
        .advance_processing_time(10)
        .advance_watermark_to(100)
        .advance_watermark_to_infinity()
    )
    run(stream)
    assert sorted(fake.asked) == [1, 1, 2, 2]
    assert fake.released == []


def test_a_drain_hands_the_waiting_batch_back_and_sends_nothing(fake: FakeWorker) -> None:
    """The case drain-timers: no burst at the end, and no timer that keeps the job alive."""
    fake.script = {1: [hold(500)]}
    stream = TestStream().add_elements([("bulk/0", batch(1))]).advance_watermark_to(100).advance_watermark_to_infinity()
    run(stream)
    assert fake.asked == [1]
    assert fake.released == [(1, "release")]


def test_who_the_provider_refused_is_a_dead_letter_without_personal_data(fake: FakeWorker) -> None:
    refused = Delivery(Move.ENDED, "done", 1, {"refused": 1}, None, [(4, "m" * 52, Outcome.PROVIDER_INVALID_ADDRESS)])
    fake.script = {1: [refused]}
    options = PipelineOptions([])
    options.view_as(StandardOptions).streaming = True
    stream = TestStream().add_elements([("bulk/0", batch(1))]).advance_watermark_to_infinity()
    with beam.Pipeline(runner=BundleBasedDirectRunner(), options=options) as pipeline:
        sent = pipeline | "In" >> stream.with_output_types(tuple[str, RenderedBatch]) | "Send" >> RateLimitedSend(SPEC)
        facts = sent | "Facts" >> beam.Map(lambda letter: (letter.stage, letter.reason, letter.ordinal, letter.body))
        assert_that(facts, equal_to([("send", "provider.invalid_address", 4, None)]))
