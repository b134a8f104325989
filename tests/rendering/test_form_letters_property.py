"""Packed or whole, never wrong: random templates and random recipients, packed against plain against Jinja itself."""

from collections.abc import Callable
from typing import Any

import orjson
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from jinja2 import DictLoader, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.letters import dump, load
from schemas.outcomes import Outcome
from sendonce.rendering import bounded
from sendonce.rendering.catalogue import HTML, SUBJECT, TEXT, TemplateSource, source_of
from sendonce.rendering.compiled import Compiled
from sendonce.rendering.environment import Missing
from sendonce.rendering.form_letters import blank_to_empty, one_line, slot_prefix
from sendonce.rendering.formats import FILTERS
from sendonce.rendering.recipients import Addressee, names_for
from sendonce.rendering.refusals import unfit
from sendonce.rendering.render import render_batch
from sendonce.rendering.screening import EXTENSIONS, screen

MANIFEST = "priority: bulk\nfrom: news@shop.example\n"
HEAD = {"campaign_id": "spring", "from_address": "news@shop.example", "reply_to": ""}

# -- Random templates -----------------------------------------------------------------------------------------------

TEXTS = [
    "a",
    " ",
    "\n",
    "\n  ",
    "<p>",
    "</p>",
    "&amp;",
    "Hi ",
    ", ",
    "{ ",
    "} ",
    "% ",
    "-",
    "0001-",
    '"',
    "é",
    "שלום",
    "",
]
TEXT_NAMES = [
    "name", "name", "name", "city", "html", "who.first", "who['first-name']", "who.items", "vars['name']",
    "recipient.id",
    "campaign.id", "unsubscribe_url", "'a'", "''", "'<i>'", "'  b '", "words['k' ~ n]|default('-')",
    "maybe|default(city)",
]  # fmt: skip
TEXT_FILTERS = [
    "upper", "lower", "title", "trim", "capitalize", "default('d')", "default('d', true)", "e", "safe", "forceescape",
    "replace('a', '<b>')", "truncate(5, true)", "truncate(3)", "striptags", "string", "center(9)",
    "indent(2)", "last|string",
    "indent(2, true)", "urlencode", "tojson", "urlize", "wordwrap(5)", "first|default('?')", "join('.')",
    "list|join", "reverse",
    "replace('<', '')|safe", "e|upper", "default(none, true)",
]  # fmt: skip
LIST_TEXTS = [
    "things|map(attribute='t')|join(', ')", "things|map(attribute='t')|join('<br>'|safe)", "things|map('string')|join",
    "things|selectattr('n')|map(attribute='t')|map('upper')|list|join('/')",
    "things|groupby('n')|map('first')|join(',')",
    "words.items()|map('join', '=')|join(';')", "words|dictsort|map('last')|join(' ')",
    "things|sort(attribute='t')|length",
    "name.split(' ')|join('.')", "things|batch(2)|map('length')|join('+')", "things|map(attribute='n')|unique|list",
    "words|xmlattr", "[name, n]|join('-')", "(name, city)|first", "{'k': name}['k']",
    "things|sum(attribute='n')", "things",
    "name.upper()", "name.strip().title()", "who.get('first')", "who|length", "things|tojson", "name[1:3]",
    "name[0]|default('')",
]  # fmt: skip
NUMBERS = [
    "n",
    "n",
    "1",
    "2.5",
    "things|length",
    "name|length",
    "n|abs",
    "n + 1",
    "n * 2",
    "n % 2",
    "7 // 2",
    "-n",
    "n|float",
]
NUMBER_FILTERS = [
    "string", "round(1)", "number", "money('EUR')", "percent", "plural(one='# thing', other='# things')",
    "filesizeformat",
    "int", "default(1)", "abs",
]  # fmt: skip
TRUTHS = [
    "flag", "flag", "not flag", "n > 1", "n in [1, 2]", "name", "name == city", "maybe is defined", "things",
    "who.first",
    "name is string", "'a' in name", "n is odd", "things|length > 1 and flag", "words is mapping or flag",
    "n is divisibleby 2",
]  # fmt: skip
# Wrong for some recipients or for all: the same refusal must come out.
WILD = ["absent", "who.absent", "maybe", "name + 1", "n ~ absent", "things[7].t", "none", "n|money('??')", "1 // n"]
LOOP = [
    "i.t",
    "i.t",
    "i.n|string",
    "loop.index",
    "loop.last",
    "loop.cycle('x', name)",
    "loop.changed(i.n)",
    "loop.revindex",
]
BLOCK_FILTERS = ["upper", "replace('a', 'b')|trim", "truncate(7, true)", "e", "striptags", "indent(2)", "center(20)"]

