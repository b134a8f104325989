"""Names and keys: which ids are allowed, which shard a row lives in, what a message is called.

Everything here is pure and stable for ever: the results are written into stores and letters.
"""

import hashlib
import re
from functools import lru_cache
from itertools import product

SHARDS = 64
CAMPAIGN_ID_MAX = 100
RECIPIENT_ID_MAX = 200
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
# Campaign ids that begin so are those of streams: nobody else may choose one.
STREAM_PREFIX = "stream."
# Between a publisher's recipient id and its send's mark: a control character, which no recipient id holds.
_MARK = "\x1f"
_MARK_DIGITS = 32

# Crockford's alphabet: sorts like the number, no I, L, O, U; the alphabet of ULIDs.
_CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
# RFC 4648's, in lower case.
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_THREE_OF_BASE32 = tuple(map("".join, product(_BASE32, repeat=3)))


def campaign_id_problem(campaign_id: str) -> str:
    """Why a campaign id is not allowed, or an empty string. Ids name files, topics and rows, so they stay plain."""
    if campaign_id.startswith(STREAM_PREFIX):
        return f"campaign ids that begin with {STREAM_PREFIX} are those of sends"
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
    digest = keyed_digest(store_key, b"message\x00" + text)
    return _base32(digest)


def _base32(digest: bytes) -> str:
    """RFC 4648 base32 of 32 bytes, lower case, without padding. Each letter has one: `base64` takes twice the time."""
    number = int.from_bytes(digest, "big") << 4
    threes = [_THREE_OF_BASE32[number >> place & 0x7FFF] for place in range(240, -1, -15)]
    return _BASE32[number >> 255] + "".join(threes)


def key_hash(idempotency_key: str) -> str:
    """The name of a `send` in the store: 64 hex digits, SHA-256 of its idempotency key."""
    return hashlib.sha256(idempotency_key.encode()).hexdigest()


def body_hash(store_key: bytes, body: bytes) -> str:
    """Keyed hash of a `send`'s body: 64 hex digits. Keyed, because a body may hold a code that is quickly guessed."""
    return keyed_digest(store_key, b"body\x00" + body).hex()


def send_batch_no(key: str, place: int) -> int:
    """The batch number (53 bits, so that any JSON reader keeps it) of the send with this `key_hash`.

    place: 0; the next one when another send of the stream has that number already.
    """
    digest = hashlib.sha256(f"batch\x00{key}\x00{place}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 11


def send_recipient_id(recipient_id: str, key: str) -> str:
    """How a stream's snapshot names a recipient: several sends of a day may go to one.

    key: the send's `key_hash`. At most 33 characters longer than the publisher's own id.
    """
    return f"{recipient_id}{_MARK}{key[:_MARK_DIGITS]}"


def send_recipient_ids(recipient_id: str) -> tuple[str, str]:
    """Between which stored ids (neither included) those of all sends to a recipient lie."""
    return f"{recipient_id}{_MARK}", f"{recipient_id}{_MARK}~"


def own_recipient_id(stored: str) -> str:
    """The recipient id as its publisher, or its file, gave it."""
    return stored.partition(_MARK)[0]


def address_key(store_key: bytes, normalised_address: str) -> str:
    """Keyed hash of a normalised address (lower case, NFC, A-label domain): 32 hex digits.

    Suppression, caps, search and erasure go by it, so no table but the snapshot holds an address.
    """
    return keyed_digest(store_key, b"address\x00" + normalised_address.encode())[:16].hex()


def keyed_digest(key: bytes, text: bytes) -> bytes:
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
