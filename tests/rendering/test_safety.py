"""What a template may contain: bombs and escapes are refused on the tree, fast; what letters need is not."""

import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from jinja2 import Environment

from sendonce.rendering.catalogue import TemplateFault, source_of
from sendonce.rendering.safety import FILTERS, TESTS, unsafe_nodes
from sendonce.rendering.screening import screen

CASES = Path(__file__).parent.parent / "cases"
MANIFEST = {"template.yaml": "priority: high\n"}


def faults(files: str | Mapping[str, str]) -> list[TemplateFault]:
    """What is wrong with a template: of one text part, or of these files. Never slow: nothing is compiled."""
    files = {"body.txt.j2": files} if isinstance(files, str) else files
    began = time.process_time()
    found = screen(source_of("spring", {**MANIFEST, **files}))
    assert time.process_time() - began < 2
    return found


def words(files: str | Mapping[str, str]) -> str:
    return "\n".join(map(str, faults(files)))


# -- Recorded cases ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["css-brace-hash", "resource-bomb", "sandbox-escape", "template-recursion-traversal"])
def test_a_recorded_bad_template_is_refused_with_file_and_line(case: str) -> None:
    files = sorted(path for path in (CASES / case).iterdir() if path.suffix == ".j2")
    assert files
    for path in files:
        found = faults({path.name: path.read_text(encoding="utf-8")})
        assert [(fault.template, fault.path, fault.line) for fault in found[:1]] == [("spring", path.name, 1)]


def test_css_and_other_template_languages_get_a_mend_that_helps() -> None:
    def mend(name: str) -> str:
        return faults({name: (CASES / "css-brace-hash" / name).read_text(encoding="utf-8")})[0].mend

    assert "{ #id" in mend("css.html.j2")
    assert "{% if name %}" in mend("handlebars.html.j2")
    assert "straight quotes" in mend("smartquotes.j2")


def test_a_column_name_with_a_hyphen_is_never_a_subtraction() -> None:
    text = (CASES / "hyphen-var" / "body.txt.j2").read_text(encoding="utf-8")
    assert "first-name means first minus name; write vars['first-name']" in words(text)
    assert not faults("{{ vars['first-name'] }} {{ a - b }} {{ a -}} {{- b }} {{ 3-2 }}")


@pytest.mark.parametrize(
    "case", ["dict-method-collision", "undefined-var", "none-nan", "js-url", "content-order-empty"]
)
def test_a_recorded_template_that_is_only_awkward_passes(case: str) -> None:
    files = sorted((CASES / case).rglob("*.j2"))
    assert files
    for path in files:
        assert not faults({path.name: path.read_text(encoding="utf-8")})


# -- Bombs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{{ 9**(9**8) }}",
        "{{ 'a'*10**9 }}",
        "{{ 999999999*'a' }}",
        "{{ [1]*100000000 }}",
        "{{ (1,)*100000000 }}",
        "{{ 'x'|center(30000000) }}",
        "{{ 'x'|center(width=30000000) }}",
        "{{ 'a'|indent(99999999, true) }}",
        "{{ '%999999999d' % 5 }}",
        "{{ '%.999999999f' % 5 }}",
        "{{ '%*d' % (999999999, 5) }}",
        "{{ '%999999999d'|format(5) }}",
        "{% set n = 50000000 %}{{ 'A' * n }}",
        "{{ 'x' * ('9'|int * 9999999) }}",
        "{{ 'x' * (7000 * 7000) }}",
        "{{ 'aaa' ~ ('b'*99999999 if true else 'c') }}",
        "{% if 'a'*99999999 == 'x' %}{% endif %}",
        "{{ x|default('a'*99999999) }}",
        "{{ x is divisibleby('a'*99999999) }}",
        "{{ x[('a'*99999999)|length] }}",
        "{{ {'a': 'b'*99999999} }}",
        "{% with a='b'*99999999 %}{% endwith %}",
        "{% macro m(a='b'*99999999) %}{% endmacro %}",
        "{% macro m(a) %}{% endmacro %}{{ m('b'*99999999) }}",
        "{% filter replace('a','b'*99999999) %}a{% endfilter %}",
        "{{ ['a']|map('center', 30000000)|list }}",
        "{{ 'a'.replace('a', 'b'*1000).replace('b', 'c'*1000).replace('c', 'd'*1000) }}",
        "{{ 'a'" + "|replace('a','" + "a" * 20 + "')" * 6 + " }}",
        "{{ 'a'" + "|replace('a','" + "a" * 20 + "')" + "|replace('a','" + "a" * 20 + "')" * 4 + " }}",
        "{{ 'ab'" + "|list|string" * 9 + " }}",
        "{% set a='x'*1000 %}{% set b=a~a~a~a~a~a~a~a~a~a %}{% set c=b~b~b~b~b~b~b~b~b~b %}{% set d=c*20 %}{{ d }}",
        "{% set ns = namespace(x='a') %}{% for i in y %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 1e400 }}",
        "{{ " + "9" * 5000 + " }}",
    ],
)
def test_text_that_explodes_is_refused_before_it_is_compiled(text: str) -> None:
    assert faults(text)


