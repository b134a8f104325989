"""The SES adapter before moto, somebody else's AWS. It takes SendEmail; SendBulkEmail it does not know."""

import logging
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto.backends import get_backend
from moto.core import DEFAULT_ACCOUNT_ID
from moto.server import ThreadedMotoServer

from sendonce.senders.base import Verdict
from tests.providers.ses import REGION
from tests.senders.ses_letters import KEYS, packed, request_of, sender_for, verdicts, whole


@pytest.fixture
def moto() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield f"http://{host}:{port}"
    finally:
        get_backend("ses").reset()
        server.stop()


def account_at(url: str) -> Any:
    key_id, secret = KEYS["access_key_id"], KEYS["secret_access_key"]
    return boto3.client(
        "sesv2", endpoint_url=url, region_name=REGION, aws_access_key_id=key_id, aws_secret_access_key=secret
    )


def sent() -> list[tuple[str, str, str, str]]:
    backend = get_backend("ses")[DEFAULT_ACCOUNT_ID][REGION]
    return [(one.source, *one.destinations["ToAddresses"], one.subject, one.body) for one in backend.sent_messages]


def test_letters_that_go_alone_arrive(moto: str) -> None:
    account_at(moto).create_email_identity(EmailIdentity="news@shop.example")
    letters = [whole(number, html="<p>{{ été }}</p>\n", subject=f"Été {number}") for number in range(4)]
    with sender_for(moto) as sender:
        reply = sender.send(sender.prepare(request_of(letters)), 30)
    assert set(verdicts(reply, letters).values()) == {Verdict.ACCEPTED}, reply
    assert sorted(sent()) == [
        ("Shop <news@shop.example>", f"u{number}@one.example", f"Été {number}", "<p>{{ été }}</p>\n")
        for number in range(4)
    ]


def test_a_from_address_that_is_not_verified_halts_the_sender(moto: str) -> None:
    with sender_for(moto) as sender:
        reply = sender.send(sender.prepare(request_of([whole(0)])), 30)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "not_verified", True)
    assert sent() == []


def test_a_server_that_knows_no_bulk_refuses_nobody(moto: str) -> None:
    account_at(moto).create_email_identity(EmailIdentity="news@shop.example")
    with sender_for(moto) as sender:
        reply = sender.send(sender.prepare(request_of([packed(0)])), 30)
    assert (reply.verdict, reply.reason, reply.halts_sender) == (Verdict.NOT_SENT, "http_404", True)
    assert sent() == []
