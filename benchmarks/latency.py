"""How long a one-time code takes while a newsletter goes out at full speed.

    python -m benchmarks.latency --json

From the moment at which a critical `send` is published to Pub/Sub until its request arrives at the provider: on
SQLite, through Google's Pub/Sub emulator, `sendonce run --subscription` in a process of its own, and a fake SendGrid in
another, which answers after 150 ms. Three times: nothing else to do (idle); a bulk campaign at full speed in the same
job (loaded); and that campaign in one job, critical sends in a second one (two processes). The bulk campaign outlasts
the sends, or the run fails. Then, in two processes, with bulk at a provider of its own that takes requests and never
answers: before the campaign begins, and with its breaker open (stalled). Clocks are one machine's.

Last line, one JSON object: idle_p50_ms, idle_p99_ms, loaded_p50_ms, loaded_p99_ms, two_process_p99_ms, bulk_per_s (of
the loaded part: recipients that arrived at the provider a second), and more under `more`: every latency, in order.
"""

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from benchmarks.sinks import KEY, SECRETS
from benchmarks.throughput import CAMPAIGN, FROM, prepare
from schemas.tables import Switch
from sendonce import config as configuration
from sendonce.control.campaigns import submit
from sendonce.control.pushed_templates import push_template
from sendonce.rendering.catalogue import find_template, source_of
from sendonce.stores.opening import open_store
from tests.emulated import Missing, pubsub_emulator

PROJECT = "projects/latency"
PROVIDER_MS = 150
# Requests of the bulk lane side by side: at 150 ms each, what lets the provider take 8,000 recipients a second.
BULK_PARALLEL = 16
_LINE = "Our spring collection is here, with more than a hundred new things for house and garden.\n"
# What most bulk letters are: a name, a condition, a link, 8 KB.
NEWS = source_of(
    "news",
    {
        "template.yaml": (
            "priority: bulk\nvariables:\n  name: {type: text, default: you}\n  points: {type: integer, default: 0}\n"
            "locales: [en]\ndefault_locale: en\n"
        ),
        "subject.j2": "News for {{ name }}",
        "body.txt.j2": (
            "Dear {{ name }},\n" + _LINE * 24 + "{% if points > 500 %}You have {{ points }} points.{% endif %}\n"
            "{{ unsubscribe_url }}\n"
        ),
        "body.html.j2": (
            "<html><body><p>Dear {{ name }},</p>" + f"<p>{_LINE}</p>" * 40 + "{% if points > 500 %}<p>You have "
            '{{ points }} points.</p>{% endif %}<p><a href="{{ unsubscribe_url }}">Unsubscribe</a></p></body></html>'
        ),
    },
)
PER_S = 10.0
# What of a bulk campaign has arrived when its templates are compiled and its connections open.
FULL_SPEED_AFTER = 20_000
# A bulk campaign whose provider never answers, and how soon its lane gives up on a request.
STALLED_BULK = 60_000
NEVER_MS = 3_600_000
IMPATIENT = {"request_timeout_s": 2.0, "lease_s": 8.0, "margin_s": 1.0, "permit_ttl_s": 1.0}
# A send that is not there after this is lost, and the run has failed.
PATIENCE_S = 60.0
_numbers = count(1)


