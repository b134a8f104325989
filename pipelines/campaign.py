"""The campaign job: triggers and ticks in, letters out.

    ReadTriggers ─ ApplyTriggers ─┐
    Ticks ────────────────────────┴─ PlanWork ─ ByPriority ─ Critical: Group ─ RenderBatch ─ RateLimitedSend
                                                          ├─ High:     Group ─ RenderBatch ─ RateLimitedSend
                                                          └─ Bulk:     Group ─ RenderBatch ─ RateLimitedSend
    dead letters of every step ─ WriteDeadLetters

The store is the truth and Beam the engine: what travels are references to batches in the store. Any number of these
jobs may run on one store; each finds what is unfinished, and a batch has one owner at a time.

Labels are an interface: an update of a running job matches its steps by them.

    python -m pipelines.campaign --subscription projects/P/subscriptions/S [--store URL] [--lanes A,B] [Beam's options]

Without `--runner` it runs here, as `sendonce run --subscription` does; `--runner DataflowRunner` and that runner's
options start it there. Settings that are not named come from the environment and `sendonce.yaml`.
"""

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

import apache_beam as beam

import transforms.coders  # noqa: F401  (registers a coder for every element type)
from schemas.elements import PRIORITIES, DeadLetter, Tick
from sendonce.config import Config, ConfigFault, check_environment, config_path, load_config, read_lanes
from sendonce.control.faults import JobFault
from sendonce.stores.base import NoStore, StoreError
from sendonce.stores.opening import open_store
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Check what the job needs, then run it here until it is stopped, or start it on another runner.

    Exit codes: 0 done or started, 1 the work failed or is unfinished, 2 the call was wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m pipelines.campaign", description="The streaming campaign job.")
    parser.add_argument("--store", help="store URL [SENDONCE_STORE, settings file]")
    parser.add_argument("--subscription", help="projects/P/subscriptions/S [SENDONCE_SUBSCRIPTION, settings file]")
    parser.add_argument("--lanes", default=",".join(PRIORITIES), help="only these lanes (default: %(default)s)")
    parser.add_argument("--config", help="settings file (default: sendonce.yaml, if it is there) [SENDONCE_CONFIG]")
    parser.add_argument("--runner", help="Beam's runner (default: this machine); what else is given is for it")
    ours, beams = parser.parse_known_args(arguments)
    try:
        return _main(ours, beams)
    except (ConfigFault, NoStore) as fault:
        print(f"Error: {fault}", file=sys.stderr)
        return 2
    except (StoreError, JobFault) as fault:
        print(f"Error: {fault}", file=sys.stderr)
        return 1


def _main(ours: argparse.Namespace, beams: list[str]) -> int:
    path = config_path(ours.config, os.environ)
    config: Config = load_config(path, os.environ, store=ours.store, subscription=ours.subscription)
    lanes = read_lanes(ours.lanes)
    if config.subscription is None:
        raise ConfigFault("no subscription is named; say --subscription projects/PROJECT/subscriptions/NAME")
    if ours.runner in _HERE:
        if beams:
            raise ConfigFault(f"{beams[0]} is no option of a job on this machine; options of a runner need --runner")
        with closing(open_store(config.store)) as store:
            check_environment(store, config)
        return _run_here(config.store, config.subscription, lanes)
    from pipelines.cloud import start

    result = start(config, lanes, [f"--runner={ours.runner}", *beams])
    print(getattr(result, "job_id", lambda: "started")())
    return 0


_HERE = (None, "DirectRunner", "BundleBasedDirectRunner")


def _run_here(store_url: str, subscription: str, lanes: Sequence[str]) -> int:
    from pipelines.live import run_live
    from pipelines.local import quiet_beam
    from pipelines.process import settle_process

    quiet_beam()
    settle_process()
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    report = run_live(store_url, subscription, lanes=lanes, stop=stop, alone=True)
    left = "nobody knows how many" if report.unfinished is None else str(report.unfinished)
    print(f"Stopped; {left} recipients are not finished. The same command goes on from here.")
    sys.stdout.flush()
    if report.in_flight or report.unfinished is None:
        # Python would wait for threads that wait for a provider or the store, past the 30 s that a stop may take.
        os._exit(1)
    return int(report.unfinished > 0)


if __name__ == "__main__":
    sys.exit(main())
