"""What becomes a slot and what does not, when a letter goes whole, and what packing costs."""

import gc
import statistics
import time
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.letters import FormLetter, Letters, slot_key
from sendonce.rendering import render as rendering
from sendonce.rendering.compiled import Compiled
from sendonce.rendering.environment import Missing
from sendonce.rendering.form_letters import SLOT, NotPacked, build_form, slot_prefix
from sendonce.rendering.recipients import Addressee, names_for
from sendonce.rendering.render import render_batch
from tests.rendering.letters import person, render, results, template

LIBRARY = "{% macro shout(x) %}{{ x | upper }}{% endmacro %}{% macro greet() %}Hi {{ name }}{% endmacro %}module text"
BASE = "<b>{% block a %}base {{ name }}{% endblock %}</b>"


def slots(html: str, **more: str) -> list[str]:
    """The values that one letter of this HTML part puts into slots: name is `Ann`, things are `x` and `y`."""
    source = template(html=html, text=None, library_j2=LIBRARY, base_j2=BASE, **more)
    letters = render(source, {"name": "Ann", "things": ["x", "y"], "tree": [{"t": "a", "more": [{"t": "b"}]}]})
    assert [letter.form for letter in letters.letters] == [0]
    return letters.letters[0].values


@pytest.mark.parametrize(
    ("html", "values"),
    [
        ("{{ name }} {{ name }}", ["Ann", "Ann"]),
        ("{% for i in things %}{{ i }}{{ loop.index }}{% endfor %}", ["x", "1", "y", "2"]),
        ("{{ 'constant' }} {{ 1 + 1 }}", ["2"]),
        ("{{ '' }}{{ name if false }}-", []),
        ("{% macro m(x) %}<i>{{ x }}</i>{{ x }}{% endmacro %}{{ m(name) }}", ["<i>Ann</i>Ann"]),
        ("{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}<{{ name }}>{% endcall %}", ["<Ann>"]),
        ("{% filter upper %}a{{ name }}{% endfilter %}", ["AANN"]),
        ("{% set x %}a{{ name }}{% endset %}{{ x }}", ["aAnn"]),
        ("{% for i in tree recursive %}{{ i.t }}{{ loop(i.more) if i.more is defined }}{% endfor %}", ["ab"]),
        ("{% import 'library.j2' as l %}{{ l.shout(name) }}", ["ANN"]),
        ("{% from 'library.j2' import greet with context %}{{ greet() }}", ["Hi Ann"]),
        ("{% include 'base.j2' %}", ["Ann"]),
        ("{% include 'library.j2' without context %}", []),
        ("{% set x %}{% include 'base.j2' %}{% endset %}{{ x }}", ["<b>base Ann</b>"]),
        ("{% filter upper %}{% block b %}{{ name }}{% endblock %}{% endfilter %}{{ name }}", ["ANN", "Ann"]),
        ("{% block b %}{{ name }}{% endblock %}", ["Ann"]),
        ("{% block b %}{{ name }}{% endblock %}{{ self.b() }}", ["Ann", "Ann"]),
        ("{% extends 'base.j2' %}{% block a %}[{{ super() }}] {{ name }}{% endblock %}", ["base Ann", "Ann"]),
        ("{% with n = name %}{{ n }}{% endwith %}", ["Ann"]),
        ("{% autoescape things|length > 2 %}{{ '<b>' }}{% endautoescape %}", ["<b>"]),
        ("{% autoescape false %}{{ name ~ '<' }}{% endautoescape %}{{ name ~ '<' }}", ["Ann<", "Ann&lt;"]),
    ],
)
def test_a_slot_is_what_is_written_where_the_output_streams(html: str, values: list[str]) -> None:
    assert slots(html) == values


def test_slots_are_numbered_in_one_row_over_subject_text_and_html() -> None:
    source = template(subject="{{ name }} a", text="b {{ name }} {{ n }}", html="<p>{{ name }}</p>")

    letters = render(source, {"name": "Ann <3", "n": 7}, {"name": "Bo", "n": 8})

    prefix = slot_prefix(source.template_hash)
    keys = [slot_key(prefix, number) for number in range(4)]
    assert letters.forms == [FormLetter(prefix, 4, f"{keys[0]} a", f"b {keys[1]} {keys[2]}", f"<p>{keys[3]}</p>")]
    assert [letter.values for letter in letters.letters] == [
        ["Ann <3", "Ann <3", "7", "Ann &lt;3"],
        ["Bo", "Bo", "8", "Bo"],
    ]
    assert all(type(value) is str for letter in letters.letters for value in letter.values)


