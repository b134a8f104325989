"""Rendering a batch: what each recipient gets, who is refused and why, what one letter may cost."""

import json
import threading
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from jinja2 import Environment

from schemas.outcomes import Outcome
from sendonce.rendering import limits
from sendonce.rendering.catalogue import TemplateFault, source_of
from sendonce.rendering.compiled import Compiled, compile_template
from sendonce.rendering.environment import LetterEnvironment
from sendonce.rendering.render import render_batch
from tests.rendering.letters import CASES, MANIFEST, person, render, render_people, results, template

BOTH = pytest.mark.parametrize("pack", [True, False], ids=["packed", "plain"])


def case(name: str, file: str) -> str:
    return (CASES / name / file).read_bytes().decode()


def rows(name: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in case(name, file).splitlines()]


def typed(name: str, kind: str, **settings: Any) -> str:
    return MANIFEST + f"variables: {{{name}: {json.dumps({'type': kind, **settings})}}}\n"


# -- Variables ------------------------------------------------------------------------------------------------------


@BOTH
def test_undefined_var_is_refused_and_default_makes_it_valid(pack: bool) -> None:
    subject, body = case("undefined-var", "subject.txt.j2"), case("undefined-var", "body.txt.j2")
    people = rows("undefined-var", "vars.jsonl")

    letters = render(template(subject=subject, text=body), *people, pack=pack)

    assert results(letters) == {
        0: Outcome.RENDER_UNDEFINED_VARIABLE,
        1: Outcome.RENDER_UNDEFINED_VARIABLE,
        2: ("Hi Ann!", "Hello Ann", ""),
    }
    assert {refusal.detail for refusal in letters.refusals} == {"undefined variable: name (subject.j2, line 1)"}
    for some in people:
        greeted = some.get("name", "friend")
        assert results(render(template(text=body), some, pack=pack)) == {0: ("Hello", f"Hello {greeted}", "")}


def test_none_nan_null_is_as_if_the_variable_were_not_there() -> None:
    people = rows("none-nan", "vars.jsonl")

    found = results(render(template(text=case("none-nan", "body.txt.j2")), *people))

    # An empty text stays empty: whoever wants "friend" there writes default('friend', true).
    assert [texts[1] for texts in found.values() if isinstance(texts, tuple)] == ["Hi friend!", "Hi !", "Hi friend!"]


@BOTH
def test_null_inside_the_data_is_undefined_too(pack: bool) -> None:
    source = template(text="{{ who.name | default('friend') }} {% for i in things %}{{ i | default('-') }}{% endfor %}")
    strict = template(text="{{ things[1] }}")
    data = {"who": {"name": None}, "things": ["a", None, "b"]}

    assert results(render(source, data, pack=pack)) == {0: ("Hello", "friend a-b", "")}
    assert results(render(strict, data, pack=pack)) == {0: Outcome.RENDER_UNDEFINED_VARIABLE}


@BOTH
@pytest.mark.parametrize(
    "written", ["none", "who.get('x')", "(none if true else 1)", "range", "range(3)", "things|map('upper')"]
)
def test_what_is_no_text_is_never_written(written: str, pack: bool) -> None:
    compiled = Compiled(template(text=f"{{{{ {written} }}}}"))

    letters = render_batch(
        compiled,
        [person(0, {"who": {}, "things": ["a"]})],
        campaign_id="spring",
        from_address="a@shop.example",
        reply_to="",
        pack=pack,
    )

    assert results(letters) == {0: Outcome.RENDER_ERROR}
    assert "which is no text" in letters.refusals[0].detail


@BOTH
def test_dict_method_collision_the_item_comes_first(pack: bool) -> None:
    source = template(text=case("dict-method-collision", "body.txt.j2"))
    data = json.loads(case("dict-method-collision", "vars.json"))

    assert results(render(source, data, pack=pack)) == {0: ("Hello", "pen,ink,Hello", "")}
    # Without the item there is no method in its place, and a call still means the method.
    assert results(render(source, {"order": {}, "card": {}}, pack=pack)) == {0: Outcome.RENDER_UNDEFINED_VARIABLE}
    called = template(
        text="{% for k, v in order.items() %}{{ k }}={{ v|join('+') }}{% endfor %}{{ order['items'][0] }}"
    )
    assert results(render(called, data, pack=pack)) == {0: ("Hello", "items=pen+inkpen", "")}