@dataclass(frozen=True)
class Part:
    """One part of the run. latencies_ms: in the order of publishing. bulk_per_s: beside them."""

    latencies_ms: list[float]
    bulk_per_s: float

    def quantile(self, share: float) -> float:
        """The smallest latency that at least this share of them does not exceed."""
        ordered = sorted(self.latencies_ms)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Log:
    """What arrived at the fake SendGrid, as its log has it: read on, never again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_to = 0
        self.codes: dict[str, float] = {}
        self.bulk: list[tuple[float, int]] = []

    def look(self) -> None:
        with open(self._path, "rb") as log:
            log.seek(self._read_to)
            for line in log:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                found = json.loads(line)
                if found["campaign_id"] == CAMPAIGN:
                    self.bulk.append((found["at"], found["recipients"]))
                for address in found["to"] if found["recipients"] == 1 else ():
                    self.codes.setdefault(address, found["at"])

    def arrived(self) -> int:
        """Recipients of the bulk campaign so far."""
        return sum(recipients for _, recipients in self.bulk)

    def bulk_between(self, from_s: float, to_s: float) -> int:
        return sum(recipients for at, recipients in self.bulk if from_s <= at <= to_s)


def publish(publisher: Any, topic: str, sends: int, per_s: float) -> dict[str, float]:
    """One send after the other at this pace; when each was handed to Pub/Sub, by its address."""
    published: dict[str, float] = {}
    start_s = time.monotonic()
    for number in range(sends):
        time.sleep(max(0.0, start_s + number / per_s - time.monotonic()))
        address = f"code{next(_numbers)}@codes.example"
        body = {
            "v": 1,
            "type": "send",
            "idempotency_key": address,
            "template": "otp",
            "priority": "critical",
            "recipients": [{"recipient_id": address, "email": address, "variables": {"code": f"{number:06d}"}}],
        }
        published[address] = time.time()
        publisher.publish(topic, json.dumps(body).encode(), type="send", priority="critical")
    return published


def part(log: Log, publisher: Any, topic: str, sends: int, per_s: float) -> Part:
    published = publish(publisher, topic, sends, per_s)
    wait(lambda: not log.look() and published.keys() <= log.codes.keys(), "every send")
    from_s, to_s = min(published.values()), max(log.codes[address] for address in published)
    latencies = [(log.codes[address] - at) * 1000 for address, at in published.items()]
    return Part(latencies, log.bulk_between(from_s, to_s) / (to_s - from_s))


def wait(holds: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < end_s, f"never came: {what}"
        time.sleep(0.1)


@contextmanager
def provider(log: Path, answers_after_ms: int = PROVIDER_MS) -> Iterator[str]:
    """The fake SendGrid in a process of its own; gives its address."""
    log.touch()
    command = [sys.executable, "-m", "tests.providers.sendgrid", "--log", str(log), "--key", KEY, "--checks", "none"]
    server = subprocess.Popen([*command, "--delay-ms", str(answers_after_ms)], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield server.stdout.readline().split()[-1]
    finally:
        server.kill()  # one that never answers does not end by itself
        server.wait(10)


@contextmanager
def job(folder: Path, subscription: str, *options: str) -> Iterator[None]:
    """`sendonce run --subscription` as people start it, until the block ends."""
    command = [sys.executable, *RUN, "run", "--subscription", subscription, *options]
    environment = {**os.environ, "SENDONCE_STORE": f"sqlite:///{folder}/store.db", **SECRETS}
    with open(folder / "job.log", "ab") as said:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=said, stderr=said)
        try:
            yield
            assert process.poll() is None, (folder / "job.log").read_text()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(40)


RUN = ("-m", "sendonce.cli")


class Bench:
    """A store with a bulk campaign that is ready to go, a topic, a provider."""

    def __init__(self, folder: Path, stack: ExitStack, bulk: int) -> None:
        from google.cloud import pubsub_v1

        self.folder = folder
        self.log = Log(folder / "provider.log")
        url = stack.enter_context(provider(folder / "provider.log"))
        self.account = {"adapter": "sendgrid", "base_url": url, "api_key": "env:BENCH_KEY"}
        prepare(
            folder, bulk, "sendgrid", "rows", self.account, None, template=NEWS, parallel=BULK_PARALLEL, start=False
        )
        self.store = open_store(f"sqlite:///{folder}/store.db")
        push_template(self.store, find_template("otp"), "benchmark")
        self.publisher = pubsub_v1.PublisherClient(batch_settings=pubsub_v1.types.BatchSettings(max_messages=1))
        self._subscriber = pubsub_v1.SubscriberClient()

    def subscription(self) -> tuple[str, str]:
        """A new topic and its subscription."""
        number = next(_numbers)
        topic, subscription = f"{PROJECT}/topics/sends-{number}", f"{PROJECT}/subscriptions/sends-{number}"
        self.publisher.create_topic(name=topic)
        self._subscriber.create_subscription(name=subscription, topic=topic)
        return topic, subscription

    def start_bulk(self) -> None:
        submit(self.store, CAMPAIGN, "benchmark")
        wait(lambda: not self.log.look() and self.log.arrived() >= FULL_SPEED_AFTER, "a bulk campaign at full speed")

    def stall_bulk(self, stack: ExitStack) -> None:
        """Give bulk an account of its own, at a provider that takes requests and never answers."""
        url = stack.enter_context(provider(self.folder / "stalled.log", NEVER_MS))
        senders = {"sendgrid": self.account, "stalled": {**self.account, "base_url": url}}
        bulk = {"sender": "stalled", "parallel": BULK_PARALLEL, "times": IMPATIENT}
        settings = {"from": FROM, "senders": senders, "lanes": {"bulk": bulk}}
        configuration.apply_config(self.store, configuration.Config.model_validate(settings), "benchmark")

    def breaker_is_open(self) -> bool:
        row = self.store.read(lambda reader: reader.get(Switch, "sender:stalled"))
        return row is not None and row.kind in ("open", "probing")

    def bulk_must_go_on(self) -> None:
        row = self.store.read(lambda reader: reader.get(_campaign(), CAMPAIGN))
        assert row is not None
        assert row.state == "running", "the bulk campaign was over before the sends; make it larger"

    def warm_up(self, topic: str) -> None:
        """A job that has just started imports, connects and compiles; what it does next is what is measured."""
        part(self.log, self.publisher, topic, 5, PER_S)


def _campaign() -> type:
    from schemas.tables import Campaign

    return Campaign


def measure(sends: int, bulk: int, per_s: float = PER_S) -> dict[str, Any]:
    with ExitStack() as stack:
        os.environ["PUBSUB_EMULATOR_HOST"] = stack.enter_context(pubsub_emulator())
        one = Bench(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack, bulk)
        topic, subscription = one.subscription()
        with job(one.folder, subscription):
            one.warm_up(topic)
            idle = part(one.log, one.publisher, topic, max(20, sends // 3), per_s)
            one.start_bulk()
            loaded = part(one.log, one.publisher, topic, sends, per_s)
            one.bulk_must_go_on()
        two = Bench(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack, bulk)
        (_, bulk_subscription), (topic, subscription) = two.subscription(), two.subscription()
        with (
            job(two.folder, bulk_subscription, "--lanes", "bulk"),
            job(two.folder, subscription, "--lanes", "critical,high"),
        ):
            two.warm_up(topic)
            two.start_bulk()
            apart = part(two.log, two.publisher, topic, sends, per_s)
            two.bulk_must_go_on()
        alone, stalled = isolated(stack, sends, per_s)
    return {
        "idle_p50_ms": round(idle.quantile(0.5)),
        "idle_p99_ms": round(idle.quantile(0.99)),
        "loaded_p50_ms": round(loaded.quantile(0.5)),
        "loaded_p99_ms": round(loaded.quantile(0.99)),
        "two_process_p99_ms": round(apart.quantile(0.99)),
        "bulk_per_s": round(loaded.bulk_per_s),
        "more": {
            "sends": sends,
            "per_s": per_s,
            "bulk_recipients": bulk,
            "two_process_p50_ms": round(apart.quantile(0.5)),
            "two_process_bulk_per_s": round(apart.bulk_per_s),
            "two_process_idle_p50_ms": round(alone.quantile(0.5)),
            "two_process_idle_p99_ms": round(alone.quantile(0.99)),
            "stalled_p50_ms": round(stalled.quantile(0.5)),
            "stalled_p99_ms": round(stalled.quantile(0.99)),
            "idle_ms": _rounded(idle.latencies_ms),
            "loaded_ms": _rounded(loaded.latencies_ms),
            "two_process_ms": _rounded(apart.latencies_ms),
        },
    }


def isolated(stack: ExitStack, sends: int, per_s: float) -> tuple[Part, Part]:
    """Two processes; codes before bulk begins, and while bulk's provider stalls and its breaker is open."""
    bench = Bench(Path(stack.enter_context(tempfile.TemporaryDirectory())), stack, STALLED_BULK)
    bench.stall_bulk(stack)
    (_, bulk_subscription), (topic, subscription) = bench.subscription(), bench.subscription()
    with (
        job(bench.folder, bulk_subscription, "--lanes", "bulk"),
        job(bench.folder, subscription, "--lanes", "critical,high"),
    ):
        bench.warm_up(topic)
        alone = part(bench.log, bench.publisher, topic, max(20, sends // 3), per_s)
        submit(bench.store, CAMPAIGN, "benchmark")
        wait(bench.breaker_is_open, "an open breaker")
        stalled = part(bench.log, bench.publisher, topic, sends, per_s)
        assert bench.breaker_is_open(), "the breaker closed at a provider that never answers"
    return alone, stalled


def _rounded(values: Sequence[float]) -> list[int]:
    return [round(value) for value in values]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sends", type=int, default=300)
    parser.add_argument("--bulk", type=int, default=600_000, help="recipients of the bulk campaign")
    parser.add_argument("--per-s", type=float, default=PER_S)
    parser.add_argument("--json", action="store_true", help="the last line is one JSON object (it always is)")
    options = parser.parse_args()
    try:
        found = measure(options.sends, options.bulk, options.per_s)
    except Missing as missing:
        print(missing, file=sys.stderr)
        return 1
    more = found["more"]
    print(f"stalled: median {more['stalled_p50_ms']} ms, two processes", file=sys.stderr)
    for name in ("idle", "loaded", "two_process"):
        ordered = sorted(more[f"{name}_ms"])
        told = f"{name}: median {statistics.median(ordered):.0f} ms, worst {ordered[-1]} ms, {len(ordered)} sends"
        print(told, file=sys.stderr)
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
