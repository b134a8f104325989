"""How a template's files, blocks and macros lead to each other: only inside the folder, never in a circle.

Includes, imports and extends name files of the same template, written out. A circle of files, blocks or macros
would never end; a chain in which each step calls the next many times would end too late. Both are found here,
over all files at once.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from jinja2 import nodes

from sendonce.rendering.growth import TURN_LIMIT, turns
from sendonce.rendering.safety import Unsafe

MAX_CHAIN: Final = 50

Link = nodes.Include | nodes.Import | nodes.FromImport | nodes.Extends


class Step(NamedTuple):
    """A file, or a macro of a file, or a block (blocks of one name belong together over all files)."""

    kind: str
    path: str
    name: str


class Way(NamedTuple):
    """One step leads to another, `times` at most, from a line of a file."""

    to: Step
    times: int
    path: str
    line: int


def unsafe_links(trees: Mapping[str, nodes.Template]) -> list[tuple[str, Unsafe]]:
    """What is wrong with how the files lead to each other: (path, what); empty when all of it ends in time."""
    walk = _Walk(trees)
    for path, tree in trees.items():
        walk.visit(tree, Step("file", path, ""), path, 1)
    return walk.found or _circles_and_chains(walk.ways, walk.turns)


def linked_files(tree: nodes.Template) -> list[str]:
    """The files that a tree names in include, import and extends, as far as they are literal."""
    found: list[Link] = [*tree.find_all(nodes.Include), *tree.find_all(nodes.Import), *tree.find_all(nodes.FromImport)]
    return [name for node in [*found, *tree.find_all(nodes.Extends)] for name in _literals(node.template) if name]


class _Walk:
    def __init__(self, files: Collection[str]) -> None:
        self.found: list[tuple[str, Unsafe]] = []
        self.ways: dict[Step, list[Way]] = defaultdict(list)
        self.turns: dict[Step, int] = defaultdict(lambda: 1)
        self._files = files
        self._macros: dict[tuple[str, str], Step] = {}
        self._modules: dict[tuple[str, str], str] = {}

    def visit(self, node: nodes.Node, owner: Step, path: str, times: int) -> None:
        match node:
            case nodes.Template():
                self._note_names(node, path)
            case nodes.Macro(name=name):
                owner, times = Step("macro", path, name), 1
            case nodes.Block(name=name):
                self._lead(owner, Step("block", "", name), times, path, node.lineno)
                owner, times = Step("block", "", name), 1
            case nodes.Include() | nodes.Import() | nodes.FromImport() | nodes.Extends():
                for name in self._named_files(node, path):
                    self._lead(owner, Step("file", name, ""), times, path, node.lineno)
            case nodes.Call():
                if target := self._called(node.node, path):
                    self._lead(owner, target, times, path, node.lineno)
            case nodes.For(iter=iterated):
                times = min(times * turns(iterated), TURN_LIMIT * 10)
                self.turns[owner] += times
        for child in node.iter_child_nodes():
            self.visit(child, owner, path, times)

    def _lead(self, owner: Step, to: Step, times: int, path: str, line: int) -> None:
        self.ways[owner].append(Way(to, times, path, line))

    def _note_names(self, tree: nodes.Template, path: str) -> None:
        for macro in tree.find_all(nodes.Macro):
            self._macros[path, macro.name] = Step("macro", path, macro.name)
        for module in tree.find_all(nodes.Import):
            for name in _literals(module.template):
                self._modules[path, module.target] = name
        for imported in tree.find_all(nodes.FromImport):
            for name in _literals(imported.template):
                for pair in imported.names:
                    original, known_as = pair if isinstance(pair, tuple) else (pair, pair)
                    self._macros[path, known_as] = Step("macro", name, original)

    def _called(self, target: nodes.Node, path: str) -> Step | None:
        match target:
            case nodes.Name(name=name):
                return self._macros.get((path, name))
            case nodes.Getattr(node=nodes.Name(name="self"), attr=attr):
                return Step("block", "", attr)
            case nodes.Getattr(node=nodes.Name(name=name), attr=attr) if (path, name) in self._modules:
                return Step("macro", self._modules[path, name], attr)
            case _:
                return None

    def _named_files(self, node: Link, path: str) -> list[str]:
        names = _literals(node.template)
        verb = {"FromImport": "import"}.get(type(node).__name__, type(node).__name__.lower())
        if not names or "" in names:
            self._refuse(path, node, f"{verb} of a computed name", f"write {verb} 'partials/footer.html.j2'")
            return []
        for name in names:
            if name.startswith("/") or ".." in name.split("/") or "\\" in name:
                self._refuse(path, node, f"{verb} of a file outside the template's folder", "put a copy inside it")
        present = [name for name in names if name in self._files]
        optional = isinstance(node, nodes.Include) and node.ignore_missing
        if not present and not optional and not any(place == path for place, _ in self.found):
            self._refuse(
                path, node, f"{verb} of {names[0]}, which does not exist", "name a file from the template's folder"
            )
        return present

    def _refuse(self, path: str, node: nodes.Node, construct: str, mend: str) -> None:
        self.found.append((path, Unsafe(node.lineno, construct, mend)))


def _literals(template: nodes.Expr) -> list[str]:
    """The names in an include, "" for each that is computed."""
    items = template.items if isinstance(template, nodes.Tuple | nodes.List) else [template]
    return [item.value if isinstance(item, nodes.Const) and isinstance(item.value, str) else "" for item in items]


def _circles_and_chains(ways: Mapping[Step, list[Way]], own: Mapping[Step, int]) -> list[tuple[str, Unsafe]]:
    found: list[tuple[str, Unsafe]] = []
    cost: dict[Step, int] = {}
    open_steps: list[Step] = []

    def settle(step: Step) -> int:
        total = own.get(step, 1)
        open_steps.append(step)
        for way in ways.get(step, []):
            if way.to in open_steps:
                circle = "which calls itself" if way.to == step else "which leads back to itself"
                found.append((way.path, Unsafe(way.line, f"{_name(way.to)}, {circle}", "it would never end")))
                continue
            if way.to not in cost:
                if len(open_steps) >= MAX_CHAIN:
                    deep = f"more than {MAX_CHAIN} files, blocks and macros that call each other"
                    found.append((way.path, Unsafe(way.line, deep, "flatten them")))
                    continue
                cost[way.to] = settle(way.to)
            total += way.times * cost[way.to]
            if total > TURN_LIMIT:
                much = f"more than {TURN_LIMIT:,} loop turns and calls through {_name(way.to)}"
                found.append((way.path, Unsafe(way.line, much, "call it less often")))
                total = 1
        open_steps.pop()
        return total

    for step in list(ways):
        if step not in cost:
            cost[step] = settle(step)
    return found


def _name(step: Step) -> str:
    return step.path if step.kind == "file" else f"{step.kind} {step.name}"
