"""RateLimitedSend: rendered batches become provider calls, under the delivery protocol."""

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import apache_beam as beam
from apache_beam.coders import registry
from apache_beam.metrics import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow

import transforms.coders  # noqa: F401  (the state below needs the row coder)
from schemas.elements import DeadLetter, Reference, RenderedBatch
from schemas.outcomes import KINDS
from sendonce.config import ConfigFault
from sendonce.delivery import protocol
from sendonce.delivery.deliver import Delivery
from sendonce.delivery.halting import halt_campaign, unforeseen
from sendonce.delivery.terms import Move
from sendonce.failpoints import FailpointRaised, failpoint
from sendonce.stores.base import StoreError
from transforms.worker import WorkerSpec, told, worker_for


class RateLimitedSend(beam.PTransform):
    """In: (`priority/shard`, `RenderedBatch`). Out: `DeadLetter`s of the send stage.

    Stateful, keyed by priority and shard. State: at most one rendered batch per key, which waits for a permit that is
    due within `hold_max_s`; its processing-time timer is set only while it waits. A permit that is due later, or a
    second batch that would have to wait, goes back to the store with its due time. When the pipeline drains, an
    event-time timer at the end of the window hands the waiting batch back.

    Where timers do not wait (`WorkerSpec.can_wait` is false), the step itself waits for such permits, for up to the
    lane's window in each bundle: nothing else is to be done there.

    Nothing else is remembered here: a bundle that runs again, or runs in two places, finds in the store that its
    batches were claimed.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__()
        self._spec = spec

    def expand(self, rendered):
        return rendered | "Send" >> beam.ParDo(_RateLimitedSend(self._spec)).with_output_types(DeadLetter)


class _RateLimitedSend(beam.DoFn):
    HELD = ReadModifyWriteStateSpec("held", registry.get_coder(RenderedBatch))
    PERMIT_DUE = TimerSpec("permit_due", TimeDomain.REAL_TIME)
    WINDOW_END = TimerSpec("window_end", TimeDomain.WATERMARK)

    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._requests = Metrics.counter("sendonce", "requests")
        self._dropped = Metrics.counter("sendonce", "batches_dropped")
        self._outcomes = {kind: Metrics.counter("sendonce", f"recipients_{kind}") for kind in KINDS}
        self._deliver_ms = Metrics.distribution("sendonce", "deliver_ms")

    def setup(self) -> None:
        self._worker = worker_for(self._spec)

    def process(
        self,
        element: tuple[str, RenderedBatch],
        held=beam.DoFn.StateParam(HELD),
        permit_due=beam.DoFn.TimerParam(PERMIT_DUE),
        window_end=beam.DoFn.TimerParam(WINDOW_END),
    ) -> Iterator[DeadLetter]:
        _, rendered = element
        delivery = self._deliver(rendered)
        if delivery.move is Move.HOLD:
            assert delivery.until is not None
            if self._spec.can_wait and held.read() is None:
                held.write(rendered)
                permit_due.set(delivery.until.timestamp())
                window_end.set(GlobalWindow().max_timestamp())
            else:
                self._release(rendered, delivery.until)
        yield from _dead_letters(rendered, delivery)

    @on_timer(PERMIT_DUE)
    def permit_is_due(
        self,
        held=beam.DoFn.StateParam(HELD),
        permit_due=beam.DoFn.TimerParam(PERMIT_DUE),
        window_end=beam.DoFn.TimerParam(WINDOW_END),
    ) -> Iterator[DeadLetter]:
        rendered = held.read()
        if rendered is None:
            return
        delivery = self._deliver(rendered)
        if delivery.move is Move.HOLD:
            assert delivery.until is not None
            permit_due.set(delivery.until.timestamp())
        else:
            held.clear()
            window_end.clear()
        yield from _dead_letters(rendered, delivery)

    @on_timer(WINDOW_END)
    def window_ends(self, held=beam.DoFn.StateParam(HELD), permit_due=beam.DoFn.TimerParam(PERMIT_DUE)) -> None:
        rendered = held.read()
        if rendered is not None:
            self._release(rendered, datetime.now(UTC))
            held.clear()
            permit_due.clear()

    def start_bundle(self) -> None:
        self._waited_s = 0.0

    def finish_bundle(self) -> None:
        failpoint("S8")

    def _deliver(self, rendered: RenderedBatch) -> Delivery:
        """Deliver a batch and count what came of it; where timers do not wait, wait here for permits that are near."""
        delivery = self._deliver_once(rendered)
        while delivery.move is Move.HOLD and not self._spec.can_wait and self._wait(rendered, delivery):
            delivery = replace(again := self._deliver_once(rendered), refused=delivery.refused + again.refused)
        return delivery

    def _wait(self, rendered: RenderedBatch, delivery: Delivery) -> bool:
        """Wait until a permit is due; False, without waiting, when this bundle has waited enough or must stop."""
        assert delivery.until is not None
        now = self._worker.store.read(lambda reader: reader.now())
        wait_s = max(0.0, (delivery.until - now).total_seconds())
        window_s = self._worker.lanes()[rendered.priority].terms.times.window_s
        if self._worker.stopping.is_set() or self._waited_s + wait_s > window_s:
            return False
        self._waited_s += wait_s
        return not self._worker.stopping.wait(wait_s)

    def _deliver_once(self, rendered: RenderedBatch) -> Delivery:
        started_s = time.perf_counter()
        with told(self._worker):
            delivery = self._delivered(rendered)
        self._worker.keeper.drop(_reference_of(rendered))
        self._deliver_ms.update(int((time.perf_counter() - started_s) * 1000))
        self._requests.inc(delivery.requests)
        if delivery.move is Move.LOST:
            self._dropped.inc()
        for kind, count in delivery.outcomes.items():
            self._outcomes[kind].inc(count)
        passed = sum(delivery.outcomes.values())
        self._worker.passed[rendered.priority] = self._worker.passed.get(rendered.priority, 0) + passed
        return delivery

    def _delivered(self, rendered: RenderedBatch) -> Delivery:
        """Deliver. A fault that nobody foresaw halts the campaign, not its neighbours; the store's go to the runner."""
        try:
            return self._worker.deliverer(rendered.priority).deliver(rendered)
        except (StoreError, ConfigFault, FailpointRaised):
            raise
        except Exception as fault:
            reference = _reference_of(rendered)
            halt_campaign(self._worker.store, reference, unforeseen(fault, "sending", rendered.batch_no))
            return Delivery(Move.LOST, "unforeseen", 0, {})

    def _release(self, rendered: RenderedBatch, due_at: datetime) -> None:
        reference = _reference_of(rendered)
        self._worker.store.transact(lambda tx: protocol.release(tx, reference, due_at), tag="release")


def _reference_of(rendered: RenderedBatch) -> Reference:
    return Reference(rendered.campaign_id, rendered.batch_no, rendered.plan_no, rendered.priority)


def _dead_letters(rendered: RenderedBatch, delivery: Delivery) -> Iterator[DeadLetter]:
    for ordinal, message_id, outcome in delivery.refused:
        yield DeadLetter(
            stage="send",
            reason=outcome.reason,
            detail="refused when it was to be sent",
            campaign_id=rendered.campaign_id,
            batch_no=rendered.batch_no,
            ordinal=ordinal,
            message_id=message_id,
        )
