"""Accounts, keys, certificates and headers that are wrong, as a person meets them at the command line.

Each time the sender and the mend are named, nobody is refused for what is the account's fault, and the secret stands in
no output, no log and no file of ours.
"""

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sendonce.delivery import health, retry
from sendonce.stores.opening import shared_store
from tests.cli.conftest import Answer, Call
from tests.providers.certificates import self_signed, serving
from tests.providers.http import Fate
from tests.providers.sendgrid import FakeSendGrid, errors

pytestmark = pytest.mark.filterwarnings("ignore")
SECRET = "SG.canary-4711-never-to-be-seen"
PEOPLE = 30


class Account:
    """A folder with a campaign of 30 in three batches by the sender `mail`; remembers everything that was said."""

    def __init__(self, folder: Path, sendonce: Call, caplog: pytest.LogCaptureFixture) -> None:
        self.folder = folder
        self._sendonce = sendonce
        self._caplog = caplog
        self.said = ""

    def __call__(self, *arguments: str) -> Answer:
        answer = self._sendonce(*arguments)
        self.said += answer.out + answer.err
        return answer

    def settings(self, url: str, key: str = "env:THE_KEY", more: str = "") -> None:
        (self.folder / "sendonce.yaml").write_text(
            "from: Shop <news@shop.example>\nunsubscribe: {base_url: https://shop.example/u}\n"
            f"senders: {{mail: {{adapter: sendgrid, api_key: '{key}', base_url: '{url}', parallel: 1{more}}}}}\n"
            "lanes: {bulk: {batch_size: 10, parallel: 1}}\n"
        )

    def start(self, url: str, key: str = "env:THE_KEY", people: int = PEOPLE) -> None:
        self.settings(url, key)
        rows = [f"r{number},u{number}@one.example,Ann" for number in range(people)]
        (self.folder / "people.csv").write_text("\n".join(["recipient_id,email,name", *rows]))
        for command in (
            ("init", "--environment", "production"),
            ("config", "apply"),
            ("load", "spring", "people.csv", "-t", "newsletter"),
            ("submit", "spring", "--yes"),
        ):
            answer = self(*command)
            assert answer.code == 0, answer.err

    def status(self) -> Any:
        return self("status", "spring", "--json").json

    def words(self, *arguments: str) -> str:
        answer = self(*arguments)
        return " ".join((answer.out + answer.err).split())

    def leaks(self) -> list[str]:
        """Where the secret can be read: what was said and logged, and every file but its own."""
        places = {"said": self.said, "logged": "\n".join(record.getMessage() for record in self._caplog.records)}
        found = [place for place, text in places.items() if SECRET in text or SECRET[3:] in text]
        files = [path for path in self.folder.rglob("*") if path.is_file() and path.name != "the.key"]
        assert any(path.name == "sendonce.db" for path in files)
        return found + [str(path) for path in files if SECRET[3:].encode() in path.read_bytes()]


@pytest.fixture
def account(
    folder: Path, sendonce: Call, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Account]:
    monkeypatch.setenv("THE_KEY", SECRET)
    monkeypatch.setattr(retry, "LONGEST_S", 0.6)
    caplog.set_level(logging.DEBUG)
    account = Account(folder, sendonce, caplog)
    yield account
    assert account.leaks() == []
    shared_store("sqlite:///.sendonce/sendonce.db").close()


def provider(account: Account, **more: Any) -> FakeSendGrid:
    return FakeSendGrid(account.folder / "provider.jsonl", key=SECRET, checks="limits", **more)


# -- credentials ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "content", "says"),
    [
        ("env:NOT_SET_4711", None, "no such variable is set here; set NOT_SET_4711"),
        ("env:EMPTY", None, "which is empty; write the secret into it"),
        ("file:/nowhere/the.key", None, "which cannot be read (No such file or directory)"),
        ("file:{folder}", None, "which cannot be read (Is a directory)"),
        ("file:{folder}/the.key", b"", "which is empty"),
        ("file:{folder}/the.key", f"{SECRET}\nX-Evil: 1\n".encode(), "holds more than a secret"),
        ("file:{folder}/the.key", b"\xff\xfe\x00", "which is not text"),
    ],
)
def test_a_key_that_is_not_there_stops_the_run_before_anything_is_sent(
    account: Account, monkeypatch: pytest.MonkeyPatch, key: str, content: bytes | None, says: str
) -> None:
    monkeypatch.setenv("EMPTY", "")
    key = key.format(folder=account.folder)
    if content is not None:
        (account.folder / "the.key").write_bytes(content)
    with provider(account) as fake:
        account.start(fake.url, key)
        answer = account("run")
        said = " ".join((answer.out + answer.err).split())
        assert (answer.code, fake.requests()) == (2, [])
    assert f"sender mail: its api_key is {key}, " in said.replace("\\", "")
    assert says in said
    assert account.status()["open"] == PEOPLE