def test_number_format_numbers_keep_their_digits() -> None:
    source = template(text=case("number-format", "body.txt.j2"))
    assert results(render(source, case("number-format", "vars.json"))) == {
        0: ("Hello", "3 / 2.68 / 10000000000000000", "")
    }
    long = template(text="{{ n }} {{ m }}")
    numbers = '{"n": 123456789012345678901234567890, "m": -9999999999999999999}'
    assert results(render(long, numbers)) == {0: ("Hello", "123456789012345678901234567890 -9999999999999999999", "")}


@pytest.mark.parametrize(
    "variables",
    ["[1]", "{", "null", '{"a": NaN}', '{"a": 1e999}', '{"a": "\\ud800"}', "[" * 2_000, '{"a": ' + "9" * 5_000 + "}"],
)
def test_variables_that_are_no_json_object_refuse_their_recipient_only(variables: str) -> None:
    found = results(render(template(), variables, "", "{}"))

    assert found == {0: Outcome.RENDER_BAD_VARIABLE, 1: ("Hello", "Text", ""), 2: ("Hello", "Text", "")}


@BOTH
@pytest.mark.parametrize(
    ("kind", "given", "shown"),
    [
        ("integer", "3", "3"),
        ("integer", "three", Outcome.RENDER_BAD_VARIABLE),
        ("number", "2.50", "2.5"),
        ("boolean", "true", "True"),
        ("text", 7, "7"),
        ("date", "2026-13-01", Outcome.RENDER_BAD_VARIABLE),
        ("url", "https://shop.example/a", "https://shop.example/a"),
        ("url", "javascript:alert(1)", Outcome.RENDER_UNSAFE_LINK),
    ],
)
def test_a_variable_is_fitted_to_its_declared_type(kind: str, given: Any, shown: Any, pack: bool) -> None:
    letters = render(template(text="{{ x }}", manifest=typed("x", kind)), {"x": given}, pack=pack)

    assert results(letters) == {0: shown if isinstance(shown, Outcome) else ("Hello", shown, "")}
    assert all(
        "variable x is not" in refusal.detail and str(given) not in refusal.detail for refusal in letters.refusals
    )


def test_a_default_of_the_manifest_fills_a_gap_and_builtins_cannot_be_hidden() -> None:
    source = template(
        text="{{ x }} {{ vars['first-name'] }} {{ recipient.id }} {{ recipient.locale }} {{ recipient.timezone }} "
        "{{ campaign.id }} {{ unsubscribe_url }}",
        manifest=typed("x", "text", default="gap"),
    )
    data = {"first-name": "Ann", "recipient": {"id": "other"}, "campaign": "other", "unsubscribe_url": "other"}

    assert results(render(source, data)) == {0: ("Hello", "gap Ann r0 en UTC spring https://shop.example/u/0", "")}


# -- Subjects and headers ---------------------------------------------------------------------------------------------


@BOTH
def test_subject_autoescape_html_is_escaped_in_the_html_part_only(pack: bool) -> None:
    parts = {name: case("subject-autoescape", name) for name in ("subject.j2", "body.txt.j2", "body.html.j2")}
    source = source_of("sample", {"template.yaml": MANIFEST, **parts})

    assert results(render(source, case("subject-autoescape", "vars.json"), pack=pack)) == {
        0: (
            "News from Tom & Jerry's <3",
            "News from Tom & Jerry's <3",
            "<p>News from Tom &amp; Jerry&#39;s &lt;3</p>",
        )
    }


@BOTH
@pytest.mark.parametrize(
    ("file", "variables", "subject"),
    [
        ("if-block.j2", "vars.json", "Hello Ann"),
        ("two-newlines.j2", "vars.json", "Hello"),
        ("value-newline.j2", "vars-newline.json", "Hello Ann"),
    ],
)
def test_subject_trailing_newline_white_space_collapses(file: str, variables: str, subject: str, pack: bool) -> None:
    source = template(subject=case("subject-trailing-newline", file))
    assert results(render(source, case("subject-trailing-newline", variables), pack=pack)) == {0: (subject, "Text", "")}


