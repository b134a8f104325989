"""ReadTriggers: trigger messages become idempotent calls into control, before anything else happens to them."""

import time
from collections.abc import Iterator

import apache_beam as beam
from apache_beam import typehints
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from schemas.elements import DeadLetter, Tick, TriggerMessage
from sendonce.control.triggers import SENDS_AT_ONCE, BadTrigger, Send, Taken, Trigger, apply_triggers, read_or_bad
from sendonce.failpoints import failpoint
from sendonce.moments import from_micros
from transforms.dead_letters import DEAD
from transforms.inspected import InspectedDoFn
from transforms.worker import TriggerResult, WorkerSpec, told, worker_for


class ApplyTriggers(beam.PTransform):
    """In: `TriggerMessage`s. Out: a tuple of `wake`, a `Tick` for a bundle that changed something, and `dead` letters.

    A dead letter says why a message can't be understood or applied, and keeps its raw body.

    Applied in the read's own fused stage, in the order in which they come and before the bundle ends, so that a trigger
    is durable in the store before it is acknowledged; there is no Reshuffle before it. Every call is idempotent:
    redelivery, repetition and reordering change nothing. A store that is away raises, so that the message comes again.
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
        self._defaults = Metrics.counter("sendonce", "recipients_with_defaults")

    def setup(self) -> None:
        self._worker = worker_for(self._spec)

    def start_bundle(self) -> None:
        self._waiting: list[TriggerMessage] = []
        self._changed = False

    def process(self, message: TriggerMessage) -> Iterator[Tick]:
        failpoint("S0")
        self._waiting.append(message)
        if len(self._waiting) >= SENDS_AT_ONCE:
            yield from (TaggedOutput(DEAD, letter) for letter in self._apply())

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for letter in self._apply():
            yield TaggedOutput(DEAD, GlobalWindows.windowed_value(letter))
        if self._changed:
            yield GlobalWindows.windowed_value(Tick(0, _now_ms()))

    def _apply(self) -> list[DeadLetter]:
        """Apply what waits, all in the store afterwards; the dead letters among it."""
        messages, self._waiting = self._waiting, []
        if not messages:
            return []
        with told(self._worker):
            found = apply_triggers(self._worker.store, [_read(one) for one in messages], "trigger")
        failpoint("S1")
        self._worker.notices.look()
        dead = []
        for message, taken in zip(messages, found, strict=True):
            self._count(taken)
            self._worker.on_trigger(TriggerResult(message.message_id, taken.ended, taken.reason, taken.detail))
            if taken.ended == "bad":
                dead.append(_dead(message, taken))
        return dead

    def _count(self, taken: Taken) -> None:
        counters = {"applied": self._applied, "ignored": self._repeated, "bad": self._refused}
        counters[taken.ended].inc()
        self._defaults.inc(sum(taken.warnings.values()))
        self._changed = self._changed or taken.ended == "applied"


def _read(message: TriggerMessage) -> Trigger | Send | BadTrigger:
    published_at = None if message.published_at_us is None else from_micros(message.published_at_us)
    return read_or_bad(message.body, published_at)


def _dead(message: TriggerMessage, taken: Taken) -> DeadLetter:
    """Its message id is the one that Pub/Sub gave the publisher, or its place in a file."""
    name = message.message_id[-64:] or None
    return DeadLetter("trigger", taken.reason, taken.detail, taken.campaign_id, message_id=name, body=message.body)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
