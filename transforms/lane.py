"""SendLane: the way of one priority through the graph, one box with its name in the console."""

import apache_beam as beam

from schemas.elements import DeadLetter, Reference
from schemas.ids import shard_of
from transforms.render import DEAD, RenderBatch
from transforms.send import RateLimitedSend
from transforms.worker import WorkerSpec


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
            | "Group" >> beam.GroupIntoBatches(self._parcel, max_buffering_duration_secs=self._parcel_wait_s)
            | "RenderBatch" >> RenderBatch(self._spec, self._shards)
        )
        send_dead = outputs.rendered | "RateLimitedSend" >> RateLimitedSend(self._spec)
        return (outputs[DEAD], send_dead) | "Dead letters" >> beam.Flatten().with_output_types(DeadLetter)


class _KeyByShard(beam.DoFn):
    """(`priority/shard`, reference): equal work for each key, and the same key for the same batch."""

    def __init__(self, shards: int) -> None:
        self._shards = shards

    def process(self, reference: Reference) -> list[tuple[str, Reference]]:
        shard = shard_of(reference.campaign_id, reference.batch_no) % self._shards
        return [(f"{reference.priority}/{shard}", reference)]
