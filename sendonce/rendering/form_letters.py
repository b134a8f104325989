"""Form letters: how a template's output is taken apart into text with slots and one row of values per recipient.

The code generator wraps every expression that is *written*, after escaping, and only where the output streams.
There the sheet takes the value and puts a `Slot` in its place; the template's own text stays as it is. What is
rendered into a buffer first (macros, call, set and filter blocks, `super()`, `self.x()`, imported modules) is one
value where its result is written, or text that is the same for everybody. So no value is ever looked for in
finished text, and nothing that a filter does to a buffer can lose one.

The sequence of texts and slots that one letter makes is the key of its form letter: two letters with the same
sequence differ in their values only. A `Slot` is no text, so that one that strayed into a buffer fails loudly and
the letter goes whole.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Optional

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from schemas.letters import FormLetter, slot_key
from sendonce.rendering.bounded import SHOWN
from sendonce.rendering.hrefs import link_beginnings
from sendonce.rendering.limits import PART_BYTES, TooLarge

SLOTS_MAX: Final = 9_999

# What stands between words, line ends included; not the no-break spaces, which French sets before a colon.
_BLANKS: Final = re.compile("[ \\t\\n\\r\\v\\f\\x1c-\\x1f\\x85\\u2028\\u2029]+")
_BLANK_CHARACTERS: Final = " \t\n\r\v\f\x1c\x1d\x1e\x1f\x85\u2028\u2029"
_CONTROL: Final = re.compile("[\\x00-\\x08\\n-\\x1f\\x7f-\\x9f\\u2028\\u2029]")
_WORD_END: Final = re.compile("[a-z0-9]*\\Z")
_WORD_START: Final = re.compile("[a-z0-9]*")


class HeaderControlCharacter(Exception):
    """A value for the subject holds a line end or another control character inside."""


class NotPacked(Exception):
    """This letter cannot be packed; it goes whole."""


class Slot:
    """Stands in a template's output where a value was written. No text on purpose."""

    __slots__ = ("after", "before")

    def __init__(self, before: str = "", after: str = "") -> None:
        self.before = before
        self.after = after


SLOT: Final = Slot()
_SLOTS: Final = {(before, after): Slot(before, after) for before in ("", " ") for after in ("", " ")}


def spaced(text: str) -> str:
    """Every run of white space, line ends included, as one space."""
    return _BLANKS.sub(" ", text)


def one_line(text: str) -> str:
    """A subject: runs of white space are one space, none at the ends."""
    return spaced(text).strip(" ")


def subject_value(text: Any) -> str:
    """A value for the subject as it is written. HeaderControlCharacter unless white space at its ends is all it has."""
    value = str(text)
    if not value.isprintable() and _CONTROL.search(value.strip(_BLANK_CHARACTERS)):
        raise HeaderControlCharacter
    return value


def subject_taker(values: list[str]) -> Callable[[Any], Any]:
    """What takes the subject's values when letters are packed: spaces at a value's ends stay outside its slot."""

    def take(text: Any) -> Any:
        if text.isprintable() and text[0] != " " and text[-1] != " " and "  " not in text:
            values.append(text)
            return SLOT
        text = subject_value(text)
        if not text.strip():
            return spaced(text)
        value = one_line(text)
        values.append(value)
        around = spaced(text)
        return _SLOTS[" " if around[0] == " " else "", " " if around[-1] == " " else ""]

    return take


def slot_prefix(template_hash: str) -> str:
    """The prefix of a template's slot keys: looks random, the same every time, so that a repeated request repeats

    its bytes. 16 characters of a hash, beginning with a letter.
    """
    digest = hashlib.sha256(f"slots\x00{template_hash}".encode()).digest()
    return "s" + "".join("abcdefghijklmnopqrstuvwxyz234567"[byte & 31] for byte in digest[:15])