@pytest.mark.parametrize(
    "text",
    [
        "{% for a in range(99999) %}{% endfor %}",
        "{% for a in range(300) %}{% for b in range(-1000, 0) %}x{% endfor %}{% endfor %}",
        "{% for a in range(n) %}{% for b in range(n) %}x{% endfor %}{% endfor %}",
        "{% for a in range(*n) %}{% endfor %}",
        "{% for a in 'x'*1000 %}{% for b in 'x'*1000 %}{% endfor %}{% endfor %}",
        "".join(f"{{% for a{n} in x %}}" for n in range(9)) + "{% endfor %}" * 9,
        "{% macro a() %}{% for i in range(100) %}x{% endfor %}{% endmacro %}"
        "{% macro b() %}{% for i in range(100) %}{{ a() }}{% endfor %}{% endmacro %}"
        "{% for i in range(100) %}{{ b() }}{% endfor %}",
        "{% macro m0() %}x{% endmacro %}"
        + "".join(f"{{% macro m{n}() %}}" + f"{{{{ m{n - 1}() }}}}" * 10 + "{% endmacro %}" for n in range(1, 9))
        + "{{ m8() }}",
    ],
)
def test_loops_and_calls_that_turn_too_often_are_refused(text: str) -> None:
    assert "turn" in words(text) or "nested loops" in words(text) or "range" in words(text)


@pytest.mark.parametrize(
    "text",
    [
        "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
        "{{ " + "+".join(["a"] * 500) + " }}",
        "{% if a %}" * 200 + "{% endif %}" * 200,
        "{{ a }}" * 25_000,
        "{{ a" + "[0]" * 500 + " }}",
    ],
)
def test_depth_and_number_of_constructs_are_bounded(text: str) -> None:
    assert faults(text)


# -- Escapes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{{ x.__class__ }}",
        "{{ x['__class__'] }}",
        "{{ x._private }}",
        "{{ __import__ }}",
        "{{ ''.join.__func__ }}",
        "{{ x|attr('__class__') }}",
        "{{ x|map('attr', '__class__')|list }}",
        "{{ x|map(attribute='__class__')|list }}",
        "{{ x|map(attribute=y)|list }}",
        "{{ x|map(y)|list }}",
        "{{ x|groupby('a.__class__') }}",
        "{{ x|sum('__class__') }}",
        "{{ x|sort(attribute='a,_x') }}",
        "{{ x|selectattr('_x') }}",
        "{{ x|select(y)|list }}",
        "{{ x|unique(false, '_x')|list }}",
        "{{ x|join(',', '__class__') }}",
        "{{ x|replace(*y) }}",
        "{{ x|random }}",
        "{{ x|pprint }}",
        "{{ lipsum(1000) }}",
        "{{ self.__init__ }}",
        "{{ self }}",
        "{{ self.nowhere() }}",
        "{{ cycler }}",
        "{{ x() }}",
        "{{ x()() }}",
        "{{ x.y.z() }}",
        "{{ '{0.__class__}'.format(x) }}",
        "{{ x.format_map(y) }}",
        "{{ f|format(x) }}",
        "{% set range = 5 %}",
        "{% set ns._x = 5 %}",
        "{% set _x = 5 %}",
        "{% macro m(f) %}{{ f(f) }}{% endmacro %}{{ m(m) }}",
        "{% macro m() %}{% endmacro %}{% set m = x %}{{ m() }}",
        "{% set j = joiner() %}{% set j = x %}{{ j() }}",
        "{% trans %}x{% endtrans %}",
        "{% debug %}",
    ],
)
def test_no_way_leads_to_python(text: str) -> None:
    assert faults(text)


# -- Files, blocks and macros -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{% include '../secret.txt' %}",
        "{% include '/etc/passwd' %}",
        "{% import 'a/../../b.j2' as b %}",
        "{% include name %}",
        "{% include ['subject.j2', name] %}",
        "{% extends layout %}",
        "{% from 'missing.j2' import m %}",
        "{% include 'template.yaml' %}",
    ],
)
def test_other_files_are_named_and_inside_the_folder(text: str) -> None:
    found = faults({"body.txt.j2": "first\n" + text, "subject.j2": "Hi"})
    assert [(fault.path, fault.line) for fault in found] == [("body.txt.j2", 2)]


