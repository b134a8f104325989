"""From settings to a mail server: secrets, the package, and lanes whose time is too short for its answers."""

import subprocess
import sys
from pathlib import Path

import pytest

from sendonce.config import apply_config, load_config, senders_in
from sendonce.delivery.lanes import running_lanes
from sendonce.senders.base import Verdict
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store
from tests.providers.smtp import FakeSmtp
from tests.senders.conformance import packed, request_of
from tests.senders.smtp_letters import PASSWORD, USER


def store_with(folder: Path, port: int, lane: str = "{sender: post}") -> Store:
    path = folder / "sendonce.yaml"
    path.write_text(
        f"store: sqlite:///{folder / 'store.db'}\n"
        "senders:\n"
        "  box: {adapter: outbox, path: out}\n"
        f"  post: {{adapter: smtp, host: 127.0.0.1, port: {port}, tls: never, user: env:U, password: env:P}}\n"
        f"lanes: {{bulk: {lane}}}\n",
        encoding="utf-8",
    )
    store = init_store(f"sqlite:///{folder / 'store.db'}", "production")
    apply_config(store, load_config(path, {}), "ann")
    return store


@pytest.mark.needs("aiosmtplib")
def test_a_lane_sends_with_the_secrets_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("U", USER)
    monkeypatch.setenv("P", PASSWORD)
    with FakeSmtp(users={USER: PASSWORD}) as fake:
        store = store_with(tmp_path, fake.port)
        sender = running_lanes(store, ("bulk",))["bulk"].sender
        reply = sender.send(sender.prepare(request_of([packed(0)])), 10)
        sender.close()
    assert (reply.verdict, reply.reason) == (Verdict.ACCEPTED, "")
    assert fake.taken[0].user == USER
    assert PASSWORD not in str(senders_in(store))
    assert PASSWORD.encode() not in (tmp_path / "store.db").read_bytes()


def test_a_missing_package_is_named_with_the_mend() -> None:
    code = (
        "import sys; sys.modules['aiosmtplib'] = None\n"
        "from sendonce.config import ConfigFault, SmtpSettings\n"
        "from sendonce.delivery.lanes import make_sender\n"
        "try: make_sender(SmtpSettings(name='post', adapter='smtp', host='a.example'))\n"
        "except ConfigFault as fault: print(fault)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (
        "sender post: the adapter smtp needs the package aiosmtplib, which is not installed; install sendonce[smtp]\n"
    )
