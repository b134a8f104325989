"""RenderBatch: references become rendered batches."""

import time
from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam import typehints
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from schemas.elements import DeadLetter, Reference, RenderedBatch
from schemas.ids import shard_of
from schemas.letters import Letters
from schemas.outcomes import Outcome
from sendonce.delivery.halting import halt_campaign
from sendonce.delivery.letters import SnapshotFault, element_of
from sendonce.rendering.faults import TemplateFault
from transforms.worker import WorkerSpec, told, worker_for

DEAD = "dead"


class RenderBatch(beam.PTransform):
    """In: (key, parcel of `Reference`s). Out: a tuple `rendered` of (send key, `RenderedBatch`), and `dead` letters.

    One range read of the store per batch; one batch's recipients in memory at a time. A recipient whose letter can't
    be made is a dead letter and, at the claim, `refused`; the others go on. A template or snapshot that fails for
    everybody halts the campaign with its reason, and refuses nobody.
    """

    def __init__(self, spec: WorkerSpec, shards: int) -> None:
        super().__init__()
        self._spec = spec
        self._shards = shards

    def expand(self, parcels):
        return parcels | "Render" >> beam.ParDo(_RenderBatch(self._spec, self._shards)).with_outputs(
            DEAD, main="rendered"
        )


@typehints.with_input_types(tuple[str, Iterable[Reference]])
@typehints.with_output_types(tuple[str, RenderedBatch], dead=DeadLetter)
class _RenderBatch(beam.DoFn):
    def __init__(self, spec: WorkerSpec, shards: int) -> None:
        self._spec = spec
        self._shards = shards
        self._letters = Metrics.counter("sendonce", "letters_rendered")
        self._refused = Metrics.counter("sendonce", "letters_refused")
        self._stale = Metrics.counter("sendonce", "references_stale")
        self._halted = Metrics.counter("sendonce", "campaigns_halted")
        self._render_ms = Metrics.distribution("sendonce", "render_ms")

    def setup(self) -> None:
        self._worker = worker_for(self._spec)

    def process(self, parcel) -> Iterator[object]:
        _, references = parcel
        for reference in references:
            yield from self._render(reference)

    def _render(self, reference: Reference) -> Iterator[object]:
        started_s = time.perf_counter()
        try:
            with told(self._worker):
                rendered = self._worker.render(reference)
        except (TemplateFault, SnapshotFault) as fault:
            if halt_campaign(self._worker.store, reference.campaign_id, str(fault)):
                self._halted.inc()
            reason = "template_fault" if isinstance(fault, TemplateFault) else fault.reason
            yield TaggedOutput(
                DEAD,
                DeadLetter("render", reason, str(fault), reference.campaign_id, reference.batch_no),
            )
            return
        if rendered is None:
            self._stale.inc()
            return
        letters, at = rendered
        self._letters.inc(len(letters.letters))
        self._render_ms.update(int((time.perf_counter() - started_s) * 1000))
        yield from self._dead_letters(reference, letters)
        shard = shard_of(reference.campaign_id, reference.batch_no) % self._shards
        yield f"{reference.priority}/{shard}", element_of(reference, letters, at)

    def _dead_letters(self, reference: Reference, letters: Letters) -> Iterator[TaggedOutput]:
        for refusal in letters.refusals:
            outcome = Outcome(refusal.outcome)
            if outcome.kind == "refused":
                self._refused.inc()
                yield TaggedOutput(
                    DEAD,
                    DeadLetter(
                        stage="render",
                        reason=outcome.reason,
                        detail=refusal.detail,
                        campaign_id=reference.campaign_id,
                        batch_no=reference.batch_no,
                        ordinal=refusal.ordinal,
                        message_id=refusal.message_id,
                    ),
                )