@dataclass(frozen=True)
class Form:
    """A form letter and what packing into it needs. `letter` None: these letters go whole.

    seams: text of the form around slots, as a format for the values, where a value and its neighbours could make
    a slot key together; None where they cannot. size: its bytes without the values. bare: the slots of parts that
    have no text of their own; whether such a part is blank is up to its values.
    """

    letter: Optional[FormLetter]
    size: int = 0
    bare: Sequence[tuple[int, int]] = ()
    seams: Optional[str] = None

    def row(self, values: list[str]) -> list[str]:
        """The slot values of one letter as plain texts. NotPacked if filling the form could go wrong."""
        if self.letter is None or len(values) != self.letter.slots:
            raise NotPacked
        if not values:
            return []
        together = "\x00".join(values)
        row = together.split("\x00")
        if len(row) != len(values) or self.letter.prefix in together:
            raise NotPacked
        if any(not "".join(row[first:end]).strip() for first, end in self.bare):
            raise NotPacked
        if self.seams is not None and self.letter.prefix in self.seams % tuple(row):
            raise NotPacked
        return row


def build_form(prefix: str, subject: Sequence[Any], text: Sequence[Any], html: Sequence[Any]) -> Form:
    """The form letter of three sequences of texts and slots, numbered in one row over all three."""
    if sum(len(piece) for piece in (*subject, *text, *html) if isinstance(piece, str)) > 3 * PART_BYTES:
        raise TooLarge
    slots = 0
    parts: list[str] = []
    spans: list[tuple[int, int]] = []
    for pieces in (subject, text, html):
        written: list[str] = []
        first = slots
        for piece in pieces:
            if isinstance(piece, Slot):
                written += (piece.before, slot_key(prefix, slots), piece.after)
                slots += 1
            else:
                written.append(piece)
        parts.append("".join(written))
        if slots > first and not "".join([piece for piece in pieces if isinstance(piece, str)]).strip():
            spans.append((first, slots))
    fixed = [[piece for piece in pieces if isinstance(piece, str)] for pieces in (subject, text, html)]
    if slots > SLOTS_MAX or any(prefix in "".join(pieces) for pieces in fixed):
        return Form(None)
    # A letter with an empty subject or no body is refused; plain rendering says so.
    line, plain, markup = one_line(parts[0]), blank_to_empty(parts[1]), blank_to_empty(parts[2])
    if not line.strip() or not (plain or markup):
        return Form(None)
    letter = FormLetter(prefix, slots, line, plain, markup)
    size = sum(len(part.encode("utf-8", "surrogatepass")) for part in (line, plain, markup))
    return Form(letter, size, spans, _seams([*subject, "\x00", *text, "\x00", *html]))


def blank_to_empty(body: str) -> str:
    """A body of white space only is no body: providers refuse it."""
    return body if body.strip() else ""


def _seams(pieces: Iterable[Any]) -> Optional[str]:
    """The ends of the texts beside slots that could belong to a slot key; None if every slot stands free."""
    texts = [""]
    for piece in pieces:
        if isinstance(piece, Slot):
            texts[-1] += piece.before
            texts.append(piece.after)
        else:
            texts[-1] += piece
    beside = [_edges(text) for text in texts]
    if all(text.startswith("\x00") and text.endswith("\x00") for text in beside[1:-1]):
        first, last = beside[0], beside[-1]
        if first.endswith("\x00") and last.startswith("\x00"):
            return None
    return "%s".join(beside)


def _edges(text: str) -> str:
    """A text between two slots, short: what stands inside, away from both, cannot join with their values."""
    start, end = _WORD_START.match(text), _WORD_END.search(text)
    assert start is not None
    assert end is not None
    return text if start.group() == text else f"{start.group()}\x00{end.group()}"


