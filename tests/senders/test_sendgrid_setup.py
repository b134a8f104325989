"""From settings to a sender that works: secrets, missing packages, and only what the lanes in use need."""

import subprocess
import sys
from pathlib import Path

import pytest

from sendonce.config import ConfigFault, apply_config, load_config, senders_in
from sendonce.delivery.lanes import make_sender, running_lanes
from sendonce.senders.base import Verdict
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store
from tests.providers.sendgrid import KEY, FakeSendGrid
from tests.senders.sendgrid_letters import packed, request_of, settings


def store_with(folder: Path, lanes: str, base_url: str = "https://api.sendgrid.com") -> Store:
    path = folder / "sendonce.yaml"
    path.write_text(
        "senders:\n"
        "  box: {adapter: outbox, path: out}\n"
        f"  mail: {{adapter: sendgrid, api_key: env:THE_KEY, base_url: '{base_url}'}}\n"
        f"lanes: {lanes}\n",
        encoding="utf-8",
    )
    store = init_store(f"sqlite:///{folder / 'store.db'}", "production")
    apply_config(store, load_config(path, {}), "ann")
    return store


def test_a_lane_sends_with_the_key_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THE_KEY", KEY)
    with FakeSendGrid(tmp_path / "log") as fake:
        store = store_with(tmp_path, "{bulk: {sender: mail}}", fake.url)
        sender = running_lanes(store, ("bulk",))["bulk"].sender
        reply = sender.send(sender.prepare(request_of([packed(0)])), 10)
        sender.close()
    assert (reply.verdict, reply.reason) == (Verdict.ACCEPTED, "")
    assert KEY not in str(senders_in(store))
    assert KEY.encode() not in (tmp_path / "store.db").read_bytes()


def test_a_missing_key_is_named_with_the_sender(tmp_path: Path) -> None:
    store = store_with(tmp_path, "{bulk: {sender: mail}}")
    with pytest.raises(ConfigFault, match=r"sender mail: its api_key is env:THE_KEY, and no such variable is set here"):
        running_lanes(store, ("critical", "bulk"))


def test_lanes_that_do_not_use_a_sender_do_not_need_its_key(tmp_path: Path) -> None:
    store = store_with(tmp_path, "{bulk: {sender: mail}}")
    assert set(running_lanes(store, ("critical", "high"))) == {"critical", "high"}


@pytest.mark.parametrize("package", ["httpcore", "sendgrid"])
def test_a_missing_package_is_named_with_the_mend(package: str) -> None:
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from sendonce.config import ConfigFault, SendGridSettings\n"
        "from sendonce.delivery.lanes import make_sender\n"
        "try: make_sender(SendGridSettings(name='mail', adapter='sendgrid', api_key='env:K'))\n"
        "except ConfigFault as fault: print(fault)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == (
        f"sender mail: the adapter sendgrid needs the package {package}, which is not installed; "
        "install sendonce[sendgrid]\n"
    )


def test_the_outbox_needs_neither_package() -> None:
    code = (
        "import sys; import sendonce.delivery.lanes, sendonce.cli.main\n"
        "print([name for name in ('httpcore', 'sendgrid', 'python_http_client') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"


def test_a_key_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    with FakeSendGrid(tmp_path / "log") as fake:
        sender = make_sender(settings(api_key=f"file:{tmp_path / 'key'}", base_url=fake.url))
        assert sender.send(sender.prepare(request_of([packed(0)])), 10).verdict is Verdict.ACCEPTED
        sender.close()
