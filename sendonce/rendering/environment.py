"""The Jinja environment that letters are rendered in: sandboxed, strict, deterministic, one per part.

Differences from Jinja as it comes:

* An undefined variable, and null, fail the letter instead of leaving a gap.
* `order.items` is the item of that name in the data, never a method; `order.items()` is the method.
* HTML is escaped in the HTML part only: a subject and a text part are no HTML.
* The subject is one line: line ends of its template are spaces before rendering.
* Functions, macros and other parts of Python cannot be written into a letter.
* Loops, filters and calls are counted, growth is measured (`limits.py`, `bounded.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, Optional

from jinja2 import BaseLoader, Environment, StrictUndefined, Template, TemplateNotFound
from jinja2.ext import Extension
from jinja2.lexer import Token, TokenStream
from jinja2.runtime import BlockReference, Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from markupsafe import Markup

from sendonce.rendering import bounded, safety
from sendonce.rendering.catalogue import HTML, SUBJECT, TemplateSource
from sendonce.rendering.form_letters import SLOT, spaced
from sendonce.rendering.formats import GLOBALS
from sendonce.rendering.hrefs import check_link
from sendonce.rendering.letter_code import LetterCode
from sendonce.rendering.limits import Desk, joined
from sendonce.rendering.screening import EXTENSIONS

DESK: Final = Desk()

_DATA: Final = frozenset({dict, list, tuple, str, Markup, int, float, bool})
_MISSING: Final = object()


class Missing(StrictUndefined):
    """An undefined variable. Its message names what the template calls it, never a value."""

    @property
    def _undefined_message(self) -> str:
        if self._undefined_hint:
            return self._undefined_hint
        return f"undefined variable: {self._undefined_name}"


class OneLine(Extension):
    """Makes every line end in the subject's template a space, so that a line end can only come from a variable."""

    def filter_stream(self, stream: TokenStream) -> Iterator[Token]:
        for token in stream:
            yield Token(token.lineno, token.type, spaced(token.value)) if token.type == "data" else token


class LetterTemplate(Template):
    """A compiled file. As a module (`import`), its values are its own business: they take no slot."""

    def make_module(
        self,
        vars: Optional[dict[str, Any]] = None,
        shared: bool = False,
        locals: Optional[Mapping[str, Any]] = None,
    ) -> Any:
        sheet = DESK.sheet
        sheet.step()
        sheet.hold()
        try:
            return super().make_module(vars, shared, locals)
        finally:
            sheet.release()


class _Files(BaseLoader):
    """The template's own files by their paths, and nothing else."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self._files = files

    def get_source(self, environment: Environment, template: str) -> tuple[str, str, Callable[[], bool]]:
        if template not in self._files:
            raise TemplateNotFound(template)
        return self._files[template], template, lambda: True


class LetterEnvironment(ImmutableSandboxedEnvironment):
    """For one part of one template, in all its locales. `source` must have passed `screening.screen`."""

    code_generator_class = LetterCode
    template_class = LetterTemplate
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    desk = DESK
    slot = SLOT
    shown = bounded.SHOWN
    show = staticmethod(bounded.show)
    check_link = staticmethod(check_link)

    def __init__(self, source: TemplateSource, part: str) -> None:
        super().__init__(
            loader=_Files(source.files),
            autoescape=part == HTML,
            undefined=Missing,
            extensions=[*EXTENSIONS, *([OneLine] if part == SUBJECT else [])],
            auto_reload=False,
            cache_size=-1,
        )
        self.filters = bounded.metered_filters()
        self.tests = {name: test for name, test in self.tests.items() if name in safety.TESTS}
        self.globals = {name: value for name, value in self.globals.items() if name in safety.GLOBALS} | GLOBALS
        self.binop_table |= {"*": bounded.multiply, "%": bounded.modulo, "**": bounded.power}

    # -- Look-ups: data by item, methods only where they are called ---------------------------------------------

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict:
            found = obj.get(attribute, _MISSING)
            return self.undefined(name=attribute) if found is _MISSING else found
        if kind is LoopContext and attribute[:1] != "_":
            return getattr(obj, attribute)
        if kind in _DATA:
            return self.undefined(name=attribute)
        return super().getattr(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        """An item by a computed key. What the key is stays out of the message: it may be somebody's data."""
        if type(obj) in _DATA:
            try:
                return obj[argument]
            except (TypeError, LookupError):
                return self.undefined("undefined item: a computed one")
        return super().getitem(obj, argument)

    def method(self, obj: Any, name: str) -> Any:
        """What `obj.name(…)` calls: of data, one of the methods on the allow-list."""
        if type(obj) not in _DATA:
            return super().getattr(obj, name)
        if name in safety.METHODS and hasattr(obj, name):
            return getattr(obj, name)
        return self.undefined(name=name)

    # -- Calls and operators --------------------------------------------------------------------------------------

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        sheet = DESK.sheet
        sheet.step()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            bounded.check_method(__obj, args)
        if type(__obj) is not BlockReference:
            return sheet.charge(super().call(__context, __obj, *args, **kwargs))
        sheet.hold()
        try:
            return super().call(__context, __obj, *args, **kwargs)
        finally:
            sheet.release()

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        return DESK.sheet.charge(self.binop_table[operator](left, right))

    def concat(self, pieces: Iterable[str]) -> str:
        return joined(DESK.sheet, pieces)

    @staticmethod
    def text(value: Any) -> str:
        """What a call block or a filter block returns; TypeError if that is no text."""
        if not isinstance(value, str):
            raise TypeError("a block that returns no text")
        return value