def test_recipients_who_take_other_ways_through_a_template_have_other_form_letters() -> None:
    source = template(
        text="{% if vip %}Dear{% else %}Hi{% endif %} {{ name }}{% for t in things %}, {{ t }}{% endfor %}"
    )
    people = [{"name": "Ann", "vip": n % 2, "things": ["x"] * (n % 3)} for n in range(12)]

    letters = render(source, *people)

    assert len(letters.forms) == 6
    assert [letter.form for letter in letters.letters] == [0, 1, 2, 3, 4, 5] * 2


def test_the_prefix_looks_random_and_is_the_same_for_the_same_template_for_ever() -> None:
    assert slot_prefix("0" * 64) == "ssruovavqli2iv2w"
    assert len({slot_prefix(str(number)) for number in range(1_000)}) == 1_000
    assert all(len(slot_prefix(str(number))) == 16 and slot_prefix(str(number)).isalnum() for number in range(100))


# -- Whole letters ----------------------------------------------------------------------------------------------------


def whole_and_right(letters: Letters, expected: dict[int, str]) -> None:
    assert {letter.ordinal: letter.form is None for letter in letters.letters} == dict.fromkeys(expected, True)
    assert {ordinal: texts[1] for ordinal, texts in results(letters).items() if isinstance(texts, tuple)} == expected


def test_a_value_that_holds_the_prefix_goes_whole() -> None:
    source = template(text="Hi {{ a }} {{ b }}")
    prefix = slot_prefix(source.template_hash)
    value = f"x{slot_key(prefix, 1)}y"

    letters = render(source, {"a": value, "b": "secret"}, {"a": "Ann", "b": "Bo"})

    assert [letter.form for letter in letters.letters] == [None, 0]
    assert results(letters)[0] == ("Hello", f"Hi {value} secret", "")


@pytest.mark.parametrize("between", ["", "{c}", "{c}{{{{ e }}}}"])
def test_values_that_make_a_slot_key_together_with_their_neighbours_go_whole(between: str) -> None:
    """Neither value holds the prefix; with what stands between them they spell the key of another slot."""

    def source_for(character: str) -> Any:
        return template(text="{{ a }}" + between.format(c=character) + "{{ b }} and {{ c }}")

    # The text between is part of the template, so of the hash: look for one that its own prefix contains.
    for character in "abcdefghijklmnopqrstuvwxyz":
        source = source_for(character)
        prefix = slot_prefix(source.template_hash)
        if not between or character in prefix[1:-1]:
            break
    cut = prefix.index(character, 1) if between else 8
    first, rest = prefix[:cut], prefix[cut + (1 if between else 0) :]
    data = {"a": f"-{first}", "b": f"{rest}-0002-", "c": "secret", "e": ""}
    assert prefix not in data["a"] + "|" + data["b"]

    letters = render(source, data)

    middle = character if between else ""
    whole_and_right(letters, {0: f"-{first}{middle}{rest}-0002- and secret"})


@pytest.mark.parametrize("value", ["a\x00b", "\x00"])
def test_a_value_with_nul_goes_whole(value: str) -> None:
    whole_and_right(render(template(text="x {{ a }} {{ b }}"), {"a": value, "b": "c"}), {0: f"x {value} c"})


def test_a_part_that_only_its_values_fill_goes_whole_where_they_are_blank() -> None:
    letters = render(template(text="{{ a }} {{ b }}\n", html="<p>"), {"a": " ", "b": "\t"}, {"a": " ", "b": "x"})

    assert [letter.form for letter in letters.letters] == [None, 0]
    assert results(letters) == {0: ("Hello", "", "<p>"), 1: ("Hello", "  x", "<p>")}


def test_more_slots_than_keys_goes_whole() -> None:
    found = render(template(text="{% for i in things %}{{ i }}.{% endfor %}"), {"things": ["a"] * 10_000})
    whole_and_right(found, {0: "a." * 10_000})


def test_a_template_that_spells_its_own_prefix_is_never_packed() -> None:
    with pytest.raises(NotPacked):
        build_form("sabc", ["s"], ["text sabc ", SLOT], []).row(["x"])


def test_forms_beyond_what_a_batch_may_have_go_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "FORMS_PER_BATCH", 3)
    source = template(text="{{ name }}{% for i in things %}.{% endfor %}!")
    people = [{"name": f"n{n}", "things": [0] * (n % 5)} for n in range(20)]

    letters = render(source, *people)

    assert [letter.form for letter in letters.letters[:7]] == [0, 1, 2, None, None, 0, 1]
    assert results(letters)[19] == ("Hello", "n19....!", "")


# -- Self-check -------------------------------------------------------------------------------------------------------


def batch(compiled: Compiled, size: int, first: int = 0) -> Letters:
    people = [person(number, {"name": f"n{number}"}) for number in range(first, first + size)]
    return render_batch(compiled, people, campaign_id="c", from_address="a@shop.example", reply_to="")