class LetterCode(CodeGenerator):
    """Jinja's compiler with every written expression wrapped, every turn of a loop counted.

    Names that begin with `so_` are ours; Jinja's own begin with `l_` and `t_`.
    """

    _loop_bodies: tuple[Any, ...] = ()
    _called: Optional[nodes.Node] = None
    _links: frozenset[int] = frozenset()

    def visit_Template(self, node: nodes.Template, frame: Optional[Frame] = None) -> None:
        if self.environment.autoescape:
            self._links = frozenset(map(id, link_beginnings(node)))
        super().visit_Template(node, frame)

    def write_commons(self) -> None:
        super().write_commons()
        for line in (
            "so_desk = environment.desk",
            "so_take = so_desk.sheet.take",
            "so_slot = environment.slot",
            "so_shown = environment.shown",
            "so_show = environment.show",
        ):
            self.writeline(line)

    # -- What is written ---------------------------------------------------------------------------------------

    def _output_child_to_const(self, node: nodes.Expr, frame: Frame, finalize: Any) -> str:
        if not isinstance(node, nodes.TemplateData) and type(node.as_const(frame.eval_ctx)) not in SHOWN:
            raise nodes.Impossible
        return super()._output_child_to_const(node, frame, finalize)

    def _output_child_pre(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        if frame.buffer is None:
            self.write("(so_take(so_text) or so_slot) if (so_text := ")
        else:
            self.write("so_desk.sheet.charge(")
        if id(node) in self._links:
            self.write("environment.check_link(")
        super()._output_child_pre(node, frame, finalize)
        self.write("so_value if (so_value := ")

    def _output_child_post(self, node: nodes.Expr, frame: Frame, finalize: Any) -> None:
        self.write(").__class__ in so_shown else so_show(so_value)")
        super()._output_child_post(node, frame, finalize)
        if id(node) in self._links:
            self.write(")")
        self.write(") else ''" if frame.buffer is None else ")")

    def start_write(self, frame: Frame, node: Optional[nodes.Node] = None) -> None:
        """What a call block, a filter block or a recursive loop returns is one value."""
        super().start_write(frame, node)
        if frame.buffer is None:
            self.write("(so_take(so_text) or so_slot) if (so_text := environment.text(")

    def end_write(self, frame: Frame) -> None:
        if frame.buffer is None:
            self.write(")) else ''")
        super().end_write(frame)

    def simple_write(self, s: str, frame: Frame, node: Optional[nodes.Node] = None) -> None:
        """Pieces of a block or an included file: they are wrapped already where they were written."""
        CodeGenerator.start_write(self, frame, node)
        self.write(s)
        CodeGenerator.end_write(self, frame)

    # -- What is rendered into a buffer ------------------------------------------------------------------------

    def visit_Block(self, node: nodes.Block, frame: Frame) -> None:
        self._held(frame, super().visit_Block, node)

    def visit_Include(self, node: nodes.Include, frame: Frame) -> None:
        self.writeline("so_desk.sheet.step()")
        if frame.buffer is not None and not node.with_context:
            # Jinja writes `yield from` here, which turns the macro around it into a generator.
            self.fail("an include without context inside a macro or block that is not written at once", node.lineno)
        self._held(frame, super().visit_Include, node)

    def _held(self, frame: Frame, visit: Callable[[Any, Frame], None], node: nodes.Node) -> None:
        if frame.buffer is not None:
            self.writeline("so_desk.sheet.hold()")
        visit(node, frame)
        if frame.buffer is not None:
            self.writeline("so_desk.sheet.release()")

    # -- What is counted -----------------------------------------------------------------------------------------

    def visit_For(self, node: nodes.For, frame: Frame) -> None:
        step = self.temporary_identifier()
        self.writeline(f"{step} = so_desk.sheet.step")
        outer = self._loop_bodies
        self._loop_bodies = (*outer, (node.body, step))
        super().visit_For(node, frame)
        self._loop_bodies = outer

    def blockvisit(self, nodes: Iterable[nodes.Node], frame: Frame) -> None:
        for body, step in self._loop_bodies[-1:]:
            if body is nodes:
                self.writeline(f"{step}()")
        super().blockvisit(nodes, frame)

    def visit_List(self, node: nodes.List, frame: Frame) -> None:
        self._charged(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        self._charged(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:
        if node.ctx == "load":
            self._charged(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self._charged(super().visit_Concat, node, frame)

    def _charged(self, visit: Callable[[Any, Frame], None], node: nodes.Node, frame: Frame) -> None:
        self.write("so_desk.sheet.charge(")
        visit(node, frame)
        self.write(")")

    # -- Look-ups ------------------------------------------------------------------------------------------------

    def visit_Call(self, node: nodes.Call, frame: Frame, forward_caller: bool = False) -> None:
        self._called = node.node
        super().visit_Call(node, frame, forward_caller=forward_caller)

    def visit_Getattr(self, node: nodes.Getattr, frame: Frame) -> None:
        self._look_up("method" if node is self._called else "getattr", node.node, node.attr, frame)

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        """A literal key is a name that may be told when it is missing, as in `order.note`."""
        if isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            self._look_up("getattr", node.node, node.arg.value, frame)
        else:
            super().visit_Getitem(node, frame)

    def _look_up(self, how: str, node: nodes.Expr, name: str, frame: Frame) -> None:
        self.write(f"environment.{how}(")
        self.visit(node, frame)
        self.write(f", {name!r})")
