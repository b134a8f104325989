"""The job as it is started on a cloud's runner: what its graph is made of, without a cloud."""

import json
from dataclasses import replace
from datetime import UTC, datetime

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline
from apache_beam.testing.util import assert_that, equal_to
from apache_beam.transforms.window import TimestampedValue

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from apache_beam.io.gcp.pubsub import PubsubMessage, ReadFromPubSub
from apache_beam.pipeline import PipelineVisitor
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from pipelines import campaign, cloud
from pipelines.campaign import build
from pipelines.cloud import TICK_FRESH_S, Fresh, TriggersFrom, _Message, campaign_options, cloud_ports
from schemas.elements import PRIORITIES, Tick, TriggerMessage
from sendonce.cli.main import run as cli
from sendonce.config import Config, apply_config
from sendonce.moments import from_micros
from sendonce.stores.opening import init_store

SUBSCRIPTION = "projects/shop-test/subscriptions/sendonce"


def proto():  # type: ignore[no-untyped-def]
    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions(["--streaming"]))
    options = campaign_options("spanner://p/i/d", PRIORITIES, PipelineOptions(["--job_name=shop"]))
    assert options.spec.job_id == "shop"
    assert options.spec.can_wait
    assert not options.spec.live
    build(pipeline, options, cloud_ports(SUBSCRIPTION, 0.2))
    return pipeline.to_runner_api()


def test_triggers_come_from_pubsub_and_ticks_from_a_periodic_impulse() -> None:
    names = {transform.unique_name for transform in proto().components.transforms.values()}
    assert any(name.startswith("ReadTriggers/Read/") for name in names)
    assert any(name.startswith("Ticks/Every/") for name in names)


def test_the_read_trusts_no_attribute() -> None:
    """The cases id-label-directrunner and bad-timestamp-attr: neither an id label nor a timestamp attribute is used."""
    found = []

    class Visitor(PipelineVisitor):
        def enter_composite_transform(self, node) -> None:  # type: ignore[no-untyped-def]
            if isinstance(node.transform, ReadFromPubSub):
                found.append(node.transform._source)

    pipeline = beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([]))
    _ = pipeline | "ReadTriggers" >> TriggersFrom(SUBSCRIPTION)
    pipeline.visit(Visitor())
    assert [(source.id_label, source.timestamp_attribute) for source in found] == [(None, None)]


def test_nothing_stands_between_reading_a_trigger_and_applying_it() -> None:
    """A Reshuffle there would acknowledge it before it is in the store."""
    components = proto().components
    producers = {output: each for each in components.transforms.values() for output in each.outputs.values()}
    step = next(
        each
        for each in components.transforms.values()
        if each.unique_name == "ApplyTriggers/Apply/Apply"
        or (each.unique_name.startswith("ApplyTriggers/Apply") and not each.subtransforms)
    )
    passed = []
    while step.inputs:
        (source,) = step.inputs.values()
        step = next(each for each in [producers[source]])
        while step.subtransforms:
            step = next(
                components.transforms[part]
                for part in step.subtransforms
                if source in components.transforms[part].outputs.values()
            )
        passed.append(step.spec.urn)
    assert "beam:transform:reshuffle:v1" not in passed
    assert "beam:transform:group_by_key:v1" not in passed


def test_references_are_grouped_and_nothing_of_ours_is_pickled() -> None:
    components = proto().components

    def urns(coder_id: str) -> set[str]:
        coder = components.coders[coder_id]
        return {coder.spec.urn}.union(*(urns(part) for part in coder.component_coder_ids))

    pickled = [
        each.unique_name
        for each in components.pcollections.values()
        if "beam:coder:pickled_python:v1" in urns(each.coder_id)
    ]
    beams_own = ("Ticks/Every", "Group/", "ReadTriggers/Read")
    assert [name for name in pickled if not any(part in name for part in beams_own)] == []
    assert any("/Group/" in each.unique_name for each in components.transforms.values())


