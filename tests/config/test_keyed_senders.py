"""The settings of Resend accounts and webhooks."""

from pathlib import Path

import pytest

from sendonce.config import (
    ConfigFault,
    ResendSettings,
    WebhookSettings,
    apply_config,
    load_config,
    senders_in,
)
from sendonce.stores.opening import init_store

HOOK = "adapter: webhook, secret: env:S, url: "


def write(folder: Path, sender: str) -> Path:
    path = folder / "sendonce.yaml"
    path.write_text(f"senders:\n  mail: {{{sender}}}\nlanes: {{bulk: {{sender: mail}}}}\n", encoding="utf-8")
    return path


def test_a_resend_account_with_its_defaults(tmp_path: Path) -> None:
    (sender,) = load_config(write(tmp_path, "adapter: resend, api_key: env:RESEND_API_KEY"), {}).senders.values()
    assert isinstance(sender, ResendSettings)
    assert (sender.base_url, sender.recipients, sender.parallel) == ("https://api.resend.com", 100, 2)
    assert sender.secret_references() == {"api_key": "env:RESEND_API_KEY"}


def test_a_webhook_with_its_defaults(tmp_path: Path) -> None:
    (sender,) = load_config(write(tmp_path, f"{HOOK}https://hooks.shop.example/in/"), {}).senders.values()
    assert isinstance(sender, WebhookSettings)
    assert (sender.url, sender.recipients, sender.idempotency_window_s) == ("https://hooks.shop.example/in/", 100, None)
    assert (sender.http_503, sender.allow_private) == ("unknown", False)
    assert sender.secret_references() == {"secret": "env:S"}


@pytest.mark.parametrize(
    "sender",
    [
        "adapter: resend, api_key: file:/run/secrets/key, base_url: http://127.0.0.1:9/, recipients: 50, parallel: 3",
        f"{HOOK}http://127.0.0.1:9/in, allow_private: true, idempotency_window_s: 3600, recipients: 7",
    ],
)
def test_settings_survive_the_store(tmp_path: Path, sender: str) -> None:
    config = load_config(write(tmp_path, sender), {})
    store = init_store(f"sqlite:///{tmp_path / 'store.db'}")
    apply_config(store, config, "ann")
    assert senders_in(store) == config.senders


@pytest.mark.parametrize(
    ("sender", "said"),
    [
        ("adapter: resend", "senders.mail.api_key: is missing; set it"),
        ("adapter: resend, api_key: re_canary", "must say where the secret stands, env:NAME or file:/path"),
        ("adapter: resend, api_key: env:K, base_url: http://api.resend.com", "base_url: must be an https address"),
        ("adapter: resend, api_key: env:K, recipients: 101", "recipients: Input should be less than or equal to 100"),
        ("adapter: webhook, secret: env:S", "senders.mail.url: is missing; set it"),
        ("adapter: webhook, url: https://a.example/", "senders.mail.secret: is missing; set it"),
        (f"{HOOK}http://a.example/", "url: must be an https address"),
        (f"{HOOK}http://127.0.0.1/", "url must be an https address (http only to this machine, with allow_private"),
        (f"{HOOK}http://10.0.0.1/, allow_private: true", "url: must be an https address"),
        (f"{HOOK}ftp://a.example/", "url: must be an https address"),
        (f"{HOOK}'https://ann:canary@a.example/'", "url: must hold no user, query or fragment"),
        (f"{HOOK}'https://a.example/?token=canary'", "url: must hold no user, query or fragment"),
        (f"{HOOK}'https://a.example/%0d%0a'", "url: must hold no encoded line break"),
        (f"{HOOK}https://a.example/, idempotency_window_s: -1", "idempotency_window_s: Input should be greater than"),
        (f"{HOOK}https://a.example/, recipients: 1001", "recipients: Input should be less than or equal to 1000"),
        (f"{HOOK}https://a.example/, max_request_bytes: 9", "max_request_bytes: Input should be greater than"),
        (f"{HOOK}https://a.example/, http_503: maybe", "http_503: must be 'unknown' or 'not_sent'"),
    ],
)
def test_a_bad_setting_names_the_sender_and_the_mend(tmp_path: Path, sender: str, said: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        load_config(write(tmp_path, sender), {})
    assert said in str(caught.value)
    assert "canary" not in str(caught.value)
