"""What a template may contain: an allow-list on the parsed tree, checked before anything is compiled.

`Environment.parse` is safe; compiling is not (constants are folded), and a sandbox stops neither CPU nor memory.
So only what letters need is let through: known nodes, filters, tests and calls; no way to Python's attributes;
no text that explodes; other files only by literal names inside the template's own folder; no circles.
"""

import difflib
import re
from dataclasses import dataclass
from typing import Final

from jinja2 import nodes

from sendonce.rendering.formats import FILTERS as FORMATS
from sendonce.rendering.growth import RANGE_LIMIT, TURN_LIMIT, Growth, is_range, name_key, range_length, turns

MAX_NODES: Final = 20_000
MAX_DEPTH: Final = 80
MAX_NESTED_LOOPS: Final = 8

_STATEMENTS: Final = (
    nodes.Template, nodes.Output, nodes.TemplateData, nodes.If, nodes.For, nodes.Break, nodes.Continue, nodes.Block,
    nodes.Extends, nodes.Include, nodes.Import, nodes.FromImport, nodes.Macro, nodes.CallBlock, nodes.FilterBlock,
    nodes.With, nodes.Assign, nodes.AssignBlock, nodes.Scope, nodes.ScopedEvalContextModifier,
)  # fmt: skip
_EXPRESSIONS: Final = (
    nodes.Name, nodes.NSRef, nodes.Const, nodes.Tuple, nodes.List, nodes.Dict, nodes.Pair, nodes.Keyword,
    nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Call, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Concat,
    nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg, nodes.Pos,
    nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod,
)  # fmt: skip
NODES: Final = frozenset(_STATEMENTS + _EXPRESSIONS)

# Left out of Jinja's: attr and pprint (Python's insides), random (a letter must come out the same every time).
FILTERS: Final = frozenset({
    "abs", "batch", "capitalize", "center", "count", "d", "default", "dictsort", "e", "escape",
    "filesizeformat", "first", "float", "forceescape", "format", "groupby", "indent", "int", "items", "join",
    "last", "length", "list", "lower", "map", "max", "min", "reject", "rejectattr", "replace", "reverse",
    "round", "safe", "select", "selectattr", "slice", "sort", "string", "striptags", "sum", "title", "tojson",
    "trim", "truncate", "unique", "upper", "urlencode", "urlize", "wordcount", "wordwrap", "xmlattr",
} | FORMATS.keys())  # fmt: skip
TESTS: Final = frozenset({
    "boolean", "callable", "defined", "divisibleby", "escaped", "even", "false", "filter", "float", "in",
    "integer", "iterable", "lower", "mapping", "none", "number", "odd", "sameas", "sequence", "string", "test",
    "true", "undefined", "upper", "==", "eq", "equalto", "!=", "ne", ">", "gt", "greaterthan", ">=", "ge", "<",
    "lt", "lessthan", "<=", "le",
})  # fmt: skip
GLOBALS: Final = frozenset({"range", "dict", "namespace", "cycler", "joiner"})
METHODS: Final = frozenset({
    "get", "items", "keys", "values", "next", "reset", "capitalize", "casefold", "count", "endswith", "find",
    "isalnum", "isalpha", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper",
    "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rpartition", "rsplit",
    "rstrip", "split", "splitlines", "startswith", "strip", "swapcase", "title", "upper",
})  # fmt: skip
_LOOP: Final = frozenset({"cycle", "changed"})
# Where a filter takes an attribute's name (it may be a path), and where the name of a test or filter.
_ATTRIBUTE_AT: Final = {
    "groupby": 0, "selectattr": 0, "rejectattr": 0, "sum": 0, "join": 1, "min": 1, "max": 1, "unique": 1, "sort": 2,
    "map": 99,
}  # fmt: skip
_NAMED_AT: Final = {
    "select": ("test", 0), "reject": ("test", 0), "selectattr": ("test", 1), "rejectattr": ("test", 1),
    "map": ("filter", 0),
}  # fmt: skip
_RESERVED: Final = GLOBALS | {"self", "super", "loop", "caller", "lipsum", "varargs", "kwargs"}
_CHARACTER_FORMAT: Final = re.compile(r"(?<!%)(?:%%)*%(\([^)]*\))?[-+ #0\d.*]*c")
_HALF: Final = re.compile("[\ud800-\udfff]")
_WIDE_FORMAT: Final = re.compile(r"%(\([^)]*\))?[-+ #0]*(\*|\d{4,}|\d*\.(\*|\d{4,}))")


