"""From settings to a Resend or webhook sender that works: secrets, missing packages, guards."""

import subprocess
import sys
from pathlib import Path

import pytest

from sendonce.config import ConfigFault, apply_config, load_config
from sendonce.control.guards import sender_obstacle
from sendonce.control.stops import MENDS
from sendonce.delivery.lanes import make_sender, running_lanes
from sendonce.senders.base import Verdict
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store
from tests.providers.resend import KEY, FakeResend
from tests.providers.webhook import SECRET, FakeReceiver
from tests.senders import resend_account, webhook_account
from tests.senders.sendgrid_letters import packed, request_of


def store_with(folder: Path, sender: str, environment: str, guard: str = "") -> Store:
    path = folder / "sendonce.yaml"
    path.write_text(f"senders: {{mail: {{{sender}}}}}\nlanes: {{bulk: {{sender: mail}}}}\n{guard}\n", encoding="utf-8")
    store = init_store(f"sqlite:///{folder / 'store.db'}", environment)
    apply_config(store, load_config(path, {}), "ann")
    return store


def test_a_resend_lane_sends_with_the_key_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    with FakeResend() as fake:
        settings = f"adapter: resend, api_key: 'file:{tmp_path / 'key'}', base_url: '{fake.url}'"
        sender = running_lanes(store_with(tmp_path, settings, "production"), ("bulk",))["bulk"].sender
        assert sender.send(sender.prepare(request_of([packed(0)])), 10).verdict is Verdict.ACCEPTED
        sender.close()
    assert KEY.encode() not in (tmp_path / "store.db").read_bytes()


def test_a_webhook_lane_signs_with_the_secret_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("S", SECRET)
    with FakeReceiver() as fake:
        settings = f"adapter: webhook, secret: env:S, url: '{fake.url}/letters', allow_private: true"
        store = store_with(tmp_path, settings, "test", 'recipients_allowed: ["@one.example"]')
        lane = running_lanes(store, ("bulk",))["bulk"]
        assert lane.sender.send(lane.sender.prepare(request_of([packed(0)])), 10).verdict is Verdict.ACCEPTED
        assert lane.terms.asks_again_s is None
        lane.sender.close()
    assert SECRET.encode() not in (tmp_path / "store.db").read_bytes()


def test_a_bad_secret_stops_the_lane_with_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("S", "canary")
    store = store_with(tmp_path, "adapter: webhook, secret: env:S, url: 'https://a.example/'", "production")
    with pytest.raises(ConfigFault, match="sender mail: its secret does not begin with whsec_") as caught:
        running_lanes(store, ("bulk",))
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("guard", ["", 'recipients_allowed: ["@one.example"]', "redirect_all_to: qa@shop.example"])
def test_no_store_for_production_sends_to_private_addresses(tmp_path: Path, guard: str) -> None:
    """A guard is about people, not about networks."""
    settings = "adapter: webhook, secret: env:S, url: 'https://a.example/', allow_private: true"
    store = store_with(tmp_path, settings, "production", guard)
    said = "sender mail has allow_private, which is for tests, and this store is for production"
    assert said in store.read(lambda reader: sender_obstacle(reader, "mail"))
    with pytest.raises(ConfigFault, match=said):
        running_lanes(store, ("bulk",))


def test_a_webhook_is_a_real_sender(tmp_path: Path) -> None:
    store = store_with(tmp_path, "adapter: webhook, secret: env:S, url: 'https://a.example/'", "test")
    assert "reaches real people" in store.read(lambda reader: sender_obstacle(reader, "mail"))


@pytest.mark.parametrize(
    "made",
    [
        "ResendSettings(name='mail', adapter='resend', api_key='env:K')",
        "WebhookSettings(name='mail', adapter='webhook', secret='env:K', url='https://a.example/')",
    ],
)
def test_a_missing_package_is_named_with_the_mend(made: str) -> None:
    code = (
        "import sys; sys.modules['httpcore'] = None\n"
        "from sendonce.config import ConfigFault, ResendSettings, WebhookSettings\n"
        "from sendonce.delivery.lanes import make_sender\n"
        f"try: make_sender({made})\n"
        "except ConfigFault as fault: print(fault)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    adapter = "resend" if "Resend" in made else "webhook"
    assert done.stdout == (
        f"sender mail: the adapter {adapter} needs the package httpcore, which is not installed; "
        f"install sendonce[{adapter}]\n"
    )


def test_a_missing_secret_is_named_with_the_sender() -> None:
    for settings, name in ((resend_account.settings(), "api_key"), (webhook_account.settings(), "secret")):
        with pytest.raises(ConfigFault, match=rf"sender \w+: its {name} is env:\w, and no such variable is set"):
            make_sender(settings)


def test_whatever_halts_these_senders_has_a_mend() -> None:
    reasons = {"credentials", "forbidden", "refused_from", "refused_reply_to", "refused_all", "monthly_quota"}
    reasons |= {"security_error", "signature_refused", "no_receiver", "receiver_gone", "redirect", "private_address"}
    assert reasons <= set(MENDS)
