"""How large could it get: upper guesses at texts and loop counts, from the tree alone.

Jinja folds constant expressions while it compiles, so `'a' * 10**9` hangs or fills memory before anything is
rendered; most of the rest would at rendering. Guesses take unknown data for DATA characters. They stop what a
template does on purpose or by mistake; the limits at rendering stop what data does.
"""

from collections.abc import Callable
from typing import Final

from jinja2 import nodes

# A part of a letter never needs more characters, nor more turns of its loops.
TEXT_LIMIT: Final = 1_000_000
TURN_LIMIT: Final = 100_000
RANGE_LIMIT: Final = 10_000

DATA: Final = 1_000
_NUMBER: Final = 20
_NUMBERS: Final = frozenset({"int", "float", "abs", "round", "length", "count", "wordcount", "sum"})
_ARITHMETIC: Final = (nodes.Sub, nodes.Div, nodes.FloorDiv, nodes.Neg, nodes.Pos)


class Growth:
    """Guesses over one tree. `too_large(node)` is called for the innermost expression beyond TEXT_LIMIT."""

    def __init__(self, too_large: Callable[[nodes.Node], None]) -> None:
        self._too_large = too_large
        self._named: dict[str, float] = {}
        self._counts: dict[str, float] = {}
        self._known: dict[int, float] = {}

    def learn(self, node: nodes.Assign | nodes.AssignBlock) -> None:
        """Note how large an assigned name may be; call in source order."""
        if isinstance(node, nodes.Assign):
            size = self.of(node.node)
        else:
            size = sum(self.of(child) for output in node.find_all(nodes.Output) for child in output.nodes)
        if key := name_key(node.target):
            self._named[key] = max(size, self._named.get(key, 0.0))
            if isinstance(node, nodes.Assign) and is_number(node.node):
                self._counts[key] = max(self._times(node.node), self._counts.get(key, 0.0))

    def of(self, node: nodes.Node) -> float:
        """At most how many characters the expression gives, as text."""
        if id(node) not in self._known:
            size = self._guess(node)
            if size > TEXT_LIMIT and not isinstance(node, nodes.Const):
                self._too_large(node)
                size = DATA
            self._known[id(node)] = size
        return self._known[id(node)]

    def _guess(self, node: nodes.Node) -> float:
        match node:
            case nodes.Const(value=value):
                return float(len(value)) if isinstance(value, str) else float(_NUMBER)
            case nodes.TemplateData(data=data):
                return float(len(data))
            case nodes.Name() | nodes.Getattr():
                return self._named.get(name_key(node), float(DATA))
            case nodes.Mul(left=left, right=right):
                return self._product(left, right)
            case nodes.Filter():
                size = DATA if node.node is None else self.of(node.node)
                return self.filtered(size, node.name, node.args, node.kwargs)
            case nodes.Call(node=nodes.Getattr(node=target, attr=method)):
                return self.filtered(self.of(target), method, node.args, node.kwargs)
            case nodes.Call():
                return DATA + 10 * sum(self.of(child) for child in node.iter_child_nodes(exclude=("node",)))
            case nodes.Compare() | nodes.Test() | nodes.Not():
                for child in node.iter_child_nodes():
                    self.of(child)
                return float(_NUMBER)
            case _ if is_number(node):
                for child in node.iter_child_nodes():
                    self.of(child)
                return float(_NUMBER)
            case _:
                return sum(self.of(child) for child in node.iter_child_nodes()) + 2

    def _product(self, left: nodes.Expr, right: nodes.Expr) -> float:
        if is_number(left) and is_number(right):
            return float(_NUMBER)
        if is_number(left):
            left, right = right, left
        # Unknown data times something is a price or a count nearly always; a long text is caught at rendering.
        unknown = isinstance(left, nodes.Name | nodes.Getattr | nodes.Getitem) and name_key(left) not in self._named
        return (_NUMBER if unknown else self.of(left) + 2) * self._times(right)

    def _times(self, node: nodes.Node) -> float:
        match node:
            case nodes.Const(value=int() | float() as value):
                return max(1.0, float(abs(value)))
            case nodes.Filter(name="length" | "count" | "wordcount", node=nodes.Expr() as counted):
                return max(1.0, self.of(counted))
            case nodes.Name() | nodes.Getattr() | nodes.Getitem():
                return self._counts.get(name_key(node), float(DATA))
            case _ if is_number(node) and (literals := list(node.find_all(nodes.Const))):
                sizes = [abs(const.value) for const in literals if isinstance(const.value, int | float)]
                return float(DATA) * max([1.0, *map(float, sizes)])
            case _:
                return float(TEXT_LIMIT)

    def filtered(
        self, size: float, name: str, args: list[nodes.Expr], kwargs: list[nodes.Keyword] | list[nodes.Pair]
    ) -> float:
        """At most how many characters a filter (or the method of that name) makes of `size`."""
        given = [*args, *(pair.value for pair in kwargs)]
        texts = [self.of(arg) for arg in given if not is_number(arg)]
        widths: float = sum(abs(arg.value) for arg in given if isinstance(arg, nodes.Const) and is_number(arg))
        match name:
            case "replace":
                return size * _replaced(args) if len(args) >= 2 else size * sum(texts)
            case "join" | "wordwrap":
                return size * (1 + sum(texts))
            case "indent":
                return size * (1 + widths + sum(texts))
            case "center" | "format" | "batch" | "slice" | "tojson" | "round":
                unknown = sum(DATA for arg in given if not isinstance(arg, nodes.Const)) if name == "center" else 0
                return 3 * size + widths * (1 + sum(texts)) + unknown + sum(texts)
            case "string" | "urlencode" | "escape" | "e" | "forceescape" | "urlize" | "xmlattr":
                return 6 * size + sum(texts)
            case "map" if given and isinstance(given[0], nodes.Const) and isinstance(given[0].value, str):
                return self.filtered(size, given[0].value, args[1:], kwargs)
            case _ if name in _NUMBERS:
                return float(_NUMBER)
            case _:
                return max([size, *texts])


