"""The SMTP adapter before servers of other make: aiosmtpd, and smtp-server for Node."""

import base64
import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from schemas.outcomes import Outcome
from sendonce.senders.base import Verdict
from tests.providers.certificates import self_signed, serving, trusting
from tests.providers.http import wait_until
from tests.senders.conformance import HARD, HARD_TEXTS, packed, request_of, same, verdicts, whole
from tests.senders.smtp_letters import PASSWORD, USER, outcomes, sender_for, sent_of

NODE = Path(__file__).resolve().parents[1] / "providers" / "node"
SECRETS = {"user": USER, "password": PASSWORD}
SERVERS = [
    pytest.param("aiosmtpd", marks=pytest.mark.needs("aiosmtplib", "aiosmtpd")),
    pytest.param("smtp-server", marks=[pytest.mark.needs("aiosmtplib"), pytest.mark.toolchain("smtp-server")]),
]


@dataclass(frozen=True)
class Took:
    to: str
    mail_from: str
    data: bytes
    tls: bool
    user: str


@dataclass
class Real:
    port: int
    took: list[Took] = field(default_factory=list)


@contextmanager
def aiosmtpd(pem: Path | None, *, users: bool, eight_bit: bool = True) -> Iterator[Real]:
    from aiosmtpd.controller import Controller
    from aiosmtpd.smtp import AuthResult

    class Handler:
        async def handle_RCPT(self, server: Any, session: Any, envelope: Any, address: str, options: Any) -> str:
            if address.startswith("nobody@"):
                return "550 5.1.1 no such user"
            envelope.rcpt_tos.append(address)
            return "250 OK"

        async def handle_DATA(self, server: Any, session: Any, envelope: Any) -> str:
            user = session.auth_data.login.decode() if session.auth_data else ""
            tls = session.ssl is not None
            there.took.append(Took(envelope.rcpt_tos[0], envelope.mail_from, envelope.original_content, tls, user))
            return "250 2.0.0 Ok: queued as AIO00001"

    def allow(server: Any, session: Any, envelope: Any, mechanism: str, auth: Any) -> Any:
        right = (auth.login, auth.password) == (USER.encode(), PASSWORD.encode())
        return AuthResult(success=right, handled=False, auth_data=auth)

    controller = Controller(
        Handler(),
        hostname="127.0.0.1",
        port=0,
        tls_context=serving(pem) if pem else None,
        require_starttls=pem is not None,
        auth_required=users,
        auth_require_tls=pem is not None,
        authenticator=allow if users else None,
        enable_SMTPUTF8=True,
        data_size_limit=2**25,
    )
    controller.port = _free_port()
    controller.start()
    there = Real(controller.port)
    try:
        yield there
    finally:
        controller.stop()


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as held:
        return int(held.getsockname()[1])


@contextmanager
def smtp_server(pem: Path | None, *, users: bool) -> Iterator[Real]:
    options = {"pem": str(pem) if pem else None, **(SECRETS if users else {})}
    server = subprocess.Popen(
        ["node", "server.mjs", json.dumps(options)], cwd=NODE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
    )
    assert server.stdout is not None
    there = Real(int(server.stdout.readline()))

    def listen() -> None:
        assert server.stdout is not None
        for line in server.stdout:
            one = json.loads(line)
            data = base64.b64decode(one["data"])
            there.took.append(Took(one["to"][0], one["from"], data, one["tls"], one["user"]))

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    try:
        yield there
    finally:
        server.terminate()
        server.wait(10)
        listener.join(10)
        server.stdout.close()


@contextmanager
def running(make: str, pem: Path | None = None, *, users: bool = False) -> Iterator[Real]:
    with {"aiosmtpd": aiosmtpd, "smtp-server": smtp_server}[make](pem, users=users) as there:
        yield there


@pytest.mark.parametrize("make", SERVERS)
def test_letters_arrive_there_as_they_were_rendered(make: str) -> None:
    letters = [packed(n, ["Ann", value]) for n, value in enumerate(HARD)]
    letters += [whole(n, text=text, html=f"<pre>{text}</pre>\n") for n, text in enumerate(HARD_TEXTS, len(HARD))]
    with running(make) as there, sender_for(there.port) as sender:
        for first in range(0, len(letters), 20):
            chosen = letters[first : first + 20]
            reply = sender.send(sender.prepare(request_of(chosen)), 30.0)
            assert (reply.verdict, reply.exceptions) == (Verdict.ACCEPTED, {})
        wait_until(lambda: len(there.took) == len(letters))
    found = {one.to: sent_of(one.to, one.data) for one in there.took}
    request = request_of(letters)
    for letter in letters:
        sent = found[letter.to]
        subject, text, html = request.letters.texts(letter)
        assert (sent.subject, same(sent.text), same(sent.html)) == (subject, same(text), same(html))
        assert sent.message_id == letter.message_id


@pytest.mark.parametrize("make", SERVERS)
def test_it_logs_in_there_over_tls(make: str, tmp_path: Path) -> None:
    pem = self_signed(tmp_path)
    with (
        running(make, pem, users=True) as there,
        sender_for(there.port, SECRETS, trusting(pem), tls="required") as sender,
    ):
        letters = [packed(0), packed(1), whole(2, text="a line of a long letter\n" * 100_000)]
        assert sender.send(sender.prepare(request_of(letters)), 30.0).verdict is Verdict.ACCEPTED
        wait_until(lambda: len(there.took) == 3)
    assert {(one.tls, one.user, one.mail_from) for one in there.took} == {(True, USER, "news@shop.example")}


@pytest.mark.parametrize("make", SERVERS)
def test_a_wrong_password_is_refused_there_and_halts(make: str, tmp_path: Path) -> None:
    pem = self_signed(tmp_path)
    wrong = {"user": USER, "password": "wrong"}
    with (
        running(make, pem, users=True) as there,
        sender_for(there.port, wrong, trusting(pem), tls="required") as sender,
    ):
        reply = sender.send(sender.prepare(request_of([packed(0)])), 30.0)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "credentials", True)


@pytest.mark.parametrize("make", SERVERS)
def test_one_bad_address_is_refused_there_alone(make: str) -> None:
    letters = [packed(0), packed(1, to="nobody@one.example"), packed(2), packed(3, to="j\u00f6rg@one.example")]
    with running(make) as there, sender_for(there.port, parallel=1) as sender:
        reply = sender.send(sender.prepare(request_of(letters)), 30.0)
        assert outcomes(reply, letters) == {1: Outcome.PROVIDER_UNKNOWN_MAILBOX}
        assert sum(one is Verdict.ACCEPTED for one in verdicts(reply, letters).values()) == 3
        wait_until(lambda: len(there.took) == 3)
    assert [one.to for one in there.took] == ["u0@one.example", "u2@one.example", "j\u00f6rg@one.example"]
