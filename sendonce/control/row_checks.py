"""One row of a recipients file judged: a recipient as the snapshot will hold it, or a reject with its reason."""

import re
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, NamedTuple, Optional

from schemas.ids import RECIPIENT_ID_MAX
from sendonce.addresses import BadAddress, normalise
from sendonce.control.raw_rows import RECORD_MAX, Reject, Row
from sendonce.control.strict_json import BadJson, dump, parse
from sendonce.zones import locale_name, zone_name

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff\ud800-\udfff]")


class Candidate(NamedTuple):
    """A good row. It becomes a recipient unless an earlier one has its id or its mailbox."""

    line: int
    recipient_id: str
    email: str
    address_key: str
    locale: str
    timezone: str
    template_variables: str


class _Refused(Exception):
    def __init__(self, column: str, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.column, self.reason, self.detail = column, reason, detail


class RowChecks:
    """Judges rows and counts warnings by kind: `unknown_locale`, `unknown_timezone`.

    `address_key` maps a normalised address to its key in the store. `strict` rejects what otherwise gets the default
    locale or time zone and a warning; a blank one always gets the default.
    """

    def __init__(
        self, *, default_locale: str, default_timezone: str, strict: bool, address_key: Callable[[str], str]
    ) -> None:
        self._default_locale = default_locale
        self._default_timezone = default_timezone
        self._strict = strict
        self._address_key = address_key
        self.warnings: Counter[str] = Counter()

    def judge(self, row: Row) -> Candidate | Reject:
        """The candidate in a row, or the first thing that is wrong with it."""
        try:
            recipient_id = _recipient_id(row.recipient_id)
            wire, key_form = _address(row.email)
            locale = self._named(row.locale, "locale", locale_name) or self._default_locale
            timezone = self._named(row.timezone, "timezone", zone_name) or self._default_timezone
            variables = _variables(row.template_variables, row.extras)
        except _Refused as fault:
            return Reject(row.line, fault.column, fault.reason, fault.detail)
        return Candidate(row.line, recipient_id, wire, self._address_key(key_form), locale, timezone, variables)

    def _named(self, raw: Any, column: str, name_of: Callable[[str], Optional[str]]) -> Optional[str]:
        if raw is None or raw == "":
            return None
        name = name_of(raw) if type(raw) is str else None
        if name is None and not (type(raw) is str and not raw.strip()):
            if self._strict:
                raise _Refused(column, f"unknown_{column}", f"no {column} that is known by this name")
            self.warnings[f"unknown_{column}"] += 1
        return name


def _recipient_id(raw: Any) -> str:
    """Text as it is, to the last character; a whole number by its digits."""
    if type(raw) is int:
        raw = str(raw)
    if raw is None or raw == "" or (type(raw) is str and not raw.strip()):
        raise _Refused("recipient_id", "missing_recipient_id", "every row needs an id")
    if type(raw) is not str:
        raise _Refused("recipient_id", "bad_recipient_id", "an id is text or a whole number")
    if len(raw) > RECIPIENT_ID_MAX:
        raise _Refused("recipient_id", "recipient_id_too_long", f"more than {RECIPIENT_ID_MAX} characters")
    if not raw.isprintable() and _CONTROL.search(raw):
        raise _Refused("recipient_id", "bad_recipient_id", "holds a control character")
    return raw


def _address(raw: Any) -> tuple[str, str]:
    if raw is None or raw == "":
        raise _Refused("email", "missing_email", "every row needs an address")
    if type(raw) is not str:
        raise _Refused("email", "bad_address", "an address is text")
    try:
        return normalise(raw)
    except BadAddress as fault:
        raise _Refused("email", "missing_email" if fault.reason == "empty" else "bad_address", fault.reason) from None


def _variables(raw: Any, extras: dict[str, Any]) -> str:
    """The variables as the shortest JSON object. Of two with one name, that in `template_variables` counts."""
    column = "template_variables"
    try:
        value, text = raw, ""
        if type(raw) is str:
            value, text = parse(raw) if raw.strip() else (None, "")
        if value is None:
            value, text = {}, "{}"
        if type(value) is not dict:
            raise _Refused(column, "bad_template_variables", "not a JSON object")
        if extras:
            text = dump({**extras, **value})
        elif not text:
            text = dump(value)
    except BadJson as fault:
        raise _Refused(column, "bad_template_variables", fault.reason) from None
    if len(text) > RECORD_MAX:
        raise _Refused(column, "variables_too_long", f"more than {RECORD_MAX} characters")
    return text