def test_a_secret_in_the_settings_is_refused_without_being_repeated(account: Account) -> None:
    (account.folder / "the.key").write_text(SECRET)
    account.settings("https://api.sendgrid.com", SECRET)
    answer = account("init")
    (account.folder / "sendonce.yaml").unlink()
    assert answer.code == 2
    assert "senders.mail.sendgrid.api_key" in answer.err or "senders.mail.api_key" in answer.err
    assert "env:NAME or file:/path" in " ".join(answer.err.split())
    account("init")


REFUSALS = {
    "a wrong key": (None, "credentials", "give the sender a key that is in force"),
    "no credits": (
        errors((None, "Maximum credits exceeded"), status=401),
        "credits",
        "the account's credits are used up",
    ),
    "an account under review": (
        errors((None, "Your account is under review"), status=403),
        "forbidden",
        "see whether the provider has blocked the account",
    ),
    "a from that is not verified, 403": (
        errors(("from", "The from address does not match a verified Sender Identity."), status=403),
        "refused_from",
        "verify the from address with the provider, or choose another",
    ),
    "a from that is not verified, 400": (
        errors(("from.email", "The from address does not match a verified Sender Identity."), status=400),
        "refused_from",
        "verify the from address with the provider, or choose another",
    ),
    "a wrong base_url": (errors((None, "not found"), status=404), "http_404", "check the sender's base_url"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_an_account_that_may_not_send_halts_its_sender_and_refuses_nobody(
    account: Account, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    fate, reason, mend = REFUSALS[name]
    if fate is None:
        monkeypatch.setenv("THE_KEY", "SG.another-key")
    with provider(account, rule=lambda _: fate) as fake:
        account.start(fake.url)
        run = account("run", "--json")
        assert (run.code, run.json["ended"], run.json["waits_for"]) == (1, "blocked", ["sender_halted"])
        (told,) = run.json["senders"]
        assert (told["sender"], told["state"], told["reason"]) == ("mail", "halted", reason)
        assert mend in told["mend"]
        assert len(fake.requests()) <= 2, "nothing more goes by a halted sender"
        said = account.words("run")
        assert f"sender mail is halted ({reason}) since" in said
        assert mend in said
        for command in (("status", "spring"), ("list",)):
            assert f"sender mail is halted ({reason})" in account.words(*command)
            assert mend in account.words(*command)
        status = account.status()
        assert (status["open"], status["failed_count"], status["in_doubt"]) == (PEOPLE, 0, 0)
        assert (status["sender_health"]["state"], status["stops"][0]["kind"]) == ("halted", "sender_halted")

        fake.rule = None
        monkeypatch.setenv("THE_KEY", SECRET)
        account("config", "apply")
        shared_store("sqlite:///.sendonce/sendonce.db")
        mended = account("run", "--json")
        assert (mended.code, mended.json["ended"], mended.json["senders"]) == (0, "done", [])
        assert sum(line["recipients"] for line in fake.accepted()) == PEOPLE
    assert account.status()["sent_count"] == PEOPLE
    assert account.status()["sender_health"]["state"] == "well"
    assert "halted" not in account.words("list")


def test_a_key_revoked_in_the_middle_leaves_the_rest_unsent(account: Account) -> None:
    revoked = errors((None, "The provided authorization grant is invalid, expired, or revoked"), status=401)
    with provider(account, script=[Fate(), revoked]) as fake:
        account.start(fake.url)
        assert account("run", "--json").json["senders"][0]["reason"] == "credentials"
        status = account.status()
        assert (status["sent_count"], status["open"], status["failed_count"]) == (10, 20, 0)
        assert account("run").code == 0
        assert sum(line["recipients"] for line in fake.accepted()) == PEOPLE


# -- the way to the provider ----------------------------------------------------------------------------------------


def refused_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        return f"https://127.0.0.1:{sock.getsockname()[1]}"


@pytest.mark.parametrize(
    ("url", "reason", "mend"),
    [
        ("", "connect", "nobody answers at the sender's base_url"),
        ("https://no-such-host.invalid", "dns", "the host of the sender's base_url, or its host, has no address"),
    ],
)
def test_nobody_at_the_other_end(account: Account, url: str, reason: str, mend: str) -> None:
    account.start(url or refused_port())
    fails_with(account, reason, mend)


def fails_with(account: Account, reason: str, mend: str) -> None:
    """Rounds until the breaker is open; each surface tells of it; nobody is refused or in doubt, no try beyond it."""
    seen = []
    for _ in range(60):
        told = account("run", "--once", "--json").json["senders"]
        seen.append(told[0]["state"])
        assert (told[0]["sender"], told[0]["reason"]) == ("mail", reason)
        if told[0]["state"] == "breaker_open":
            break
    assert seen[-1] == "breaker_open"
    assert told[0]["failures"] == health.FAILURES_TO_OPEN
    assert mend in told[0]["mend"]
    assert told[0]["next_probe"]
    for command in (("status", "spring"), ("list",), ("run", "--once")):
        said = account.words(*command)
        assert f"sender mail: breaker open ({reason}) since" in said
        assert "5 failures in a row" in said
        assert mend in said
    status = account.status()
    assert (status["open"], status["failed_count"], status["in_doubt"]) == (PEOPLE, 0, 0)
    assert status["stops"][0]["kind"] == "breaker_open"


@pytest.mark.parametrize(
    ("address", "days", "trusted", "reason", "mend"),
    [
        ("127.0.0.1", (-1, 1), False, "tls_untrusted", "nobody trusted vouches for the certificate"),
        ("127.0.0.1", (-9, -2), True, "tls_expired", "the certificate at the sender's base_url or host is out of date"),
        ("127.0.0.9", (-1, 1), True, "tls_host", "the certificate at the sender's base_url or host is another host's"),
    ],
)
def test_a_certificate_that_cannot_be_trusted(
    account: Account,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    address: str,
    days: tuple[int, int],
    trusted: bool,
    reason: str,
    mend: str,
) -> None:
    pem = self_signed(tmp_path_factory.mktemp("tls"), address, days=days)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with provider(account, tls=serving(pem)) as fake:
        account.start(fake.url)
        fails_with(account, reason, mend)
        assert fake.requests() == [], "the key was told to nobody"


def test_a_certificate_that_can_be_trusted(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    pem = self_signed(tmp_path_factory.mktemp("tls"))
    monkeypatch.setenv("SSL_CERT_FILE", str(pem))
    with provider(account, tls=serving(pem)) as fake:
        account.start(fake.url)
        assert account("run").code == 0
        assert sum(line["recipients"] for line in fake.accepted()) == PEOPLE


def test_throttling_is_told_with_its_end(account: Account) -> None:
    with provider(account, script=[Fate(429, {"Retry-After": "1800"})] * 3) as fake:
        account.start(fake.url)
        account("run", "--once")
        told = account("run", "--once", "--json").json["senders"][0]
        assert (told["state"], told["reason"], len(fake.requests())) == ("throttled", "http_429", 1)
        assert told["until"] == account.status()["sender_health"]["until"]
        for command in (("status", "spring"), ("list",), ("run", "--once")):
            assert "sender mail is throttled (http_429) by its provider until" in account.words(*command)
    status = account.status()
    assert (status["open"], status["failed_count"], status["stops"][0]["kind"]) == (PEOPLE, 0, "throttled")


def test_failures_before_the_breaker_are_told_too(account: Account) -> None:
    account.start(refused_port(), people=5)
    account("run", "--once")
    assert account.status()["sender_health"]["failures"] == 1
    assert "sender mail is failing (connect), 1 failure in a row; nobody answers" in account.words("status", "spring")


@pytest.mark.parametrize(
    "fate",
    [
        Fate(500),
        Fate(502),
        Fate(503),
        Fate(504),
        Fate(fault="close_after_read", accepts=True),
        Fate(fault="half_status"),
    ],
)
def test_what_may_have_been_accepted_is_in_doubt_and_never_sent_again(account: Account, fate: Fate) -> None:
    with provider(account, script=[fate]) as fake:
        account.start(fake.url)
        for _ in range(3):
            assert account("run", "--once").code == 1
        calls = [line["to"] for line in fake.requests()]
    status = account.status()
    assert (status["sent_count"], status["in_doubt"], status["open"], status["failed_count"]) == (20, 10, 0, 0)
    assert sorted(address for call in calls for address in call) == sorted(f"u{n}@one.example" for n in range(PEOPLE))
    assert "in doubt" in account.words("status", "spring")


# -- headers --------------------------------------------------------------------------------------------------------

BREAKS = ["\r\n", "\n", "\r", "\x00", "\x0b", "\x85", "\u2028"]
ENCODED = ["=?utf-8?q?A=0D=0ABcc?=", "=?UTF-8?B?QQpCY2M=?=", "=?iso-8859-1?Q?=0a?="]


@pytest.mark.parametrize("bad", [*(f"Shop{one}Bcc" for one in BREAKS), *ENCODED])
@pytest.mark.parametrize("quote", ['"{}"', "{}"])
def test_a_from_with_a_line_break_loads_nobody(account: Account, bad: str, quote: str) -> None:
    account.settings("https://api.sendgrid.com")
    (account.folder / "people.csv").write_text("recipient_id,email,name\nr1,u1@one.example,Ann\n")
    account("init")
    answer = account(
        "load", "spring", "people.csv", "-t", "newsletter", "--from", f"{quote.format(bad)} <a@shop.example>"
    )
    assert answer.code == 2
    assert "the address to send from is no address" in " ".join(answer.err.split())
    assert bad not in answer.err
    assert account("list", "--json").json == []


def reply_to(account: Account, bad: str) -> Answer:
    folder = account.folder / "letter"
    folder.mkdir()
    (folder / "template.yaml").write_text(f"priority: high\nreply_to: {json.dumps(bad)}\nlocales: [en]\n")
    (folder / "subject.j2").write_text("Hi")
    (folder / "body.txt.j2").write_text("Hello\n")
    return account("load", "spring", "people.csv", "-t", str(folder))


def setting(account: Account, name: str, bad: str) -> Answer:
    path = account.folder / "sendonce.yaml"
    text = path.read_text()
    if name == "unsubscribe":
        text = text.replace(
            "base_url: https://shop.example/u", f"base_url: {json.dumps('https://shop.example/u' + bad)}"
        )
    else:
        text = text.replace("parallel: 1", f"parallel: 1, categories: [{json.dumps(bad)}]", 1)
    path.write_text(text)
    answer = account("config", "apply")
    account.settings("https://api.sendgrid.com")
    return answer


ESCAPES = ["%0d%0aBcc:x", "/%0A", "/%250a", "/<x>"]


@pytest.mark.parametrize(
    ("where", "bad"),
    [
        *(("reply_to", f"Shop{one}Bcc <a@shop.example>") for one in BREAKS),
        *(("reply_to", f'"{one}" <a@shop.example>') for one in ENCODED),
        *(("unsubscribe", one) for one in [*BREAKS, *ESCAPES]),
        *(("categories", f"a{one}b") for one in BREAKS),
        *(("categories", one) for one in ENCODED),
    ],
)
def test_a_setting_with_a_line_break_is_refused_by_its_name(account: Account, where: str, bad: str) -> None:
    account.settings("https://api.sendgrid.com")
    (account.folder / "people.csv").write_text("recipient_id,email,name\nr1,u1@one.example,Ann\n")
    account("init")
    answer = reply_to(account, bad) if where == "reply_to" else setting(account, where, bad)
    assert answer.code == 2
    assert where in answer.err
    assert account("list", "--json").json == []


@pytest.mark.parametrize("bad", [*BREAKS[:3], "\x00", "\u2028"])
def test_a_value_with_a_line_break_in_the_subject_refuses_its_recipient_alone(account: Account, bad: str) -> None:
    with provider(account, bodies=account.folder / "bodies.jsonl") as fake:
        account.start(fake.url)
        folder = account.folder / "letter"
        folder.mkdir()
        (folder / "template.yaml").write_text(
            "priority: high\nvariables: {name: {type: text, required: true, example: Ann}}\nlocales: [en]\n"
        )
        (folder / "subject.j2").write_text("{{ name }}, your order")
        (folder / "body.txt.j2").write_text("Hello\n")
        people = [
            {"recipient_id": f"r{n}", "email": f"v{n}@one.example", "template_variables": {"name": name}}
            for n, name in enumerate(["Ann", f"A{bad}Bcc: e@evil.example", ENCODED[0], "Bob"])
        ]
        (account.folder / "four.ndjson").write_text("\n".join(map(json.dumps, people)))
        account("load", "four", "four.ndjson", "-t", str(folder))
        account("submit", "four", "--yes")
        account("run")
        letters = [letter for letter in fake.letters() if letter.to.startswith("v")]
    reached = {letter.to for letter in letters}
    assert {"v0@one.example", "v3@one.example"} <= reached
    assert "v1@one.example" not in reached
    assert all("\n" not in letter.subject and "\r" not in letter.subject for letter in letters)
