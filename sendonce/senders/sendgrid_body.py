"""From letters to the bodies of SendGrid's Mail Send calls.

A form letter becomes one call: its texts once, and for each recipient a personalization whose `substitutions` are the
slot values. A letter that cannot go that way is a call of its own. The library's helper objects are not used: building
1,000 personalizations with them takes twenty times as long as all of this.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from email.utils import parseaddr
from functools import lru_cache
from typing import Any, Final

import orjson

from schemas.ids import attempt_time_ms
from schemas.letters import FormLetter, Letter, slot_key
from schemas.outcomes import Outcome
from sendonce.addresses import needs_smtputf8
from sendonce.config import SendGridSettings
from sendonce.senders.base import Request, Unsendable
from sendonce.senders.one_click import check_link, one_click_headers

# https://www.twilio.com/docs/sendgrid/api-reference/mail-send/errors: 1,000 personalizations, 1,000 recipients.
RECIPIENTS_MAX: Final = 1000
# https://www.twilio.com/docs/sendgrid/api-reference/mail-send/mail-send: substitutions of one personalization.
SUBSTITUTIONS_MAX_BYTES: Final = 10_000
# https://www.twilio.com/docs/sendgrid/api-reference/mail-send/limitations: less than 30 MB in all.
REQUEST_MAX_BYTES: Final = 30_000_000 - 1

# Says in a letter's events that its call was one of several of the attempt, or may have been. SendGrid takes a call
# whole or not at all: so an event without it proves that all of the attempt's letters were taken.
PART: Final = {"part": "1"}

# Control characters have no place in a header, and a folded line may not be made by a value (RFC 5322 2.2).
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f\x85\u2028\u2029]")
# RFC 8058 3.1. The URI stands between angle brackets, so it holds none, and no space (RFC 2369 2).


@dataclass(frozen=True)
class Call:
    """One POST: its body, and whose letters it carries, in the order of its personalizations."""

    letters: Sequence[Letter]
    body: bytes


class Bodies:
    """Makes the calls of one request. The same request and settings always give the same bytes."""

    def __init__(self, request: Request, settings: SendGridSettings) -> None:
        self._letters = request.letters
        self._chosen = request.chosen
        self._settings = _settings_part(settings, request.attempt_id)
        self._ids = {
            "campaign_id": request.campaign_id,
            "batch_no": str(request.batch_no),
            "attempt_id": request.attempt_id,
        }
        self._part: dict[str, str] = {}
        self._forms: dict[int, _Form] = {}

    def calls(self) -> list[Call]:
        """Every chosen letter in exactly one call. Unsendable names one that no call can carry.

        One address never stands twice in a call, compared without case: SendGrid would refuse it whole.
        """
        for letter in self._chosen:
            _check(letter)
        together: dict[int, list[Letter]] = {}
        alone: list[Letter] = []
        for letter in self._chosen:
            if letter.form is not None and self._form(letter.form).takes(letter):
                together.setdefault(letter.form, []).append(letter)
            else:
                alone.append(letter)
        pieces: list[tuple[Sequence[Letter], int | None]] = [
            (part[start : start + RECIPIENTS_MAX], form)
            for form, letters in together.items()
            for part in _without_twins(letters)
            for start in range(0, len(part), RECIPIENTS_MAX)
        ]
        pieces += [([letter], None) for letter in alone]
        if len(pieces) > 1:
            self._part = PART
        calls = [call for letters, form in pieces for call in self._small_enough(letters, form)]
        if len(calls) > 1 and not self._part:
            self._part = PART
            calls = [call for letters, form in pieces for call in self._small_enough(letters, form)]
        return calls

    def again(self, call: Call, letters: Sequence[Letter]) -> Call:
        """A call for some of the letters of a form letter's call."""
        self._part = PART
        return self._call(letters, letters[0].form)

    def _small_enough(self, letters: Sequence[Letter], form: int | None) -> Iterator[Call]:
        call = self._call(letters, form)
        if len(call.body) <= REQUEST_MAX_BYTES:
            yield call
        elif len(letters) == 1:
            raise Unsendable(letters[0].ordinal, Outcome.RENDER_TOO_LARGE, "the letter is larger than SendGrid takes")
        else:
            middle = len(letters) // 2
            yield from self._small_enough(letters[:middle], form)
            yield from self._small_enough(letters[middle:], form)

    def _form(self, number: int) -> "_Form":
        if number not in self._forms:
            self._forms[number] = _Form(self._letters.forms[number])
        return self._forms[number]

    def _call(self, letters: Sequence[Letter], form: int | None) -> Call:
        if form is None:
            subject, text, html = self._letters.texts(letters[0])
            keys: list[str] = []
        else:
            packed = self._form(form)
            subject, text, html, keys = packed.form.subject, packed.form.text, packed.form.html, packed.keys
        if form is None and _CONTROL.search(subject):
            raise Unsendable(
                letters[0].ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, "the subject has a control character"
            )
        body = {
            "personalizations": [self._personalization(letter, keys) for letter in letters],
            "from": self._party("from", self._letters.from_address, letters[0]),
            "subject": subject,
            # Text before HTML, and no empty part: SendGrid refuses the others.
            "content": [
                {"type": kind, "value": value} for kind, value in (("text/plain", text), ("text/html", html)) if value
            ],
            **self._settings,
        }
        if self._letters.reply_to:
            body["reply_to"] = self._party("reply-to", self._letters.reply_to, letters[0])
        try:
            return Call(letters, orjson.dumps(body))
        except TypeError:
            raise Unsendable(_not_text(letters), Outcome.RENDER_BAD_VARIABLE, "a value is not Unicode text") from None

    def _personalization(self, letter: Letter, keys: list[str]) -> dict[str, Any]:
        made: dict[str, Any] = {
            "to": [{"email": letter.to}],
            "custom_args": {**self._ids, "message_id": letter.message_id, **self._part},
        }
        if keys:
            made["substitutions"] = dict(zip(keys, letter.values, strict=True))
        if headers := one_click_headers(letter):
            made["headers"] = headers
        return made

    def _party(self, name: str, address: str, letter: Letter) -> dict[str, str]:
        shown, plain = _parsed(address)
        if "@" not in plain or _CONTROL.search(address):
            raise Unsendable(
                letter.ordinal, Outcome.RENDER_HEADER_CONTROL_CHAR, f"the {name} address cannot be written in a header"
            )
        return {"email": plain, "name": shown} if shown else {"email": plain}


