"""From letters to the bodies of calls to SES.

A form letter becomes `SendBulkEmail` calls: its texts once, as an inline template, and an entry for each recipient. A
letter that cannot go that way is a `SendEmail` of its own with simple content, which SES does not read as a template.
The bodies are what botocore would serialise (tests hold them against its model of the service), made in a fifth of its
time and the same for every release of it, so that the hash of a request is the request's alone.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.header import Header
from email.utils import formataddr, parseaddr
from functools import lru_cache
from typing import Any, Final

import orjson

from schemas.letters import Letter
from schemas.outcomes import Outcome
from sendonce.addresses import BadAddress, fits_a_header, needs_smtputf8, sender_address
from sendonce.config import SesSettings
from sendonce.senders.base import Request, Unsendable
from sendonce.senders.one_click import check_link, one_click_headers
from sendonce.senders.ses_template import Template

# https://docs.aws.amazon.com/ses/latest/dg/send-personalized-email-api.html: 50 destinations, and 1 MB of JSON with an
# inline template, taken for the smaller of the two megabytes.
RECIPIENTS_MAX: Final = 50
TEMPLATED_MAX_BYTES: Final = 1_000_000
# https://docs.aws.amazon.com/ses/latest/dg/quotas.html: 40 MB after encoding, which is base64 at worst.
WHOLE_MAX_BYTES: Final = 40_000_000 * 3 // 4 - 100_000
# https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_MessageHeader.html: name and value together.
HEADER_MAX: Final = 996

BULK: Final = "/v2/email/outbound-bulk-emails"
SINGLE: Final = "/v2/email/outbound-emails"

# https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_MessageTag.html
_TAG: Final = re.compile(r"[A-Za-z0-9_-]{1,256}")
# One address and nothing that a list of addresses, a name or a comment is made of (RFC 5322 3.2.3).
_ADDRESS: Final = re.compile(r"[^\x00-\x20\x7f()<>\[\]:;@\\,\"]+@[^\x00-\x20\x7f()<>\[\]:;@\\,\"]+")
# RFC 8058 3.1. The URI stands between angle brackets, so it holds none, and no space (RFC 2369 2).


@dataclass(frozen=True)
class Call:
    """One POST: its path and body, and whose letters it carries, in the order of its entries."""

    letters: Sequence[Letter]
    path: str
    body: bytes


class Bodies:
    """Makes the calls of one request. The same request and settings always give the same bytes."""

    def __init__(self, request: Request, settings: SesSettings) -> None:
        self._letters = request.letters
        self._chosen = request.chosen
        self._settings = _settings_part(settings)
        self._ids = {"attempt_id": request.attempt_id, "batch_no": str(request.batch_no)}
        if _TAG.fullmatch(request.campaign_id):  # a stream's has dots; its messages are found by their own ids
            self._ids["campaign_id"] = request.campaign_id
        self._templates: dict[int, Template] = {}
        self._entries: dict[int, bytes] = {}

    def calls(self) -> list[Call]:
        """Every chosen letter in exactly one call. Unsendable names one that no call can carry."""
        together: dict[int, list[Letter]] = {}
        alone: list[Letter] = []
        for letter in self._chosen:
            _check(letter)
            if letter.form is not None and self._has_entry(letter, letter.form):
                together.setdefault(letter.form, []).append(letter)
            else:
                alone.append(letter)
        bulk = [call for form, letters in together.items() for call in self._bulk(letters, form, alone)]
        return bulk + [self._single(letter) for letter in alone]

    def again(self, letters: Sequence[Letter]) -> Call:
        """A call for some of the letters of a form letter's call."""
        assert letters[0].form is not None
        return self._joined(letters, self._head(letters[0], letters[0].form))

    # -- form letters ---------------------------------------------------------------------------------------------

    def _has_entry(self, letter: Letter, form: int) -> bool:
        if form not in self._templates:
            self._templates[form] = Template(self._letters.forms[form])
        data = self._templates[form].data(letter)
        if data is None:
            return False
        self._entries[letter.ordinal] = orjson.dumps(
            {
                "Destination": {"ToAddresses": [letter.to]},
                "ReplacementTags": self._tags(letter),
                "ReplacementHeaders": _headers(letter),
                "ReplacementEmailContent": {"ReplacementTemplate": {"ReplacementTemplateData": data}},
            }
        )
        return True

    def _bulk(self, letters: Sequence[Letter], form: int, alone: list[Letter]) -> Iterator[Call]:
        """The letters in as few calls as SES's limits allow; what is too large for any is added to `alone`."""
        head = self._head(letters[0], form)
        some: list[Letter] = []
        size = len(head)
        for letter in letters:
            more = len(self._entries[letter.ordinal]) + 1
            if len(head) + more > TEMPLATED_MAX_BYTES:
                alone.append(letter)
                continue
            if some and (len(some) == RECIPIENTS_MAX or size + more > TEMPLATED_MAX_BYTES):
                yield self._joined(some, head)
                some, size = [], len(head)
            some.append(letter)
            size += more
        if some:
            yield self._joined(some, head)

    def _head(self, letter: Letter, form: int) -> bytes:
        """The body with an empty list of entries at its end."""
        template = self._templates[form]
        parts = {"Subject": template.subject, "Text": template.text, "Html": template.html}
        content = {"TemplateContent": {name: part for name, part in parts.items() if part}, "TemplateData": "{}"}
        return _dumped(
            {**self._envelope(letter), "DefaultContent": {"Template": content}, "BulkEmailEntries": []}, letter
        )

    def _joined(self, letters: Sequence[Letter], head: bytes) -> Call:
        entries = b",".join(self._entries[letter.ordinal] for letter in letters)
        return Call(letters, BULK, head[: -len(b"]}")] + entries + b"]}")

    # -- letters that go alone --------------------------------------------------------------------------------------

    def _single(self, letter: Letter) -> Call:
        subject, text, html = self._letters.texts(letter)
        if not fits_a_header(subject):
            raise Unsendable(
                letter.ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, "the subject has a control or half a character"
            )
        body = _dumped(
            {
                **self._envelope(letter),
                "Destination": {"ToAddresses": [letter.to]},
                "Content": {
                    "Simple": {
                        "Subject": _content(_unstructured(subject)),
                        "Body": {kind: _content(part) for kind, part in (("Text", text), ("Html", html)) if part},
                        "Headers": _headers(letter),
                    }
                },
                "EmailTags": self._tags(letter),
            },
            letter,
        )
        if len(body) > WHOLE_MAX_BYTES:
            raise Unsendable(letter.ordinal, Outcome.RENDER_TOO_LARGE, "the letter is larger than SES takes")
        return Call([letter], SINGLE, body)

    # -- what both have ---------------------------------------------------------------------------------------------

    def _envelope(self, letter: Letter) -> dict[str, Any]:
        envelope = {"FromEmailAddress": _party("from", self._letters.from_address, letter), **self._settings}
        if self._letters.reply_to:
            envelope["ReplyToAddresses"] = [_party("reply-to", self._letters.reply_to, letter)]
        return envelope

    def _tags(self, letter: Letter) -> list[dict[str, str]]:
        """Opaque ids that come back with each delivery event; nothing of a person."""
        return [{"Name": n, "Value": value} for n, value in {**self._ids, "message_id": letter.message_id}.items()]


