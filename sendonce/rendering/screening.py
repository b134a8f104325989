"""Everything that decides whether a template may be compiled: its syntax, its constructs, its links."""

from typing import Final

from jinja2 import Environment, TemplateSyntaxError, nodes

from sendonce.rendering.catalogue import TemplateSource, manifest_of
from sendonce.rendering.faults import TemplateFault
from sendonce.rendering.formats import FILTERS
from sendonce.rendering.links import unsafe_links
from sendonce.rendering.safety import unsafe_nodes

EXTENSIONS: Final = ("jinja2.ext.loopcontrols",)
_CURLY_QUOTES: Final = "\u2018\u2019\u201a\u201b\u201c\u201d\u201e\u201f\u00ab\u00bb"


def screen(source: TemplateSource) -> list[TemplateFault]:
    """Why a template may not be compiled: every fault of every file, in order; empty when it may.

    Parses and looks; compiles and renders nothing, reads no file.
    """
    trees, faults = parse_files(source)
    for path, tree in trees.items():
        faults += [
            TemplateFault(source.name, path, unsafe.line, f"not allowed: {unsafe.construct}", unsafe.mend)
            for unsafe in unsafe_nodes(tree)
        ]
    if not faults:
        faults = [
            TemplateFault(source.name, path, unsafe.line, f"not allowed: {unsafe.construct}", unsafe.mend)
            for path, unsafe in unsafe_links(trees)
        ]
    return sorted(faults, key=lambda fault: (fault.path, fault.line))


def parse_files(source: TemplateSource) -> tuple[dict[str, nodes.Template], list[TemplateFault]]:
    """The trees of all `.j2` files, and a fault for each that has none; the manifest must be sound as well."""
    trees: dict[str, nodes.Template] = {}
    faults: list[TemplateFault] = []
    try:
        manifest_of(source)
    except TemplateFault as fault:
        faults.append(fault)
    environment = Environment(extensions=EXTENSIONS)
    environment.filters |= FILTERS
    for path, text in source.files.items():
        if not path.endswith(".j2"):
            continue
        try:
            trees[path] = environment.parse(text, path)
            faults += _hyphens(environment, source.name, path, text)
        except TemplateSyntaxError as fault:
            faults.append(_syntax_fault(source.name, path, fault))
        except (RecursionError, ValueError, MemoryError):
            faults.append(
                TemplateFault(
                    source.name, path, 0, "cannot be read as a template", "nest less, and write shorter numbers"
                )
            )
    return trees, faults


def _syntax_fault(template: str, path: str, fault: TemplateSyntaxError) -> TemplateFault:
    message = fault.message or "a mistake in the syntax"
    mend = "mend the line; the rest of the template was not looked at"
    if "comment tag" in message:
        mend = "`{#` opens a comment; in CSS put a space between: `{ #id`"
    elif "unexpected char '#'" in message or "unexpected char '/'" in message:
        mend = "this is another template language; Jinja writes {% if name %} … {% endif %}"
    elif any(f"unexpected char {quote!r}" in message for quote in _CURLY_QUOTES):
        mend = "use straight quotes, \" or '"
    return TemplateFault(template, path, fault.lineno, message, mend)


def _hyphens(environment: Environment, template: str, path: str, text: str) -> list[TemplateFault]:
    """`first-name` means first minus name: whoever writes it so without spaces means a column of that name."""
    faults = []
    tokens = [(0, "", ""), *environment.lex(text, path)]
    for (line, left, before), (_, _, sign), (_, right, after) in zip(tokens, tokens[1:], tokens[2:], strict=False):
        if (left, sign, right) == ("name", "-", "name"):
            name = f"{before}-{after}"
            mend = f"write vars['{name}'] for a variable of that name, or spaces around the minus"
            faults.append(TemplateFault(template, path, line, f"{name} means {before} minus {after}", mend))
    return faults