LIBRARY = """{% macro plain(x) %}[{{ x }}{% for c in 'ab' %}{{ c }}{{ x }}{% endfor %}]{% endmacro %}
{%- macro knows(x, y='y') %}<{{ x }} {{ y }} {{ name }}>
{%- if caller is defined %}{{ caller(x) }}{% endif %}{% endmacro %}
{%- set fixed %}{{ 1 + 1 }}{% endset %}text of the module {{ fixed }}"""
PARTIAL = "<div>{{ name }}{% for i in things %}{{ i.t }};{% endfor %}{{ city|upper }}</div>"
FIXED = "same for all {{ 2 * 3 }} {% for c in 'xyz' %}{{ c }}{% endfor %}"
BASE = """top {% block a %}A {{ name }}{% block inner %}inner {{ n }}{% endblock %}{% endblock %} mid
{% set kept %}{{ city }}!{% endset %}{% block b %}{{ kept|default('none') }}{% endblock %} {{ self.a() }} end"""


class _Writer:
    """Writes one template: every construct that the allow-list lets through, nested at random."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self._draw = draw
        self._macros: list[str] = []
        self._blocks = 0
        self._named = 0

    def pick(self, choices: list[Any]) -> Any:
        return choices[self._draw(st.integers(0, len(choices) - 1))]

    def text(self, depth: int, extra: list[str]) -> str:
        """An expression that gives a text or a number for nearly every recipient."""
        kind = self._draw(st.integers(0, 40))
        if kind == 40:
            return str(self.pick(WILD))
        if kind < 14 or not depth:
            return str(self.pick(TEXT_NAMES + extra * 6))
        inner = lambda: self.text(depth - 1, extra)  # noqa: E731
        if kind < 22:
            return f"({inner()})|{self.pick(TEXT_FILTERS)}"
        if kind < 26:
            return str(self.pick(LIST_TEXTS))
        if kind < 29:
            return f"({self.pick(NUMBERS)})|{self.pick(NUMBER_FILTERS)}"
        if kind < 32:
            return f"({inner()} ~ {inner()})"
        if kind < 34:
            return f"({inner()} if {self.truth()} else {inner()})"
        if kind < 36:
            return f"({inner()} if {self.truth()})"
        if kind < 38:
            return f"({inner()} {self.pick(['or', 'and'])} {inner()})"
        return f"{self.pick(self._macros)}({inner()})" if self._macros else str(self.pick(NUMBERS))

    def truth(self) -> str:
        return str(self.pick(TRUTHS))

    def body(self, depth: int, extra: list[str], *, top: bool = False) -> str:
        return "".join(self.statement(depth, extra, top) for _ in range(self._draw(st.integers(0, 4 if depth else 2))))

    def statement(self, depth: int, extra: list[str], top: bool) -> str:
        kind = self._draw(st.integers(0, 26 if depth else 8))
        if kind <= 3:
            return str(self.pick(TEXTS))
        if kind <= 8:
            left, right = self.pick(["{{", "{{", "{{-"]), self.pick(["}}", "}}", "-}}"])
            return f"{left} {self.text(2, extra)} {right}"
        inside = lambda more=(): self.body(depth - 1, [*extra, *more])  # noqa: E731
        value = lambda: self.text(1, extra)  # noqa: E731
        match kind:
            case 9 | 10:
                otherwise = self.pick(["", f"{{% else %}}{inside()}", f"{{% elif {self.truth()} %}}{inside()}"])
                return f"{{% if {self.truth()} %}}{inside()}{otherwise}{{%- endif %}}"
            case 11 | 12:
                condition = self.pick(["", " if i.n", " if loop is not defined"])
                otherwise = self.pick(["", f"{{% else %}}{inside()}"])
                leave = self.pick(
                    ["", "", "{% if loop.index > 1 %}{% break %}{% endif %}", "{% if i.n %}{% continue %}{% endif %}"]
                )
                return f"{{% for i in things{condition} %}}{leave}{inside(LOOP)}{otherwise}{{% endfor %}}"
            case 13:
                return f"{{% for k, v in words|dictsort %}}{inside(['k', 'v'])}{{% endfor %}}"
            case 14:
                deeper = "{% if i.more is defined %}{{ loop(i.more) }}{% endif %}"
                return f"{{% for i in tree recursive %}}{inside(['i.t', 'loop.depth'])}{deeper}{{% endfor %}}"
            case 15:
                self._named += 1
                name = f"s{self._named}"
                filtered = self.pick(["", " | upper", " | truncate(4, true)"])
                made = self.pick(
                    [f"{{% set {name} = {value()} %}}", f"{{% set {name}{filtered} %}}{inside()}{{% endset %}}"]
                )
                return f"{made}{{{{ {name} }}}}{inside([name])}"
            case 16:
                return f"{{% with w = {value()} %}}{inside(['w'])}{{% endwith %}}"
            case 17:
                return f"{{% filter {self.pick(BLOCK_FILTERS)} %}}{inside()}{{% endfilter %}}"
            case 18:
                return f"{{% autoescape {self.pick(['true', 'false', 'flag'])} %}}{inside()}{{% endautoescape %}}"
            case 19:
                self._named += 1
                name = f"m{self._named}"
                body = self.body(depth - 1, [*extra, "p", "q"])
                tail = self.pick(["", "{% if caller is defined %}{{ caller(p) }}{% endif %}"])
                made = f"{{% macro {name}(p, q='q') %}}{body}{tail}{{% endmacro %}}"
                called = f"{{{{ {name}({value()}) }}}}"
                block = f"{{% call(c) {name}({value()}) %}}{inside(['c'])}{{% endcall %}}" if tail else called
                if top:
                    self._macros.append(name)
                return made + self.pick([called, block])
            case 20:
                return str(self.pick(["{% include 'partial.j2' %}", "{% include 'gone.j2' ignore missing %}"]))
            case 21:
                return "{% include 'fixed.j2' without context %}" if top else "{% include 'fixed.j2' %}"
            case 22:
                how = self.pick(["", " with context"])
                return f"{{% import 'library.j2' as lib{how} %}}{{{{ lib.plain({value()}) }}}}"
            case 23:
                called = self.pick(
                    ["{{ knows(n) }}", "{% call(x) knows(name) %}{{ x }}" + inside(["x"]) + "{% endcall %}"]
                )
                return "{% from 'library.j2' import knows with context %}" + str(called)
            case 24:
                self._blocks += 1
                name = f"b{self._blocks}"
                again = self.pick(["", "", f"{{{{ self.{name}() }}}}"])
                scoped = self.pick(["", " scoped"])
                return f"{{% block {name}{scoped} %}}{inside()}{{% endblock %}}{again}"
            case 25:
                return "{% raw %}{{ name }}{% endraw %}{# note #}"
            case _:
                added = "{% for i in things %}{% set ns.total = ns.total ~ i.t %}{% endfor %}"
                return "{% set ns = namespace(total='') %}" + added + "{{ ns.total }}"

    def file(self) -> str:
        if self._draw(st.integers(0, 4)):
            return self.body(3, [], top=True)
        blocks = [
            f"{{% block {name} %}}{self.pick(['{{ super() }}', ''])}{self.body(2, [])}{{% endblock %}}" for name in "ab"
        ]
        last = f"{{% block inner %}}{self.body(1, [])}{self.pick(['{{ super() }}', ''])}{{% endblock %}}"
        return (
            "{% extends 'base.j2' %}"
            + self.body(1, [])
            + "".join(self.pick([blocks, blocks[:1], [last], [*blocks, last]]))
        )


@st.composite
def templates(draw: Callable[[Any], Any]) -> TemplateSource:
    files = {
        "template.yaml": MANIFEST,
        "subject.j2": draw(st.sampled_from(["Hi ", "{{ city }}", "x"])) + _Writer(draw).body(1, []).replace("\n", " "),
        "body.txt.j2": "Dear {{ name }}, " + _Writer(draw).file(),
        "body.html.j2": _Writer(draw).file(),
        "library.j2": LIBRARY, "partial.j2": PARTIAL, "fixed.j2": FIXED, "base.j2": BASE,
    }  # fmt: skip
    return source_of("random", files)


# -- Random recipients ----------------------------------------------------------------------------------------------


def nasty(prefix: str) -> st.SearchStrategy[str]:
    slot = f"-{prefix}-0000-"
    pieces = [
        "", "a", "Ann", "<b>&\"'</b>", "None", " ", "  ", " a", "a ", "{{ name }}", "{% raw %}", "{#", "%s",
        "%(a)s", "\\0",
        prefix, slot, slot[:9], slot[9:], prefix[:8], prefix[8:], f"-{prefix}-0001", "0001-", "-", "a  b", "\u00a0",
        "\u2028",
        "\u202eevil", "Zoë", "שלום", "👋🏽", "=?UTF-8?Q?=0A?=Bcc: x", "javascript:alert(1)", "https://x.example/?a=1&b=2",
    ]  # fmt: skip
    lines = ["a\nb", "a\n", "\r\nBcc: x", "\t", "a\x00b", "\x0b"]
    plain = st.sampled_from(pieces) | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
    calm = st.sampled_from(["Ann", "Bo & Co", "Zoë <3", "a", ""])
    return st.one_of(calm, calm, calm, calm, plain, plain, plain, st.sampled_from(lines) | calm)


def people(prefix: str) -> st.SearchStrategy[dict[str, Any]]:
    text = nasty(prefix)
    thing = st.fixed_dictionaries({"t": text, "n": st.integers(0, 3)})
    leaf = st.fixed_dictionaries({"t": text})
    tree = st.lists(leaf | st.fixed_dictionaries({"t": text, "more": st.lists(leaf, max_size=2)}), max_size=2)
    person = {
        "name": text | st.just("Ann"), "city": text, "n": st.integers(-1, 3), "flag": st.booleans(),
        "html": text.map(lambda t: f"<i>{t}"),
        "who": st.fixed_dictionaries({"first": text, "first-name": text, "items": text}),
        "things": st.lists(thing, max_size=3),
        "words": st.dictionaries(st.sampled_from(["k1", "k2", "k3"]), text, max_size=3), "tree": tree,
    }  # fmt: skip
    return st.fixed_dictionaries(person, optional={"maybe": text | st.none()})


def addressees(variables: list[dict[str, Any]]) -> list[Addressee]:
    return [
        Addressee(
            ordinal=ordinal,
            message_id=f"m{ordinal}",
            recipient_id=f"r<{ordinal}>",
            to=f"p{ordinal}@one.example",
            locale="en",
            timezone="UTC",
            variables=orjson.dumps(one).decode(),
            unsubscribe_url=f"https://shop.example/u?r={ordinal}&c=1",
        )
        for ordinal, one in enumerate(variables)
    ]


# -- Jinja itself ----------------------------------------------------------------------------------------------------


@pass_context
def _show(_: Context, value: Any) -> Any:
    # With the context, so that Jinja asks for constants too.
    return bounded.show(value)


class _Jinja(ImmutableSandboxedEnvironment):
    """Jinja's own compiler, filters and operators; of ours only what a letter may show and that items come first."""

    def __init__(self, source: TemplateSource, autoescape: bool) -> None:
        super().__init__(
            loader=DictLoader(dict(source.files)),
            autoescape=autoescape,
            # Folded, `'a' ~ ('<' | e)` is escaped twice; rendered, once. Letters are as rendered.
            optimized=False,
            undefined=Missing,
            extensions=EXTENSIONS,
            finalize=_show,
        )
        self.filters |= FILTERS

    def getattr(self, obj: Any, attribute: str) -> Any:
        if isinstance(obj, dict) and attribute in obj:
            return obj[attribute]
        return super().getattr(obj, attribute)


