"""The graph as others rely on it: its labels, its coders, and that building it touches nothing."""

from dataclasses import replace

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from pipelines.campaign import CampaignOptions, Ports, build
from schemas.elements import PRIORITIES, Tick, TriggerMessage
from transforms.worker import WorkerSpec

NOWHERE = WorkerSpec("sqlite:////nowhere/at/all.db", "job", PRIORITIES, can_wait=True)


def proto(lanes: tuple[str, ...] = PRIORITIES):  # type: ignore[no-untyped-def]
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    ports = Ports(
        triggers=beam.Create([], reshuffle=False).with_output_types(TriggerMessage),
        ticks=beam.Create([Tick(1, 1)], reshuffle=False).with_output_types(Tick),
    )
    build(pipeline, CampaignOptions(replace(NOWHERE, lanes=lanes)), ports)
    return pipeline.to_runner_api()


def labels(pipeline) -> set[str]:  # type: ignore[no-untyped-def]
    return {transform.unique_name for transform in pipeline.components.transforms.values()}


def test_the_top_level_steps_are_the_ones_that_people_see_in_a_console() -> None:
    """Labels are an interface: an update of a running job matches steps, and their state, by them."""
    top = {label for label in labels(proto()) if "/" not in label and not label.startswith("ref_")}
    assert top - {""} == {
        "ReadTriggers",
        "ApplyTriggers",
        "Ticks",
        "TicksAndWakeUps",
        "PlanWork",
        "ByPriority",
        "Critical",
        "High",
        "Bulk",
        "AllDeadLetters",
        "WriteDeadLetters",
    }


@pytest.mark.parametrize("lane", ["Critical", "High", "Bulk"])
def test_each_lane_groups_renders_and_sends_in_steps_of_its_own(lane: str) -> None:
    steps = {label.removeprefix(f"{lane}/") for label in labels(proto()) if label.startswith(f"{lane}/")}
    assert {"Group", "RenderBatch/Render", "RateLimitedSend/Send", "Dead letters"} <= steps


def test_a_job_for_some_lanes_has_no_steps_of_the_others() -> None:
    assert not any(label.startswith(("Bulk", "High")) for label in labels(proto(("critical",))))


def test_no_pickle_between_steps_and_none_in_state() -> None:
    """One wrong annotation turns a coder into pickle without a word; then no update and no other SDK can read it."""
    pipeline = proto()
    coders = pipeline.components.coders

    def urns(coder_id: str) -> set[str]:
        coder = coders[coder_id]
        return {coder.spec.urn}.union(*(urns(part) for part in coder.component_coder_ids))

    between = {each.unique_name: urns(each.coder_id) for each in pipeline.components.pcollections.values()}
    pickled = [name for name, found in between.items() if "beam:coder:pickled_python:v1" in found]
    assert pickled == []
    assert len(between) > 20


def test_building_opens_no_store() -> None:
    proto()
