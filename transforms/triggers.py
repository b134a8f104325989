"""ReadTriggers: trigger messages become idempotent calls into control, before anything else happens to them."""

import time
from collections.abc import Iterator

import apache_beam as beam
from apache_beam import typehints
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from schemas.elements import DeadLetter, Tick, TriggerMessage
from sendonce.control.triggers import BadTrigger, apply_trigger, read_trigger
from sendonce.failpoints import failpoint
from transforms.dead_letters import DEAD
from transforms.inspected import InspectedDoFn
from transforms.worker import TriggerResult, WorkerSpec, told, worker_for


class ApplyTriggers(beam.PTransform):
    """In: `TriggerMessage`s. Out: a tuple of `wake`, a `Tick` for each that changed something, and `dead` letters.

    A dead letter says why a message can't be understood or applied, and keeps its raw body.

    Applied in the read's own fused stage, so that a trigger is durable in the store before it is acknowledged; there is
    no Reshuffle before it. Every call is idempotent: redelivery, repetition and reordering change nothing. A store that
    is away raises, so that the message comes again.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__()
        self._spec = spec

    def expand(self, messages):
        return messages | "Apply" >> beam.ParDo(_ApplyTriggers(self._spec)).with_outputs(DEAD, main="wake")


@typehints.with_input_types(TriggerMessage)
@typehints.with_output_types(Tick, dead=DeadLetter)
class _ApplyTriggers(InspectedDoFn):
    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._applied = Metrics.counter("sendonce", "triggers_applied")
        self._repeated = Metrics.counter("sendonce", "triggers_repeated")
        self._refused = Metrics.counter("sendonce", "triggers_refused")

    def setup(self) -> None:
        self._worker = worker_for(self._spec)

    def process(self, message: TriggerMessage) -> Iterator[Tick]:
        failpoint("S0")
        try:
            with told(self._worker):
                change = apply_trigger(self._worker.store, read_trigger(message.body), "trigger")
        except BadTrigger as fault:
            self._refused.inc()
            self._worker.on_trigger(TriggerResult(message.message_id, "bad", fault.reason, fault.detail))
            dead = DeadLetter(
                stage="trigger",
                reason=fault.reason,
                detail=fault.detail,
                campaign_id=fault.campaign_id,
                body=message.body,
            )
            yield TaggedOutput(DEAD, dead)
            return
        failpoint("S1")
        (self._applied if change.changed else self._repeated).inc()
        ended = "applied" if change.changed else "ignored"
        self._worker.on_trigger(TriggerResult(message.message_id, ended, "", change.note))
        if change.changed:
            yield Tick(0, _now_ms())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
