"""`sendonce doctor` with senders: at their door, or offline; and addresses out of examples."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.tables import Switch
from sendonce.stores.opening import shared_store
from tests.cli.conftest import Call
from tests.providers.smtp import FakeSmtp
from tests.senders.smtp_letters import PASSWORD, USER


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are read but not rendered, which takes a process each."""
    monkeypatch.setattr("sendonce.rendering.check.check_template", lambda source: [])
    monkeypatch.setenv("U", USER)
    monkeypatch.setenv("P", PASSWORD)


def mail_server(folder: Path, port: int, more: str = "") -> None:
    (folder / "sendonce.yaml").write_text(
        "senders:\n  box: {adapter: outbox}\n"
        f"  post: {{adapter: smtp, host: 127.0.0.1, port: {port}, tls: never, user: env:U, password: env:P}}\n"
        f"lanes: {{high: {{sender: box, fallback: post}}}}\n{more}"
    )


@pytest.mark.needs("aiosmtplib")
def test_doctor_logs_in_at_a_mail_server_that_a_lane_may_send_by(sendonce: Call, folder: Path) -> None:
    with FakeSmtp(users={USER: PASSWORD}) as fake:
        mail_server(folder, fake.port, "recipients_allowed: ['@one.example']\n")
        sendonce("init")
        well = sendonce("doctor", "--json")
        fake.users = {USER: "another"}
        wrong = sendonce("doctor")
        connections = fake.connections
        offline = sendonce("doctor", "--offline", "--json")
        assert fake.connections == connections
        assert fake.taken == []

    (found,) = [finding for finding in well.json if finding["what"] == "sender post"]
    assert (found["level"], "logged in" in found["found"]) == ("ok", True)
    assert wrong.code == 1
    assert "smtp 535 5.7.8 at auth" in " ".join(wrong.out.split())
    assert PASSWORD not in well.out + wrong.out + wrong.err
    assert wrong.widest <= 80
    assert [finding for finding in offline.json if finding["what"] == "sender post"] == []


@pytest.mark.needs("aiosmtplib")
def test_doctor_does_not_ask_a_provider_that_may_not_be_used_from_here(
    sendonce: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with FakeSmtp(users={USER: PASSWORD}) as fake:
        mail_server(folder, fake.port)
        sendonce("init")
        assert sendonce("doctor").code == 1, "a store for tests without a guard"
        mail_server(folder, fake.port, "recipients_allowed: ['@one.example']\n")
        sendonce("config", "apply")
        monkeypatch.delenv("P")
        assert sendonce("doctor").code == 1, "a password that is missing"
        assert fake.connections == 0


def test_doctor_tells_of_a_fallback_that_is_not_well(sendonce: Call, folder: Path) -> None:
    (folder / "sendonce.yaml").write_text(
        "senders: {box: {adapter: outbox}, spare: {adapter: outbox, path: spare}}\n"
        "lanes: {high: {sender: box, fallback: spare}}\n"
    )
    sendonce("init")
    halted = Switch("sender:spare", "halted", datetime.now(UTC), "w", "disk_full")
    shared_store("sqlite:///.sendonce/sendonce.db").transact(lambda tx: tx.put(halted), tag="test")

    answer = sendonce("doctor", "--json")

    (found,) = [finding for finding in answer.json if finding["what"] == "sender spare"]
    assert (answer.code, found["level"], "halted (disk_full)" in found["found"]) == (1, "fail", True)


STARTERS = 'from: "Example Shop <news@shop.example>"\nunsubscribe: {base_url: "https://shop.example/u"}\n'
MAIL = "senders: {mail: {adapter: sendgrid, api_key: env:NOBODY_SET_IT%s}}\n"


@pytest.mark.parametrize(
    ("environment", "place", "level"),
    [
        ("production", "", "fail"),
        ("production", ", base_url: 'http://127.0.0.1:9'", "warn"),
        ("test", "", None),
    ],
)
def test_doctor_names_addresses_out_of_examples(
    sendonce: Call, folder: Path, environment: str, place: str, level: str | None
) -> None:
    sendonce("init", "--environment", environment)
    template = folder / "templates" / "ours"
    template.mkdir(parents=True)
    (template / "template.yaml").write_text("priority: high\nreply_to: help@example.com\n")
    (template / "subject.j2").write_text("Hi")
    (template / "body.txt.j2").write_text("Hi\n")
    (folder / "sendonce.yaml").write_text(STARTERS + MAIL % place)

    found = [one for one in sendonce("doctor", "--offline", "--json").json if "for examples" in one["found"]]

    assert [one["what"] for one in found] == (["addresses", "addresses", "template ours"] if level else [])
    assert {one["level"] for one in found} == ({level} if level else set())
    assert all(one["mend"] for one in found)


def test_init_and_apply_refuse_them_with_the_mend_and_a_mended_file_passes(sendonce: Call, folder: Path) -> None:
    assert sendonce("init", "--environment", "production").code == 0, "the starter sends by the outbox"
    (folder / "sendonce.yaml").write_text(STARTERS + MAIL % "")

    refused = sendonce("config", "apply")

    assert refused.code == 2
    said = " ".join(refused.err.split())
    assert "from is Example Shop <news@shop.example>, in a domain that is for examples" in said
    assert "unsubscribe.base_url is https://shop.example/u" in said
    (folder / "sendonce.yaml").write_text((STARTERS + MAIL % "").replace("shop.example", "shop.com"))
    assert sendonce("config", "apply").code == 0
