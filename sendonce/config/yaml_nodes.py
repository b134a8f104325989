"""YAML that refers to itself, or unfolds to more than anybody wrote, found before it is made into data."""

from typing import Final

import yaml

# Far more values than a settings file or a manifest has; nine lines of aliases can make a billion.
VALUES_MAX: Final = 100_000


def endless(node: yaml.Node) -> yaml.Node | None:
    """The first node that holds itself by an alias, or that unfolds to more than VALUES_MAX values; else None.

    RecursionError for a document that is nested too deeply.
    """
    try:
        _unfold(node, set(), {})
    except _Endless as fault:
        return fault.node
    return None


class _Endless(Exception):
    def __init__(self, node: yaml.Node) -> None:
        super().__init__()
        self.node = node


def _unfold(node: yaml.Node, within: set[int], sizes: dict[int, int]) -> int:
    """How many values a node unfolds to; each is looked at once, however often it is used."""
    if id(node) in within:
        raise _Endless(node)
    if id(node) not in sizes:
        children: list[yaml.Node] = []
        if isinstance(node, yaml.MappingNode):
            children = [child for pair in node.value for child in pair]
        elif isinstance(node, yaml.SequenceNode):
            children = node.value
        within.add(id(node))
        sizes[id(node)] = 1 + sum(_unfold(child, within, sizes) for child in children)
        within.discard(id(node))
        if sizes[id(node)] > VALUES_MAX:
            raise _Endless(node)
    return sizes[id(node)]
