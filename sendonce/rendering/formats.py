"""Dates, times, numbers, money and plurals in the recipient's language, country and time zone.

Jinja filters over Babel. Each reads where the recipient is from the letter's own variables, so a template
writes `{{ due | date }}` and says nothing about locales. Values are as JSON brings them: ISO 8601 text for
times, numbers or text for amounts. Rounding is decimal, half up, on the digits as written: 2.675 is 2.68.

A value that does not fit raises FormatFault, which names the filter and never the value.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date as Date
from datetime import datetime as DateTime
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from functools import lru_cache
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from babel import Locale, UnknownLocaleError
from babel import dates as babel_dates
from babel import numbers as babel_numbers
from jinja2 import TemplateRuntimeError, Undefined, pass_context
from jinja2.runtime import Context

# The context key for the locale of a letter's text (`catalogue.text_locale`), where it differs from the
# recipient's. No template can spell it.
TEXT_LOCALE: Final = "_text_locale"

WIDTHS: Final = ("short", "medium", "long", "full")
PLURAL_FORMS: Final = ("zero", "one", "two", "few", "many", "other")

# A float's digits end here; an amount beyond is a mistake, and formatting it would cost memory.
_MAX_DIGITS: Final = 40
_NO_CURRENCY: Final = "money: the currency is no ISO 4217 code, such as EUR"
_LETTER_MEETS_DIGIT: Final = re.compile(r"(?<=[^\W\d_])(?=\d)|(?<=\d)(?=[^\W\d_])")


class FormatFault(TemplateRuntimeError):
    """A filter was given what it cannot format. Permanent for this recipient; holds no value."""


@pass_context
def date(context: Context, value: Any, width: str = "long") -> str:
    """`2026-01-15` or a time with an offset → the day where the recipient is: 15 January 2026.

    width: short, medium, long, full, or a CLDR pattern such as `d MMM`.
    """
    locale, timezone = _place(context, "date")
    return _date(_day("date", value, timezone), _width("date", width), locale)


@pass_context
def time(context: Context, value: Any, width: str = "short") -> str:
    """A time with an offset → the time of day where the recipient is: 10:00."""
    locale, timezone = _place(context, "time")
    return _time(_moment("time", value, timezone), timezone, _width("time", width), locale)


@pass_context
def datetime(context: Context, value: Any, date: str = "long", time: str = "short") -> str:
    """A time with an offset → day and time where the recipient is, joined as the locale joins them."""
    locale, timezone = _place(context, "datetime")
    moment = _moment("datetime", value, timezone)
    day = _date(moment.date(), _width("datetime", date), locale)
    hour = _time(moment, timezone, _width("datetime", time), locale)
    return _joiner(date if date in WIDTHS else "medium", locale).replace("{1}", day).replace("{0}", hour)


@pass_context
def number(context: Context, value: Any, decimals: int | None = None) -> str:
    """1234.5 → 1,234.5 or 1.234,5. With `decimals`, exactly so many; without, those that the value has."""
    locale, _ = _place(context, "number")
    return _number(_decimal("number", value), None if decimals is None else _places("number", decimals), locale)


@pass_context
def percent(context: Context, value: Any, decimals: int = 0) -> str:
    """0.25 → 25%."""
    locale, _ = _place(context, "percent")
    return _percent(_decimal("percent", value), _places("percent", decimals), locale)


@pass_context
def money(context: Context, value: Any, currency: Any) -> str:
    """An amount and an ISO 4217 code → €12.50 or 12,50 €, with the decimals of that currency."""
    locale, _ = _place(context, "money")
    code = _defined(currency)
    if not isinstance(code, str):
        raise FormatFault(_NO_CURRENCY)
    return _money(_decimal("money", value), code.upper(), locale)


@pass_context
def plural(context: Context, value: Any, **forms: str) -> str:
    """The form for a count in the text's language: `{{ n | plural(one='# item', other='# items') }}`.

    `#` stands for the number. Forms are CLDR's: zero, one, two, few, many, other; `other` is needed and stands in
    for those that are not given.
    """
    locale, _ = _place(context, "plural")
    if "other" not in forms or not forms.keys() <= set(PLURAL_FORMS):
        raise FormatFault(f"plural: give the form `other`, and no others than {', '.join(PLURAL_FORMS)}")
    count = _decimal("plural", value)
    return str(_defined(forms.get(_category(count, locale), forms["other"]))).replace("#", _number(count, None, locale))


def round_decimal(value: Any, precision: int = 0, method: str = "common") -> float | int:
    """Jinja's `round` on decimal digits: 2.675 → 2.68, where binary rounding gives 2.67. A whole number at precision 0.

    method: common (half up), ceil, floor.
    """
    rounding = {"common": ROUND_HALF_UP, "ceil": ROUND_CEILING, "floor": ROUND_FLOOR}.get(method)
    if rounding is None or not -_MAX_DIGITS <= precision <= _MAX_DIGITS:
        raise FormatFault("round: the method is common, ceil or floor; the precision at most 40")
    with localcontext(prec=2 * _MAX_DIGITS):
        rounded = _decimal("round", value).quantize(Decimal(1).scaleb(-precision), rounding=rounding)
    return int(rounded) if precision <= 0 else float(rounded)


FILTERS: Final[dict[str, Callable[..., Any]]] = {
    "date": date,
    "time": time,
    "datetime": datetime,
    "number": number,
    "percent": percent,
    "money": money,
    "plural": plural,
    "round": round_decimal,
}
GLOBALS: Final[dict[str, Callable[..., Any]]] = {}


def plural_forms(locale: str) -> list[str]:
    """The plural forms that a language needs for counts from 0 to 200, in CLDR's order; `other` always."""
    met = {_category(Decimal(count), locale) for count in range(201)} | {"other"}
    return [form for form in PLURAL_FORMS if form in met]