@BOTH
@pytest.mark.parametrize(
    ("subject", "name", "line"),
    [
        ("Hi{{ ' ' ~ name if name }}!", "Ann", "Hi Ann!"),
        ("Hi{{ ' ' ~ name if name }}!", "", "Hi!"),
        ("{{ name }}{{ name }} x", " a  b ", "a b a b x"),
        ("a {{ name }} b", "\t \n", "a b"),
        ("{% set x %}one\n\ntwo {{ name }}\n{% endset %}{{ x }}", "Ann", "one two Ann"),
        ("Bonjour {{ name }}\u00a0!", "Zoë\u00a0B", "Bonjour Zoë\u00a0B\u00a0!"),
    ],
)
def test_white_space_of_a_subject_is_that_of_the_filled_text(subject: str, name: str, line: str, pack: bool) -> None:
    letters = render(template(subject=subject), {"name": name}, pack=pack)

    assert results(letters) == {0: (line, "Text", "")}
    assert [letter.form for letter in letters.letters] == [0 if pack else None]


@BOTH
def test_crlf_injection_refuses_those_recipients_and_no_other(pack: bool) -> None:
    raw = rows("crlf-injection", "recipients.ndjson")
    people = [person(number, row["template_variables"], to=row["email"]) for number, row in enumerate(raw)]

    letters = render_people(template(subject=case("crlf-injection", "subject.j2")), people, pack=pack)

    assert results(letters) == {
        **dict.fromkeys(range(4), Outcome.RENDER_HEADER_CONTROL_CHAR),
        4: Outcome.ADDRESS_INVALID,
        5: ("Hello Fine", "Text", ""),
    }
    details = " ".join(refusal.detail for refusal in letters.refusals)
    assert "subject.j2, line 1" in details
    assert "evil" not in details


@BOTH
def test_a_control_character_reaches_no_header_by_way_of_a_macro_or_block(pack: bool) -> None:
    for subject in (
        "{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(name) }}",
        "{% filter upper %}a {{ name }} b{% endfilter %}",
        "{% set x %}a {{ name }} b{% endset %}{{ x }}",
        "{% block b %}a {{ name }} b{% endblock %}",
    ):
        found = results(render(template(subject=subject), {"name": "x\r\nBcc: a"}, {"name": "x"}, pack=pack))
        assert found[0] == Outcome.RENDER_HEADER_CONTROL_CHAR
        assert isinstance(found[1], tuple)


@BOTH
def test_encoded_newline_injection_stays_the_characters_it_is(pack: bool) -> None:
    people = rows("encoded-newline-injection", "vars.jsonl")
    source = template(subject=case("encoded-newline-injection", "subject.j2"))

    for number, texts in results(render(source, *people, pack=pack)).items():
        assert texts == (f"{people[number]['name']}, your order", "Text", "")


def test_a_senders_name_may_hold_a_no_break_space_and_joined_emoji() -> None:
    name = "Shop\u00a0\U0001f469\u200d\U0001f680 <a@shop.example>"
    compiled = compile_template(template())

    assert render_batch(compiled, [], campaign_id="c", from_address=name, reply_to="").from_address == name


def test_a_from_address_with_a_line_end_is_the_callers_mistake() -> None:
    compiled = compile_template(template())
    with pytest.raises(ValueError, match="from address holds a control character"):
        render_batch(compiled, [], campaign_id="c", from_address="a@shop.example\n", reply_to="")


# -- Parts ------------------------------------------------------------------------------------------------------------


@BOTH
def test_content_order_empty_no_blank_part_and_no_blank_subject(pack: bool) -> None:
    def folder(name: str) -> Any:
        parts = {path.name: path.read_text() for path in (CASES / "content-order-empty" / name).iterdir()}
        return source_of(name, {"template.yaml": MANIFEST, **parts})

    assert results(render(folder("html-only"), {}, pack=pack)) == {0: ("Hello", "", "<p>Hello</p>")}
    assert results(render(folder("blank-text"), {"x": False}, pack=pack)) == {0: ("Hello", "", "<p>Hello</p>")}
    assert results(render(folder("blank-text"), {"x": True}, pack=pack)) == {0: ("Hello", "hi", "<p>Hello</p>")}
    assert results(render(folder("blank-subject"), {}, {"title": "A"}, pack=pack)) == {
        0: Outcome.RENDER_EMPTY_SUBJECT,
        1: ("A", "Hello", ""),
    }


