"""What Beam's runners do to pipelines that others reported, and what this one does about it: the case area."""

import json
import random
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from apache_beam.coders import registry
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from pipelines.campaign import CampaignOptions, Ports, build
from schemas.elements import Tick, TriggerMessage
from schemas.letters import load as load_letters
from schemas.tables import Progress, Recipient
from sendonce.control.load import LoadOptions, load
from sendonce.delivery.letters import LETTERS_BYTES_MAX, element_of
from sendonce.delivery.planner import plan_lane
from sendonce.rendering.catalogue import source_of
from sendonce.stores.base import ANY_SHARD
from tests.pipelines.shop import TEMPLATE, Shop, people
from transforms.coders import ELEMENTS
from transforms.worker import WorkerSpec, worker_for

CASES = Path(__file__).parents[1] / "cases"


def run_graph(shop: Shop, runner: Any, *, ticks: int = 1, parcel: int = 1) -> None:
    """The graph as it is for runners whose timers wait, over bounded input."""
    spec = WorkerSpec(shop.url, f"job-{random.random()}", ("bulk",), can_wait=True)
    pipeline = beam.Pipeline(runner=runner, options=PipelineOptions([]))
    ports = Ports(
        triggers=beam.Create([], reshuffle=False).with_output_types(TriggerMessage),
        ticks=beam.Create([Tick(number, 0) for number in range(ticks)], reshuffle=False).with_output_types(Tick),
    )
    build(pipeline, CampaignOptions(spec, parcel=parcel, parcel_wait_s=0.1), ports)
    pipeline.run().wait_until_finish()
    worker_for(spec).end_threads()


@pytest.mark.parametrize("runner", [BundleBasedDirectRunner, FnApiRunner])
def test_nothing_that_waits_for_a_timer_is_lost_when_the_input_ends(shop: Shop, runner: Callable[[], Any]) -> None:
    """The case realtime-timer-lost: what waits for its permit at the end goes back to the store, and goes later."""
    keys = json.loads((CASES / "realtime-timer-lost" / "elements.json").read_text())
    shop.configure(limits=[{"rate": "0.4/s", "burst": 1}])
    shop.campaign("spring", people(len(keys)), batch_size=1)
    run_graph(shop, runner(), ticks=3)
    states = {batch.batch_no: batch.state for batch in shop.batches("spring")}
    assert set(states.values()) <= {"done", "pending"}
    assert 1 <= len(shop.letters()) < len(keys)
    assert shop.state("spring")[0] == "running", "a campaign with open recipients is not finished"
    shop.configure()
    assert shop.run().unfinished == 0
    assert len(shop.letters()) == len(keys)


def test_ids_of_any_type_are_one_text(shop: Shop, tmp_path: Path) -> None:
    """The case numpy-key: a number of NumPy's, a whole number and a text are one recipient, and one key."""
    rows = json.loads((CASES / "numpy-key" / "elements.json").read_text())
    assert [name for name, _ in rows] == ["np.int64(5)", "5 (int)", "'5'"]
    numbers = pa.table({"recipient_id": pa.array(np.array([5], dtype=np.int64)), "email": [rows[0][1]]})
    pq.write_table(numbers, tmp_path / "list.parquet")
    (tmp_path / "list.ndjson").write_text(
        json.dumps({"recipient_id": 5, "email": rows[1][1]})
        + "\n"
        + json.dumps({"recipient_id": "5", "email": "b@x.org"})
    )
    options = LoadOptions(
        from_address="a@shop.example", unsubscribe_base_url="https://shop.example/u", rejects_folder=tmp_path
    )
    files = {**TEMPLATE, "body.txt.j2": "{{ recipient.id }} {{ unsubscribe_url }}", "subject.j2": "Hello"}
    files["template.yaml"] = "priority: bulk\nlocales: [en]\ndefault_locale: en\n"
    del files["body.html.j2"]
    for kind in ("parquet", "ndjson"):
        load(
            shop.store,
            campaign_id=kind,
            path=tmp_path / f"list.{kind}",
            template=source_of("ids", files),
            options=options,
            by="test",
        )
        people_ = shop.store.read(lambda reader, kind=kind: reader.scan(Recipient, ANY_SHARD, kind))
        assert [person.recipient_id for person in people_] == ["5"]