def by_jinja(environments: list[_Jinja], names: dict[str, Any]) -> tuple[str, str, str] | Outcome:
    """Subject, text and HTML as Jinja renders them, or the outcome of the first part that fails."""
    texts = []
    for environment, path in zip(environments, (SUBJECT, TEXT, HTML), strict=True):
        try:
            texts.append(environment.get_template(path).render(names))
        except Exception as fault:
            return unfit(fault).outcome
    return one_line(texts[0]), blank_to_empty(texts[1]), blank_to_empty(texts[2])


# What letters promise beyond Jinja: no control characters in headers, nothing empty, no unsafe links.
OURS = {
    Outcome.RENDER_HEADER_CONTROL_CHAR,
    Outcome.RENDER_EMPTY_SUBJECT,
    Outcome.RENDER_EMPTY_BODY,
    Outcome.RENDER_UNSAFE_LINK,
}


# Not shrunk: that takes minutes, and the template that failed is printed whole and small enough to read.
@settings(
    max_examples=100, phases=[Phase.explicit, Phase.reuse, Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(data=st.data())
def test_packed_letters_are_the_plain_letters_byte_for_byte(data: st.DataObject) -> None:
    source = data.draw(templates())
    if screen(source):
        event("not allowed by the allow-list")
        return
    compiled = Compiled(source)
    batch = addressees(data.draw(st.lists(people(slot_prefix(source.template_hash)), min_size=1, max_size=5)))

    packed = render_batch(compiled, batch, **HEAD)
    plain = render_batch(compiled, batch, pack=False, **HEAD)

    assert [(letter.ordinal, packed.texts(letter)) for letter in packed.letters] == [
        (letter.ordinal, plain.texts(letter)) for letter in plain.letters
    ]
    assert packed.refusals == plain.refusals
    assert compiled.stats.mismatches == 0
    assert load(dump(packed)) == packed
    outcome_of = {refusal.ordinal: Outcome(refusal.outcome) for refusal in plain.refusals}
    texts_of = {letter.ordinal: plain.texts(letter) for letter in plain.letters}
    jinja = [_Jinja(source, autoescape=part == HTML) for part in (SUBJECT, TEXT, HTML)]
    for person in batch:
        if outcome_of.get(person.ordinal) not in OURS:
            names = names_for(person, compiled.manifest, "spring", "en", {})
            assert by_jinja(jinja, names) == texts_of.get(person.ordinal, outcome_of.get(person.ordinal))

    for some in (batch[1:], batch[::2]):
        chosen = {person.ordinal for person in some}
        part = render_batch(compiled, some, **HEAD)
        assert [part.texts(letter) for letter in part.letters] == [
            packed.texts(letter) for letter in packed.letters if letter.ordinal in chosen
        ]
    event(f"packed: {sum(letter.form is not None for letter in packed.letters)} of {len(batch)}")
    event(f"refused: {len(packed.refusals)} of {len(batch)}")
