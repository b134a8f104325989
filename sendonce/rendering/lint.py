"""Constructs that are allowed and yet mostly mistakes: shown by `check`, never in the way of sending."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from jinja2 import Environment, nodes

from sendonce.rendering.formats import plural_forms

# An attribute of a tag whose value begins with an expression and no quote.
_UNQUOTED: Final = re.compile(r"<[A-Za-z][^<>]*?\s([\w:-]+)\s*=\s*\{\{")


class Lint(NamedTuple):
    code: str
    line: int
    message: str
    mend: str


def lint_file(path: str, text: str, tree: nodes.Template, locale: str) -> Iterator[Lint]:
    """What looks wrong in one file; `locale` is that of its words."""
    yield from _swallowed(text)
    yield from _plurals(tree, locale)
    if path.endswith(".html.j2"):
        yield from _unquoted(text)
        yield from _unescaped(tree)


def _unquoted(text: str) -> Iterator[Lint]:
    for found in _UNQUOTED.finditer(text):
        line = text.count("\n", 0, found.end()) + 1
        message = f"the attribute {found[1]} has a value without quotes: a space in it begins another attribute"
        yield Lint("unquoted-attribute", line, message, f'write {found[1]}="{{{{ … }}}}"')


def _unescaped(tree: nodes.Template) -> Iterator[Lint]:
    mend = "leave escaping on, unless the value is your own HTML and never a recipient's"
    for node in tree.find_all(nodes.Filter):
        if node.name == "safe":
            yield Lint("unescaped", node.lineno, "the filter safe writes a value as HTML", mend)
    for modifier in tree.find_all(nodes.ScopedEvalContextModifier):
        off = [option for option in modifier.options if option.key == "autoescape"]
        if any(not isinstance(option.value, nodes.Const) or not option.value.value for option in off):
            yield Lint("unescaped", modifier.lineno, "autoescape is off here: values are written as HTML", mend)


def _swallowed(text: str) -> Iterator[Lint]:
    for line, kind, value in Environment().lex(text):
        if kind == "comment" and ("{" in value or "}" in value) and "{{" not in value and "{%" not in value:
            message = "a comment that looks like CSS: everything from `{#` to `#}` is left out of the letter"
            yield Lint("css-in-comment", line, message, "in CSS put a space between: `{ #id`")


def _plurals(tree: nodes.Template, locale: str) -> Iterator[Lint]:
    needed = plural_forms(locale)
    for node in tree.find_all(nodes.Filter):
        if node.name == "plural":
            given = {pair.key for pair in node.kwargs}
            missing = [form for form in needed if form not in given]
            if missing and not node.dyn_kwargs:
                message = f"the plural lacks {', '.join(missing)}, which {locale} tells apart; `other` stands in"
                yield Lint("plural-forms", node.lineno, message, f"give {', '.join(f'{form}=…' for form in missing)}")
