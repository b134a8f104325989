"""Reading a `send`: from its JSON object to recipients that are judged as `load` judges rows.

One address that is none refuses that recipient alone; everything else that is wrong refuses the send.
"""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Optional

from schemas.ids import key_hash
from schemas.outcomes import Outcome
from sendonce.control.finals import NO_ADDRESS, NO_VARIABLES
from sendonce.control.row_checks import Candidate, RowChecks
from sendonce.control.strict_json import canonical
from sendonce.control.trigger_faults import BadTrigger
from sendonce.control.trigger_times import moment_in

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


@dataclass(frozen=True)
class To:
    """One recipient of a send. email: as it goes on the wire; key_form: what its address key is made of.

    locale, timezone: "" for the template's default. outcome: OPEN, or what the recipient is from the start (no
    address, an address that an earlier one of the send has), and `detail` why.
    """

    recipient_id: str
    email: str = NO_ADDRESS
    key_form: str = ""
    locale: str = ""
    timezone: str = ""
    variables: str = NO_VARIABLES
    outcome: Outcome = Outcome.OPEN
    detail: str = ""


@dataclass(frozen=True)
class Send:
    """A valid `send`. key_hash: of its idempotency key. body: what it says, the same however it was written.

    expires_at: as it says, UTC; None leaves it to its priority. published_at: when it was published, if that is known.
    warnings: recipients by what got a default instead (`unknown_locale`, `unknown_timezone`).
    """

    idempotency_key: str
    key_hash: str
    body: bytes
    template: str
    priority: str
    sender: Optional[str]
    expires_at: Optional[datetime]
    recipients: list[To]
    warnings: Mapping[str, int]
    published_at: Optional[datetime] = None


def read_send(value: dict[str, Any], published_at: Optional[datetime] = None) -> Send:
    """The send in a JSON object that its schema allows. BadTrigger `invalid`, naming the field and never a value."""
    key = value["idempotency_key"]
    if _CONTROL.search(key):
        raise BadTrigger("invalid", "idempotency_key: holds a control character")
    recipients, warnings = _recipients(value["recipients"])
    return Send(
        idempotency_key=key,
        key_hash=key_hash(key),
        body=canonical(value),
        template=value["template"],
        priority=value["priority"],
        sender=value.get("sender"),
        expires_at=moment_in("expires_at", value["expires_at"]) if "expires_at" in value else None,
        recipients=recipients,
        warnings=warnings,
        published_at=published_at,
    )


def _recipients(raw: list[dict[str, Any]]) -> tuple[list[To], Counter[str]]:
    checks = RowChecks(default_locale="", default_timezone="", strict=False, address_key=lambda key_form: key_form)
    good, bad = checks.judge(
        (
            place,
            person["recipient_id"],
            person["email"],
            person.get("locale"),
            person.get("timezone"),
            person.get("variables"),
            {},
        )
        for place, person in enumerate(raw)
    )
    refused = {}
    for reject in bad:
        if reject.column != "email":
            field = "variables" if reject.column == "template_variables" else reject.column
            raise BadTrigger("invalid", f"recipients.{reject.line}.{field}: {reject.detail}")
        refused[reject.line] = To(
            raw[reject.line]["recipient_id"], outcome=Outcome.ADDRESS_INVALID, detail=f"no address: {reject.detail}"
        )
    _distinct_ids(raw)
    taken = {candidate[0]: to for candidate, to in zip(good, _once_each(good), strict=True)}
    return [refused.get(place) or taken[place] for place in range(len(raw))], checks.warnings


def _distinct_ids(raw: list[dict[str, Any]]) -> None:
    places: dict[str, int] = {}
    for place, person in enumerate(raw):
        first = places.setdefault(person["recipient_id"], place)
        if first != place:
            raise BadTrigger("invalid", f"recipients.{place}.recipient_id: is that of recipients.{first}, too")


def _once_each(good: list[Candidate]) -> list[To]:
    """A mailbox gets one letter of a send: the first recipient who has it is sent to."""
    mailboxes: dict[str, int] = {}
    found = []
    for place, recipient_id, email, key_form, locale, timezone, variables in good:
        first = mailboxes.setdefault(key_form, place)
        if first == place:
            found.append(To(recipient_id, email, key_form, locale, timezone, variables))
        else:
            detail = f"the address of recipients.{first} of the same send"
            found.append(To(recipient_id, key_form=key_form, outcome=Outcome.SKIPPED_DUPLICATE, detail=detail))
    return found