@pytest.mark.parametrize("kind", ELEMENTS, ids=lambda kind: kind.__name__)
def test_no_branch_can_change_what_another_sees(kind: type) -> None:
    """The case aliasing: elements travel uncopied between fused steps, so nobody may change one."""
    values = {field.name: None for field in fields(kind)}
    element = kind(**values)
    with pytest.raises(FrozenInstanceError):
        setattr(element, fields(kind)[0].name, "changed")
    for field in fields(kind):
        assert "list" not in str(field.type).lower(), "a list inside an element could be changed in place"
        assert "dict" not in str(field.type).lower()


def test_progress_does_not_wait_for_whoever_waits(shop: Shop) -> None:
    """The case reshuffle-holds: one recipient waits for a limit, and the other hundred show as done."""
    shop.configure(
        guards={"domains": {"slow": {"domains": ["slow.example"], "limits": [{"cap": "1/day"}]}}},
    )
    shop.campaign("first", [{"id": "p0", "email": "x@slow.example"}])
    assert shop.run().unfinished == 0
    crowd = [*people(100), {"id": "late", "email": "y@slow.example"}]
    shop.campaign("spring", crowd, batch_size=101)
    assert shop.run(once=True).unfinished == 1
    shown = shop.store.read(lambda reader: reader.get(Progress, "spring"))
    assert shown is not None
    assert (shown.total, shown.n_accepted, shown.n_open) == (101, 100, 1)


def test_an_element_does_not_grow_with_the_campaign(shop: Shop) -> None:
    """The case fanout-80mb: a trigger becomes references; a batch whose letters are large travels without them."""
    filler = "x" * 1000
    wide = {**TEMPLATE, "body.txt.j2": "{{ name }} {{ recipient.id }}\n{{ unsubscribe_url }}\n"}
    crowd = [{"id": f"p{n}", "variables": {"name": f"{n} {filler}"}} for n in range(2500)]
    shop.campaign("spring", crowd, batch_size=2500, files=wide)
    worker = worker_for(WorkerSpec(shop.url, "job", ("bulk",), can_wait=True))
    (reference,) = plan_lane(shop.store, worker.lanes()["bulk"].terms, 10_000).references
    assert len(registry.get_coder(type(reference)).encode(reference)) < 200
    rendered = worker.render(reference)
    assert rendered is not None
    letters, at = rendered
    element = element_of(reference, letters, at)
    assert len(registry.get_coder(type(element)).encode(element)) <= LETTERS_BYTES_MAX + 200
    if element.letters is not None:
        assert load_letters(element.letters) == letters


def test_a_drain_under_a_limit_sends_no_burst(shop: Shop) -> None:
    """The case drain-timers: 20 pending at a rate of 1/s; the input ends; what is left stays in the store."""
    crowd = people(len((CASES / "drain-timers" / "recipients.csv").read_text().splitlines()) - 1)
    assert len(crowd) == 20
    shop.configure(limits=[{"rate": "1/s", "burst": 1}])
    shop.campaign("spring", crowd, batch_size=1)
    run_graph(shop, BundleBasedDirectRunner(), ticks=3)
    sent = len(shop.letters())
    assert 1 <= sent < 10
    assert {batch.state for batch in shop.batches("spring")} <= {"done", "pending"}
    shop.configure()
    assert shop.run().unfinished == 0
    assert len(shop.letters()) == 20


def test_parcels_on_a_runner_with_timers(shop: Shop) -> None:
    """As on Dataflow: references wait for each other, and whatever the runner makes of a parcel is right."""
    shop.campaign("spring", people(25), batch_size=2)
    run_graph(shop, BundleBasedDirectRunner(), ticks=2, parcel=8)
    shop.run()
    assert len(shop.letters()) == 25
    assert set(shop.outcomes("spring").values()) == {"accepted"}


def test_an_old_reference_that_comes_again_does_nothing(shop: Shop) -> None:
    """The case event-time-timer-early, in our terms: nothing relies on the order in which things come back."""
    shop.campaign("spring", people(4), batch_size=2)
    worker = worker_for(WorkerSpec(shop.url, "job-2", ("bulk",), can_wait=True))
    references = plan_lane(shop.store, worker.lanes()["bulk"].terms, 100).references
    late = [*reversed(references), *references, *(replace(reference, plan_no=0) for reference in references)]
    for reference in late:
        rendered = worker.render(reference)
        if rendered is not None:
            worker.deliverer("bulk").deliver(element_of(reference, *rendered))
    assert len(shop.letters()) == 4