@dataclass(frozen=True)
class Unsafe:
    """A construct that a template may not contain, on which line, and what to write instead."""

    line: int
    construct: str
    mend: str


def unsafe_nodes(tree: nodes.Template) -> list[Unsafe]:
    """Every construct in the tree that is not allowed, in order of lines; empty when it is safe to compile.

    One tree by itself; `links.unsafe_links` judges what several files and macros do together.
    """
    if size := _too_big(tree):
        return [size]
    screening = _Screening(tree)
    screening.visit(tree, loops=(), turned=1)
    return sorted(set(screening.found), key=lambda unsafe: (unsafe.line, unsafe.construct))


def _too_big(tree: nodes.Template) -> Unsafe | None:
    """Judged without recursion, so that the rest may recurse."""
    count = 0
    level: list[nodes.Node] = [tree]
    for _ in range(MAX_DEPTH):
        count += len(level)
        level = [child for node in level for child in node.iter_child_nodes()]
        if count > MAX_NODES:
            return Unsafe(1, f"more than {MAX_NODES} constructs in one file", "split or shorten the template")
        if not level:
            return None
    return Unsafe(level[0].lineno, f"more than {MAX_DEPTH} levels of nesting", "flatten it; use includes or loops")


class _Screening:
    def __init__(self, tree: nodes.Template) -> None:
        self.found: list[Unsafe] = []
        self._growth = Growth(self._too_large)
        self._macros = macro_names(tree)
        self._modules = {node.target for node in tree.find_all(nodes.Import)}
        self._blocks = {node.name for node in tree.find_all(nodes.Block)}
        joiners: list[nodes.Node] = [node.target for node in tree.find_all(nodes.Assign) if _makes_joiner(node.node)]
        self._joiners = {target.name for target in joiners if isinstance(target, nodes.Name)}
        # Where the name of a macro may stand, and where a joiner gets its name; nowhere else, so that no other
        # name ever calls them.
        called = [
            *(call.node for call in tree.find_all(nodes.Call)),
            *(test.node for test in tree.find_all(nodes.Test)),
        ]
        self._in_place = {id(node) for node in [*called, *joiners]}

    def visit(self, node: nodes.Node, loops: tuple[nodes.For, ...], turned: int) -> None:
        if type(node) not in NODES:
            name = type(node).__name__
            self._refuse(node, "the power operator" if name == "Pow" else f"the construct {name}", "leave it out")
            return
        judge = getattr(self, f"_judge_{type(node).__name__.lower()}", None)
        if judge is not None:
            judge(node, loops)
        if isinstance(node, nodes.Expr):
            self._growth.of(node)
        if isinstance(node, nodes.Assign | nodes.AssignBlock):
            self._growth.learn(node)
        if not isinstance(node, nodes.For):
            for child in node.iter_child_nodes():
                self.visit(child, loops, turned)
            return
        for child in [node.target, node.iter, *node.else_]:
            self.visit(child, loops, turned)
        turned *= turns(node.iter)
        if turned > TURN_LIMIT:
            self._refuse(node, f"loops that turn more than {TURN_LIMIT:,} times", "loop over the data, not a range")
            turned = 1
        for child in [*([node.test] if node.test else []), *node.body]:
            self.visit(child, (*loops, node), turned)

    def _refuse(self, node: nodes.Node, construct: str, mend: str) -> None:
        self.found.append(Unsafe(node.lineno, construct, mend))

    def _too_large(self, node: nodes.Node) -> None:
        self._refuse(node, "an expression that may grow beyond 1,000,000 characters", "repeat, pad and replace less")

    def _judge_const(self, node: nodes.Const, loops: tuple[nodes.For, ...]) -> None:
        if isinstance(node.value, str) and _WIDE_FORMAT.search(node.value):
            self._refuse(node, "a format with a huge or computed width", "use widths below 1,000")
        if isinstance(node.value, str) and _HALF.search(node.value):
            self._refuse(node, "half a surrogate pair, which no letter can hold", "write the character itself")
        if isinstance(node.value, int | float) and not abs(node.value) < 1e30:
            self._refuse(node, "a number of more than 30 digits", "write a smaller one")

    def _judge_for(self, node: nodes.For, loops: tuple[nodes.For, ...]) -> None:
        if len(loops) >= MAX_NESTED_LOOPS:
            self._refuse(node, f"more than {MAX_NESTED_LOOPS} nested loops", "flatten the data")

    def _judge_mod(self, node: nodes.Mod, loops: tuple[nodes.For, ...]) -> None:
        self._judge_format(node, node.left)

    def _judge_format(self, node: nodes.Node, text: nodes.Node | None) -> None:
        """`'%c' % 55296` makes half a surrogate pair of a number."""
        if isinstance(text, nodes.Const) and _CHARACTER_FORMAT.search(str(text.value)):
            self._refuse(node, "the format %c, which makes a character of a number", "write the character itself")

    def _judge_name(self, node: nodes.Name, loops: tuple[nodes.For, ...]) -> None:
        if node.name.startswith("_"):
            self._refuse(node, f"the name {node.name}", "use a name that starts with a letter")
        elif id(node) in self._in_place:
            return
        elif node.ctx != "load" and node.name in _RESERVED | self._macros | self._joiners | self._modules:
            self._refuse(node, f"the name {node.name}, given to something else", "use a name of its own")
        elif node.ctx == "load" and node.name in self._macros | GLOBALS | {"lipsum"}:
            self._refuse(node, f"{node.name}, used as a value", f"call it: {node.name}(…)")

    def _judge_output(self, node: nodes.Output, loops: tuple[nodes.For, ...]) -> None:
        insides = {"self", "super", "loop", "caller"} | self._modules | self._joiners
        for child in node.nodes:
            if isinstance(child, nodes.Name) and child.name in insides:
                self._refuse(child, f"{child.name}, printed as it is", "call it, or name what you want of it")

    def _judge_getattr(self, node: nodes.Getattr, loops: tuple[nodes.For, ...]) -> None:
        if node.attr.startswith("_"):
            self._refuse(node, f"the attribute {node.attr}", "names that start with an underscore are out of reach")

    def _judge_getitem(self, node: nodes.Getitem, loops: tuple[nodes.For, ...]) -> None:
        if isinstance(node.arg, nodes.Const) and str(node.arg.value).startswith("_"):
            self._refuse(node, f"the item {node.arg.value}", "names that start with an underscore are out of reach")

    def _judge_nsref(self, node: nodes.NSRef, loops: tuple[nodes.For, ...]) -> None:
        if node.attr.startswith("_"):
            self._refuse(node, f"the attribute {node.attr}", "names that start with an underscore are out of reach")

    def _judge_assign(self, node: nodes.Assign, loops: tuple[nodes.For, ...]) -> None:
        """A namespace that doubles at every turn of a loop: 40 turns make a terabyte."""
        target = name_key(node.target)
        within = [node, *node.node.find_all(nodes.Mul), *([node.node] if isinstance(node.node, nodes.Mul) else [])]
        uses = [
            sum(1 for use in place.find_all((nodes.Name, nodes.Getattr)) if name_key(use) == target) for place in within
        ]
        if loops and isinstance(node.target, nodes.NSRef) and (uses[0] > 1 or any(uses[1:])):
            self._refuse(
                node, f"{target}, which multiplies itself at each turn of a loop", "use it once, and add to it"
            )

    def _judge_call(self, node: nodes.Call, loops: tuple[nodes.For, ...]) -> None:
        match node.node:
            case nodes.Name(name="loop"):
                self._judge_recursion(node, loops)
            case nodes.Name(name=name) if name in self._macros | self._joiners | GLOBALS | {"super", "caller"}:
                pass
            case nodes.Name(name=name):
                self._refuse(node, f"a call of {name}", "call macros that this file defines or imports by name")
            case nodes.Getattr(node=nodes.Name(name="self"), attr=attr):
                if attr not in self._blocks:
                    self._refuse(node, f"a call of self.{attr}", "name a block of this file")
            case nodes.Getattr(node=nodes.Name(name="loop"), attr=attr) if attr in _LOOP:
                pass
            case nodes.Getattr(node=nodes.Name(name="super"), attr="super"):
                pass
            case nodes.Getattr(node=nodes.Name(name=name)) if name in self._modules:
                pass
            case nodes.Getattr(attr=attr) if attr in METHODS:
                pass
            case nodes.Getattr(attr=attr):
                self._refuse(node, f"a call of the method {attr}", "use a filter, or prepare the value in the data")
            case _:
                self._refuse(node, "a call of a computed value", "call a macro by its name")
        if is_range(node):
            self._judge_range(node)

    def _judge_range(self, node: nodes.Call) -> None:
        length = range_length(node)
        if node.dyn_args or node.kwargs or node.dyn_kwargs or (length or 0) > RANGE_LIMIT:
            self._refuse(node, f"a range of more than {RANGE_LIMIT:,} numbers", "loop over the data")

    def _judge_recursion(self, node: nodes.Call, loops: tuple[nodes.For, ...]) -> None:
        """`loop(x)` must go down: x comes out of the item itself, so the data's depth ends it."""
        reached: nodes.Node | None = node.args[0] if len(node.args) == 1 else None
        depth = 0
        while isinstance(reached, nodes.Getattr | nodes.Getitem | nodes.Filter):
            reached, depth = reached.node, depth + 1
        items = {name.name for loop in loops if loop.recursive for name in _names(loop.target)}
        if not (isinstance(reached, nodes.Name) and reached.name in items):
            self._refuse(node, "loop() over something that is not inside the item", "write loop(item.children)")

    def _judge_filter(self, node: nodes.Filter, loops: tuple[nodes.For, ...]) -> None:
        self._judge_known(node, "filter", FILTERS)
        if node.name == "format" and not isinstance(node.node, nodes.Const):
            self._refuse(node, "the filter format on something that is no literal text", "write '…%s…' | format(value)")
        if node.name == "format":
            self._judge_format(node, node.node)
        if node.name in _NAMED_AT:
            kind, place = _NAMED_AT[node.name]
            known = TESTS if kind == "test" else FILTERS
            name = node.args[place] if len(node.args) > place else None
            if name is not None and not (isinstance(name, nodes.Const) and name.value in known):
                self._refuse(
                    node, f"the filter {node.name} with an unknown {kind}", f"write the {kind}'s name as a text"
                )
        if node.name in _ATTRIBUTE_AT:
            place = _ATTRIBUTE_AT[node.name]
            paths = [pair.value for pair in node.kwargs if pair.key == "attribute"]
            for path in paths + node.args[place : place + 1]:
                self._judge_path(node, path)

    def _judge_test(self, node: nodes.Test, loops: tuple[nodes.For, ...]) -> None:
        self._judge_known(node, "test", TESTS)

    def _judge_known(self, node: nodes.Filter | nodes.Test, kind: str, known: frozenset[str]) -> None:
        if node.name not in known:
            near = difflib.get_close_matches(node.name, known, 1)
            mend = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(known))}"
            self._refuse(node, f"the {kind} {node.name}", mend)
        if node.dyn_args or node.dyn_kwargs:
            self._refuse(node, f"the {kind} {node.name} with * or ** arguments", "write the arguments out")

    def _judge_path(self, node: nodes.Filter, path: nodes.Expr) -> None:
        literal = isinstance(path, nodes.Const) and (path.value is None or isinstance(path.value, str | int))
        parts = re.split(r"[.,]", str(path.value)) if isinstance(path, nodes.Const) else []
        if not literal or any(part.strip().startswith("_") for part in parts):
            self._refuse(node, f"the filter {node.name} by a computed or hidden attribute", "write its name as a text")


def macro_names(tree: nodes.Template) -> set[str]:
    """What a file may call by name: its macros, and those that it imports by name."""
    imported = {
        name[1] if isinstance(name, tuple) else name for node in tree.find_all(nodes.FromImport) for name in node.names
    }
    return {macro.name for macro in tree.find_all(nodes.Macro)} | imported


def _makes_joiner(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "joiner"


def _names(target: nodes.Node) -> list[nodes.Name]:
    return [target] if isinstance(target, nodes.Name) else list(target.find_all(nodes.Name))
