"""Templates made ready to render, once per process, shared by its threads."""

import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final, Optional

from jinja2 import Template, TemplateSyntaxError

from sendonce.rendering.catalogue import (
    HTML,
    SUBJECT,
    TEXT,
    TemplateSource,
    locales_in,
    manifest_of,
    part_path,
    text_locale,
)
from sendonce.rendering.environment import LetterEnvironment
from sendonce.rendering.faults import TemplateFault
from sendonce.rendering.form_letters import Form, slot_prefix
from sendonce.rendering.screening import screen

TEMPLATES_KEPT: Final = 32
_FORMS_KEPT: Final = 1_000
_LOCALES_KEPT: Final = 10_000


@dataclass
class RenderStats:
    """What a process has rendered from one template. `mismatches` above 0: packing is off for it, mend the fault."""

    packed: int = 0
    whole: int = 0
    refused: int = 0
    self_checks: int = 0
    mismatches: int = 0


@dataclass(frozen=True)
class Parts:
    """The compiled parts for one locale, None where the template has none; `text_locale` formats dates and numbers."""

    text_locale: str
    subject: Template
    text: Optional[Template]
    html: Optional[Template]
    globals: Mapping[str, Any]


@dataclass
class Compiled:
    """A template ready to render. `packing` turns False when packed and plain rendering ever differ."""

    source: TemplateSource
    stats: RenderStats = field(default_factory=RenderStats)
    packing: bool = True

    def __post_init__(self) -> None:
        self.manifest = manifest_of(self.source)
        self.prefix = slot_prefix(self.source.template_hash)
        self.lock = threading.Lock()
        self.turns = count(1)
        self._forms: dict[Any, Form] = {}
        self._environments = {part: LetterEnvironment(self.source, part) for part in (SUBJECT, TEXT, HTML)}
        self._parts: dict[str, Parts] = {}
        for locale in ("", *self.manifest.locales, *locales_in(self.source)):
            self.parts(locale)
        for path in self.source.files:
            if path.endswith(".j2"):
                self._compile(path)

    def _compile(self, path: str) -> None:
        """A file compiled in an environment that compiles it anyway; text, for what is included by others."""
        part = next((part for part in (SUBJECT, HTML) if path.endswith(part)), TEXT)
        try:
            self._environments[part].get_template(path)
        except TemplateSyntaxError:
            raise
        except (SyntaxError, RecursionError, ValueError, MemoryError):
            mend = "nest less, and write shorter numbers"
            raise TemplateFault(self.source.name, path, 0, "cannot be compiled", mend) from None

    def parts(self, locale: str) -> Parts:
        """The parts for a locale. All are compiled by now: each file once per part, however many locales share it."""
        parts = self._parts.get(locale)
        if parts is None:
            parts = self._find_parts(locale)
            if len(self._parts) < _LOCALES_KEPT:
                self._parts[locale] = parts
        return parts

    def _find_parts(self, locale: str) -> Parts:
        subject, text, html = (self._part(locale, part) for part in (SUBJECT, TEXT, HTML))
        name = self.source.name
        if subject is None:
            raise TemplateFault(name, SUBJECT, 0, "no such file", "write one; every letter has a subject")
        if text is None and html is None:
            raise TemplateFault(name, TEXT, 0, "neither a text nor an HTML part", f"write {TEXT} and {HTML}")
        return Parts(text_locale(self.source, locale), subject, text, html, self._environments[SUBJECT].globals)

    def _part(self, locale: str, part: str) -> Optional[Template]:
        path = part_path(self.source, locale, part)
        return None if path is None else self._environments[part].get_template(path)

    def form(self, key: Any) -> Optional[Form]:
        """The form letter of a sequence of texts and slots that has been checked against plain rendering before."""
        return self._forms.get(key)

    def keep_form(self, key: Any, form: Form) -> None:
        if len(self._forms) < _FORMS_KEPT:
            self._forms[key] = form


_compiled: OrderedDict[TemplateSource, Compiled] = OrderedDict()
_compiling = threading.Lock()


def compile_template(source: TemplateSource) -> Compiled:
    """The template, checked by the allow-list, then compiled; once per process and content hash.

    Every file is compiled, those that are included only for some recipients too: what this returns can be rendered.
    TemplateFault names the file, the line and the mend.
    """
    with _compiling:
        compiled = _compiled.get(source)
        if compiled is None:
            for fault in screen(source):
                raise fault
            compiled = _compiled[source] = _compile(source)
            while len(_compiled) > TEMPLATES_KEPT:
                _compiled.popitem(last=False)
        _compiled.move_to_end(source)
        return compiled


def _compile(source: TemplateSource) -> Compiled:
    try:
        return Compiled(source)
    except TemplateSyntaxError as fault:
        problem = fault.message or "a mistake in the syntax"
        raise TemplateFault(source.name, fault.name or "", fault.lineno, problem, "mend the line") from None
