"""The code that Jinja compiles a template to, for letters: what is written is wrapped, what costs is counted.

Names in the compiled code that begin with `so_` are ours; Jinja's own begin with `l_` and `t_`.
"""

from collections.abc import Callable, Iterable
from typing import Any, Optional

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from sendonce.rendering.bounded import SHOWN
from sendonce.rendering.hrefs import link_beginnings


class LetterCode(CodeGenerator):
    """Jinja's compiler with every written expression wrapped, every turn of a loop counted."""

    _loop_bodies: tuple[Any, ...] = ()
    _called: Optional[nodes.Node] = None
    _links: frozenset[int] = frozenset()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loop_tests: dict[int, str] = {}

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
        """Constants are written as they would be rendered; whether they are escaped may be known only then."""
        if isinstance(node, nodes.TemplateData):
            return super()._output_child_to_const(node, frame, finalize)
        if frame.eval_ctx.volatile or type(node.as_const(frame.eval_ctx)) not in SHOWN:
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
        if node.test is not None:
            self._loop_tests[id(node.test)] = step
        outer = self._loop_bodies
        self._loop_bodies = (*outer, (node.body, step))
        super().visit_For(node, frame)
        self._loop_bodies = outer

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        """`for … if test` turns once for every item that it tests, also for those it leaves out."""
        step = self._loop_tests.pop(id(node), None)
        if step is None:
            return super().visit(node, *args, **kwargs)
        self.write(f"({step}() or ")
        super().visit(node, *args, **kwargs)
        self.write(")")
        return None

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
