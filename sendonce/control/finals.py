"""The one place where recipients of a send become final, inside the transaction that makes them so.

Every step that ends somebody goes through here: requests, refusals, cancels, ends, decisions, and sends that are final
when they are taken. Campaigns, whose recipients nobody waits for one by one, do not.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Final

from schemas.outcomes import Outcome
from schemas.tables import Batch, Recipient
from sendonce.control.notices import note_outcomes
from sendonce.stores.base import Tx

# What is left of a recipient's address and variables.
NO_ADDRESS: Final = ""
NO_VARIABLES: Final = "{}"


def sends_final(tx: Tx, after: Batch, outcomes: Mapping[int, Outcome], names: Mapping[int, str], now: datetime) -> None:
    """Recipients of the send `after` (its row as this transaction writes it) became final.

    outcomes: what each of them became, by ordinal; names: message ids by ordinal. `after.idempotency_key` is the key
    as the publisher gave it; whoever waits for the answer is told, where there is a topic for that. With the last of
    them, addresses and variables are wiped from the snapshot: nothing will be rendered again, and suppressions and
    erasure go by the address's key. What a step of the protocol runs twice changes nothing the second time.
    """
    if after.idempotency_key is None:
        return
    note_outcomes(tx, after, outcomes, names, now)
    if after.open_state is None:
        people = tx.scan(Recipient, after.shard, after.campaign_id, after.batch_no)
        tx.put(*(wiped(person) for person in people if not is_wiped(person)))


def wiped(person: Recipient) -> Recipient:
    """The recipient without address and variables."""
    return replace(person, email=NO_ADDRESS, template_variables=NO_VARIABLES)


def is_wiped(person: Recipient) -> bool:
    """Whether the address and the variables of a send's recipient are gone: there is no letter to make any more."""
    return person.email == NO_ADDRESS
