"""Only what SendGrid signed is an event."""

import base64

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from sendonce.senders.sendgrid_events import is_signed

BODY = '[{"event":"delivered","sg_event_id":"1","email":"zoë@one.example"}]\r\n'.encode()
TIMESTAMP = "1767225600"
KEY, OTHER = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())


def shown(key: ec.EllipticCurvePrivateKey) -> str:
    """The public key as an account's settings show it."""
    return base64.b64encode(key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).decode()


def signed(key: ec.EllipticCurvePrivateKey, timestamp: str = TIMESTAMP, body: bytes = BODY) -> str:
    return base64.b64encode(key.sign(timestamp.encode() + body, ec.ECDSA(hashes.SHA256()))).decode()


def test_what_was_signed_is_taken() -> None:
    assert is_signed(BODY, signed(KEY), TIMESTAMP, shown(KEY))


@pytest.mark.parametrize(
    ("body", "signature", "timestamp"),
    [
        (BODY.strip(), signed(KEY), TIMESTAMP),
        (BODY.replace(b"delivered", b"dropped"), signed(KEY), TIMESTAMP),
        (BODY, signed(KEY), "1767225601"),
        (BODY, signed(OTHER), TIMESTAMP),
        (BODY, "", TIMESTAMP),
        (BODY, "not base64!", TIMESTAMP),
        (BODY, base64.b64encode(b"no signature").decode(), TIMESTAMP),
        (b"\xff\xfe", signed(KEY, body=b"\xff\xfe"), TIMESTAMP),
    ],
    # Keys and signatures are new in each process, and names of tests must not be.
    ids=["white space", "changed", "another time", "another key", "empty", "no base64", "no signature", "no text"],
)
def test_anything_else_is_not(body: bytes, signature: str, timestamp: str) -> None:
    assert not is_signed(body, signature, timestamp, shown(KEY))


def test_a_key_that_is_none_is_an_error_of_the_settings() -> None:
    with pytest.raises(ValueError, match=r"."):
        is_signed(BODY, signed(KEY), TIMESTAMP, "bm8ga2V5")