def test_the_first_of_each_form_and_one_in_a_thousand_are_compared_with_a_plain_letter() -> None:
    compiled = Compiled(template(text="Hi {{ name }}"))

    batch(compiled, 2_500)
    batch(compiled, 600)

    assert compiled.stats.packed == 3_100
    assert compiled.stats.self_checks == 1 + 3
    assert compiled.stats.mismatches == 0


def test_a_mismatch_stops_packing_for_that_template_and_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should packing ever be wrong, the letter that shows it still goes out right, and nothing is packed after it."""
    compiled = Compiled(template(text="Hi {{ name }}"))
    other = Compiled(template(text="Hello {{ name }}"))
    batch(compiled, 10)
    monkeypatch.setattr(FormLetter, "fill", lambda *_: ("wrong", "wrong", "wrong"))

    letters = batch(compiled, 1_500)
    monkeypatch.undo()

    whole = [letter for letter in letters.letters if letter.form is None]
    assert [letter.text for letter in whole] == [f"Hi n{letter.ordinal}" for letter in whole]
    assert [letter.ordinal for letter in whole] == list(range(whole[0].ordinal, 1_500))
    assert compiled.stats.mismatches == 1
    assert not compiled.packing
    assert batch(compiled, 3).forms == []
    assert other.packing


# -- What it costs ----------------------------------------------------------------------------------------------------

STYLE = "padding:8px;font-family:Helvetica,Arial,sans-serif;color:#334455"
ROW = f"<tr><td style='{STYLE}'>A paragraph of the letter.</td></tr>\n"
NEWSLETTER_HTML = (
    "<!doctype html><html><body><table>"
    + ROW * 35
    + "<p>Hello {{ name }},</p>{% if vip %}<p>Thank you, {{ name }}: {{ points }} points in {{ city }}.</p>"
    "{% else %}<p>Join us.</p>{% endif %}<ul>{% for i in things %}<li><a href='{{ i.url }}'>{{ i.title }}</a> "
    "{{ i.price }}</li>\n{% endfor %}</ul>"
    + ROW * 32
    + "<p>{{ city }}</p><a href='{{ unsubscribe_url }}'>out</a></html>"
)
NEWSLETTER_TEXT = (
    "Hello {{ name }}\n{% if vip %}Thank you, {{ name }}.{% endif %}\n"
    + "A line of the letter.\n" * 20
    + "{% for i in things %}- {{ i.title }}: {{ i.price }}\n{% endfor %}{{ unsubscribe_url }}\n"
)
NEWSLETTER_SUBJECT = "{{ name }}, news from {{ city }}"


def subscribers(size: int) -> list[Addressee]:
    return [
        person(
            number,
            {
                "name": f"{('Ann', 'Bo & Co', 'Zoë')[number % 3]} {number}",
                "vip": number // 4 % 2 == 0,
                "points": number,
                "city": "Hà Nội",
                "things": [
                    {"title": f"Pen {number}", "price": "2.50", "url": f"https://shop.example/{number}"}
                    for _ in range(number % 4)
                ],
            },
        )
        for number in range(size)
    ]


def cpu(work: Any) -> float:
    gc.collect()
    began = time.process_time()
    work()
    return time.process_time() - began


def test_packing_costs_no_more_than_a_tenth_of_plain_rendering() -> None:
    """An 8 KB newsletter with a condition and a loop: packed against our plain letters and against Jinja's own.

    Ratios of CPU times of rounds that follow each other, so that a busy machine slows both. The bounds leave room
    for noise; measured were about 1.05 and 0.85.
    """
    source = template(subject=NEWSLETTER_SUBJECT, text=NEWSLETTER_TEXT, html=NEWSLETTER_HTML)
    assert 7_500 < len(NEWSLETTER_HTML) < 8_700
    compiled = Compiled(source)
    people = subscribers(1_000)
    bare = [ImmutableSandboxedEnvironment(autoescape=escape, undefined=Missing) for escape in (False, False, True)]
    parts = [
        environment.from_string(text)
        for environment, text in zip(bare, (NEWSLETTER_SUBJECT, NEWSLETTER_TEXT, NEWSLETTER_HTML), strict=True)
    ]

    def ours(pack: bool) -> Letters:
        return render_batch(compiled, people, campaign_id="c", from_address="a@shop.example", reply_to="", pack=pack)

    def jinja() -> list[list[str]]:
        named = [names_for(one, compiled.manifest, "c", "en", {}) for one in people]
        return [[part.render(names) for part in parts] for names in named]

    letters = ours(True)
    assert len(letters.forms) == 8
    assert [list(letters.texts(letter)) for letter in letters.letters] == jinja()
    rounds = [(cpu(lambda: ours(True)), cpu(lambda: ours(False)), cpu(jinja)) for _ in range(7)]
    assert statistics.median(packed / plain for packed, plain, _ in rounds) < 1.25
    assert statistics.median(packed / bare for packed, _, bare in rounds) < 1.10
