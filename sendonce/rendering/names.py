"""Which variables a template's parts use, against those that its manifest declares."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from jinja2 import meta, nodes

from sendonce.rendering.links import linked_files
from sendonce.rendering.manifest import BUILT_IN
from sendonce.rendering.safety import GLOBALS, macro_names


@dataclass(frozen=True)
class Use:
    """A name that a file uses without having set it, and the first line where."""

    name: str
    path: str
    line: int


def reachable(trees: Mapping[str, nodes.Template], path: str) -> set[str]:
    """The files that rendering a part may touch: itself, and what it extends, includes and imports."""
    found: set[str] = set()
    waiting = [path]
    while waiting:
        file = waiting.pop()
        if file in trees and file not in found:
            found.add(file)
            waiting += linked_files(trees[file])
    return found


def free_names(trees: Mapping[str, nodes.Template], files: set[str]) -> list[Use]:
    """The names that a part's files take from outside, by file. Trees must be safe: Jinja's own analysis folds

    constants. What one file of the part sets counts as set for the others, as includes and blocks may see it.
    """
    own = {name for file in files for name in _set_names(trees[file])}
    known = own | BUILT_IN | GLOBALS
    uses = []
    for file in sorted(files):
        for name in sorted(meta.find_undeclared_variables(trees[file]) - known):
            uses.append(Use(name, file, _first_line(trees[file], name)))
    return uses


def used_names(trees: Mapping[str, nodes.Template]) -> set[str] | None:
    """Every name that is read anywhere, `vars['name']` included; None if `vars` is read in a way that hides which."""
    used: set[str] = set()
    for tree in trees.values():
        spelled = 0
        for node in tree.find_all((nodes.Getitem, nodes.Getattr)):
            match node:
                case nodes.Getitem(node=nodes.Name(name="vars"), arg=nodes.Const(value=str() as key)):
                    used.add(key)
                    spelled += 1
                case nodes.Getattr(node=nodes.Name(name="vars"), attr=key):
                    used.add(key)
                    spelled += 1
        loads = [name.name for name in tree.find_all(nodes.Name) if name.ctx == "load"]
        if loads.count("vars") > spelled:
            return None
        used.update(loads)
    return used


def uses_name(trees: Mapping[str, nodes.Template], files: set[str], name: str) -> bool:
    """Whether any of the files reads the name."""
    return any(node.name == name and node.ctx == "load" for file in files for node in trees[file].find_all(nodes.Name))


def _set_names(tree: nodes.Template) -> Iterator[str]:
    yield from macro_names(tree)
    yield from (module.target for module in tree.find_all(nodes.Import))
    yield from (name.name for name in tree.find_all(nodes.Name) if name.ctx != "load")


def _first_line(tree: nodes.Template, name: str) -> int:
    return min((node.lineno for node in tree.find_all(nodes.Name) if node.name == name), default=0)
