"""Suppressions: to whom nothing is sent, everywhere (`*`) or on one list, and since when, why, by whom.

An address is known here by its key alone (`ids.address_key`). The first reason that was given stays: adding somebody
again changes nothing. Each is written with the time of its own commit, so that a claim that reads "since then" sees
it: from that commit on, no new request for that address starts.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import Any, Final, Optional

from schemas.ids import NAME, address_key
from schemas.outcomes import Outcome
from schemas.tables import COMMIT_TIME, Recipient, Suppression
from sendonce.addresses import BadAddress, normalise
from sendonce.control.faults import ControlFault
from sendonce.stores.base import Reader, Store, Tx
from sendonce.stores.opening import store_key

EVERYWHERE: Final = "*"
# What bulk campaigns obey that name no list: who unsubscribes from a newsletter still gets receipts and codes.
BULK: Final = "bulk"
REASONS: Final[dict[str, Outcome]] = {
    "unsubscribed": Outcome.SUPPRESSED_UNSUBSCRIBED,
    "bounced": Outcome.SUPPRESSED_BOUNCED,
    "complained": Outcome.SUPPRESSED_COMPLAINED,
    "manual": Outcome.SUPPRESSED_MANUAL,
    "erased": Outcome.SUPPRESSED_ERASED,
}
# How exports of providers and of other programs call the same.
_ALIASES: Final = {
    "unsubscribe": "unsubscribed",
    "unsubscribes": "unsubscribed",
    "optout": "unsubscribed",
    "bounce": "bounced",
    "bounces": "bounced",
    "hardbounce": "bounced",
    "invalid": "bounced",
    "complaint": "complained",
    "spam": "complained",
    "spamreport": "complained",
    "blocklisted": "manual",
    "blacklisted": "manual",
}
# A claim looks at what is newer than its rendering. After an import it is cheaper to look at the batch's own keys.
_FEW: Final = 500


class BadSuppression(ControlFault):
    """An address or a list name that cannot be taken. Holds no part of an address."""

    reason = "bad_suppression"


def reason_named(text: str) -> Optional[str]:
    """The reason that a text means, also as other programs write it (`hard_bounce`, `Spam Report`); None if none."""
    plain = "".join(character for character in text.casefold() if character.isalnum())
    return plain if plain in REASONS else _ALIASES.get(plain)


def reason_of(row: Suppression) -> str:
    """`unsubscribed`, `bounced`, `complained`, `manual` or `erased`."""
    return _word(row.outcome)


def _word(outcome: int) -> str:
    return Outcome(outcome).reason.removeprefix("suppressed.")


def checked_list(name: str) -> str:
    """A list's name, or `*`; BadSuppression for what cannot be one."""
    if name != EVERYWHERE and (not NAME.fullmatch(name) or len(name) > 64):
        raise BadSuppression(
            f"{name!r} is no list name; a list has 1 to 64 letters, digits, dots, dashes or underscores, "
            "starting with a letter or digit; * means all letters"
        )
    return name


def lists_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """The lists that a campaign obeys, by its options: everywhere (`*`) and its own."""
    own = options.get("list")
    return (EVERYWHERE, own) if own and own != EVERYWHERE else (EVERYWHERE,)


def list_of(options: Mapping[str, Any]) -> str:
    """The list that an unsubscribe link of a campaign takes people off; `*` for a campaign without one."""
    return lists_of(options)[-1]


def add(
    store: Store,
    address: str,
    *,
    list_name: str = EVERYWHERE,
    reason: str = "manual",
    by: str,
    note: Optional[str] = None,
) -> bool:
    """Suppress an address; False if it was already (nothing changes then). BadSuppression."""
    key, name = key_of(store, address), checked_list(list_name)
    row = Suppression(key, name, int(REASONS[reason]), COMMIT_TIME, by, "command", note=note)
    return store.transact(lambda tx: bool(insert_new(tx, [row])), tag="suppress")


def remove(store: Store, address: str, *, list_name: str = EVERYWHERE) -> Optional[Suppression]:
    """Lift the suppression of an address on one list; what was there, None if nothing was. BadSuppression."""
    key, name = key_of(store, address), checked_list(list_name)

    def work(tx: Tx) -> Optional[Suppression]:
        found = tx.get(Suppression, key, name)
        if found is not None:
            tx.delete(found)
        return found

    return store.transact(work, tag="unsuppress")


def why(store: Store, address: str) -> list[Suppression]:
    """Every suppression of an address, `*` first; empty if letters go to it. BadSuppression."""
    key = key_of(store, address)
    return store.read(lambda reader: reader.scan(Suppression, key))


def summary(store: Store) -> list[tuple[str, str, int]]:
    """How many addresses are suppressed: list, reason, number."""
    groups = store.read(lambda reader: reader.tally(Suppression, by=("list_name", "outcome")))
    return sorted((group["list_name"], _word(group["outcome"]), group["rows"]) for group in groups)


def newest(store: Store, limit: int) -> list[Suppression]:
    """The latest suppressions, newest first, at most `limit`."""
    index = "suppressions_by_time"
    return store.read(lambda reader: reader.scan(Suppression, index=index, newest_first=True, limit=limit))


def insert_new(tx: Tx, rows: Iterable[Suppression]) -> list[Suppression]:
    """Write those that are not there yet, each address and list once; returns them. What is there stays as it is."""
    wanted: dict[tuple[str, str], Suppression] = {}
    for row in rows:
        wanted.setdefault((row.address_key, row.list_name), row)
    there = {(row.address_key, row.list_name) for row in tx.get_many(Suppression, wanted)}
    new = [row for key, row in wanted.items() if key not in there]
    tx.insert(*new)
    return new


def suppressed(reader: Reader, people: Iterable[Recipient], lists: tuple[str, ...]) -> dict[int, Outcome]:
    """Who of a batch's people is suppressed on any of these lists: ordinal to outcome. Where both are, `*` says why."""
    keys = {person.ordinal: person.address_key for person in people}
    rows = reader.get_many(Suppression, [(key, name) for key in set(keys.values()) for name in lists])
    rows.sort(key=lambda row: row.list_name == EVERYWHERE)
    outcomes = {row.address_key: Outcome(row.outcome) for row in rows}
    return {ordinal: outcomes[key] for ordinal, key in keys.items() if key in outcomes}


def suppressed_since(
    reader: Reader, people: Callable[[], Iterable[Recipient]], lists: tuple[str, ...], since: datetime
) -> dict[int, Outcome]:
    """Who was suppressed after `since`, as `suppressed` tells it; may name some who were so before.

    people: reads the batch; only called if anybody at all was suppressed since.
    """
    newer = reader.scan(Suppression, index="suppressions_by_time", after=since, limit=_FEW)
    keys = {row.address_key for row in newer if row.list_name in lists}
    if len(newer) == _FEW:
        return suppressed(reader, people(), lists)
    if not keys:
        return {}
    return suppressed(reader, [person for person in people() if person.address_key in keys], lists)


def key_of(store: Store, address: str) -> str:
    """The key of an address as somebody typed it. BadSuppression says what is wrong, not the address."""
    try:
        return address_key(store_key(store), normalise(address).key_form)
    except BadAddress as fault:
        raise BadSuppression(f"that is not an address: {fault.reason}; write one like ann@shop.example") from None
