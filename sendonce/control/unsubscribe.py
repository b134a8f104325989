"""Unsubscribe links: signed tokens that say which letter, by its place in a snapshot, and nothing about a person.

    token = base64url( version · key number · batch number · ordinal · campaign id · HMAC-SHA256, cut to 16 bytes )

Whoever reads one learns the campaign's id and two numbers. The store finds the recipient by its primary key, without a
look at anybody else. Nobody can make a token of another letter without a key. Key 0 is made of the store's own;
`rotate_key` adds others as rows of `meta`. A campaign is signed by the newest key at the time of its load, all its
life, because a repeated attempt must repeat its bytes; every key that is there verifies.

One-click unsubscribing is RFC 8058.
"""

import base64
import binascii
import hmac
import secrets
from dataclasses import dataclass
from email.utils import parseaddr
from typing import Any, Final, Optional

import orjson

from schemas.ids import keyed_digest, shard_of
from schemas.outcomes import Outcome
from schemas.tables import COMMIT_TIME, Campaign, Meta, Recipient, Suppression
from sendonce.control.suppressions import insert_new, list_of
from sendonce.stores.base import Reader, Store, StoreRefused, Tx

# The longest token has a campaign id of 100 characters: 3 numbers of at most 10 bytes, 16 bytes of MAC, a third more.
TOKEN_MAX: Final = 250
_VERSION: Final = 1
_MAC_BYTES: Final = 16
_KEY_ROW: Final = "unsubscribe_key:"


class BadToken(Exception):
    """Not a token of this store: cut, changed, made up, or its campaign is gone. Says nothing of what it holds."""


@dataclass(frozen=True)
class Place:
    """One letter: where its recipient stands in which snapshot."""

    campaign_id: str
    batch_no: int
    ordinal: int


@dataclass(frozen=True)
class Letter:
    """What an unsubscribe page may show of a letter: the language it was in, and the sender's name (may be empty)."""

    locale: str
    from_name: str


@dataclass(frozen=True)
class Links:
    """What makes the links of one campaign. base_url "": its letters have none."""

    base_url: str
    key_no: int
    key: bytes

    def link_for(self, person: Recipient) -> str:
        """The link of one recipient's letter: the same for every attempt."""
        if not self.base_url:
            return ""
        place = Place(person.campaign_id, person.batch_no, person.ordinal)
        return f"{self.base_url}/{make_token(place, self.key_no, self.key)}"


def links_of(reader: Reader, options: dict[str, Any]) -> Links:
    """The links of a campaign, by its options. StoreRefused if the key that signs them is gone."""
    base_url, key_no = options.get("unsubscribe_base_url", ""), options.get("unsubscribe_key", 0)
    key = _key(reader, key_no) if base_url else b""
    if key is None:
        raise StoreRefused(f"the store has lost the unsubscribe key {key_no}; restore it from a backup")
    return Links(base_url, key_no, key)


def make_token(place: Place, key_no: int, key: bytes) -> str:
    """The token of a letter: letters, digits, `-` and `_`."""
    body = b"".join(
        (
            bytes((_VERSION,)),
            _varint(key_no),
            _varint(place.batch_no),
            _varint(place.ordinal),
            place.campaign_id.encode(),
        )
    )
    return base64.urlsafe_b64encode(body + _mac(key, body)).rstrip(b"=").decode()


def read_token(reader: Reader, token: str) -> Place:
    """The letter that a token stands for; BadToken unless one of this store's keys has signed it."""
    try:
        raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        body, mac = raw[:-_MAC_BYTES], raw[-_MAC_BYTES:]
        if len(token) > TOKEN_MAX or body[0] != _VERSION:
            raise BadToken
        key_no, at = _read_varint(body, 1)
        batch_no, at = _read_varint(body, at)
        ordinal, at = _read_varint(body, at)
        campaign_id = body[at:].decode()
    except (binascii.Error, ValueError, IndexError):
        raise BadToken from None
    key = _key(reader, key_no)
    if key is None or not hmac.compare_digest(_mac(key, body), mac):
        raise BadToken
    return Place(campaign_id, batch_no, ordinal)


def letter_of(store: Store, token: str) -> Letter:
    """What a page may show of the letter that a token stands for. Changes nothing. BadToken."""

    def look(reader: Reader) -> Letter:
        person, campaign = _found(reader, read_token(reader, token))
        name = parseaddr(campaign.from_address)[0]
        return Letter(person.locale, "" if "@" in name else name)

    return store.read(look)


def unsubscribe(store: Store, token: str) -> bool:
    """Suppress the recipient of a letter on its campaign's list; False if that was so already. BadToken."""

    def work(tx: Tx) -> bool:
        place = read_token(tx, token)
        person, campaign = _found(tx, place)
        row = Suppression(
            address_key=person.address_key,
            list_name=list_of(orjson.loads(campaign.options)),
            outcome=int(Outcome.SUPPRESSED_UNSUBSCRIBED),
            created_at=COMMIT_TIME,
            created_by="recipient",
            source="unsubscribe",
            campaign_id=place.campaign_id,
        )
        return bool(insert_new(tx, [row]))

    return store.transact(work, tag="unsubscribe")


def newest_key(reader: Reader) -> int:
    """The number of the key that signs the campaigns that are loaded from now on."""
    numbers = [int(row.name.removeprefix(_KEY_ROW)) for row in reader.scan(Meta) if row.name.startswith(_KEY_ROW)]
    return max(numbers, default=0)


def rotate_key(store: Store) -> int:
    """Make a new key and return its number. Links that are out, and campaigns that are loaded, keep theirs."""

    def work(tx: Tx) -> int:
        number = newest_key(tx) + 1
        tx.insert(Meta(f"{_KEY_ROW}{number}", secrets.token_bytes(32)))
        return number

    return store.transact(work, tag="unsubscribe_key")


def _found(reader: Reader, place: Place) -> tuple[Recipient, Campaign]:
    shard = shard_of(place.campaign_id, place.batch_no)
    person = reader.get(Recipient, shard, place.campaign_id, place.batch_no, place.ordinal)
    campaign = reader.get(Campaign, place.campaign_id)
    if person is None or campaign is None:
        raise BadToken
    return person, campaign


def _key(reader: Reader, number: int) -> Optional[bytes]:
    if number == 0:
        row = reader.get(Meta, "key")
        return None if row is None else keyed_digest(row.value, b"unsubscribe\x00")
    row = reader.get(Meta, f"{_KEY_ROW}{number}") if number < 1 << 31 else None
    return None if row is None else row.value


def _mac(key: bytes, body: bytes) -> bytes:
    return keyed_digest(key, b"unsubscribe\x00" + body)[:_MAC_BYTES]


def _varint(number: int) -> bytes:
    """Seven bits a byte, the lowest first; the high bit says that more follow."""
    made = bytearray()
    while number > 0x7F:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    made.append(number)
    return bytes(made)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    """The number that starts at a place, and where it ends. ValueError for one of more than nine bytes."""
    number = shift = 0
    while True:
        byte = raw[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return number, at
        if shift >= 63:
            raise ValueError
