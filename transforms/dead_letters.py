"""WriteDeadLetters: what failed, of every step, into the store."""

import apache_beam as beam
from apache_beam.metrics import Metrics

from schemas.elements import DeadLetter
from sendonce.control.dead_letters import write_dead_letters
from transforms.inspected import InspectedDoFn
from transforms.worker import WorkerSpec, told, worker_for

# The tagged output of every step that can fail.
DEAD = "dead"
AT_ONCE = 500


class WriteDeadLetters(beam.PTransform):
    """In: `DeadLetter`s of any step. Written in groups of up to 500 a transaction; the same letter twice is one row."""

    def __init__(self, spec: WorkerSpec) -> None:
        super().__init__()
        self._spec = spec

    def expand(self, letters):
        return letters | "Write" >> beam.ParDo(_WriteDeadLetters(self._spec)).with_output_types(DeadLetter)


class _WriteDeadLetters(InspectedDoFn):
    def __init__(self, spec: WorkerSpec) -> None:
        self._spec = spec
        self._written = Metrics.counter("sendonce", "dead_letters")

    def setup(self) -> None:
        self._worker = worker_for(self._spec)

    def start_bundle(self) -> None:
        self._waiting: list[DeadLetter] = []

    def process(self, letter: DeadLetter):
        self._waiting.append(letter)
        if len(self._waiting) >= AT_ONCE:
            self._flush()
        return ()

    def finish_bundle(self) -> None:
        self._flush()

    def _flush(self) -> None:
        with told(self._worker):
            self._written.inc(write_dead_letters(self._worker.store, self._waiting))
        self._worker.notices.look()
        self._waiting = []
