"""One row of a recipients file judged: a recipient as the snapshot will hold it, or a reject with its reason."""

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Final, Optional

from schemas.ids import RECIPIENT_ID_MAX
from sendonce.addresses import BadAddress, normalise
from sendonce.control.raw_rows import RECORD_MAX, RawRow, Reject
from sendonce.control.strict_json import BadJson, dump, parse
from sendonce.zones import locale_name, zone_name

_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ufffe\uffff\ud800-\udfff]")


# More names of variables than any list has columns: beyond, they are people's data in the wrong place.
NAMES_MAX: Final = 2_000

# A good row: line, recipient_id, email as it goes on the wire, address_key, locale, timezone, template_variables. It
# becomes a recipient unless an earlier one has its id or its mailbox.
Candidate = tuple[int, str, str, str, str, str, str]


class _Refused(Exception):
    def __init__(self, column: str, reason: str, detail: str) -> None:
        super().__init__(reason)
        self.column, self.reason, self.detail = column, reason, detail


class RowChecks:
    """Judges rows and counts warnings by kind: `unknown_locale`, `unknown_timezone`.

    `columns`: the names that columns beyond the fields had; `given`: those and the names in `template_variables`, of
    good rows, up to NAMES_MAX. `has_objects`: whether any row had `template_variables`.

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
        self.columns: set[str] = set()
        self.given: set[str] = set()
        self.has_objects = False

    def judge(self, rows: Iterable[RawRow]) -> tuple[list[Candidate], list[Reject]]:
        """The candidates in rows, and for each other row the first thing that is wrong with it; both in order."""
        good: list[Candidate] = []
        bad: list[Reject] = []
        for line, raw_id, raw_email, raw_locale, raw_timezone, raw_variables, extras in rows:
            try:
                recipient_id = _recipient_id(raw_id)
                wire, key_form = _address(raw_email)
                locale = self._named(raw_locale, "locale", locale_name) or self._default_locale
                timezone = self._named(raw_timezone, "timezone", zone_name) or self._default_timezone
                variables = self._variables(raw_variables, extras)
            except _Refused as fault:
                bad.append(Reject(line, fault.column, fault.reason, fault.detail))
            else:
                key = self._address_key(key_form)
                good.append((line, recipient_id, wire, key, locale, timezone, variables))
        return good, bad

    def _variables(self, raw: Any, extras: dict[str, Any]) -> str:
        text, value = _variables(raw, extras)
        if len(self.given) < NAMES_MAX:
            self.columns.update(extras)
            self.given.update(extras, value)
            self.has_objects = self.has_objects or raw is not None
        return text

    def _named(self, raw: Any, column: str, name_of: Callable[[str], Optional[str]]) -> Optional[str]:
        """The name that is meant. None, which stands for the default, for a blank one and for an unknown one."""
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


def _variables(raw: Any, extras: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The variables as the shortest JSON object, and those in `template_variables`, which win over columns."""
    column = "template_variables"
    try:
        value, text = raw, ""
        if type(raw) is str:
            value, text = parse(raw) if raw.strip() else (None, "")
        if value is None:
            value, text = {}, "{}"
        if type(value) is not dict:
            raise _Refused(column, "bad_template_variables", "not a JSON object")
        text = text or dump(value)
        if extras:
            if not value.keys().isdisjoint(extras):
                extras = {name: item for name, item in extras.items() if name not in value}
            more = dump(extras)
            text = more if text == "{}" else text if more == "{}" else f"{text[:-1]},{more[1:]}"
    except BadJson as fault:
        raise _Refused(column, "bad_template_variables", fault.reason) from None
    if len(text) > RECORD_MAX:
        raise _Refused(column, "variables_too_long", f"more than {RECORD_MAX} characters")
    return text, value
