"""The campaign job: triggers and ticks in, letters out.

    ReadTriggers ─ ApplyTriggers ─┐
    Ticks ────────────────────────┴─ PlanWork ─ ByPriority ─ Critical: Group ─ RenderBatch ─ RateLimitedSend
                                                          ├─ High:     Group ─ RenderBatch ─ RateLimitedSend
                                                          └─ Bulk:     Group ─ RenderBatch ─ RateLimitedSend
    dead letters of every step ─ WriteDeadLetters

The store is the truth and Beam the engine: what travels are references to batches in the store. Any number of these
jobs may run on one store; each finds what is unfinished, and a batch has one owner at a time.

Labels are an interface: an update of a running job matches its steps by them.
"""

from dataclasses import dataclass

import apache_beam as beam

import transforms.coders  # noqa: F401  (registers a coder for every element type)
from schemas.elements import DeadLetter, Tick
from transforms.dead_letters import DEAD, WriteDeadLetters
from transforms.lane import ByPriority, SendLane
from transforms.plan import PlanWork
from transforms.triggers import ApplyTriggers
from transforms.worker import WorkerSpec


@dataclass(frozen=True)
class CampaignOptions:
    """What the graph is made with.

    spec: which store and lanes. shards: keys of a lane, so its widest parallelism. parcel and
    parcel_wait_s: how many references travel together, and how long one waits for others, in seconds.
    """

    spec: WorkerSpec
    shards: int = 4
    parcel: int = 1
    parcel_wait_s: float = 0.0


@dataclass
class Ports:
    """The ends of the graph: where triggers and ticks come from. Tests put other ends on the same graph.

    triggers: gives `TriggerMessage`s. ticks: gives `Tick`s.
    """

    triggers: beam.PTransform
    ticks: beam.PTransform


def build(pipeline: beam.Pipeline, options: CampaignOptions, ports: Ports) -> None:
    """Put the graph on a pipeline. Opens no connection and reads nothing."""
    applied = pipeline | "ReadTriggers" >> ports.triggers | "ApplyTriggers" >> ApplyTriggers(options.spec)
    ticks = pipeline | "Ticks" >> ports.ticks
    references = (
        (ticks, applied.wake)
        | "TicksAndWakeUps" >> beam.Flatten().with_output_types(Tick)
        | "PlanWork" >> PlanWork(options.spec)
    )
    by_priority = references | "ByPriority" >> ByPriority()
    dead = [applied[DEAD]]
    for priority in options.spec.lanes:
        lane = SendLane(options.spec, options.shards, options.parcel, options.parcel_wait_s)
        dead.append(by_priority[priority] | priority.capitalize() >> lane)
    all_dead = dead | "AllDeadLetters" >> beam.Flatten().with_output_types(DeadLetter)
    all_dead | "WriteDeadLetters" >> WriteDeadLetters(options.spec)