@BOTH
def test_a_letter_with_nothing_in_it_is_refused(pack: bool) -> None:
    source = template(text="{{ x }}", html=" {{ y }}\n")

    found = results(render(source, {"x": " ", "y": ""}, {"x": " ", "y": "a"}, {"x": "a", "y": "\n"}, pack=pack))

    assert found == {0: Outcome.RENDER_EMPTY_BODY, 1: ("Hello", "", " a"), 2: ("Hello", "a", "")}


def test_a_locale_gets_its_own_parts_and_falls_back_part_by_part() -> None:
    source = template(
        subject="Hello",
        text="{{ 1234.5 | number }}",
        manifest=MANIFEST + "locales: [en, fr]\n",
        fr__subject_j2="Bonjour",
    )
    people = [person(number, locale=locale) for number, locale in enumerate(["en", "fr-CA", "de", "fr"])]

    subjects = {
        number: texts[0] for number, texts in results(render_people(source, people)).items() if isinstance(texts, tuple)
    }

    assert subjects == {0: "Hello", 1: "Bonjour", 2: "Hello", 3: "Bonjour"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"text": None}, "neither a text nor an HTML part"),
        ({"text": "{{ name | upcase }}"}, "the filter upcase"),
        ({"text": "{% if %}"}, "line 1"),
        ({"text": "{% block a %}{% endblock %}{% block a %}{% endblock %}"}, "defined twice"),
    ],
)
def test_a_template_that_cannot_be_used_is_refused_before_any_recipient(files: dict[str, Any], words: str) -> None:
    with pytest.raises(TemplateFault, match=words):
        compile_template(template(**files))


# -- Links ------------------------------------------------------------------------------------------------------------


@BOTH
def test_js_url_is_refused_for_that_recipient(pack: bool) -> None:
    source = template(html=case("js-url", "body.html.j2"))
    good = {"url": "https://shop.example/?a=1&b=2", "t": "x"}

    letters = render(source, case("js-url", "vars.json"), good, pack=pack)

    assert results(letters)[0] == Outcome.RENDER_UNSAFE_LINK
    assert isinstance(results(letters)[1], tuple)
    assert "alert" not in letters.refusals[0].detail


@pytest.mark.parametrize(
    ("html", "url", "safe"),
    [
        ("<a href='{{ url }}'>", "JaVaScRiPt:alert(1)", False),
        ("<a href='{{ url }}'>", " \tjava\nscript:alert(1)", False),
        ('<a href="{{ url | safe }}">', "java&#115;cript&colon;x", False),
        ("<a href={% if url %}{{ url }}{% endif %}>", "data:text/html,x", False),
        ("<a href='{% for u in [url] %}{{ u }}{% endfor %}'>", "vbscript:x", False),
        ("{% macro a(u) %}<a href='{{ u }}'>{% endmacro %}{{ a(url) }}", "javascript:x", False),
        ("<img src='{{ url }}'>", "javascript:x", False),
        ("<a href='{{ url }}'>", "mailto:a@one.example", True),
        ("<a href='{{ url }}'>", "/a/b:c", True),
        ("<a href='{{ url }}'>", "", True),
        ("<a href='https://shop.example/{{ url }}'>", "javascript:x", True),
        ("<p title='{{ url }}'>", "javascript:x", True),
    ],
)
def test_a_link_out_of_a_variable_has_a_safe_scheme_wherever_it_is_written(html: str, url: str, safe: bool) -> None:
    found = results(render(template(html=html), {"url": url}))
    assert isinstance(found[0], tuple) if safe else found == {0: Outcome.RENDER_UNSAFE_LINK}


# -- Cost -------------------------------------------------------------------------------------------------------------


def timed(source: Any, variables: dict[str, Any], *, traced: bool = True) -> tuple[Any, float, int]:
    """The one recipient's result, CPU seconds, and (`traced`) the most memory that rendering held, in bytes."""
    compiled = Compiled(source)
    if traced:
        tracemalloc.start()
    began = time.thread_time()
    letters = render_batch(
        compiled, [person(0, variables)], campaign_id="c", from_address="a@shop.example", reply_to=""
    )
    took = time.thread_time() - began
    peak = tracemalloc.get_traced_memory()[1] if traced else 0
    tracemalloc.stop()
    return results(letters)[0], took, peak


