"""What one request costs in the store: its claim and its end, and its permits: `python -m benchmarks.claims`.

Batches of one recipient go through the real protocol to a sender that accepts at once: two transactions each, on
SQLite, each of them on the disk before it is over. Three times: without a limit, with a rate, and with a rate and a
cap, whose grants stand in a log. The last two are wide enough never to hold anybody up.

Prints one JSON object: by kind of limit, milliseconds a request (wall) and of that, of CPU.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sendonce.config as configuration
from benchmarks.limits import CAMPAIGN, LETTER, write_list
from sendonce.control.campaigns import submit
from sendonce.control.load import LoadOptions, load
from sendonce.delivery.deliver import Deliverer
from sendonce.delivery.lanes import running_lanes
from sendonce.delivery.letters import compiled_for, element_of, render
from sendonce.delivery.planner import plan_lane
from sendonce.rendering.catalogue import source_of
from sendonce.senders.base import Prepared, Reply, Request, Verdict
from sendonce.senders.outbox import Outbox
from sendonce.stores.opening import init_store, store_key
from transforms.worker import own_clocks

LIMITS: dict[str, list[dict[str, Any]]] = {
    "no_limit": [],
    "rate": [{"rate": "1000000/s"}],
    "rate_and_cap": [{"rate": "1000000/s"}, {"cap": "1000000000/day"}],
}


class _Instant(Outbox):
    """Accepts at once, and writes nothing."""

    def send(self, prepared: Prepared, timeout_s: float) -> Reply:
        return Reply(Verdict.ACCEPTED)

    def prepare(self, request: Request) -> Prepared:
        return Prepared(request, b"", "0" * 64)


def measure_one(requests: int, limits: Sequence[dict[str, Any]], folder: Path) -> dict[str, float]:
    store = init_store(f"sqlite:///{folder}/store.db", "production")
    outbox = {"adapter": "outbox", "path": str(folder / "outbox")}
    settings = {"senders": {"outbox": outbox}, "lanes": {"bulk": {"limits": list(limits)}}}
    configuration.apply_config(store, configuration.Config.model_validate(settings), "benchmark")
    options = LoadOptions(
        batch_size=1,
        from_address="Shop <news@shop.example>",
        unsubscribe_base_url="https://shop.example/u",
        rejects_folder=folder,
    )
    letter = source_of("letter", LETTER)
    people = write_list(folder / "list.csv", requests)
    load(store, campaign_id=CAMPAIGN, path=people, template=letter, options=options, by="benchmark")
    submit(store, CAMPAIGN, "benchmark")
    lane, key = running_lanes(store, ("bulk",))["bulk"], store_key(store)
    terms = replace(lane.terms, times=replace(lane.terms.times, visibility_s=600.0))
    elements = []
    for reference in plan_lane(store, terms, requests).references:
        rendered = render(store, key, reference, lambda template: compiled_for(store, template))
        assert rendered is not None
        elements.append(element_of(reference, *rendered))
    assert len(elements) == requests
    sender = _Instant("outbox", folder / "outbox")
    owner = Deliverer(store, sender, terms, "benchmark", own_clocks(), lambda reference: None)
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    accepted = sum(owner.deliver(element).outcomes.get("accepted", 0) for element in elements)
    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
    assert accepted == requests
    store.close()
    return {"ms": round(wall_s * 1000 / requests, 3), "cpu_ms": round(cpu_s * 1000 / requests, 3)}


def measure(requests: int) -> dict[str, dict[str, float]]:
    found = {}
    for name, limits in LIMITS.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = measure_one(requests, limits, Path(folder))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=500)
    print(json.dumps(measure(parser.parse_args().requests)))


if __name__ == "__main__":
    main()