@pytest.mark.parametrize(
    "files",
    [
        {"a.j2": "{% include 'a.j2' %}"},
        {"a.j2": "{% include 'b.j2' %}", "b.j2": "{% extends 'a.j2' %}"},
        {"a.j2": "{% if x %}{% import 'b.j2' as b %}{% endif %}", "b.j2": "{% from 'a.j2' import m %}"},
        {"a.j2": "{% macro m() %}{{ m() }}{% endmacro %}"},
        {"a.j2": "{% macro m() %}{{ n() }}{% endmacro %}{% macro n() %}{{ m() }}{% endmacro %}"},
        {"a.j2": "{% macro m() %}{% call m() %}x{% endcall %}{% endmacro %}"},
        {
            "a.j2": "{% import 'b.j2' as b %}{% macro m() %}{{ b.n() }}{% endmacro %}{{ m() }}",
            "b.j2": "{% macro n() %}{% include 'a.j2' %}{% endmacro %}",
        },
        {"a.j2": "{% block a %}{{ self.a() }}{% endblock %}"},
        {"a.j2": "{% block a %}{% block b %}{{ self.a() }}{% endblock %}{% endblock %}"},
        {"a.j2": "{% for i in x recursive %}{{ loop(x) }}{% endfor %}"},
        {"a.j2": "{% for i in x recursive %}{{ loop([i]) }}{% endfor %}"},
        {f"{n}.j2": f"{{% include '{n + 1}.j2' %}}" for n in range(60)} | {"60.j2": "end"},
    ],
)
def test_a_circle_of_files_blocks_macros_or_loops_is_refused(files: dict[str, str]) -> None:
    assert faults(files)


def test_macros_with_one_name_in_two_files_are_not_mistaken_for_a_circle() -> None:
    files = {
        "a.j2": "{% from 'b.j2' import go as plain %}{% macro go(x) %}{{ plain(x) }}{% endmacro %}{{ go(1) }}",
        "b.j2": "{% macro go(x) %}{{ x }}{% endmacro %}",
    }
    assert not faults(files)


# -- What letters need ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{{ name|default('friend') }}",
        "{{ '=' * 40 }}{{ '=' * (title|length) }}{{ '★' * rating }}",
        "{{ qty * price }} {{ price * 1000 }} {{ (a + b) * 3 / 4 }} {{ n % 2 }} {{ '%.2f' % price }}",
        "{% for i in items %}{{ loop.index }}{{ loop.cycle('a', 'b') }}{{ i.name|upper|trim }}{% else %}-{% endfor %}",
        "{% for i in tree recursive %}{{ i.name }}{{ loop(i.children) }}{% endfor %}",
        "{% macro m(x, y=1) %}{{ caller() if caller }}{% endmacro %}{{ m(1) }}{% call m(2) %}z{% endcall %}",
        "{% set comma = joiner(', ') %}{% for i in x %}{{ comma() }}{{ i }}{% endfor %}",
        "{% set c = cycler('a', 'b') %}{{ c.next() }}",
        "{% set ns = namespace(s=0) %}{% for i in x %}{% set ns.s = ns.s + i.price * i.n %}{% endfor %}{{ ns.s }}",
        "{% block a %}{% block b %}{% endblock %}{{ self.b() }}{% endblock %}",
        "{{ x|selectattr('active')|map(attribute='name')|join(', ') }}{{ x|selectattr('n', 'gt', 3)|list|length }}",
        "{{ x|replace('a', 'b')|replace('c', 'd')|replace('e', 'f')|replace('g', 'h') }}",
        "{% for i in range(10) %}{% for j in range(10) %}{{ i * j }}{% endfor %}{% endfor %}",
        "{% for k, v in d.items() %}{{ k }}{{ v }}{% endfor %} {{ x.split(',')[0].strip() }}",
        "{% autoescape false %}{{ x }}{% endautoescape %}{% filter upper %}a{% endfilter %}{% set x %}a{% endset %}",
        "{{ 'a' ~ x }}{{ x if y else z }}{{ x[1:3] }}{{ -x }}{{ x is divisibleby 3 }}{{ 1 < x <= 3 }}{{ x in [1] }}",
        "{{ t|datetime }}{{ n|plural(one='# a', other='# b') }}{{ p|money(currency) }}",
        "{% for i in x %}{% if i %}{% continue %}{% endif %}{% break %}{% endfor %}",
        "{# a comment #}{% raw %}{{ raw }}{% endraw %}",
    ],
)
def test_what_letters_need_is_let_through(text: str) -> None:
    assert words(text) == ""


def test_a_misspelled_filter_gets_a_suggestion() -> None:
    assert "the filter uper; did you mean upper?" in words("{{ name|uper }}")
    assert "the test definde; did you mean defined?" in words("{% if name is definde %}{% endif %}")


def test_every_fault_of_every_file_is_listed_in_order() -> None:
    found = faults({"body.txt.j2": "{{ a|uper }}\n{{ a.__b }}", "a.j2": "{% if %}"})
    assert [(fault.path, fault.line) for fault in found] == [("a.j2", 1), ("body.txt.j2", 1), ("body.txt.j2", 2)]


def test_the_lists_know_nothing_that_jinja_does_not() -> None:
    """A name on the list that the environment lacks would pass here and fail while compiling."""
    environment = Environment()
    from sendonce.rendering.formats import FILTERS as ours

    assert environment.filters.keys() | ours.keys() >= FILTERS
    assert environment.tests.keys() >= TESTS
    assert not FILTERS & {"attr", "pprint", "random"}


def test_one_tree_can_be_judged_by_itself() -> None:
    found = unsafe_nodes(Environment().parse("fine\n{{ 2 ** 3 }}"))
    assert [(unsafe.line, unsafe.construct) for unsafe in found] == [(2, "the power operator")]
