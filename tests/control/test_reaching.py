"""`doctor` at a provider's door: it connects and logs in, sends nothing, and says what is wrong without secrets."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from sendonce.config import SenderSettings
from sendonce.config.adapters import AnySender
from sendonce.control.findings import Finding
from sendonce.control.reaching import reach_senders
from tests.providers.sendgrid import FakeSendGrid
from tests.providers.smtp import FakeSmtp, Fault
from tests.senders.smtp_letters import PASSWORD, USER

READ: TypeAdapter[SenderSettings] = TypeAdapter(AnySender)


@pytest.fixture(autouse=True)
def _secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("U", USER)
    monkeypatch.setenv("P", PASSWORD)
    monkeypatch.setenv("WRONG", "swordfish")


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that nobody listens at, and that nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def looked_at(within_s: float = 20.0, **settings: Any) -> Finding:
    (found,) = reach_senders([READ.validate_python({"name": "post", **settings})], within_s)
    assert found.what == "sender post"
    assert PASSWORD not in found.found + found.mend
    assert "swordfish" not in found.found + found.mend
    return found


def smtp(port: int, **settings: Any) -> dict[str, Any]:
    return {"adapter": "smtp", "host": "127.0.0.1", "port": port, "tls": "never", **settings}


@pytest.mark.needs("aiosmtplib")
def test_a_mail_server_is_greeted_and_logged_in_at_and_gets_no_letter() -> None:
    with FakeSmtp(users={USER: PASSWORD}) as fake:
        found = looked_at(**smtp(fake.port, user="env:U", password="env:P"))
        said = fake.verbs()
    assert (found.level, found.mend) == ("ok", "")
    assert found.found == f"127.0.0.1:{fake.port} answers: no TLS asked for, logged in"
    assert "AUTH" in said
    assert "MAIL" not in said
    assert fake.taken == []


@pytest.mark.needs("aiosmtplib")
@pytest.mark.parametrize(
    ("fault", "settings", "told", "mend"),
    [
        (None, {"user": "env:U", "password": "env:WRONG"}, "smtp 535 5.7.8 at auth", "user and password"),
        (None, {"tls": "required"}, "tls_not_offered at starttls", "tls: implicit"),
        (Fault("banner", "leave", "554 5.7.1 go away"), {}, "at connect", ""),
        (Fault("ehlo", "close"), {}, "closed at ehlo", "ends connections"),
        (Fault("banner", "garbage"), {}, "at connect", ""),
    ],
    ids=["password", "starttls", "refused", "closed", "garbage"],
)
def test_what_is_wrong_at_a_mail_server_is_said_with_step_and_mend(
    fault: Fault | None, settings: dict[str, Any], told: str, mend: str
) -> None:
    with FakeSmtp(*([fault] if fault else []), users={USER: PASSWORD}) as fake:
        found = looked_at(**smtp(fake.port, **settings))
    assert found.level == "fail"
    assert f"no conversation with 127.0.0.1:{fake.port}" in found.found
    assert told in found.found
    assert mend in found.mend
    assert found.mend


@pytest.mark.needs("aiosmtplib")
def test_a_mail_server_that_says_nothing_is_not_waited_for() -> None:
    with FakeSmtp(Fault("banner", "silence")) as fake:
        found = looked_at(0.2, **smtp(fake.port))
    assert (found.level, "timeout at connect" in found.found) == ("fail", True)


@pytest.mark.needs("aiosmtplib")
def test_nobody_there(closed_port: int) -> None:
    found = looked_at(**smtp(closed_port))
    assert (found.level, "(connect)" in found.found) == ("fail", True)
    assert "nobody answers" in found.mend


@pytest.mark.needs("httpcore")
def test_a_provider_over_http_is_connected_to_and_asked_nothing(tmp_path: Path, closed_port: int) -> None:
    account = {"adapter": "sendgrid", "api_key": "env:P"}
    with FakeSendGrid(tmp_path / "log") as fake:
        found = looked_at(base_url=fake.url, **account)
        assert fake.requests() == []
    assert (found.level, found.found.split(";")[0]) == ("ok", f"{fake.url.removeprefix('http://')} can be reached")
    gone = looked_at(base_url=f"http://127.0.0.1:{closed_port}", **account)
    assert (gone.level, "(connect)" in gone.found) == ("fail", True)


@pytest.mark.needs("httpcore")
def test_a_certificate_that_is_no_certificate_is_told(closed_port: int) -> None:
    """A server that speaks no TLS where TLS is to be spoken."""
    with FakeSmtp() as fake:
        found = looked_at(adapter="resend", api_key="env:P", base_url=f"https://127.0.0.1:{fake.port}")
    assert (found.level, "(tls)" in found.found) == ("fail", True)
    assert "no secure connection" in found.mend


@pytest.mark.needs("httpcore")
def test_a_webhook_in_a_private_network_is_refused_as_letters_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", "whsec_" + "A" * 43 + "=")
    with FakeSmtp() as fake:
        found = looked_at(adapter="webhook", secret="env:HOOK", url=f"https://127.0.0.1:{fake.port}/x")
        assert fake.connections == 0
    assert (found.level, "(private_address)" in found.found) == ("fail", True)


def test_settings_that_make_no_sender_are_told_and_others_looked_at_all_the_same(tmp_path: Path) -> None:
    """A webhook's secret has a form; the outbox has no provider to look at."""
    bad = READ.validate_python(
        {"name": "hook", "adapter": "webhook", "secret": "env:WRONG", "url": "https://a.example"}
    )
    box = READ.validate_python({"name": "box", "adapter": "outbox", "path": str(tmp_path)})
    (found,) = reach_senders([box, bad])
    assert (found.level, found.what) == ("fail", "sender hook")
    assert "swordfish" not in found.found + found.mend
