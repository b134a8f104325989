"""`template.yaml`: what a template says about itself, and the variables that it takes."""

import re
from collections.abc import Mapping
from datetime import date
from typing import Any, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from sendonce.addresses import BadAddress, sender_address
from sendonce.config.yaml_nodes import endless
from sendonce.rendering.faults import TemplateFault
from sendonce.rendering.values import EXPECTED, Kind, VariableFault, fitted

MANIFEST: Final = "template.yaml"
LOCALE: Final = r"[a-z]{2,3}(-[A-Z][a-z]{3})?(-([A-Z]{2}|[0-9]{3}))?"

# What every letter knows without being told. `vars` holds all variables, for names that no expression
# can spell: `vars['first-name']`.
BUILT_IN: Final = frozenset({"recipient", "campaign", "unsubscribe_url", "vars"})
_JINJA_NAMES: Final = frozenset(
    {"range", "dict", "namespace", "cycler", "joiner", "lipsum", "loop", "self", "super", "caller", "varargs", "kwargs"}
    | {"true", "false", "none", "and", "or", "not", "in", "is", "if", "else"}
)

Priority = Literal["critical", "high", "bulk"]


class Variable(BaseModel):
    """One variable. Required unless it says otherwise or has a default; `example` fills previews and checks."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    type: Kind = "text"
    required: bool = True
    default: Any = None
    example: Any = None

    @model_validator(mode="before")
    @classmethod
    def _settle(cls, raw: Any) -> Any:
        if raw is None:
            return {}
        if isinstance(raw, str):
            return {"type": raw}
        if isinstance(raw, dict):
            raw = {key: _plain(value) if key in ("default", "example") else value for key, value in raw.items()}
            if raw.get("default") is not None:
                if raw.get("required"):
                    raise ValueError("required and default exclude each other; keep one of them")
                raw["required"] = False
        return raw

    @model_validator(mode="after")
    def _fit(self) -> "Variable":
        for field in ("default", "example"):
            if (value := getattr(self, field)) is not None:
                try:
                    fitted(field, self.type, value)
                except VariableFault:
                    expected = EXPECTED[self.type]
                    raise ValueError(f"{field} is not {expected}; write one that is, or another type") from None
        return self


class Manifest(BaseModel):
    """A template's manifest. `from_address` and `reply_to` are "" where the configuration decides."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, populate_by_name=True)

    priority: Priority = "bulk"
    from_address: str = Field(default="", alias="from")
    reply_to: str = ""
    variables: dict[str, Variable] = {}
    locales: list[str] = Field(default=[], min_length=1)
    default_locale: str = "en"
    default_timezone: str = "UTC"

    @model_validator(mode="before")
    @classmethod
    def _default_locales(cls, raw: Any) -> Any:
        if isinstance(raw, dict):
            raw = {key: value for key, value in raw.items() if value is not None}
            raw.setdefault("locales", [raw.get("default_locale", "en")])
        return raw

    @field_validator("variables")
    @classmethod
    def _free_names(cls, variables: dict[str, Variable]) -> dict[str, Variable]:
        for name in variables:
            if name.startswith("_"):
                raise ValueError(f"variable {name} starts with an underscore; give it a name that starts with a letter")
            if name in BUILT_IN or name in _JINJA_NAMES:
                raise ValueError(f"variable {name} would hide a built-in name; call it something else")
        return variables

    @field_validator("from_address", "reply_to")
    @classmethod
    def _one_address(cls, value: str) -> str:
        try:
            return sender_address(value) if value else ""
        except BadAddress as fault:
            raise ValueError(
                f'is no address to send from ({fault.reason}); write name@example.com or "Shop <name@example.com>"'
            ) from None

    @field_validator("locales", mode="before")
    @classmethod
    def _locale_names(cls, value: Any) -> Any:
        if isinstance(value, list) and any(isinstance(item, bool) for item in value):
            raise ValueError('YAML reads no as false; put quotes around it: "no"')
        return value

    @field_validator("locales", "default_locale")
    @classmethod
    def _spelled_as_bcp47(cls, value: list[str] | str) -> list[str] | str:
        for locale in [value] if isinstance(value, str) else value:
            if not re.fullmatch(LOCALE, locale):
                raise ValueError(f"locale {locale!r} is not spelled as a language tag; write one such as en or pt-BR")
        return value

    @model_validator(mode="after")
    def _default_among_locales(self) -> "Manifest":
        if self.default_locale not in self.locales:
            raise ValueError(f"locales lacks the default locale {self.default_locale}; add it")
        return self


