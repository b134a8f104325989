"""What benchmarks count on of their sinks: that they take what a sender sends, and notice what is not the same."""

import smtplib
from pathlib import Path

import pytest

from benchmarks import sinks
from schemas.ids import attempt_id
from sendonce.config import Config
from sendonce.delivery.lanes import make_sender
from sendonce.senders.base import Reply, Verdict
from tests.senders.sendgrid_letters import NOW_S, packed, request_of

SENDERS = sorted(sinks.PROVIDERS)


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in sinks.SECRETS.items():
        monkeypatch.setenv(name, value)


def send(name: str, sink: sinks.Sink, *ordinals: int, attempt: int = 0) -> Reply:
    config = Config.model_validate({"from": "Shop <news@shop.example>", "senders": {name: sink.settings()}})
    sender = make_sender(config.senders[name])
    try:
        request = request_of([packed(n) for n in ordinals], attempt=attempt_id(NOW_S * 1000 + attempt, bytes(10)))
        return sender.send(sender.prepare(request), 20.0)
    finally:
        sender.close()


@pytest.mark.parametrize("name", SENDERS)
def test_a_sink_tells_what_arrived_since_it_was_asked(name: str, tmp_path: Path) -> None:
    with sinks.sink_of(name, tmp_path) as sink:
        assert send(name, sink, 0, 1, 2).verdict is Verdict.ACCEPTED
        first = sink.arrived()
        assert first.recipients == 3
        assert first.requests == (3 if name == "smtp" else 1)
        assert first.bytes > 100
        assert sink.arrived().recipients == 0
        send(name, sink, 0, 1, 2, attempt=1)
        assert sink.arrived() == first  # another attempt, the same letters
        send(name, sink, 0, 1, 3, attempt=2)
        assert sink.arrived().content != first.content
        assert sink.busy_s() > 0


@pytest.mark.parametrize(("name", "secret"), [("ses", "BENCH_SES_SECRET"), ("webhook", "BENCH_WEBHOOK_SECRET")])
def test_what_a_sink_refused_is_no_arrival(
    name: str, secret: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(secret, f"{sinks.SECRETS[secret][:-4]}AAA=")
    with sinks.sink_of(name, tmp_path) as sink:
        assert send(name, sink, 0).verdict is Verdict.NOT_SENT
        with pytest.raises(AssertionError):
            sink.arrived()


def test_the_mail_sink_speaks_to_a_client_of_other_make_and_refuses_what_breaks_the_rules(tmp_path: Path) -> None:
    """Python's own smtplib, which doubles dots, uses no PIPELINING and knows SIZE and 8BITMIME."""
    with sinks.sink_of("smtp", tmp_path) as sink:
        account = sink.settings()
        with smtplib.SMTP(account["host"], account["port"], timeout=20) as client:
            client.ehlo()
            assert client.has_extn("pipelining")
            message = b"Message-ID: <one@shop.example>\r\n\r\n.a line\r\n..\r\n"
            client.sendmail("a@shop.example", ["b@one.example"], message)
            taken = sink.arrived()
            assert (taken.recipients, taken.bytes) == (1, len(message))
            assert client.docmd("DATA")[0] == 503
            assert client.docmd("RCPT", "TO:<b@one.example>")[0] == 503
            assert client.docmd("HELP")[0] == 500
            for body in (b"bare\nline", b"x" * 1001, "ü".encode()):
                assert client.docmd("MAIL", "FROM:<a@shop.example>")[0] == 250
                assert client.docmd("RCPT", "TO:<b@one.example>")[0] == 250
                assert client.docmd("DATA")[0] == 354
                client.send(body + b"\r\n.\r\n")
                assert client.getreply()[0] in (500, 550, 554)
        assert sink.arrived().recipients == 0


def test_the_mail_sink_keeps_the_order_of_commands_that_come_in_one_piece(tmp_path: Path) -> None:
    with sinks.sink_of("smtp", tmp_path) as sink:
        account = sink.settings()
        with smtplib.SMTP(account["host"], account["port"], timeout=20) as client:
            client.ehlo()
            client.send(b"MAIL FROM:<a@s.example>\r\nRCPT TO:<b@s.example>\r\nRCPT TO:<c@s.example>\r\nDATA\r\n")
            assert [client.getreply()[0] for _ in range(4)] == [250, 250, 250, 354]
            client.send(b".\r\nMAIL FROM:<a@s.example>\r\nRSET\r\n")
            assert [client.getreply()[0] for _ in range(3)] == [250, 250, 250]
        assert sink.arrived().recipients == 2