@pytest.mark.parametrize("file", ["nested.j2", "mult.j2", "center.j2", "forever.j2"])
def test_resource_bomb_as_written_is_refused_before_compiling(file: str) -> None:
    with pytest.raises(TemplateFault):
        compile_template(template(text=case("resource-bomb", file)))


@pytest.mark.parametrize("file", ["nested.j2", "mult.j2", "center.j2", "forever.j2"])
def test_resource_bomb_that_passed_the_check_ends_at_its_limits(file: str) -> None:
    """The limits stand by themselves: here the template is compiled without the allow-list."""
    found, took, peak = timed(template(text=case("resource-bomb", file)), {}, traced=file in ("mult.j2", "center.j2"))
    assert found in (Outcome.RENDER_TOO_LARGE, Outcome.RENDER_TOO_SLOW)
    assert took < 2 * limits.LETTER_S + 0.5
    assert peak < 10_000_000


BIG = {"big": "x" * 60_000, "n": 30_000_000, "many": list(range(3_000)), "quotes": "'" * 60_000}
GROWING = {
    "product": "{{ big * n }}",
    "list product": "{{ ([1] * n) | length }}",
    "center": "{{ 'x' | center(n) }}",
    "indent": "{{ big | indent(n, true) }}",
    "replace": "{{ big | replace('x', big) }}",
    "replace method": "{{ big.replace('x', big) }}",
    "join": "{{ many | join(big) }}",
    "join method": "{{ big.join(many | map('string')) }}",
    "wordwrap": "{{ big | wordwrap(1, wrapstring=big) }}",
    "batch": "{{ many | batch(n, 'x') | list | length }}",
    "slice": "{{ many | slice(n) | list | length }}",
    "map": "{% set x = many | map('replace', '1', big) | list %}{{ x | length }}",
    "repeated": "{% for i in many %}{{ quotes }}{% endfor %}",
    "repeated in a macro": "{% macro m() %}{% for i in many %}{{ quotes }}{% endfor %}{% endmacro %}{{ m() }}",
    "repeated in a set block": "{% set x %}{% for i in many %}{{ quotes }}{% endfor %}{% endset %}{{ x | length }}",
    "doubled": "{% set ns = namespace(x='ab') %}{% for i in many %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
    "doubled sum": "{% set ns = namespace(x='ab') %}{% for i in many %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    "doubled list": "{% set ns = namespace(x=[1]) %}{% for i in many %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}",
    "squared": "{% set ns = namespace(x=7) %}{% for i in many %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
    "width from data": "{{ width % 1 }}",
    "turns": "{% for i in many %}{% for j in many %}{% endfor %}{% endfor %}",
    "sieve": "{% for i in many %}{% for j in many if j < 0 %}{% endfor %}{% endfor %}",
    "calls": "{% macro m(d) %}{% if d < 40 %}{{ m(d + 1) }}{{ m(d + 1) }}{% endif %}{% endmacro %}{{ m(0) }}",
    "includes": "{% if depth < 40 %}{% with depth = depth + 1 %}{% include 'body.html.j2' %}"
    "{% include 'body.html.j2' %}{% endwith %}{% endif %}",
}


