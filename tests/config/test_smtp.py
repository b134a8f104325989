"""An SMTP account in `sendonce.yaml`: what may be set, and what would send a password where it does not belong."""

from pathlib import Path

import pytest

from sendonce.config import ConfigFault, SmtpSettings, apply_config, load_config, senders_in
from sendonce.stores.opening import init_store


def write(folder: Path, sender: str) -> Path:
    path = folder / "sendonce.yaml"
    path.write_text(f"senders:\n  post: {{adapter: smtp, {sender}}}\n", encoding="utf-8")
    return path


def account(folder: Path, sender: str) -> SmtpSettings:
    (found,) = load_config(write(folder, sender), {}).senders.values()
    assert isinstance(found, SmtpSettings)
    return found


def test_an_account_with_its_defaults(tmp_path: Path) -> None:
    found = account(tmp_path, "host: smtp.provider.example")
    assert (found.tls, found.at_port, found.parallel, found.user, found.secret_references()) == (
        "required", 587, 4, None, {},
    )  # fmt: skip


@pytest.mark.parametrize(("tls", "port"), [("required", 587), ("if_offered", 587), ("implicit", 465), ("never", 25)])
def test_the_usual_port_goes_with_the_kind_of_tls(tmp_path: Path, tls: str, port: int) -> None:
    assert account(tmp_path, f"host: smtp.provider.example, tls: {tls}").at_port == port
    assert account(tmp_path, f"host: smtp.provider.example, tls: {tls}, port: 2525").at_port == 2525


def test_it_survives_the_store(tmp_path: Path) -> None:
    config = load_config(
        write(
            tmp_path,
            "host: smtp.provider.example, user: env:U, password: 'file:/run/p', tls: implicit, port: 4465, parallel: 9,"
            " envelope_from: bounces@shop.example, ehlo_name: out.shop.example, letters_per_connection: 7",
        ),
        {},
    )
    store = init_store(f"sqlite:///{tmp_path / 'store.db'}")
    apply_config(store, config, "ann")
    assert senders_in(store) == config.senders
    assert config.senders["post"].secret_references() == {"user": "env:U", "password": "file:/run/p"}


@pytest.mark.parametrize("host", ["smtp.provider.example", "10.0.0.1", "::1", "localhost", "mail-1"])
def test_hosts_by_name_and_address(tmp_path: Path, host: str) -> None:
    assert account(tmp_path, f"host: '{host}'").host == host


@pytest.mark.parametrize(
    ("sender", "problem"),
    [
        ("tls: required", "host: is missing"),
        ("host: 'https://smtp.example'", "must be the name or IP address of a mail server"),
        ("host: 'a b'", "must be the name or IP address of a mail server"),
        ('host: "a\\nb"', "must be the name or IP address of a mail server"),
        ("host: ''", "must be the name or IP address of a mail server"),
        ("host: a.example, port: 0", "port"),
        ("host: a.example, tls: maybe", "tls"),
        ("host: a.example, parallel: 65", "parallel"),
        ("host: a.example, user: env:U", "user and password go together"),
        ("host: a.example, password: env:P", "user and password go together"),
        ("host: a.example, user: shop, password: env:P", "must say where the secret stands"),
        ("host: a.example, user: env:U, password: hunter2", "must say where the secret stands"),
        ("host: a.example, user: env:U, password: env:P, tls: never", "tls: never could let the password travel"),
        ("host: a.example, user: env:U, password: env:P, tls: if_offered", "tls: if_offered could let the password"),
        ("host: a.example, ehlo_name: 'a b'", "must be this machine's full name"),
        ("host: a.example, envelope_from: 'Shop <a@b.example>'", "must be one address"),
        ("host: a.example, envelope_from: 'jörg@shop.example'", "must be plain ASCII before the @-sign"),
    ],
)
def test_what_cannot_be_is_named_with_its_mend(tmp_path: Path, sender: str, problem: str) -> None:
    with pytest.raises(ConfigFault) as caught:
        load_config(write(tmp_path, sender), {})
    assert problem in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_password_may_travel_as_it_is_on_this_machine(tmp_path: Path) -> None:
    assert account(tmp_path, "host: 127.0.0.1, user: env:U, password: env:P, tls: never").user == "env:U"
