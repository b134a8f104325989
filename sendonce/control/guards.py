"""What must be so before anything leaves by a real sender: nobody gets a test, and every bulk letter has a way out.

A real sender (any but the outbox) works only from a store that was made for production, or one with a guard:
`recipients_allowed`, or `redirect_all_to`. A bulk campaign by a real sender needs unsubscribe links (RFC 8058).
From a store for production no letter goes to people that comes from, or points to, a domain that is for examples.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Optional

import orjson

from schemas.tables import Campaign, Setting
from sendonce.addresses import BadAddress, normalise
from sendonce.config.placeholders import address_problem, link_problem, reaches_people
from sendonce.config.stored import is_production, sender_in
from sendonce.control.expiry import end_of
from sendonce.control.faults import ControlFault
from sendonce.control.stops import senders_of
from sendonce.stores.base import Reader

NO_UNSUBSCRIBE: Final = "no_unsubscribe"
NO_GUARD: Final = "no_guard"
PLACEHOLDER: Final = "placeholder"
EXPIRED: Final = "expired"


class NotReady(ControlFault):
    """A campaign that may not start as things are. `reason`: no_guard, no_unsubscribe, placeholder, expired."""

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True)
class Guards:
    """Who may get letters, and who gets them instead. allowed: key forms of addresses, and `@domain`s; None: everyone.

    redirect_to: the address that every letter goes to, empty if each goes to its own.
    """

    allowed: Optional[frozenset[str]] = None
    redirect_to: str = ""

    def __bool__(self) -> bool:
        return self.allowed is not None or bool(self.redirect_to)

    def allows(self, email: str) -> bool:
        """Whether the recipient with this address may get a letter. Both guards ask for the recipient's own address."""
        if self.allowed is None:
            return True
        try:
            key_form = normalise(email).key_form
        except BadAddress:
            return False
        return key_form in self.allowed or f"@{key_form.rpartition('@')[2]}" in self.allowed


def guards_in(reader: Reader) -> Guards:
    """The guards as `config apply` put them into the store."""
    found = {row.name: orjson.loads(row.value) for row in reader.scan(Setting, "guard")}
    allowed = found.get("recipients_allowed")
    return Guards(None if allowed is None else frozenset(allowed), found.get("redirect_all_to", ""))


def is_real(reader: Reader, sender: str) -> bool:
    """Whether letters by this sender leave the machine. One that the store does not know sends nothing."""
    row = reader.get(Setting, "sender", sender)
    return row is not None and orjson.loads(row.value).get("adapter") != "outbox"


def _allows_private(reader: Reader, sender: str) -> bool:
    """Whether a sender may post to addresses of private networks, as one for tests may."""
    row = reader.get(Setting, "sender", sender)
    return row is not None and bool(orjson.loads(row.value).get("allow_private"))


def sender_obstacle(reader: Reader, sender: str) -> str:
    """Why a sender must not work from this store, with the mend; empty if it may."""
    production = is_production(reader)
    if production and _allows_private(reader, sender):
        return (
            f"sender {sender} has allow_private, which is for tests, and this store is for production; take it out of "
            "sendonce.yaml and run `sendonce config apply`"
        )
    if production or not is_real(reader, sender) or guards_in(reader):
        return ""
    return (
        f"sender {sender} reaches real people, and this store was made for tests; set recipients_allowed or "
        "redirect_all_to in sendonce.yaml and run `sendonce config apply`, or make a store with "
        "`sendonce init --environment production`"
    )


def start_obstacle(reader: Reader, campaign: Campaign) -> Optional[NotReady]:
    """Why a campaign must not be started as things are; None if it may. One that runs may meet its end."""
    end = end_of(campaign)
    if end is not None and end <= reader.now():
        return NotReady(
            f"campaign {campaign.campaign_id} cannot start: its end ({end:%Y-%m-%d %H:%M:%S} UTC) is past; `sendonce "
            f"submit {campaign.campaign_id} --expires TIME` gives it a later one",
            EXPIRED,
        )
    return campaign_obstacle(reader, campaign)


def letter_problems(campaign: Campaign) -> Iterator[tuple[str, str]]:
    """What of a campaign's letters is from an example, each with where it comes from and why it cannot work."""
    options = orjson.loads(campaign.options)
    if problem := address_problem(campaign.from_address):
        yield "from (of sendonce.yaml, of its template, or of `load --from`)", problem
    if problem := address_problem(options.get("reply_to", "")):
        yield "reply_to (of its template)", problem
    if campaign.priority == "bulk" and (problem := link_problem(options.get("unsubscribe_base_url", ""))):
        yield "unsubscribe.base_url (of sendonce.yaml)", problem


def writes_to_people(reader: Reader, lane: str, otherwise: str = "") -> bool:
    """Whether a lane's letters leave a store for production by a provider that is not on this machine.

    otherwise: the sender where the store holds no such lane.
    """
    if not is_production(reader):
        return False
    senders = [sender_in(reader, name) for name in senders_of(reader, lane, otherwise)]
    return any(sender is not None and reaches_people(sender) for sender in senders)


def campaign_obstacle(reader: Reader, campaign: Campaign) -> Optional[NotReady]:
    """Why no letter of a campaign may be made as things are; None if it may."""
    senders = senders_of(reader, campaign.priority, campaign.sender)
    for sender in senders:
        if problem := sender_obstacle(reader, sender):
            return NotReady(f"campaign {campaign.campaign_id} cannot start: {problem}", NO_GUARD)
    for place, problem in letter_problems(campaign):
        if writes_to_people(reader, campaign.priority, campaign.sender):
            return NotReady(
                f"campaign {campaign.campaign_id} cannot start: its {place} {problem}; mend it there; what is loaded "
                "keeps what it was loaded with, so load the list under a new campaign id",
                PLACEHOLDER,
            )
    if campaign.priority != "bulk" or orjson.loads(campaign.options).get("unsubscribe_base_url"):
        return None
    sender = next((name for name in senders if is_real(reader, name)), "")
    if not sender:
        return None
    return NotReady(
        f"campaign {campaign.campaign_id} cannot start: it is bulk, goes by sender {sender}, and its letters have no "
        "unsubscribe links; set `unsubscribe: {base_url: https://…}` in sendonce.yaml, serve it with "
        "`sendonce web --unsubscribe`, and load the list under a new campaign id",
        NO_UNSUBSCRIBE,
    )
