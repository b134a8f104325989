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
            | "Group" >> _Group(self._shards, self._parcel, self._parcel_wait_s)
            | "RenderBatch" >> RenderBatch(self._spec, self._shards)
        )
        send_dead = outputs.rendered | "RateLimitedSend" >> RateLimitedSend(self._spec)
        return (outputs[DEAD], send_dead) | "Dead letters" >> beam.Flatten().with_output_types(DeadLetter)


class _Group(beam.PTransform):
    """In: `Reference`s. Out: (`priority/shard`, parcel of them).

    Parcels of one need no state, and one step less: what a step costs on one machine is most of what a code waits for.
    """

    def __init__(self, shards: int, parcel: int, parcel_wait_s: float) -> None:
        super().__init__()
        self._shards = shards
        self._parcel = parcel
        self._parcel_wait_s = parcel_wait_s

    def expand(self, references):
        if self._parcel == 1:
            return references | "One by one" >> beam.ParDo(_ParcelOfOne(self._shards))
        return (
            references
            | "Key by shard" >> beam.ParDo(_KeyByShard(self._shards))
            | "Parcels" >> beam.GroupIntoBatches(self._parcel, max_buffering_duration_secs=self._parcel_wait_s)
        )


@typehints.with_input_types(Reference)
@typehints.with_output_types(tuple[str, Iterable[Reference]])
class _ParcelOfOne(InspectedDoFn):
    def __init__(self, shards: int) -> None:
        self._shards = shards

    def process(self, reference: Reference) -> list[tuple[str, list[Reference]]]:
        return [(_key(reference, self._shards), [reference])]


class _KeyByShard(InspectedDoFn):
    def __init__(self, shards: int) -> None:
        self._shards = shards

    def process(self, reference: Reference) -> list[tuple[str, Reference]]:
        return [(_key(reference, self._shards), reference)]


def _key(reference: Reference, shards: int) -> str:
    """`priority/shard`: equal work for each key, and the same key for the same batch."""
    return f"{reference.priority}/{shard_of(reference.campaign_id, reference.batch_no) % shards}"
