"""What providers tell later about letters, read from their own JSON: which message of which attempt, what and when.

Only opaque ids, the kind and the time are taken over. Addresses, subjects, IP addresses and replies of mail servers,
which events are full of, go no further than this module.

SendGrid: https://www.twilio.com/docs/sendgrid/for-developers/tracking-events/event (the custom args of a letter stand
beside the event's own fields). SES: https://docs.aws.amazon.com/ses/latest/dg/event-publishing-retrieving-sns-contents.html
(a letter's tags stand under `mail.tags`), by itself or in SNS's envelope
(https://docs.aws.amazon.com/sns/latest/dg/sns-message-and-json-formats.html).
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, Optional, Union

import orjson

from schemas.ids import attempt_time_ms

SENDGRID: Final = "sendgrid"
SES: Final = "ses"
PROVIDERS: Final = (SENDGRID, SES)

# Each of these is told of a letter that the provider has taken, whatever it did with it then: decision 0035.
SENDGRID_KINDS: Final = frozenset(
    {
        "processed",
        "dropped",
        "delivered",
        "deferred",
        "bounce",
        "open",
        "click",
        "spamreport",
        "unsubscribe",
        "group_unsubscribe",
        "group_resubscribe",
    }
)
SES_KINDS: Final = frozenset(
    {
        "Send",
        "RenderingFailure",
        "Reject",
        "Delivery",
        "DeliveryDelay",
        "Bounce",
        "Complaint",
        "Open",
        "Click",
        "Subscription",
    }
)
# What SNS sends to a topic's subscribers besides notifications.
_SNS_CARE: Final = ("SubscriptionConfirmation", "UnsubscribeConfirmation")

# Ids are kept only if they are of letters that ids are made of: no address is.
_OPAQUE: Final = re.compile(r"[A-Za-z0-9._:=+/-]{1,200}")
_MESSAGE: Final = re.compile(r"[a-z2-7]{52}")
_CAMPAIGN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,255}")
_DIGITS: Final = re.compile(r"[0-9]{1,18}")


@dataclass(frozen=True)
class Event:
    """One event of a letter of ours. at: when it happened, by the provider's clock.

    campaign_id, batch_no: None where the letter could not carry them. message_id: None where the event names only the
    attempt. whole: the letter's call carried all letters of its attempt, and the provider takes a call whole or not at
    all; else the event says something of its own letter only.
    """

    event_id: str
    provider: str
    kind: str
    at: datetime
    attempt_id: str
    message_id: Optional[str] = None
    campaign_id: Optional[str] = None
    batch_no: Optional[int] = None
    provider_ref: Optional[str] = None
    whole: bool = False


@dataclass(frozen=True)
class NotOurs:
    """Nothing is wrong with it, and it tells nothing of a letter of ours. why: `no_ids`, `unknown_kind`, `no_event`."""

    why: str


@dataclass(frozen=True)
class Malformed:
    """It cannot be understood. reason: for machines; holds no value."""

    reason: str


Found = Union[Event, NotOurs, Malformed]


def events_in(value: Any, provider: Optional[str] = None) -> Iterator[Found]:
    """What one JSON value tells: an event, or a list of events. provider: whose it must be; None: found by content."""
    if type(value) is list:
        for entry in value:
            yield from events_in(entry, provider) if type(entry) is dict else (Malformed("not_an_event"),)
        return
    yield _event(value, provider) if type(value) is dict else Malformed("not_an_event")


def _event(value: dict[str, Any], provider: Optional[str]) -> Found:
    if value.get("Type") in _SNS_CARE:
        return NotOurs("no_event")
    if value.get("Type") == "Notification":
        unpacked = _unpacked(value.get("Message"))
        if not isinstance(unpacked, dict):
            return unpacked
        value = unpacked
    theirs = _provider_of(value)
    if theirs is None:
        return Malformed("not_an_event")
    if provider is not None and theirs != provider:
        return Malformed(f"not_of_{provider}")
    return _of_sendgrid(value) if theirs == SENDGRID else _of_ses(value)


def _unpacked(message: Any) -> Union[dict[str, Any], NotOurs, Malformed]:
    """The event inside an SNS envelope: SNS carries it as text."""
    if type(message) is not str:
        return Malformed("not_an_event")
    if not message.lstrip().startswith("{"):  # SES greets each new topic in plain words
        return NotOurs("no_event")
    try:
        found: dict[str, Any] = orjson.loads(message)
    except orjson.JSONDecodeError:
        return Malformed("not_json")
    return found


def _provider_of(value: Mapping[str, Any]) -> Optional[str]:
    if type(value.get("event")) is str:
        return SENDGRID
    if type(value.get("mail")) is dict and ("eventType" in value or "notificationType" in value):
        return SES
    return None


def _of_sendgrid(value: Mapping[str, Any]) -> Found:
    kind = value["event"]
    if kind not in SENDGRID_KINDS:
        return NotOurs("unknown_kind")
    attempt_id = _attempt(value.get("attempt_id"))
    if attempt_id is None:
        return NotOurs("no_ids")
    event_id = _opaque(value.get("sg_event_id"))
    if event_id is None:
        return Malformed("no_event_id")
    at = _unix(value.get("timestamp"))
    if at is None:
        return Malformed("bad_timestamp")
    return Event(
        event_id,
        SENDGRID,
        kind,
        at,
        attempt_id,
        _message(value.get("message_id")),
        _campaign(value.get("campaign_id")),
        _batch_no(value.get("batch_no")),
        _opaque(value.get("sg_message_id")),
        # `sendgrid_body.PART`: the letter's call was one of several.
        whole="part" not in value,
    )


def _of_ses(value: Mapping[str, Any]) -> Found:
    named = value.get("eventType", value.get("notificationType"))
    kind = named.replace(" ", "") if type(named) is str else ""
    if kind not in SES_KINDS:
        return NotOurs("unknown_kind")
    mail = value["mail"]
    said = _said_by(mail)
    attempt_id = _attempt(said.get("attempt_id"))
    if attempt_id is None:
        return NotOurs("no_ids")
    reference = _opaque(mail.get("messageId"))
    if reference is None:
        return Malformed("no_event_id")
    about = value.get(kind[0].lower() + kind[1:])
    moment = about.get("timestamp") if type(about) is dict else None
    at = _iso(moment if moment is not None else mail.get("timestamp"))
    if at is None:
        return Malformed("bad_timestamp")
    return Event(
        # SES numbers no events. A letter has one recipient, so of its events no two are alike in kind and moment.
        f"ses:{reference}:{kind}:{at:%Y%m%dT%H%M%S.%f}",
        SES,
        kind,
        at,
        attempt_id,
        _message(said.get("message_id")),
        _campaign(said.get("campaign_id")),
        _batch_no(said.get("batch_no")),
        reference,
    )


def _said_by(mail: Mapping[str, Any]) -> dict[str, Any]:
    """Our ids: the letter's tags, or, of one that came to SES by SMTP, its headers."""
    said: dict[str, Any] = {}
    headers = mail.get("headers")
    for header in headers if type(headers) is list else ():
        if type(header) is dict and type(header.get("name")) is str and type(header.get("value")) is str:
            name, text = header["name"].lower(), header["value"].strip()
            if name == "x-sendonce-attempt":
                said["attempt_id"] = text
            elif name == "message-id" and "message_id" not in said:
                said["message_id"] = text.lstrip("<").partition("@")[0]
            elif name == "x-sendonce-message":
                said["message_id"] = text
    tags = mail.get("tags")
    for name, values in (tags if type(tags) is dict else {}).items():
        if name in ("campaign_id", "batch_no", "attempt_id", "message_id"):
            said[name] = values[0] if type(values) is list and values else values
    return said


def _attempt(value: Any) -> Optional[str]:
    try:
        attempt_time_ms(value if type(value) is str else "")
    except ValueError:
        return None
    return str(value)


def _message(value: Any) -> Optional[str]:
    return value if type(value) is str and _MESSAGE.fullmatch(value) else None


def _campaign(value: Any) -> Optional[str]:
    return value if type(value) is str and _CAMPAIGN.fullmatch(value) else None


def _batch_no(value: Any) -> Optional[int]:
    text = str(value) if type(value) in (str, int) else ""
    return int(text) if _DIGITS.fullmatch(text) else None


def _opaque(value: Any) -> Optional[str]:
    return value if type(value) is str and _OPAQUE.fullmatch(value) else None


def _unix(value: Any) -> Optional[datetime]:
    """Unix seconds, as a number or as text."""
    try:
        return datetime.fromtimestamp(float(value), UTC) if type(value) in (int, float, str) else None
    except (ValueError, OverflowError, OSError):
        return None


def _iso(value: Any) -> Optional[datetime]:
    try:
        at = datetime.fromisoformat(value) if type(value) is str else None
        return at.astimezone(UTC) if at is not None and at.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None
