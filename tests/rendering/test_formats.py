"""Dates, numbers, money and plurals as people in several countries write them."""

from typing import Any

import pytest
from jinja2 import Environment, StrictUndefined, UndefinedError

from sendonce.rendering.formats import FILTERS, TEXT_LOCALE, FormatFault, plural_forms, text_direction

ENVIRONMENT = Environment(undefined=StrictUndefined)
ENVIRONMENT.filters |= FILTERS


def shown(text: str, locale: str = "en", timezone: str = "UTC", **variables: Any) -> str:
    """A rendered text, its narrow and unbreakable spaces made plain."""
    recipient = {"id": "1", "locale": locale, "timezone": timezone}
    rendered = ENVIRONMENT.from_string(text).render(recipient=recipient, **variables)
    for space in "\u202f\xa0":
        rendered = rendered.replace(space, " ")
    return rendered.replace("\u200f", "")


@pytest.mark.parametrize(
    ("locale", "day", "amount", "price"),
    [
        ("en-US", "January 15, 2026", "1,234.5", "€12.50"),
        ("en-GB", "15 January 2026", "1,234.5", "€12.50"),
        ("fr", "15 janvier 2026", "1 234,5", "12,50 €"),
        ("vi", "15 tháng 1, 2026", "1.234,5", "12,50 €"),
        ("ar", "15 يناير 2026", "1,234.5", "12.50 €"),
        ("pt-BR", "15 de janeiro de 2026", "1.234,5", "€ 12,50"),
        ("xx", "January 15, 2026", "1,234.5", "€12.50"),
    ],
)
def test_each_locale_writes_its_own_way(locale: str, day: str, amount: str, price: str) -> None:
    text = "{{ d | date }}|{{ n | number }}|{{ p | money('EUR') }}"
    assert shown(text, locale, d="2026-01-15", n=1234.5, p="12.5") == f"{day}|{amount}|{price}"


@pytest.mark.parametrize(
    ("timezone", "seen"),
    [
        ("UTC", "January 15, 2026, 11:30 PM"),
        ("Asia/Ho_Chi_Minh", "January 16, 2026, 6:30 AM"),
        ("America/New_York", "January 15, 2026, 6:30 PM"),
        ("Asia/Kathmandu", "January 16, 2026, 5:15 AM"),
    ],
)
def test_a_time_is_shown_where_the_recipient_is(timezone: str, seen: str) -> None:
    assert shown("{{ t | datetime }}", "en-US", timezone, t="2026-01-15T23:30:00Z") == seen
    assert shown("{{ t | date }}", "en-US", timezone, t="2026-01-15T23:30:00Z") == seen.rsplit(",", 1)[0]
    assert shown("{{ t | time }}", "en-US", timezone, t="2026-01-15T23:30:00Z") == seen.rsplit(", ", 1)[1]


def test_a_day_is_the_same_day_everywhere() -> None:
    assert shown("{{ d | date('short') }}", "en-GB", "Pacific/Auckland", d="2026-01-15") == "15/01/2026"


def test_widths_and_patterns() -> None:
    assert shown("{{ d | date('full') }}", d="2026-01-15") == "Thursday, January 15, 2026"
    assert shown("{{ d | date('d MMM') }}", d="2026-01-15") == "15 Jan"
    assert shown("{{ t | datetime('short', 'short') }}", "fr", t="2026-01-15T09:05:00Z") == "15/01/2026 09:05"


@pytest.mark.parametrize(
    ("text", "value", "seen"),
    [
        ("{{ v | round(2) }}", 2.675, "2.68"),
        ("{{ v | round(2) }}", 1.005, "1.01"),
        ("{{ v | round }}", 2.5, "3"),
        ("{{ v | round(1, 'floor') }}", -0.05, "-0.1"),
        ("{{ v | number(2) }}", 2.675, "2.68"),
        ("{{ v | money('EUR') }}", "2.675", "€2.68"),
        ("{{ v | money('jpy') }}", 1500, "¥1,500"),
        ("{{ v | money('BHD') }}", "1.5", "BHD 1.500"),
        ("{{ v | number }}", 10000000000000000, "10,000,000,000,000,000"),
        ("{{ v | number }}", 3.0, "3"),
        ("{{ v | percent }}", 0.125, "13%"),
        ("{{ v | percent(1) }}", 0.125, "12.5%"),
    ],
)
def test_digits_round_as_people_round(text: str, value: Any, seen: str) -> None:
    assert shown(text, v=value) == seen


