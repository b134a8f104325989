"""docs/webhook.md: its request and settings are what is sent and read, and its receiver works as it stands there."""

import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import orjson
import pytest
import yaml

from sendonce.config import WebhookSettings
from sendonce.senders.base import Verdict
from tests.providers.http import wait_until
from tests.providers.webhook import SECRET, valid
from tests.senders.sendgrid_letters import packed, request_of
from tests.senders.webhook_account import sender_for

PAGE = (Path(__file__).resolve().parents[1] / "docs" / "webhook.md").read_text("utf-8")


def block(language: str) -> str:
    (found,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return str(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return int(sock.getsockname()[1])


def answers(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def receiver(folder: Path) -> Iterator[tuple[str, Path]]:
    """The page's receiver in a process of its own: its url, and the file of what it says."""
    (folder / "receiver.py").write_text(block("python"), "utf-8")
    port, said = free_port(), folder / "said"
    with said.open("w") as out:
        process = subprocess.Popen(
            [sys.executable, str(folder / "receiver.py")],
            env={**os.environ, "WEBHOOK_SECRET": SECRET, "PORT": str(port)},
            stdout=out,
            stderr=subprocess.DEVNULL,
        )
        try:
            wait_until(lambda: answers(port), 20)
            yield f"http://127.0.0.1:{port}/letters", said
        finally:
            process.terminate()
            process.wait(10)


def test_the_receiver_takes_a_request_once_and_answers_its_repeat(tmp_path: Path) -> None:
    letters = [packed(number) for number in range(3)]
    with receiver(tmp_path) as (url, said), sender_for(url, now_s=time.time) as sender:
        prepared = sender.prepare(request_of(letters))
        replies = [sender.send(prepared, 10) for _ in range(2)]
        taken = said.read_text().splitlines()
    assert [(reply.verdict, reply.reason, dict(reply.exceptions)) for reply in replies] == [
        (Verdict.ACCEPTED, "", {})
    ] * 2
    assert taken == [f"to be sent: {letter.message_id}" for letter in letters]


@pytest.mark.parametrize(
    ("secret", "off_s"), [("whsec_" + "A" * 32, 0), (SECRET, 301), (SECRET, -301)], ids=["secret", "ahead", "old"]
)
def test_the_receiver_refuses_what_is_not_signed_by_us_now(tmp_path: Path, secret: str, off_s: int) -> None:
    with (
        receiver(tmp_path) as (url, said),
        sender_for(url, secret=secret, now_s=lambda: time.time() + off_s) as sender,
    ):
        reply = sender.send(sender.prepare(request_of([packed(0)])), 10)
        assert said.read_text() == ""
    assert (reply.verdict, reply.reason) == (Verdict.NOT_SENT, "signature_refused")


def test_the_request_on_the_page_is_one() -> None:
    shown = orjson.loads(block("json"))
    valid("request", shown)
    with sender_for("http://127.0.0.1:9/letters") as sender:
        sent = orjson.loads(sender.prepare(request_of([packed(0)])).body)
    assert shape(sent) == shape(shown)


def shape(value: object) -> object:
    """The names in a value, without what they stand for."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return [shape(inner) for inner in value] if isinstance(value, list) else ""


def test_the_settings_on_the_page_are_read() -> None:
    settings = WebhookSettings.model_validate({"name": "hook", **yaml.safe_load(block("yaml"))["senders"]["hook"]})
    assert settings.url.startswith("https://")
    for name in ("recipients", "max_request_bytes", "parallel", "http_503", "allow_private", "idempotency_window_s"):
        assert f"`{name}" in PAGE or f"{name}:" in PAGE
    assert f"`max_request_bytes` ({settings.max_request_bytes:,})" in PAGE.replace("\n", " ")