class _Form:
    """A form letter with what is asked of it for each recipient, worked out once."""

    def __init__(self, form: FormLetter) -> None:
        self.form = form
        self.keys = [slot_key(form.prefix, number) for number in range(form.slots)]
        self._key_bytes = sum(map(len, self.keys))
        self._in_subject = [number for number, key in enumerate(self.keys) if key in form.subject]
        self._clean = not _CONTROL.search(form.subject)

    def takes(self, letter: Letter) -> bool:
        """Whether a letter can go as substitutions.

        SendGrid replaces in values too, in no known order, so no value may hold what could be a key of this request.
        """
        values = letter.values
        joined = "".join(values)
        size = len(joined) if joined.isascii() else len(joined.encode("utf-8", "surrogatepass"))
        return (
            size + self._key_bytes <= SUBSTITUTIONS_MAX_BYTES
            and len(values) == len(self.keys)
            and self.form.prefix not in joined
            and self._clean
            and not any(_CONTROL.search(values[number]) for number in self._in_subject)
        )


def _check(letter: Letter) -> None:
    if needs_smtputf8(letter.to):
        raise Unsendable(letter.ordinal, Outcome.ADDRESS_SMTPUTF8_UNSUPPORTED, "SendGrid takes only ASCII before the @")
    check_link(letter)


def _without_twins(letters: list[Letter]) -> list[list[Letter]]:
    """The letters in as few lists as needed for no address to stand twice in one."""
    seen: Counter[str] = Counter()
    lists: list[list[Letter]] = []
    for letter in letters:
        address = letter.to.lower()
        if seen[address] == len(lists):
            lists.append([])
        lists[seen[address]].append(letter)
        seen[address] += 1
    return lists


def _settings_part(settings: SendGridSettings, attempt_id: str) -> dict[str, Any]:
    """What the account's settings say of every call. Whatever SendGrid might change in a letter is said, not left."""
    part: dict[str, Any] = {
        "tracking_settings": {
            "click_tracking": {"enable": settings.click_tracking, "enable_text": False},
            "open_tracking": {"enable": settings.open_tracking},
            "subscription_tracking": {"enable": False},
            "ganalytics": {"enable": False},
        },
        "mail_settings": {"footer": {"enable": False}, "sandbox_mode": {"enable": settings.sandbox}},
    }
    if settings.categories:
        part["categories"] = settings.categories
    if settings.asm_group is not None:
        part["asm"] = {"group_id": settings.asm_group}
    if settings.ip_pool is not None:
        part["ip_pool_name"] = settings.ip_pool
    if settings.send_after_s is not None:
        part["send_at"] = attempt_time_ms(attempt_id) // 1000 + settings.send_after_s
    if settings.batch_id is not None:
        part["batch_id"] = settings.batch_id
    return part


@lru_cache(maxsize=256)
def _parsed(address: str) -> tuple[str, str]:
    return parseaddr(address)


def _not_text(letters: Sequence[Letter]) -> int:
    """The ordinal of the letter that holds a lone surrogate; of the first when it is in what they share."""
    for letter in letters:
        try:
            "".join((letter.to, letter.subject, letter.text, letter.html, *letter.values)).encode()
        except UnicodeEncodeError:
            return letter.ordinal
    return letters[0].ordinal
