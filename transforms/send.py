"""RateLimitedSend: rendered batches become provider calls, under the delivery protocol."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Optional

import apache_beam as beam
from apache_beam.coders import registry
from apache_beam.metrics import Metrics
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import ReadModifyWriteStateSpec, TimerSpec, on_timer
from apache_beam.transforms.window import GlobalWindow, GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

import transforms.coders  # noqa: F401  (the state below needs the row coder)
from schemas.elements import DeadLetter, Reference, RenderedBatch
from schemas.outcomes import KINDS
from sendonce.config import ConfigFault
from sendonce.control.dead_letters import write_dead_letters
from sendonce.delivery.deliver import Delivery
from sendonce.delivery.halting import give_up, unforeseen
from sendonce.delivery.protocol import queueing
from sendonce.delivery.terms import SETTINGS_CHANGED, Move
from sendonce.failpoints import FailpointRaised, failpoint
from sendonce.stores.base import StoreError
from transforms.inspected import InspectedDoFn
from transforms.worker import Worker, WorkerSpec, in_turn_of, told, worker_for


class RateLimitedSend(beam.PTransform):
    """In: (`priority/shard`, `RenderedBatch`). Out: `DeadLetter`s of the send stage.

    Stateful, keyed by priority and shard. State: at most one rendered batch per key, which waits for a permit that is
    due within `hold_max_s`; its processing-time timer is set only while it waits. A permit that is due later, or a
    second batch that would have to wait, goes back to the store with its due time. When the pipeline drains, an
    event-time timer at the end of the window hands the waiting batch back.

    Where timers do not wait (`WorkerSpec.can_wait` is false), batches are handed to the lane's pool, which delivers a
    few of them side by side while the next are rendered; the bundle ends when the last one has. The pool itself waits
    for permits that are near, for up to the lane's window in each bundle. In a live job (`WorkerSpec.live`) the bundle
    does not wait for them: claim, lease and doubt cover what it leaves behind, and a stop waits for the pool.

    Nothing else is remembered here: a bundle that runs again, or runs in two places, finds in the store that its
    batches were claimed.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__()
        self._spec = spec

    def expand(self, rendered):
        return rendered | "Send" >> beam.ParDo(_RateLimitedSend(self._spec)).with_output_types(DeadLetter)


class _RateLimitedSend(InspectedDoFn):
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
        if self._spec.live:
            launch(self._worker, rendered)
            return
        if not self._spec.can_wait:
            self._take_off(rendered)
            yield from self._landed(wait=False)
            return
        delivery = self._deliver(rendered)
        if delivery.move is Move.HOLD:
            assert delivery.until is not None
            if held.read() is None:
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
        self._flights: list[_Flight] = []
        self._line = _Line()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for letter in self._landed(wait=True):
            yield GlobalWindows.windowed_value(letter)
        failpoint("S8")

    def _take_off(self, rendered: RenderedBatch) -> None:
        """Hand a batch to the lane's pool; waits while all its threads are busy."""
        with told(self._worker):
            window_s = self._worker.lanes()[rendered.priority].terms.times.window_s
            work = partial(_deliver_in_line, self._worker, rendered, self._line, window_s)
            self._flights.append(_Flight(rendered, self._worker.pool(rendered.priority).hand(work)))

    def _landed(self, *, wait: bool) -> Iterator[DeadLetter]:
        """Dead letters of the batches whose delivery has ended. wait: of all. What a delivery raised is raised here."""
        flights, self._flights = self._flights, []
        for flight in flights:
            if not (wait or flight.end.done()):
                self._flights.append(flight)
                continue
            with told(self._worker):
                delivered = flight.end.result()
            self._count(flight.rendered, delivered)
            yield from _dead_letters(flight.rendered, delivered.delivery)

    def _deliver(self, rendered: RenderedBatch) -> Delivery:
        """Deliver a batch here and now, once, and count what came of it."""
        with told(self._worker):
            delivered = _deliver(self._worker, rendered)
        self._count(rendered, delivered)
        return delivered.delivery

    def _count(self, rendered: RenderedBatch, delivered: "_Delivered") -> None:
        """Metrics belong to the bundle's own thread: Beam drops what other threads count."""
        delivery = delivered.delivery
        self._deliver_ms.update(delivered.ms)
        self._requests.inc(delivery.requests)
        if delivery.move is Move.LOST:
            self._dropped.inc()
        for kind, count in delivery.outcomes.items():
            self._outcomes[kind].inc(count)
        # Whoever a limit sends away took no time: a lane that only waits is not slow, and plans on at its pace.
        passed = sum(delivery.outcomes.values()) + (delivery.left if delivery.reason == "limit" else 0)
        lane, worker = rendered.priority, self._worker
        worker.passed[lane] = worker.passed.get(lane, 0) + passed
        worker.sending_s[lane] = worker.sending_s.get(lane, 0.0) + delivered.ms / 1000

    def _release(self, rendered: RenderedBatch, due_at: datetime) -> None:
        _release(self._worker, rendered, due_at)