@pytest.mark.parametrize("body", GROWING.values(), ids=GROWING.keys())
def test_data_that_makes_a_letter_grow_or_never_end_is_refused_within_its_limits(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A tenth of the real limits: tracemalloc makes Python several times slower, and each letter is tried twice.
    monkeypatch.setattr(limits, "STEPS", limits.STEPS // 10)
    monkeypatch.setattr(limits, "LETTER_S", limits.LETTER_S / 10)

    found, took, peak = timed(template(html=body), {**BIG, "depth": 0, "width": "%999999999d"})

    assert found in (Outcome.RENDER_TOO_LARGE, Outcome.RENDER_TOO_SLOW), found
    assert took < 5
    assert peak < 100_000_000


def test_a_circle_that_passed_the_check_is_refused() -> None:
    for files in ({"text": "{% include 'body.txt.j2' %}"}, {"text": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"}):
        assert timed(template(**files), {})[0] == Outcome.RENDER_ERROR


@BOTH
def test_the_size_limit_counts_bytes_and_is_exact(pack: bool) -> None:
    source = template(subject="Hi", text="é{{ x }}")
    fits, over = {"x": "é" * 499_999}, {"x": "é" * 499_999 + "a"}

    found = results(render(source, fits, over, {"x": "a"}, pack=pack))

    assert [type(found[number]) for number in range(3)] == [tuple, Outcome, tuple]
    assert found[1] == Outcome.RENDER_TOO_LARGE


@pytest.mark.parametrize(
    "expression",
    [
        "big | sort | length", "big | sort(attribute='a') | length", "big | unique | list | length",
        "big | groupby('a') | length", "big | map('upper') | list | length", "big | select('string') | list | length",
        "big | batch(3) | list | length", "big | wordwrap", "big | wordwrap(1)", "spaces | wordwrap(20)",
        "lines | wordwrap(20)", "words | urlize", "spaces[:90000] | wordwrap(1)",
    ],
)  # fmt: skip
def test_one_call_of_a_filter_takes_no_seconds(expression: str) -> None:
    """A filter reports nothing while it runs: sort took 6 s of a text of 950 kB, where a letter has 1 s."""
    size = 950_000
    data = {"big": "a-" * (size // 2), "spaces": " " * size, "lines": "\n" * size, "words": "a " * (size // 2)}
    compiled = Compiled(template(text="{{ " + expression + " }}"))

    began = time.thread_time()
    batch = render_batch(compiled, [person(0, data)], campaign_id="c", from_address="a@shop.example", reply_to="")

    assert results(batch)[0] == Outcome.RENDER_TOO_LARGE
    assert time.thread_time() - began < 0.8


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("words | sort | first", "aa"), ("words | unique | list | length", "2"), ("text | wordwrap(5)", "aa bb\ncc"),
        ("long | wordwrap | length", "89999"), ("'see http://a.example' | urlize | length", "66"),
    ],
)  # fmt: skip
def test_what_a_letter_needs_of_those_filters_is_let_through(expression: str, text: str) -> None:
    data = {"words": ["bb", "aa", "bb"], "text": "aa bb cc", "long": "word " * 18_000}

    found = results(render(template(text="{{ " + expression + " }}"), data))

    assert found[0][1] == text


def test_limits_hold_in_every_thread_and_neighbours_are_not_disturbed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEPS", limits.STEPS // 10)
    slow = Compiled(template(text="{% for i in many %}{% for j in many %}{% endfor %}{% endfor %}"))
    good = Compiled(template(text="Hi {{ name }}"))

    def one(number: int) -> Any:
        compiled, data = (slow, BIG) if number % 4 == 0 else (good, {"name": f"n{number}"})
        return results(
            render_batch(compiled, [person(0, data)], campaign_id="c", from_address="a@shop.example", reply_to="")
        )[0]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(one, range(40)))

    assert found == [
        Outcome.RENDER_TOO_SLOW if number % 4 == 0 else ("Hello", f"Hi n{number}", "") for number in range(40)
    ]


def test_macros_of_an_imported_file_are_counted_for_each_letter_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "STEPS", 10_000)
    source = template(
        text="{% import 'lib.j2' as lib %}{{ lib.rows(many) }}",
        lib_j2="{% macro rows(many) %}{% for i in many %}{{ i }}{% endfor %}{% endmacro %}",
    )
    people = [person(number, {"many": [1] * 3_000}) for number in range(20)]
    assert not render_people(source, people).refusals


# -- Compiling --------------------------------------------------------------------------------------------------------


def test_recompile_cost_one_compile_per_part(monkeypatch: pytest.MonkeyPatch) -> None:
    big = "".join(f"<p>{{% if a{i} %}}{{{{ name }}}}{{% endif %}}{'x' * 220}</p>\n" for i in range(200))
    data = {"name": "Ann", **{f"a{i}": i % 2 == 0 for i in range(200)}}
    source = template(subject="Hi {{ name }}", html=big, manifest=MANIFEST + "locales: [en, fr]\n")
    compiles: list[Any] = []
    real = Environment.compile
    monkeypatch.setattr(Environment, "compile", lambda *args, **more: compiles.append(args[2]) or real(*args, **more))

    people = [person(number, data, locale=("en", "fr", "de-CH")[number % 3]) for number in range(300)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda part: render_people(source, people[part::4]), range(4)))

    assert sorted(compiles) == ["body.html.j2", "body.txt.j2", "subject.j2"]


def test_the_templates_kept_are_bounded() -> None:
    for number in range(40):
        compile_template(template(text=f"Text {number}"))
    kept = [compile_template(template(text=f"Text {number}")) for number in (39, 38)]
    assert kept[0] is compile_template(template(text="Text 39"))
    from sendonce.rendering import compiled

    assert len(compiled._compiled) <= compiled.TEMPLATES_KEPT


# -- Batches ----------------------------------------------------------------------------------------------------------


def test_letters_come_in_the_order_of_ordinals_whatever_order_they_are_asked_in() -> None:
    source = template(text="{% if vip %}Dear{% else %}Hi{% endif %} {{ name }}")
    people = [person(number, {"name": f"n{number}", "vip": number % 3 == 0}) for number in range(30)]

    straight, reversed_ = render_people(source, people), render_people(source, people[::-1])

    assert straight == reversed_
    assert [letter.ordinal for letter in straight.letters] == list(range(30))
    assert [letter.form for letter in straight.letters[:4]] == [0, 1, 1, 0]


def test_a_failing_recipient_neither_stops_nor_changes_the_others() -> None:
    source = template(text="{{ name | upper }}")
    people = [{"name": f"n{number}"} if number != 3 else {} for number in range(10)]

    letters = render(source, *people)

    assert [letter.ordinal for letter in letters.letters] == [0, 1, 2, 4, 5, 6, 7, 8, 9]
    assert [(refusal.ordinal, refusal.message_id) for refusal in letters.refusals] == [(3, "m3")]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("\n\n{{ order.note }}", "undefined variable: note (body.txt.j2, line 3)"),
        ("{{ order[secret] }}", "undefined item: a computed one (body.txt.j2, line 1)"),
        (
            "{{ secret | date }}",
            "date: the value is not an ISO 8601 date, or a time with an offset, such as 2026-01-15T09:00:00Z "
            "(body.txt.j2, line 1)",
        ),
        ("{{ secret + 1 }}", "error TypeError (body.txt.j2, line 1)"),
        ("{{ secret.nothing }}", "undefined variable: nothing (body.txt.j2, line 1)"),
        ("{{ [order] | map(attribute=secret) | list }}", "undefined item: a computed one (body.txt.j2, line 1)"),
        ("{% include 'part.j2' %}", "undefined variable: gone (part.j2, line 2)"),
    ],
)
def test_a_refusal_names_file_line_and_variable_and_never_a_value(text: str, detail: str) -> None:
    compiled = Compiled(template(text=text, part_j2="\n{{ gone }}"))
    data = {"order": {"a": 1}, "secret": "s3cr3t"}

    refusals = render_batch(
        compiled, [person(0, data)], campaign_id="c", from_address="a@shop.example", reply_to=""
    ).refusals

    assert len(refusals) == 1
    assert "s3cr3t" not in refusals[0].detail
    assert refusals[0].detail == detail