def test_swiss_and_indian_groups_of_digits() -> None:
    assert shown("{{ 1234567 | number }}", "de-CH") == "1\u2019234\u2019567"
    assert shown("{{ 1234567 | number(2) }}", "en-IN") == "12,34,567.00"


@pytest.mark.parametrize(
    ("locale", "count", "seen"),
    [
        ("en", 1, "1 item"),
        ("en", 0, "0 items"),
        ("en", 1234, "1,234 items"),
        ("fr", 0, "0 item"),
        ("ar", 2, "2 two"),
        ("ar", 3, "3 few"),
        ("ar", 11, "11 many"),
        ("ar", 100, "100 items"),
        ("ja", 1, "1 items"),
    ],
)
def test_the_form_of_a_plural_is_the_language_s(locale: str, count: int, seen: str) -> None:
    forms = "one='# item', two='# two', few='# few', many='# many', other='# items'"
    assert shown(f"{{{{ n | plural({forms}) }}}}", locale, n=count) == seen


def test_an_absent_form_falls_back_to_other() -> None:
    assert shown("{{ 2 | plural(one='# item', other='# items') }}", "ar") == "2 items"


def test_the_language_of_the_text_decides_where_it_is_not_the_recipient_s() -> None:
    assert shown("{{ d | date }}", "de", d="2026-01-15", **{TEXT_LOCALE: "en-GB"}) == "15 January 2026"


@pytest.mark.parametrize(
    "text",
    [
        "{{ v | date }}",
        "{{ v | time }}",
        "{{ v | datetime }}",
        "{{ v | number }}",
        "{{ v | percent }}",
        "{{ v | money('EUR') }}",
        "{{ v | plural(other='#') }}",
        "{{ v | round }}",
    ],
)
@pytest.mark.parametrize("value", ["canary@one.example", "2026-13-45", "1e999", [7], {"canary": 1}, True, None, ""])
def test_a_value_that_does_not_fit_is_refused_and_never_shown(text: str, value: Any) -> None:
    with pytest.raises(FormatFault) as caught:
        shown(text, v=value)
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{ v | time }}", "2026-01-15T09:00:00"),
        ("{{ v | time }}", "2026-01-15"),
        ("{{ v | date('QQQQQQQQ') }}", "2026-01-15"),
        ("{{ v | date('y' * 100) }}", "2026-01-15"),
        ("{{ v | money('XXQ') }}", 1),
        ("{{ v | money(12) }}", 1),
        ("{{ v | number(99) }}", 1),
        ("{{ v | plural(one='#') }}", 1),
        ("{{ v | plural(other='#', several='#') }}", 1),
        ("{{ v | round(2, 'bankers') }}", 1),
    ],
)
def test_a_wrong_use_of_a_filter_is_refused(text: str, value: Any) -> None:
    with pytest.raises(FormatFault):
        shown(text, v=value)


@pytest.mark.parametrize("text", ["{{ v | date }}", "{{ v | number }}", "{{ 1 | money(v) }}"])
def test_an_undefined_variable_stays_an_undefined_variable(text: str) -> None:
    with pytest.raises(UndefinedError, match="'v' is undefined"):
        shown(text)


def test_without_a_recipient_the_mend_is_named() -> None:
    with pytest.raises(FormatFault, match="with context"):
        ENVIRONMENT.from_string("{{ 1 | number }}").render()


def test_languages_know_their_forms_and_direction() -> None:
    assert plural_forms("ar") == ["zero", "one", "two", "few", "many", "other"]
    assert plural_forms("fr-CA") == ["one", "other"]
    assert (text_direction("ar-EG"), text_direction("he"), text_direction("vi")) == ("rtl", "rtl", "ltr")
