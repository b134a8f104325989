"""Which addresses a webhook may reach: every network that is somebody's own is refused, in every way of writing it."""

import socket
from pathlib import Path
from typing import Any

import pytest

from sendonce.senders.base import Verdict
from sendonce.senders.http import HttpPoster
from sendonce.senders.public_hosts import is_public
from tests.providers.certificates import self_signed, serving, trusting
from tests.providers.webhook import FakeReceiver
from tests.senders.sendgrid_letters import packed, request_of
from tests.senders.webhook_account import sender_for

PRIVATE = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "10.255.255.255",
    "100.64.0.1",
    "100.100.100.200",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.19.255.255",
    "198.51.100.7",
    "203.0.113.7",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:10.0.0.1",
    "::ffff:0:127.0.0.1",
    "64:ff9b::7f00:1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::10.1.2.3",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "3fff::1",
    "5f00::1",
    "fc00::1",
    "fd00::1",
    "fd00:ec2::254",
    "fd20:ce::254",
    "fe80::1",
    "fe80::1%eth0",
    "fec0::1",
    "ff02::1",
    "localhost",
    "2130706433",
    "0x7f000001",
    "127.1",
    "",
]
PUBLIC = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.1",
    "168.63.129.17",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "223.255.255.255",
    "::ffff:8.8.8.8",
    "64:ff9b::8.8.8.8",
    "2001:4860:4860::8888",
    "2606:4700:4700::1111",
    "2a00:1450:4001::1",
]


@pytest.mark.parametrize("address", PRIVATE)
def test_somebodys_own(address: str) -> None:
    assert not is_public(address)


@pytest.mark.parametrize("address", PUBLIC)
def test_the_internets(address: str) -> None:
    assert is_public(address)


def names_mean(monkeypatch: pytest.MonkeyPatch, *answers: list[str]) -> list[str]:
    """Let the resolver give these answers, one after the other; returns the hosts it was asked for."""
    asked: list[str] = []

    def look_up(host: str, port: int, **_: Any) -> list[tuple[Any, ...]]:
        addresses = answers[min(len(asked), len(answers) - 1)]
        asked.append(host)
        kinds = [socket.AF_INET6 if ":" in address else socket.AF_INET for address in addresses]
        return [
            (kind, socket.SOCK_STREAM, 6, "", (address, port, 0, 0)[: 4 if kind == socket.AF_INET6 else 2])
            for kind, address in zip(kinds, addresses, strict=True)
        ]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    return asked


def connects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whatever a socket connects to from now on; none of it is reached."""
    reached: list[str] = []

    def connect(self: socket.socket, address: tuple[Any, ...]) -> None:
        reached.append(address[0])
        raise OSError("not in this test")

    monkeypatch.setattr(socket.socket, "connect", connect)
    return reached


@pytest.mark.parametrize("address", ["127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1", "64:ff9b::a00:1", "fd00::1"])
def test_a_name_for_a_private_address_is_not_connected_to(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    names_mean(monkeypatch, [address])
    reached = connects(monkeypatch)
    with sender_for("https://hooks.shop.example/letters", allow_private=False) as sender:
        reply = sender.send(sender.prepare(request_of([packed(0)])), 5)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "private_address", True)
    assert reached == []


def test_of_several_addresses_only_the_public_ones_are_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    names_mean(monkeypatch, ["10.0.0.1", "8.8.8.8", "::1", "2606:4700:4700::1111"])
    reached = connects(monkeypatch)
    with sender_for("https://hooks.shop.example/letters", allow_private=False) as sender:
        reply = sender.send(sender.prepare(request_of([packed(0)])), 5)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "connect", False)
    assert reached == ["8.8.8.8", "2606:4700:4700::1111"]


def test_a_name_that_changes_its_meaning_gains_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rebinding: one look-up for a connection, and what it brought is what is judged and connected to."""
    asked = names_mean(monkeypatch, ["8.8.8.8"], ["169.254.169.254"])
    reached = connects(monkeypatch)
    with sender_for("https://hooks.shop.example/letters", allow_private=False) as sender:
        prepared = sender.prepare(request_of([packed(0)]))
        reasons = [sender.send(prepared, 5).reason for _ in range(3)]
    assert reasons == ["connect", "private_address", "private_address"]
    assert len(asked) == 3
    assert reached == ["8.8.8.8"]


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "localhost", "2130706433", "0x7f.1", "0177.0.0.1", "[::1]", "[::ffff:7f00:1]", "0.0.0.0"]
)
def test_a_server_on_this_machine_gets_nothing_however_it_is_written(host: str, tmp_path: Path) -> None:
    """A real server with a real certificate, and the system's own resolver."""
    pem = self_signed(tmp_path)
    with FakeReceiver(tls=serving(pem)) as fake:
        port = fake.url.rpartition(":")[2]
        reasons = []
        for may_connect in (is_public, lambda address: True):
            poster = HttpPoster(
                f"https://{host}:{port}", connections=1, ssl_context=trusting(pem), may_connect=may_connect
            )
            reasons.append(poster.post("/letters", {}, b"{}", 5).reason)
            poster.close()
        assert reasons[0] in ("private_address", "dns")
        assert reasons[0] == "dns" or reasons[1] != "private_address"
    if host == "127.0.0.1":
        assert [attempt.verdict for attempt in fake.attempts] == ["401"]