def text_direction(locale: str) -> str:
    """`rtl` or `ltr`: the direction in which a locale is written."""
    return str(_locale(locale).text_direction)


def _place(context: Context, name: str) -> tuple[str, str]:
    recipient = context.get("recipient")
    if recipient is None:
        raise FormatFault(f"{name}: does not know the recipient here; write `import … with context`")
    if isinstance(recipient, Mapping):
        locale, timezone = recipient["locale"], recipient["timezone"]
    else:
        locale, timezone = recipient.locale, recipient.timezone
    return context.get(TEXT_LOCALE) or locale, timezone


def _defined(value: Any) -> Any:
    if isinstance(value, Undefined):
        str(value)  # strict undefined raises here and names the variable
    return value


def _width(name: str, width: str) -> str:
    if not isinstance(width, str) or not 0 < len(width) <= 64:
        raise FormatFault(f"{name}: the width is {', '.join(WIDTHS)} or a CLDR pattern")
    return width


def _day(name: str, value: Any, timezone: str) -> Date:
    """The day that a value names, or on which a time falls where the recipient is."""
    value = _defined(value)
    if isinstance(value, Date) and not isinstance(value, DateTime):
        return value
    if isinstance(value, str) and len(value) <= 10:
        try:
            return Date.fromisoformat(value)
        except ValueError:
            pass
    return _moment(name, value, timezone, "an ISO 8601 date, or a time").date()


def _moment(name: str, value: Any, timezone: str, wanted: str = "an ISO 8601 time") -> DateTime:
    value = _defined(value)
    try:
        if isinstance(value, str | DateTime):
            return _local(value, timezone)
    except (ValueError, OverflowError):
        pass
    raise FormatFault(f"{name}: the value is not {wanted} with an offset, such as 2026-01-15T09:00:00Z")


@lru_cache(maxsize=4096)
def _local(value: str | DateTime, timezone: str) -> DateTime:
    moment = value if isinstance(value, DateTime) else DateTime.fromisoformat(value)
    if moment.tzinfo is None:
        raise ValueError("no offset")
    return moment.astimezone(_zone(timezone))


def _decimal(name: str, value: Any) -> Decimal:
    value = _defined(value)
    try:
        if isinstance(value, str | int | float | Decimal) and not isinstance(value, bool):
            return _plain(value)
    except (InvalidOperation, ValueError):
        pass
    raise FormatFault(f"{name}: the value is not a number of at most {_MAX_DIGITS} digits")


@lru_cache(maxsize=4096)
def _plain(value: str | int | float | Decimal) -> Decimal:
    """3.00 and 3E+0 as 3: equal numbers are one key of the caches, so they must look the same. ValueError for what

    is no number or too long. A float is the digits that it is written with, not those that it stands for.
    """
    amount = Decimal(str(value) if isinstance(value, float) else value)
    if not amount.is_finite() or abs(amount.adjusted()) > _MAX_DIGITS or len(amount.as_tuple().digits) > _MAX_DIGITS:
        raise ValueError("no number that a letter shows")
    with localcontext(prec=2 * _MAX_DIGITS):
        shortest = (amount + 0).normalize()
        return shortest.quantize(Decimal(1)) if shortest == shortest.to_integral_value() else shortest