def _headers(letter: Letter) -> list[dict[str, str]]:
    headers = {"X-Sendonce-Message": letter.message_id, **one_click_headers(letter)}
    return [{"Name": name, "Value": value} for name, value in headers.items()]


def _check(letter: Letter) -> None:
    # "Amazon SES does not support the SMTPUTF8 extension":
    # https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_BulkEmailEntry.html
    if needs_smtputf8(letter.to):
        raise Unsendable(letter.ordinal, Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED, "SES takes only ASCII before the @")
    if not _ADDRESS.fullmatch(letter.to):
        raise Unsendable(letter.ordinal, Outcome.ADDRESS_INVALID, "not an address that can stand in a header")
    check_link(letter)
    url = letter.unsubscribe_url
    if len("List-Unsubscribe<>") + len(url) > HEADER_MAX:
        raise Unsendable(letter.ordinal, Outcome.RENDER_TOO_LARGE, "the unsubscribe link is longer than SES takes")


def _settings_part(settings: SesSettings) -> dict[str, Any]:
    """What the account's settings say of every call. What SES might change in a letter is switched off, not left."""
    wanted = {"OpenTrackingEnabled": settings.open_tracking, "ClickTrackingEnabled": settings.click_tracking}
    off = {name: "DISABLED" for name, on in wanted.items() if not on}
    part: dict[str, Any] = {"ConfigurationOverrides": {"Tracking": off}} if off else {}
    if settings.configuration_set is not None:
        part["ConfigurationSetName"] = settings.configuration_set
    return part


def _content(text: str) -> dict[str, str]:
    return {"Data": text, "Charset": "UTF-8"}


def _unstructured(text: str) -> str:
    """A subject. What looks like an encoded word is encoded too, so that readers show it as it is."""
    return Header(text, "utf-8").encode(linesep="") if "=?" in text else text


def _party(name: str, address: str, letter: Letter) -> str:
    try:
        return _written(address)
    except BadAddress as fault:
        raise Unsendable(letter.ordinal, Outcome.RENDER_ERROR, f"the {name} address {fault.reason}") from None


@lru_cache(maxsize=256)
def _written(address: str) -> str:
    """An address with its name as SES takes it: ASCII, other names as encoded words (RFC 2047).

    https://docs.aws.amazon.com/ses/latest/APIReference-V2/API_Destination.html
    """
    shown, plain = parseaddr(sender_address(address, strict=False))
    if shown.isascii() and "=?" not in shown:
        return formataddr((shown, plain))
    return f"{Header(shown, 'utf-8').encode(linesep='')} <{plain}>"


def _dumped(body: dict[str, Any], letter: Letter) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:
        raise Unsendable(letter.ordinal, Outcome.RENDER_BAD_VARIABLE, "a value is not Unicode text") from None
