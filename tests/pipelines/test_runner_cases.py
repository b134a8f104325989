"""What Beam's local runners do to a pipeline that sends: bundles that run again, messages acknowledged too early."""

import csv
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.direct.direct_runner import BundleBasedDirectRunner
from apache_beam.runners.portability.fn_api_runner.fn_runner import FnApiRunner

from pipelines.campaign import CampaignOptions, Ports, build
from schemas.elements import PRIORITIES, Tick, TriggerMessage
from schemas.tables import Campaign
from sendonce.failpoints import armed
from sendonce.senders.base import Prepared, Reply
from sendonce.senders.outbox import Outbox
from sendonce.stores.opening import open_store
from tests.cli.conftest import Call, folder, sendonce  # noqa: F401  (fixtures)
from tests.emulated import Emulator
from tests.evidence import read_outbox
from tests.pipelines.shop import Shop
from transforms.worker import WorkerSpec

CASES = Path(__file__).parents[1] / "cases"
TIMES = {"request_timeout_s": 2, "permit_ttl_s": 2, "margin_s": 0.5, "lease_s": 5, "window_s": 1, "visibility_s": 2.5}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each message was handed to the provider."""
    found: Counter[str] = Counter()
    real = Outbox.send

    def send(self: Outbox, prepared: Prepared, timeout_s: float) -> Reply:
        found.update(letter.to for letter in prepared.request.chosen)
        return real(self, prepared, timeout_s)

    monkeypatch.setattr(Outbox, "send", send)
    return found


@pytest.mark.parametrize("runner", [FnApiRunner, BundleBasedDirectRunner])
@pytest.mark.filterwarnings("ignore")
def test_a_bundle_that_fails_at_its_third_element_sends_nothing_twice(
    shop: Shop, sent: Counter[str], runner: type
) -> None:
    """The case bundle-retry-resend: claims are in the store before the call, and are read again when the bundle is."""
    case = json.loads((CASES / "bundle-retry-resend" / "faults.json").read_text())
    people = read_people("bundle-retry-resend")
    assert [person["id"] for person in people].index(case["raise_at_recipient"]) == 2
    shop.configure(times=TIMES)
    shop.campaign("spring", people, batch_size=1, state="running")
    pipeline = beam.Pipeline(runner=runner(), options=PipelineOptions([]))
    ports = Ports(
        triggers=beam.Create([], reshuffle=False).with_output_types(TriggerMessage),
        ticks=beam.Create([Tick(1, time.time_ns() // 1_000_000)], reshuffle=False).with_output_types(Tick),
    )
    spec = WorkerSpec(shop.url, f"job-{runner.__name__}", PRIORITIES, can_wait=True)
    build(pipeline, CampaignOptions(spec), ports)
    said = []
    with armed("S3:raise:3"):  # once, on the first attempt
        try:
            pipeline.run().wait_until_finish()
        except Exception as fault:
            said.append(str(fault))
    assert all("failpoint S3" in text for text in said), "the runner that does not try again says so"
    assert 0 < len(sent) < 3
    assert shop.run().unfinished == 0
    assert shop.state("spring")[0] == "completed"
    assert sent == dict.fromkeys((person["email"] for person in people), 1)
    assert len(shop.letters()) == 3


def read_people(case: str) -> list[dict[str, Any]]:
    with (CASES / case / "recipients.csv").open(newline="") as file:
        return [{"id": row["recipient_id"], "email": row["email"]} for row in csv.DictReader(file)]


@pytest.mark.parametrize("after_s", [0.0, 0.9])
def test_triggers_that_a_killed_job_had_pulled_are_followed_by_the_next(
    sendonce: Call,  # noqa: F811
    folder: Path,  # noqa: F811
    pubsub: Emulator,
    after_s: float,
) -> None:
    """The case autoack-loss: kill -9 within a second of the first line that the job says."""
    from tests.pipelines.pubsub import Topic, trigger, until

    case = CASES / "autoack-loss"
    shutil.copy(case / "recipients.csv", folder)
    (folder / "templates" / "welcome").mkdir(parents=True)
    (folder / "templates" / "welcome" / "template.yaml").write_text(
        "priority: bulk\nlocales: [en]\ndefault_locale: en\n"
    )
    for name in ("subject.j2", "body.txt.j2", "body.html.j2"):
        (folder / "templates" / "welcome" / name).write_text("Welcome {{ unsubscribe_url }}\n")
    settings = {"from": "Shop <news@shop.example>", "lanes": {"bulk": {"times": TIMES}}}
    (folder / "sendonce.yaml").write_text(json.dumps(settings | {"unsubscribe": {"base_url": "https://x.example/u"}}))
    assert sendonce("init").code == 0
    messages = [json.loads(line)["data"] for line in (case / "messages.jsonl").read_text().splitlines()]
    for message in messages:
        loaded = sendonce("load", message["campaign_id"], message["recipients_uri"], "-t", message["template_id"])
        assert loaded.code == 0, loaded.err
    topic = Topic()
    topic.publish(*(trigger(message["action"], message["campaign_id"]) for message in messages))
    command = [sys.executable, "-m", "sendonce.cli", "run", "--subscription", topic.subscription]

    killed = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert killed.stderr is not None
    assert killed.stderr.readline().startswith("Live: triggers from")
    time.sleep(after_s)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()

    store = open_store("sqlite:///.sendonce/sendonce.db")
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as job:
        try:
            # The killed one may have sent everything: then this one has nothing to do, and is there all the same.
            assert job.stderr is not None
            assert job.stderr.readline().startswith("Live: triggers from")
            for message in messages:
                key = message["campaign_id"]
                until(lambda key=key: store.read(lambda r: r.get(Campaign, key)).state == "completed", key)  # type: ignore
            job.send_signal(signal.SIGTERM)
            _, said = job.communicate(timeout=40)
            assert job.returncode == 0, said
        finally:
            job.kill()
    letters = read_outbox(folder / ".sendonce" / "outbox")
    assert sorted(letter.campaign_id for letter in letters) == [message["campaign_id"] for message in messages]
    store.close()
