"""Names and keys: which ids are allowed, which shard a row lives in, what a message is called.

Everything here is pure and stable for ever: the results are written into stores and letters.
"""

import base64
import hashlib
import re
from functools import lru_cache

SHARDS = 64
CAMPAIGN_ID_MAX = 100
RECIPIENT_ID_MAX = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# Crockford's alphabet: sorts like the number, no I, L, O, U; the alphabet of ULIDs.
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"


def campaign_id_problem(campaign_id: str) -> str:
    """Why a campaign id is not allowed, or an empty string. Ids name files, topics and rows, so they stay plain."""
    if NAME.fullmatch(campaign_id):
        return ""
    return (
        f"a campaign id has 1 to {CAMPAIGN_ID_MAX} letters, digits, dots, dashes or underscores, "
        "and starts with a letter or digit"
    )


def shard_of(campaign_id: str, batch_no: int) -> int:
    """The shard (0 to 63) that leads the keys of a batch and of its recipients: spreads monotonic keys."""
    digest = hashlib.blake2b(f"{campaign_id}\x00{batch_no}".encode(), digest_size=2).digest()
    return int.from_bytes(digest, "big") % SHARDS


def message_id(store_key: bytes, campaign_id: str, recipient_id: str) -> str:
    """The message's name: the same for every attempt, no personal data, 52 characters `a-z2-7`.

    base32(HMAC-SHA256(store key, campaign_id, recipient_id)), with the lengths inside so that no two
    pairs share an input.
    """
    campaign = campaign_id.encode()
    text = len(campaign).to_bytes(4, "big") + campaign + recipient_id.encode()
    digest = _mac(store_key, b"message\x00" + text)
    return base64.b32encode(digest).decode().rstrip("=").lower()


def address_key(store_key: bytes, normalised_address: str) -> str:
    """Keyed hash of a normalised address (lower case, NFC, A-label domain): 32 hex digits.

    Suppression, caps, search and erasure go by it, so no table but the snapshot holds an address.
    """
    return _mac(store_key, b"address\x00" + normalised_address.encode())[:16].hex()


def _mac(key: bytes, text: bytes) -> bytes:
    """HMAC-SHA256 (RFC 2104), with the key's share of the work done once: half the time of `hmac.digest`."""
    inner, outer = _keyed(key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(text)
    outer.update(inner.digest())
    return outer.digest()


@lru_cache(maxsize=8)
def _keyed(key: bytes) -> "tuple[hashlib._Hash, hashlib._Hash]":
    block = (hashlib.sha256(key).digest() if len(key) > 64 else key).ljust(64, b"\0")
    return hashlib.sha256(bytes(byte ^ 0x36 for byte in block)), hashlib.sha256(bytes(byte ^ 0x5C for byte in block))


def attempt_id(now_ms: int, randomness: bytes) -> str:
    """A ULID: 48 bits of Unix milliseconds, then 80 random bits. 26 characters.

    The time is inside because a repeated attempt must repeat the same bytes, its Date header too.
    """
    number = (now_ms << 80) | int.from_bytes(randomness[:10], "big")
    return "".join(_CROCKFORD[(number >> shift) & 31] for shift in range(125, -5, -5))


def attempt_time_ms(attempt: str) -> int:
    """Unix milliseconds at which an attempt id was made. ValueError for anything that is not one."""
    if len(attempt) != 26:
        raise ValueError("an attempt id has 26 characters")
    number = 0
    for character in attempt:
        number = (number << 5) | _CROCKFORD.index(character)
    return number >> 80
