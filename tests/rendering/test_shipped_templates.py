"""The templates that ship are good enough to send: sound, complete, and right in each language."""

import html.parser
import re
from typing import Any

import orjson
import pytest

from schemas.letters import Letters
from sendonce.rendering.catalogue import (
    PARTS,
    TemplateSource,
    example_variables,
    find_template,
    manifest_of,
    part_path,
    template_names,
)
from sendonce.rendering.check import check_template
from sendonce.rendering.formats import text_direction
from sendonce.rendering.render import Addressee, compile_template, render_batch

NAMES = ["newsletter", "otp", "receipt"]
LOCALES = ["en", "fr", "vi", "ar"]
UNSUBSCRIBE = "https://shop.example/u/r1"
VOID = {"meta", "br", "img", "hr", "link", "input"}


def letters(source: TemplateSource, locale: str, **variables: Any) -> tuple[str, str, str]:
    """Subject, text and HTML of one letter."""
    given = orjson.dumps(example_variables(manifest_of(source)) | variables).decode()
    addressee = Addressee(0, "m1", "r1", "ann@one.example", locale, "Asia/Ho_Chi_Minh", given, UNSUBSCRIBE)
    batch = render_batch(
        compile_template(source), [addressee], campaign_id="spring", from_address="a@shop.example", reply_to=""
    )
    assert batch.refusals == []
    return batch.texts(batch.letters[0])


def test_these_ship() -> None:
    assert template_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_check_finds_nothing(name: str) -> None:
    assert [str(finding) for finding in check_template(find_template(name))] == []


@pytest.mark.parametrize("name", NAMES)
def test_every_language_has_every_part_of_its_own(name: str) -> None:
    source = find_template(name)
    assert manifest_of(source).locales == LOCALES
    for part in PARTS:
        assert len({part_path(source, locale, part) for locale in LOCALES}) == len(LOCALES)


class _Balance(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: dict[str, list[tuple[str, str | None]]] = {}
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes.setdefault(tag, attrs)
        self.urls += [value or "" for key, value in attrs if key in ("href", "src", "background")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("locale", LOCALES)
def test_each_letter_is_whole_in_its_language(name: str, locale: str) -> None:
    subject, text, page = letters(find_template(name), locale)
    assert subject == subject.strip()
    assert 10 < len(subject) <= 78
    parsed = _Balance()
    parsed.feed(page)
    assert parsed.open == []
    root = dict(parsed.attributes["html"])
    assert (root["lang"], root["dir"]) == (locale, text_direction(locale))
    assert len(page) < 20_000
    assert max(len(line.encode()) for line in page.splitlines()) < 998
    assert all(url.startswith("https://") for url in parsed.urls)
    assert "<img" not in page
    assert "prefers-color-scheme: dark" in page
    for body in (text, page):
        assert "None" not in body
        assert "{{" not in body
    assert "\n\n\n" not in text


@pytest.mark.parametrize("name", NAMES)
def test_text_and_html_say_the_same_numbers_and_links(name: str) -> None:
    """A text part is a letter of its own: what the HTML names, it names."""
    for locale in LOCALES:
        _, text, page = letters(find_template(name), locale)
        parsed = _Balance()
        parsed.feed(page)
        assert all(url in text for url in parsed.urls)
        shown = re.sub(r"<(style|head).*?</\1>|<[^>]+>", " ", page, flags=re.DOTALL)
        for amount in re.findall(r"[\u200f]?\d+[.,]\d\d\xa0€|€\d+[.,]\d\d", shown):
            assert amount in text


def test_the_newsletter_greets_lists_and_lets_go() -> None:
    source = find_template("newsletter")
    picks = [{"name": "Vase <&>", "price": "1234.5", "url": "https://shop.example/vase?a=1&b=2"}]
    for locale, count in (("en", "1 pick"), ("fr", "1 idée"), ("vi", "1 gợi ý"), ("ar", "اقتراح واحد")):
        subject, text, page = letters(source, locale, name="Zoë", points=11, picks=picks)
        assert "Zoë" in subject
        assert count in text
        assert count in page
        assert "Vase &lt;&amp;&gt;" in page
        assert "Vase <&>" in text
        assert UNSUBSCRIBE in text
        assert f'href="{UNSUBSCRIBE}"' in page
        subject, text, page = letters(source, locale, name="", picks=[])
        assert "Zoë" not in subject + text + page
        assert count not in text


def test_arabic_counts_in_six_forms() -> None:
    source = find_template("newsletter")
    points = {0: "0 نقطة", 1: "نقطة واحدة", 2: "نقطتان", 3: "3 نقاط", 11: "11 نقطة", 100: "100 نقطة"}
    for count, words in points.items():
        assert words in letters(source, "ar", points=count)[1]


def test_a_code_reads_in_its_order_in_every_direction() -> None:
    for locale in LOCALES:
        subject, text, page = letters(find_template("otp"), locale, code="012 345", minutes=1)
        assert "012 345" in subject
        assert "012 345" in text
        assert re.search(r'dir="ltr"[^>]*>012 345<', page)


def test_a_receipt_with_only_what_is_required() -> None:
    source = find_template("receipt")
    required = example_variables(manifest_of(source), required_only=True)
    addressee = Addressee(
        0, "m1", "r1", "ann@one.example", "en-GB", "Europe/London", orjson.dumps(required).decode(), ""
    )
    batch: Letters = render_batch(
        compile_template(source), [addressee], campaign_id="c", from_address="a@shop.example", reply_to=""
    )
    _, text, page = batch.texts(batch.letters[0])
    assert "Shipping" not in text + page
    assert "View your order" not in text + page
    assert "15 January 2026, 09:00" in text
    assert "\n\n\n" not in text


@pytest.mark.parametrize("name", NAMES)
def test_shipped_letters_pack(name: str) -> None:
    """A shipped template that could not be packed would send a thousand requests for one."""
    source = find_template(name)
    variables = orjson.dumps(example_variables(manifest_of(source))).decode()
    people = [
        Addressee(n, f"m{n}", f"r{n}", "ann@one.example", LOCALES[n % 4], "UTC", variables, f"{UNSUBSCRIBE}{n}")
        for n in range(40)
    ]
    batch = render_batch(compile_template(source), people, campaign_id="c", from_address="a@shop.example", reply_to="")
    assert len(batch.forms) == len(LOCALES)
    assert all(letter.form is not None for letter in batch.letters)


@pytest.mark.parametrize(
    ("name", "dated"), [("newsletter", "offer_ends"), ("otp", "requested_at"), ("receipt", "ordered_at")]
)
def test_a_vietnamese_letter_writes_its_date_as_vietnamese_mails_do(name: str, dated: str) -> None:
    """CLDR's long date (`15 tháng 1, 2026`) is for a date by itself; in a sentence it takes `ngày` and `năm`."""
    _, text, page = letters(find_template(name), "vi", **{dated: "2026-01-15T09:00:00Z"})

    for part in (text, page):
        assert "16:00 ngày 15 tháng 1 năm 2026" in part
        assert part.count("tháng 1") == part.count("ngày 15 tháng 1 năm 2026")
