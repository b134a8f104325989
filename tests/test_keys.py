"""Keyed names are HMAC-SHA256 (RFC 2104) over a purpose and what is named; they stand in stores for ever."""

import base64
import hmac

import pytest

from schemas.ids import address_key, message_id

KEYS = [b"", b"k", bytes(range(32)), b"x" * 64, b"y" * 65, b"z" * 200]


@pytest.mark.parametrize("key", KEYS, ids=len)
@pytest.mark.parametrize("text", ["", "ann@one.example", "jörg@one.example", "x" * 300])
def test_keyed_names_are_what_hmac_says(key: bytes, text: str) -> None:
    assert address_key(key, text) == hmac.digest(key, b"address\0" + text.encode(), "sha256")[:16].hex()

    named = b"message\0" + (6).to_bytes(4, "big") + b"spring" + text.encode()
    wanted = base64.b32encode(hmac.digest(key, named, "sha256")).decode().rstrip("=").lower()
    assert message_id(key, "spring", text) == wanted


def test_keyed_names_never_change() -> None:
    key = bytes(range(32))
    assert address_key(key, "ann@one.example") == "9714f5227fbba2432ba42e09eba41155"
    assert message_id(key, "spring", "1") == "llcjmknftkhzmoew6duspeopseghvi5qymstfdj4kjgewo2nzrda"
