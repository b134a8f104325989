"""The campaign job on a runner of the cloud: triggers by `ReadFromPubSub`, ticks by `PeriodicImpulse`.

The same graph as everywhere (`pipelines/campaign.py`). Pub/Sub is acknowledged when the first fused stage has
committed, and applying a trigger is part of that stage: a trigger is in the store before it is acknowledged.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import apache_beam as beam
import orjson
from apache_beam import typehints
from apache_beam.io.gcp.pubsub import PubsubMessage, ReadFromPubSub
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions
from apache_beam.transforms.periodicsequence import PeriodicImpulse, RebaseMode

from pipelines.campaign import CampaignOptions, Ports, build
from schemas.elements import PRIORITIES, Tick, TriggerMessage
from sendonce.config import Config, ConfigFault, check_environment
from sendonce.delivery.lanes import running_lanes
from sendonce.moments import to_micros
from sendonce.stores.base import Store
from sendonce.stores.opening import open_store
from transforms.inspected import InspectedDoFn
from transforms.worker import WorkerSpec

# References that travel together, and how long one waits for others: on many workers it saves reads of the store.
PARCEL = 8
PARCEL_WAIT_S = 0.2
# A tick older than this is dropped: a later one does the same. After a stop of hours there would be thousands.
TICK_FRESH_S = 2.0


def start(config: Config, lanes: Sequence[str], beam_arguments: Sequence[str]) -> Any:
    """Start the job on the runner that `beam_arguments` name; returns Beam's result, and does not wait.

    config: names the store and the subscription. ConfigFault for a store that other machines cannot reach, or of
    another environment; NoStore for one that is not there, StoreError for one that will not do.
    """
    if not config.store.startswith("spanner://"):
        raise ConfigFault(
            "workers of the cloud cannot reach a store in a file of this machine; "
            "make one in Spanner: `sendonce init --store spanner://PROJECT/INSTANCE/DATABASE`"
        )
    with closing(open_store(config.store)) as store:
        check_environment(store, config)
        every_s = tick_s(store, lanes)
    options = PipelineOptions(list(beam_arguments), streaming=True)
    pipeline = beam.Pipeline(runner=options.view_as(StandardOptions).runner, options=options)
    ports = cloud_ports(str(config.subscription), every_s)
    build(pipeline, campaign_options(config.store, lanes, options), ports)
    return pipeline.run()


def campaign_options(store_url: str, lanes: Sequence[str], options: PipelineOptions) -> CampaignOptions:
    """The graph's options for workers in several processes, whose timers wait."""
    job_name = options.get_all_options().get("job_name") or f"sendonce-{int(time.time())}"
    spec = WorkerSpec(store_url, job_name, tuple(lane for lane in PRIORITIES if lane in lanes), can_wait=True)
    return CampaignOptions(spec, parcel=PARCEL, parcel_wait_s=PARCEL_WAIT_S)


def tick_s(store: Store, lanes: Sequence[str]) -> float:
    """Seconds between two ticks: those of the lane that looks for work most often."""
    return min(lane.terms.times.tick_s for lane in running_lanes(store, tuple(lanes), {}).values())


def cloud_ports(subscription: str, every_s: float) -> Ports:
    """Triggers from a subscription, and ticks from now on."""
    return Ports(triggers=TriggersFrom(subscription), ticks=Ticks(every_s))


class TriggersFrom(beam.PTransform):
    """Out: `TriggerMessage`s of a subscription, with the publisher's attributes, Pub/Sub's message id and time.

    No timestamp attribute: one that a publisher got wrong would fail the read itself. No id label: what comes twice is
    told by the store, on every runner.
    """

    def __init__(self, subscription: str) -> None:
        super().__init__()
        self._subscription = subscription

    def expand(self, pipeline):
        messages = pipeline | "Read" >> ReadFromPubSub(subscription=self._subscription, with_attributes=True)
        return messages | "Message" >> beam.ParDo(_Message())


@typehints.with_input_types(PubsubMessage)
@typehints.with_output_types(TriggerMessage)
class _Message(InspectedDoFn):
    def process(self, message: PubsubMessage) -> Iterator[TriggerMessage]:
        attributes = orjson.dumps(dict(message.attributes or {})).decode()
        published_at_us = to_micros(message.publish_time) if message.publish_time else None
        yield TriggerMessage(message.data, attributes, message.message_id or "", published_at_us)


class Ticks(beam.PTransform):
    """Out: a `Tick` every `every_s` seconds from when the job starts, in the global window; stale ones are left out.

    An impulse that comes late (a worker was away) says nothing that the next does not.
    """

    def __init__(self, every_s: float) -> None:
        super().__init__()
        self._every_s = every_s

    def expand(self, pipeline):
        every = PeriodicImpulse(fire_interval=self._every_s, rebase=RebaseMode.REBASE_START)
        return pipeline | "Every" >> every | "Fresh" >> beam.ParDo(Fresh())


@typehints.with_output_types(Tick)
class Fresh(InspectedDoFn):
    """In: whatever is due, at its timestamp. Out: a `Tick` for what was due within the last `TICK_FRESH_S`."""

    def __init__(self, now_s: Callable[[], float] = time.time) -> None:
        self._now_s = now_s

    def process(self, due: Any, at=beam.DoFn.TimestampParam) -> Iterator[Tick]:
        due_ms = at.micros // 1000
        if self._now_s() * 1000 - due_ms <= TICK_FRESH_S * 1000:
            yield Tick(0, due_ms)