def variables_for(manifest: Manifest, given: Mapping[str, Any]) -> dict[str, Any]:
    """A recipient's variables as the template sees them: null removed, defaults filled in, types fitted.

    An empty text, as a blank cell gives it, is no value for any type but text. Names that the manifest does not
    declare pass through. An absent variable stays absent: strict undefined refuses the letter if the template needs
    it. VariableFault for one of the wrong type.
    """
    variables = {name: value for name, value in given.items() if value is not None and value == value}
    for name, variable in manifest.variables.items():
        if variables.get(name) == "" and variable.type != "text":
            del variables[name]
        if name in variables:
            variables[name] = fitted(name, variable.type, variables[name])
        elif variable.default is not None:
            variables[name] = variable.default
    return variables


def example_variables(manifest: Manifest, *, required_only: bool = False) -> dict[str, Any]:
    """Variables for a preview: each variable's example, else its default, else a plain value of its type.

    `required_only` leaves out what a recipient may leave out, defaults included: the barest letter there can be.
    """
    chosen: dict[str, Any] = {}
    for name, variable in manifest.variables.items():
        if required_only and not variable.required:
            continue
        if variable.example is not None:
            chosen[name] = variable.example
        elif variable.default is not None:
            chosen[name] = variable.default
        else:
            chosen[name] = _STAND_IN[variable.type](name)
    return chosen


_STAND_IN: Final[Mapping[str, Any]] = {
    "text": lambda name: name.replace("_", " ").capitalize(),
    "integer": lambda _: 3,
    "number": lambda _: 12.5,
    "boolean": lambda _: True,
    "date": lambda _: "2026-01-15",
    "datetime": lambda _: "2026-01-15T09:00:00Z",
    "url": lambda name: f"https://shop.example/{name}",
    "list": lambda _: [],
    "object": lambda _: {},
}


def parse_manifest(template: str, text: str) -> Manifest:
    """The manifest in `text`. TemplateFault names the line, what is wrong there and what to write."""
    marks: dict[tuple[str, ...], int] = {}
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is not None:
            if (found := endless(node)) is not None:
                problem, line = "not usable YAML (an alias that repeats without end)", found.start_mark.line + 1
                raise TemplateFault(template, MANIFEST, line, problem, "write the values out")
            _mark(node, (), marks)
        raw = yaml.safe_load(text)
    except yaml.YAMLError as fault:
        mark = getattr(fault, "problem_mark", None)
        problem = f"not valid YAML ({getattr(fault, 'problem', None) or 'a character that YAML does not allow'})"
        line = mark.line + 1 if mark else 0
        raise TemplateFault(template, MANIFEST, line, problem, "check indentation, colons and quotes") from None
    except (RecursionError, ValueError):
        raise TemplateFault(template, MANIFEST, 0, "not valid YAML", "keep it flat, with plain values") from None
    if not isinstance(raw, dict):
        raise TemplateFault(template, MANIFEST, 1, "holds no settings", "start it with `priority: bulk`")
    try:
        return Manifest.model_validate(raw)
    except ValidationError as fault:
        error = fault.errors()[0]
        place = tuple(str(part) for part in error["loc"])
        line = next((marks[place[:n]] for n in range(len(place), -1, -1) if place[:n] in marks), 1)
        problem, mend = _explain(error["type"], error["msg"], ".".join(place))
        raise TemplateFault(template, MANIFEST, line, problem, mend) from None


def _explain(kind: str, message: str, place: str) -> tuple[str, str]:
    if kind == "extra_forbidden":
        return f"unknown setting {place}", f"use {', '.join(_known(place))}"
    problem, _, mend = message.removeprefix("Value error, ").partition("; ")
    ours = kind == "value_error" and "." not in place and not problem.startswith("is ")
    return problem if ours else f"{place}: {problem}", mend or "mend or remove the line"


def _known(place: str) -> list[str]:
    model = Variable if place.startswith("variables.") else Manifest
    return [field.alias or name for name, field in model.model_fields.items()]


def _mark(node: yaml.Node, place: tuple[str, ...], marks: dict[tuple[str, ...], int]) -> None:
    """Notes on which line each setting stands. Shallow, so that a manifest that nests for ever costs nothing."""
    marks.setdefault(place, node.start_mark.line + 1)
    if len(place) < 4 and isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            marks[(*place, str(key.value))] = key.start_mark.line + 1
            _mark(value, (*place, str(key.value)), marks)
    elif len(place) < 4 and isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _mark(value, (*place, str(number)), marks)


def _plain(value: Any) -> Any:
    """JSON data: YAML's own dates become text, as they would come from a recipients file."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    return value
