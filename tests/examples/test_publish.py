"""The examples for publishers, each run against the emulator: what they publish is taken, what fails ends with 1."""

import json
import os
import subprocess
import sys

import jsonschema
import pytest

from tests.toolchains import EXAMPLES

pytest.importorskip("google.cloud.pubsub_v1", reason="google-cloud-pubsub is not installed")
from sendonce.control.sends import Send
from sendonce.control.triggers import read_trigger
from tests.pipelines.pubsub import Topic

ROOT = EXAMPLES.parents[1]
SCHEMA = json.loads((ROOT / "schemas" / "trigger.schema.json").read_text())
COMMANDS = {
    "gcloud": (["bash", "publish.sh"], EXAMPLES),
    "python": ([sys.executable, "publish.py"], EXAMPLES),
    "node": (["node", "publish.mjs"], EXAMPLES / "node"),
    "go": (["go", "run", "."], EXAMPLES / "go"),
}
ALL = [pytest.param(name, marks=[] if name == "python" else pytest.mark.toolchain(name)) for name in COMMANDS]

pytestmark = pytest.mark.usefixtures("pubsub")


def run(name: str, topic: str, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command, folder = COMMANDS[name]
    offline = {"GOPROXY": "off", "GOFLAGS": "-mod=readonly", "GOTOOLCHAIN": "local", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env={**os.environ, **offline, "SENDONCE_TOPIC": topic, **environment},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )


@pytest.mark.parametrize("name", ALL)
def test_it_publishes_a_send_that_a_job_takes(name: str) -> None:
    topic = Topic()
    for _ in range(2):
        done = run(name, topic.topic, 'login-"4711"', "ann@shop.example", "482 913")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("published as ")
    answer = topic._subscriber.pull(subscription=topic.subscription, max_messages=10)
    messages = [received.message for received in answer.received_messages]
    assert [dict(message.attributes) for message in messages] == [{"type": "send", "priority": "critical"}] * 2
    for message in messages:
        jsonschema.validate(json.loads(message.data), SCHEMA)
    first, again = (read_trigger(message.data) for message in messages)
    assert isinstance(first, Send)
    assert first == again
    assert first.idempotency_key == 'login-"4711"-code'
    assert "482 913" in first.recipients[0].variables


@pytest.mark.parametrize("name", ALL)
def test_what_is_not_published_ends_with_1_and_tells_nothing_of_a_person(name: str) -> None:
    done = run(name, "projects/shop-test/topics/not-there", "login-1", "ann@shop.example", "482913")
    assert done.returncode == 1
    assert "not published" in done.stderr
    assert "ann@" not in done.stderr + done.stdout


@pytest.mark.parametrize("name", ALL)
def test_a_call_without_arguments_tells_how(name: str) -> None:
    done = run(name, "projects/shop-test/topics/not-there")
    assert done.returncode == (1 if name == "go" else 2)  # `go run` makes 1 of it
    assert "usage: " in done.stderr


def test_the_python_example_waits_for_the_outcome() -> None:
    topic, told = Topic(), Topic()
    told.publish(
        b'{"v":1,"message_id":"m","idempotency_key":"login-2-code","outcome":"refused","reason":"expired",'
        b'"at":"2026-01-15T09:00:00Z"}'
    )
    done = run("python", topic.topic, "login-2", "a@b.example", "1", SENDONCE_OUTCOMES_SUBSCRIPTION=told.subscription)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["refused expired"]


def test_the_folder_says_how_to_run_each() -> None:
    words = (EXAMPLES / "README.md").read_text()
    for said in ("./publish.sh", "python publish.py", "node publish.mjs", "go run ."):
        assert said in words