def _zone(name: str) -> ZoneInfo:
    """ZoneInfo keeps its own cache. ValueError for a zone that nobody knows; loading leaves none."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError):
        raise ValueError("no such time zone") from None


@lru_cache(maxsize=512)
def _locale(name: str) -> Locale:
    """Babel's locale, or the nearest that it knows: its language, else English."""
    parts = name.replace("_", "-").split("-")
    while parts:
        try:
            return _with_group_symbol(Locale.parse("-".join(parts), sep="-"))
        except (UnknownLocaleError, ValueError):
            parts.pop()
    return Locale("en")


def _with_group_symbol(locale: Locale) -> Locale:
    """Swiss thousands: Babel 2.19 takes the apostrophe of its own data for a quote and drops it (1234567).

    The typographic one, which older CLDR data has, comes through.
    """
    symbols = locale.number_symbols["latn"]
    if symbols["group"] == "'":
        symbols["group"] = "\u2019"
    return locale


@lru_cache(maxsize=4096)
def _date(day: Date, width: str, locale: str) -> str:
    try:
        return babel_dates.format_date(day, width, _locale(locale))
    except (KeyError, ValueError, AttributeError):
        raise FormatFault(f"date: the width is {', '.join(WIDTHS)} or a CLDR pattern of a day") from None


@lru_cache(maxsize=4096)
def _time(moment: DateTime, timezone: str, width: str, locale: str) -> str:
    """`timezone` is part of the cache's key: one instant is equal to itself in every zone, and reads otherwise."""
    try:
        return babel_dates.format_time(moment, width, tzinfo=_zone(timezone), locale=_locale(locale))
    except (KeyError, ValueError, AttributeError):
        raise FormatFault(f"time: the width is {', '.join(WIDTHS)} or a CLDR pattern of a time") from None


@lru_cache(maxsize=512)
def _joiner(width: str, locale: str) -> str:
    return str(_locale(locale).datetime_formats[width]).replace("'", "")


@lru_cache(maxsize=4096)
def _number(amount: Decimal, decimals: int | None, locale: str) -> str:
    with localcontext(prec=2 * _MAX_DIGITS, rounding=ROUND_HALF_UP):
        if decimals is None:
            return babel_numbers.format_decimal(amount, locale=_locale(locale), decimal_quantization=False)
        pattern = _with_decimals(_locale(locale).decimal_formats[None].pattern, decimals)
        return babel_numbers.format_decimal(amount, pattern, _locale(locale))


@lru_cache(maxsize=4096)
def _percent(amount: Decimal, decimals: int, locale: str) -> str:
    pattern = _with_decimals(_locale(locale).percent_formats[None].pattern, decimals)
    with localcontext(prec=2 * _MAX_DIGITS, rounding=ROUND_HALF_UP):
        return babel_numbers.format_percent(amount, pattern, _locale(locale))


@lru_cache(maxsize=4096)
def _money(amount: Decimal, currency: str, locale: str) -> str:
    if not babel_numbers.is_currency(currency):
        raise FormatFault(_NO_CURRENCY)
    with localcontext(prec=2 * _MAX_DIGITS, rounding=ROUND_HALF_UP):
        text = babel_numbers.format_currency(amount, currency, locale=_locale(locale))
    # What Babel leaves out: a code of letters keeps a space from the digits (UTS 35, currencySpacing).
    return _LETTER_MEETS_DIGIT.sub("\xa0", text)


@lru_cache(maxsize=4096)
def _category(count: Decimal, locale: str) -> str:
    return str(_locale(locale).plural_form(count))


def _with_decimals(pattern: str, places: int) -> str:
    """A locale's own CLDR pattern with exactly so many decimals: `#,##,##0.###` → `#,##,##0.00`."""
    return re.sub(r"0(\.[0#]+)?", f"0.{'0' * places}" if places else "0", pattern, count=1)


def _places(name: str, decimals: Any) -> int:
    if isinstance(decimals, bool) or not isinstance(decimals, int) or not 0 <= decimals <= _MAX_DIGITS:
        raise FormatFault(f"{name}: the decimals are a whole number from 0 to {_MAX_DIGITS}")
    return decimals
