"""RenderBatch: references become rendered batches."""

import time
from collections.abc import Iterable, Iterator
from datetime import datetime

import apache_beam as beam
from apache_beam import typehints
from apache_beam.metrics import Metrics
from apache_beam.pvalue import TaggedOutput

from schemas.elements import DeadLetter, Reference, RenderedBatch
from schemas.ids import shard_of
from schemas.letters import Letters
from schemas.outcomes import Outcome
from sendonce.config import ConfigFault
from sendonce.delivery.halting import give_up, halt_campaign, unforeseen
from sendonce.delivery.letters import SnapshotFault, TemplateGone, element_of, element_without, encodable
from sendonce.failpoints import FailpointRaised
from sendonce.rendering.faults import TemplateFault
from sendonce.stores.base import StoreError
from transforms.dead_letters import DEAD
from transforms.inspected import InspectedDoFn
from transforms.worker import WorkerSpec, told, worker_for


class RenderBatch(beam.PTransform):
    """In: (key, parcel of `Reference`s). Out: a tuple `rendered` of (send key, `RenderedBatch`), and `dead` letters.

    One range read of the store per batch; one batch's recipients in memory at a time. A recipient whose letter can't
    be made is a dead letter and, at the claim, `refused`; the others go on. A template or snapshot that fails for
    everybody halts the campaign with its reason, and refuses nobody; in a stream it ends that send alone.
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
class _RenderBatch(InspectedDoFn):
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
        visibility_s = self._worker.lanes()[reference.priority].terms.times.visibility_s
        self._worker.keeper.hold(reference, visibility_s)
        try:
            with told(self._worker):
                rendered = self._rendered(reference)
        except (TemplateFault, TemplateGone) as fault:
            reason = "template_fault" if isinstance(fault, TemplateFault) else fault.reason
            yield from self._give_up(reference, reason, str(fault))
            return
        except SnapshotFault as fault:
            yield self._halt(reference, fault.reason, str(fault))
            return
        except (StoreError, ConfigFault, FailpointRaised):
            raise
        except Exception as fault:
            yield from self._give_up(reference, "unforeseen", unforeseen(fault, "rendering", reference.batch_no))
            return
        finally:
            if self._spec.can_wait:
                self._worker.keeper.drop(reference)
        if rendered is None:
            self._stale.inc()
            return
        letters, element = rendered
        self._letters.inc(len(letters.letters))
        took_s = time.perf_counter() - started_s
        self._render_ms.update(int(took_s * 1000))
        if self._spec.live:
            self._measure(reference.priority, len(letters.letters), took_s)
        else:
            rendering_s = self._worker.rendering_s
            rendering_s[reference.priority] = rendering_s.get(reference.priority, 0.0) + took_s
        yield from self._dead_letters(reference, letters)
        shard = shard_of(reference.campaign_id, reference.batch_no) % self._shards
        yield f"{reference.priority}/{shard}", element

    def _measure(self, lane: str, letters: int, took_s: float) -> None:
        """How fast a live job's one thread renders for a lane, smoothed over the last batches."""
        now = letters / max(took_s, 0.001)
        before = self._worker.pace.get(lane, now)
        self._worker.pace[lane] = before + (now - before) / 4

    def _rendered(self, reference: Reference) -> tuple[Letters, RenderedBatch] | None:
        rendered = self._worker.render(reference)
        if rendered is None:
            return None
        letters, at = rendered
        try:
            return letters, self._element(reference, letters, at)
        except TypeError:  # some letter holds what no encoding can carry
            letters = encodable(letters)
            return letters, self._element(reference, letters, at)

    def _element(self, reference: Reference, letters: Letters, at: datetime) -> RenderedBatch:
        """The letters themselves travel only where the send step may be in another process."""
        if self._spec.can_wait:
            return element_of(reference, letters, at)
        element = element_without(reference, letters, at)
        self._worker.hand.put(reference, letters, at)
        return element

    def _give_up(self, reference: Reference, reason: str, detail: str) -> Iterator[TaggedOutput]:
        """End a send that nobody can render; halt a campaign, for its recipients share the fault. Others go on."""
        worker = self._worker
        worker.keeper.drop(reference)
        outbound_log = worker.lanes()[reference.priority].terms.outbound_log
        ended = give_up(worker.store, worker.key, reference, detail, outbound_log)
        if isinstance(ended, bool):
            yield self._halted_by(reference, reason, detail, halted=ended)
            return
        for ordinal, code in enumerate(ended.outcomes if ended is not None else b""):
            if code == Outcome.RENDER_ERROR:
                self._refused.inc()
                yield TaggedOutput(
                    DEAD, DeadLetter("render", reason, detail, reference.campaign_id, reference.batch_no, ordinal)
                )

    def _halt(self, reference: Reference, reason: str, detail: str) -> TaggedOutput:
        """Halt the campaign, also a stream, for what is wrong with its store or its settings."""
        self._worker.keeper.drop(reference)
        halted = halt_campaign(self._worker.store, reference, detail)
        return self._halted_by(reference, reason, detail, halted=halted)

    def _halted_by(self, reference: Reference, reason: str, detail: str, *, halted: bool) -> TaggedOutput:
        if halted:
            self._halted.inc()
        return TaggedOutput(DEAD, DeadLetter("render", reason, detail, reference.campaign_id, reference.batch_no))

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
