import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

from sendonce.stores.base import Store
from tests.cli.conftest import Call

ROOT = Path(__file__).parents[2]


def test_web_serves_until_it_is_told_to_end(sendonce: Call, store: Store, folder: Path) -> None:
    child = subprocess.Popen(
        [sys.executable, "-m", "sendonce.cli", "web", "--unsubscribe", "--port", "0", "--json"],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    said = "".join(child.stdout.readline() for _ in range(3))
    url = json.loads(said)["listening"]
    with urllib.request.urlopen(f"{url}/healthz", timeout=10) as answer:
        assert answer.read() == b"ok\n"
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=20)
    assert (child.returncode, errors) == (0, "")


def test_web_must_be_told_what_to_serve(sendonce: Call, store: Store) -> None:
    answer = sendonce("web")
    assert answer.code == 2
    assert "`sendonce web --unsubscribe`" in answer.err


def test_a_port_that_is_taken_is_named(sendonce: Call, store: Store) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = sendonce("web", "--unsubscribe", "--port", str(port))
    assert answer.code == 1
    assert f"cannot listen on 127.0.0.1:{port}" in answer.err
    assert "choose another --host or --port" in " ".join(answer.err.split())


def test_keys_rotate(sendonce: Call, store: Store) -> None:
    assert sendonce("unsubscribe", "rotate-key", "--json").json == {"key": 1}
    assert "Key 2 signs" in sendonce("unsubscribe", "rotate-key").out
