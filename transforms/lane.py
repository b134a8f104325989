"""ByPriority and SendLane: each priority has its own way through the graph, one box with its name in the console."""

from collections.abc import Iterable, Iterator

import apache_beam as beam
from apache_beam import typehints
from apache_beam.pvalue import TaggedOutput

from schemas.elements import PRIORITIES, DeadLetter, Reference
from schemas.ids import shard_of
from transforms.dead_letters import DEAD
from transforms.inspected import InspectedDoFn
from transforms.render import RenderBatch
from transforms.send import RateLimitedSend
from transforms.worker import WorkerSpec


class ByPriority(beam.PTransform):
    """In: `Reference`s. Out: a tuple with an output for each priority, by its name."""

    def expand(self, references):
        return references | "Split" >> beam.ParDo(_ByPriority()).with_outputs(*PRIORITIES)


@typehints.with_input_types(Reference)
@typehints.with_output_types(Reference, critical=Reference, high=Reference, bulk=Reference)
class _ByPriority(InspectedDoFn):
    def process(self, reference: Reference) -> Iterator[object]:
        yield TaggedOutput(reference.priority, reference)


class SendLane(beam.PTransform):
    """In: `Reference`s of one priority. Out: `DeadLetter`s of rendering and sending.

    parcel: references that GroupIntoBatches puts together; its make-up means nothing, so whatever the runner does with
    it is right. On Dataflow parcels save reads and spread rendering; locally they only cost time, and are of 1.
    """

    def __init__(self, spec: WorkerSpec, shards: int, parcel: int, parcel_wait_s: float) -> None:
        super().__init__()
        self._spec = spec
        self._shards = shards
        self._parcel = parcel
        self._parcel_wait_s = parcel_wait_s

    def expand(self, references):
        outputs = (
            references
            | "Key by shard" >> beam.ParDo(_KeyByShard(self._shards))
            | "Group" >> self._grouping()
            | "RenderBatch" >> RenderBatch(self._spec, self._shards)
        )
        send_dead = outputs.rendered | "RateLimitedSend" >> RateLimitedSend(self._spec)
        return (outputs[DEAD], send_dead) | "Dead letters" >> beam.Flatten().with_output_types(DeadLetter)

    def _grouping(self) -> beam.PTransform:
        """Parcels of one need no state; measuring the size of that state took local runs a thirtieth of their time."""
        if self._parcel == 1:
            return beam.ParDo(_ParcelOfOne())
        return beam.GroupIntoBatches(self._parcel, max_buffering_duration_secs=self._parcel_wait_s)


@typehints.with_input_types(tuple[str, Reference])
@typehints.with_output_types(tuple[str, Iterable[Reference]])
class _ParcelOfOne(InspectedDoFn):
    def process(self, keyed: tuple[str, Reference]) -> list[tuple[str, list[Reference]]]:
        key, reference = keyed
        return [(key, [reference])]


class _KeyByShard(InspectedDoFn):
    """(`priority/shard`, reference): equal work for each key, and the same key for the same batch."""

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def process(self, reference: Reference) -> list[tuple[str, Reference]]:
        shard = shard_of(reference.campaign_id, reference.batch_no) % self._shards
        return [(f"{reference.priority}/{shard}", reference)]