@dataclass(frozen=True)
class _Delivered:
    """How a delivery ended, and how many milliseconds it took, without waits for permits."""

    delivery: Delivery
    ms: int


@dataclass(frozen=True)
class _Flight:
    """A batch in the pool's hands."""

    rendered: RenderedBatch
    end: "Future[_Delivered]"


class _Line:
    """Where the batches of a bundle wait for permits, one at a time: whoever came first is not overtaken for ever."""

    def __init__(self, turn: Optional[threading.Lock] = None) -> None:
        self.turn = turn or threading.Lock()
        self.waited_s = 0.0


def launch(worker: Worker, rendered: RenderedBatch) -> None:
    """Give a batch to its lane's pool, which delivers it and writes what came of it, whoever made the bundle."""
    worker.pool(rendered.priority).queue(partial(_deliver_alone, worker, rendered)).add_done_callback(
        lambda _: worker.on_room(rendered.priority)
    )


def _deliver_alone(worker: Worker, rendered: RenderedBatch) -> None:
    """One delivery with nobody waiting for it. What it raises is told to the worker; its batch is found by its lease,
    or by its visibility time."""
    try:
        with told(worker), in_turn_of(rendered.priority):
            line = _Line(worker.turn(rendered.priority))
            hold_max_s = worker.lanes()[rendered.priority].terms.hold_max_s
            delivered = _deliver_in_line(worker, rendered, line, hold_max_s)
            letters = list(_dead_letters(rendered, delivered.delivery))
            if letters:
                write_dead_letters(worker.store, letters)
                worker.notices.look()
    except Exception:  # told already; there is no runner above this thread
        worker.keeper.drop(_reference_of(rendered))


def _deliver_in_line(worker: Worker, rendered: RenderedBatch, line: _Line, window_s: float) -> _Delivered:
    """Deliver a batch; where it must wait for a permit that is near, wait; where it is not near, hand it back."""
    try:
        delivered = _deliver(worker, rendered)
        if delivered.delivery.move is Move.HOLD:
            return _wait_in_line(worker, rendered, line, window_s, delivered)
        return delivered
    finally:
        worker.hand.drop(_reference_of(rendered))


def _wait_in_line(
    worker: Worker, rendered: RenderedBatch, line: _Line, window_s: float, delivered: _Delivered
) -> _Delivered:
    with line.turn:
        while delivered.delivery.move is Move.HOLD:
            until = delivered.delivery.until
            assert until is not None
            if not _wait(worker, until, line, window_s):
                _release(worker, rendered, until)
                break
            before, delivered = delivered, _deliver(worker, rendered)
            delivered = _together(before, delivered)
    return delivered


def _together(first: _Delivered, then: _Delivered) -> _Delivered:
    """Two stages of one batch's delivery as one."""
    outcomes = dict(first.delivery.outcomes)
    for kind, count in then.delivery.outcomes.items():
        outcomes[kind] = outcomes.get(kind, 0) + count
    delivery = replace(
        then.delivery,
        requests=first.delivery.requests + then.delivery.requests,
        outcomes=outcomes,
        refused=first.delivery.refused + then.delivery.refused,
    )
    return _Delivered(delivery, first.ms + then.ms)


def _wait(worker: Worker, until: datetime, line: _Line, window_s: float) -> bool:
    """Wait until a permit is due; False when this bundle has waited enough, or must stop."""
    now = worker.store.read(lambda reader: reader.now())
    wait_s = max(0.0, (until - now).total_seconds())
    if worker.must_stop() or line.waited_s + wait_s > window_s:
        return False
    line.waited_s += wait_s
    return not worker.stopping.wait(wait_s)


def _deliver(worker: Worker, rendered: RenderedBatch) -> _Delivered:
    """Deliver. A fault that nobody foresaw halts the campaign (or ends the send), not its neighbours; the store's go to
    the runner."""
    started_s = time.perf_counter()
    try:
        delivery = worker.deliverer(rendered.priority).deliver(rendered)
    except (StoreError, ConfigFault, FailpointRaised):
        raise
    except Exception as fault:
        detail = unforeseen(fault, "sending", rendered.batch_no)
        outbound_log = worker.lanes()[rendered.priority].terms.outbound_log
        give_up(worker.store, worker.key, _reference_of(rendered), detail, outbound_log)
        delivery = Delivery(Move.LOST, "unforeseen", 0, {})
    if delivery.reason == SETTINGS_CHANGED:
        worker.read_settings_again()
    worker.keeper.drop(_reference_of(rendered))
    worker.notices.look()
    return _Delivered(delivery, int((time.perf_counter() - started_s) * 1000))


def _release(worker: Worker, rendered: RenderedBatch, due_at: datetime) -> None:
    reference = _reference_of(rendered)
    worker.store.transact(lambda tx: queueing.release(tx, reference, due_at), tag="release")


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
