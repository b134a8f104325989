"""The fake SES before AWS's own client: it takes what the real one would be sent, and says no in the same words."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import botocore.exceptions
import pytest
from botocore.config import Config

from tests.providers.http import Fate
from tests.providers.ses import KEY_ID, REGION, SECRET, FakeSes, arrivals

ENTRY: dict[str, Any] = {
    "Destination": {"ToAddresses": ["ann@one.example"]},
    "ReplacementTags": [{"Name": "message_id", "Value": "m1"}, {"Name": "attempt_id", "Value": "a1"}],
    "ReplacementHeaders": [],
    "ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": '{"name":"Ann"}'}},
}
CALL: dict[str, Any] = {
    "FromEmailAddress": "news@shop.example",
    "DefaultContent": {"Template": {"TemplateContent": {"Subject": "Hello {{name}}", "Text": "{{name}}\n"}}},
    "BulkEmailEntries": [ENTRY],
}


def client_of(fake: FakeSes, key_id: str = KEY_ID, secret: str = SECRET) -> Any:
    return boto3.client(
        "sesv2",
        endpoint_url=fake.url,
        region_name=REGION,
        aws_access_key_id=key_id,
        aws_secret_access_key=secret,
        config=Config(retries={"total_max_attempts": 1}),
    )


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeSes]:
    with FakeSes(tmp_path / "log.jsonl", bodies=tmp_path / "bodies.jsonl") as provider:
        yield provider


def test_awss_own_client_is_served(fake: FakeSes) -> None:
    (result,) = client_of(fake).send_bulk_email(**CALL)["BulkEmailEntryResults"]
    assert result["Status"] == "SUCCESS"
    (letter,) = fake.letters()
    assert (letter.to, letter.subject, letter.text) == ("ann@one.example", "Hello Ann", "Ann\n")
    assert [arrival.message_id for arrival in arrivals(fake.log)] == ["m1"]


@pytest.mark.parametrize(
    ("key_id", "secret", "code"),
    [(KEY_ID, "wrong", "InvalidSignatureException"), ("AKIAOTHER", SECRET, "UnrecognizedClientException")],
)
def test_a_wrong_signature_is_refused(fake: FakeSes, key_id: str, secret: str, code: str) -> None:
    with pytest.raises(botocore.exceptions.ClientError, match=code):
        client_of(fake, key_id, secret).send_bulk_email(**CALL)
    assert fake.taken() == []


def test_fifty_one_destinations_are_one_too_many(fake: FakeSes) -> None:
    with pytest.raises(client_of(fake).exceptions.BadRequestException, match="between 1 and 50"):
        client_of(fake).send_bulk_email(**{**CALL, "BulkEmailEntries": [ENTRY] * 51})
    entry = {**ENTRY, "ReplacementTags": [{"Name": "message_id", "Value": "a.b"}]}
    with pytest.raises(client_of(fake).exceptions.BadRequestException, match="Invalid tag"):
        client_of(fake).send_bulk_email(**{**CALL, "BulkEmailEntries": [entry]})
    assert fake.taken() == []


def test_a_bad_address_is_refused_alone(fake: FakeSes) -> None:
    bad = {**ENTRY, "Destination": {"ToAddresses": ["nobody"]}}
    first, second = client_of(fake).send_bulk_email(**{**CALL, "BulkEmailEntries": [bad, ENTRY]})[
        "BulkEmailEntryResults"
    ]
    assert (first["Status"], second["Status"]) == ("INVALID_PARAMETER", "SUCCESS")
    assert len(fake.letters()) == 1


def test_it_remembers_what_it_took_and_did_not_say(fake: FakeSes) -> None:
    """AWS's client cannot tell this from a call that was never read: why ours goes by the phase."""
    raised = set()
    for fate in (Fate(200, fault="close_after_read"), Fate(200, fault="close_before_read")):
        fake.script.append(fate)
        with pytest.raises(botocore.exceptions.HTTPClientError) as caught:
            client_of(fake).send_bulk_email(**CALL)
        raised.add(type(caught.value))
    assert len(raised) == 1
    assert fake.taken() == ["m1"]