def test_a_message_keeps_its_bytes_its_attributes_and_when_it_was_published() -> None:
    published_at = datetime(2026, 1, 15, 9, 0, 0, 123456, tzinfo=UTC)
    message = PubsubMessage(b"\xff\xfe", {"type": "start", "priority": "bulk"}, "m1", published_at)
    read = PubsubMessage._from_proto_str(message._to_proto_str())  # as the runner's reader makes it
    (made,) = _Message().process(read)
    assert (made.body, json.loads(made.attributes), made.message_id) == (
        b"\xff\xfe",
        {"type": "start", "priority": "bulk"},
        "m1",
    )
    assert from_micros(made.published_at_us) == published_at
    (bare,) = _Message().process(PubsubMessage(b"{}", None))
    assert bare == TriggerMessage(b"{}", "{}", "")


def test_stale_ticks_are_dropped() -> None:
    now_s = 1_800_000_000.0
    due = [now_s - 3600, now_s - TICK_FRESH_S - 0.1, now_s - 1, now_s]
    with TestPipeline(runner=BundleBasedDirectRunner()) as pipeline:
        ticks = (
            pipeline
            | "Due" >> beam.Create([TimestampedValue("x", at) for at in due], reshuffle=False)
            | "Stamp" >> beam.Map(lambda stamped: stamped)
            | "Fresh" >> beam.ParDo(Fresh(lambda: now_s))
        )
        assert_that(ticks, equal_to([Tick(0, int((now_s - 1) * 1000)), Tick(0, int(now_s * 1000))]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--store", "spanner://p/i/d"], "no subscription is named"),
        (["--subscription", "sendonce"], "projects/PROJECT/subscriptions/NAME"),
        (["--subscription", SUBSCRIPTION, "--lanes", "bulk,slow"], "there is no lane 'slow'"),
        (["--subscription", SUBSCRIPTION, "--lanes", " , "], "names no lane; lanes are critical, high, bulk"),
        (["--subscription", SUBSCRIPTION, "--region", "europe-west4"], "options of a runner need --runner"),
        (["--subscription", SUBSCRIPTION, "--runner", "DataflowRunner"], "cannot reach a store in a file"),
    ],
)
def test_a_wrong_call_is_answered_with_its_mend(
    arguments: list[str], words: str, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SENDONCE_SUBSCRIPTION", raising=False)
    assert campaign.main(arguments) == 2
    assert words in capsys.readouterr().err


def test_a_store_that_is_not_there_is_named(tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    assert campaign.main(["--subscription", SUBSCRIPTION]) == 2
    assert "sendonce init" in capsys.readouterr().err


def test_a_store_of_another_environment_is_refused(tmp_path, monkeypatch, capsys) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(tmp_path)
    init_store("sqlite:///store.db", "test")
    (tmp_path / "sendonce.yaml").write_text("store: sqlite:///store.db\nenvironment: production\n")
    assert campaign.main(["--subscription", SUBSCRIPTION]) == 2
    assert "the settings are for production" in capsys.readouterr().err
    assert cli(["run"]) == 2
    assert "the settings are for production" in capsys.readouterr().err


def test_starting_opens_the_store_once_and_leaves_it_closed(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    store = init_store(f"sqlite:///{tmp_path}/store.db", "test")
    seen = []
    close = store.close
    monkeypatch.setattr(store, "close", lambda: (seen.append("closed"), close()))
    monkeypatch.setattr(cloud, "open_store", lambda url: (seen.append(url), store)[1])
    monkeypatch.setattr(beam.Pipeline, "run", lambda self: "job")
    config = Config.model_validate({"store": "spanner://shop-test/main/sendonce", "subscription": SUBSCRIPTION})
    apply_config(store, config, "test")
    assert cloud.start(config, PRIORITIES, ["--runner=FnApiRunner"]) == "job"
    assert seen == ["spanner://shop-test/main/sendonce", "closed"]


def test_lanes_of_one_worker_group() -> None:
    options = campaign_options("spanner://p/i/d", ("bulk", "critical"), PipelineOptions([]))
    assert options.spec.lanes == ("critical", "bulk")
    assert options.spec.job_id.startswith("sendonce-")
    assert replace(options.spec, lanes=()) != options.spec