def test_environments_are_shared_and_sheets_are_not() -> None:
    """Two threads that render the same template at the same time keep their values apart."""
    compiled = Compiled(template(subject="{{ name }}", text="{% for i in things %}{{ name }}{{ i }}{% endfor %}"))
    barrier = threading.Barrier(2)

    def one(name: str) -> Any:
        barrier.wait()
        people = [person(number, {"name": name, "things": list(range(number % 5))}) for number in range(400)]
        return results(
            render_batch(compiled, people, campaign_id="c", from_address="a@shop.example", reply_to="", pack=True)
        )

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(one, ["Ann", "Bo"]))

    for name, found in zip(["Ann", "Bo"], both, strict=True):
        for number, texts in found.items():
            body = "".join(f"{name}{i}" for i in range(number % 5))
            assert texts == ((name, body, "") if body else Outcome.RENDER_EMPTY_BODY)


def test_the_sandbox_keeps_its_insides_even_without_the_allow_list() -> None:
    for text in (
        "{{ ''.__class__.__mro__ }}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ '{0.__class__}'.format(name) }}",
        "{{ (name|attr('__class__')) if false else name.__len__() }}",
        "{{ vars.__class__ }}",
    ):
        try:
            found = timed(template(text=text), {"name": "Ann"})[0]
        except TemplateFault:
            continue
        assert isinstance(found, Outcome)


def test_one_environment_per_part_shares_nothing_that_a_template_can_change() -> None:
    environment = LetterEnvironment(template(), "body.txt.j2")
    assert set(environment.globals) == {"range", "dict", "namespace", "cycler", "joiner"}
    assert "attr" not in environment.filters