def turns(iterated: nodes.Node) -> int:
    """At most how many turns a loop over this makes; loops over data count as one, that limit is the data's."""
    ranges = [call for call in [iterated, *iterated.find_all(nodes.Call)] if is_range(call)]
    if ranges:
        return max(range_length(call) or DATA for call in ranges if isinstance(call, nodes.Call))
    if isinstance(iterated, nodes.Name) or any(True for _ in iterated.find_all(nodes.Name)):
        return 1
    return max(1, int(Growth(lambda _: None).of(iterated)))


def is_range(node: nodes.Node) -> bool:
    return isinstance(node, nodes.Call) and isinstance(node.node, nodes.Name) and node.node.name == "range"


def range_length(call: nodes.Call) -> int | None:
    """The length of a `range` of literal numbers; None if it is computed."""
    bounds = [_whole(arg) for arg in call.args]
    known = [bound for bound in bounds if bound is not None]
    if not known or len(known) != len(bounds) or len(known) > 3 or known[2:] == [0]:
        return None
    return len(range(*known))


def _whole(node: nodes.Expr) -> int | None:
    if isinstance(node, nodes.Neg):
        inner = _whole(node.node)
        return None if inner is None else -inner
    if isinstance(node, nodes.Const) and isinstance(node.value, int) and abs(node.value) < 2**62:
        return int(node.value)
    return None


def is_number(node: nodes.Node) -> bool:
    """Whether the expression gives a number, whatever the data."""
    match node:
        case nodes.Const(value=value):
            return isinstance(value, int | float)
        case nodes.Filter(name=name):
            return name in _NUMBERS
        case nodes.Add(left=left, right=right) | nodes.Mul(left=left, right=right):
            return is_number(left) and is_number(right)
        case nodes.Mod(left=left):
            return is_number(left)
        case _:
            return isinstance(node, _ARITHMETIC)


def name_key(node: nodes.Node) -> str:
    """What an assignment writes and an expression reads: `a`, or `ns.a` in a namespace. "" for anything else."""
    match node:
        case nodes.Name(name=name):
            return name
        case nodes.NSRef(name=name, attr=attr) | nodes.Getattr(node=nodes.Name(name=name), attr=attr):
            return f"{name}.{attr}"
        case _:
            return ""


def _replaced(args: list[nodes.Expr]) -> float:
    old, new = args[0], args[1]
    if isinstance(old, nodes.Const) and isinstance(new, nodes.Const) and isinstance(old.value, str):
        return max(1.0, (len(str(new.value)) + (not old.value)) / max(1, len(old.value)))
    return float(DATA) if not isinstance(new, nodes.Const) else max(1.0, float(len(str(new.value))))
