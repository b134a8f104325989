"""From `sendonce.yaml`, the environment and options to a `Config`: option > environment > file > default."""

import difflib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from sendonce.config.adapters import SETTINGS
from sendonce.config.faults import ConfigFault
from sendonce.config.limits import LimitSetting, WarmUp
from sendonce.config.model import (
    LANE_NAMES,
    Config,
    DomainGroup,
    Lane,
    LaneName,
    Unsubscribe,
)
from sendonce.config.yaml_nodes import endless

DEFAULT_FILE: Final = "sendonce.yaml"
_BY_ENVIRONMENT: Final = {
    "outcomes_topic": "SENDONCE_OUTCOMES_TOPIC",
    "dead_letters_topic": "SENDONCE_DEAD_LETTERS_TOPIC",
}
Marks = dict[tuple[str | int, ...], int]


def config_path(option: str | None, environ: Mapping[str, str]) -> Path | None:
    """The file to read: the option, SENDONCE_CONFIG, or ./sendonce.yaml if it is there."""
    named = option or environ.get("SENDONCE_CONFIG")
    if named:
        return Path(named)
    default = Path(DEFAULT_FILE)
    return default if default.exists() else None


def load_config(
    path: Path | None, environ: Mapping[str, str], *, store: str | None = None, subscription: str | None = None
) -> Config:
    """The configuration in force. Relative paths in the file count from the file's folder.

    ConfigFault names every problem with file, line and mend; nothing is half applied.
    """
    raw, marks = _read(path) if path else ({}, {})
    given: dict[str, str] = {}
    raw = _anchored(raw, path.parent if path else Path())
    if chosen := store or environ.get("SENDONCE_STORE"):
        raw["store"], given["store"] = chosen, "--store" if store else "SENDONCE_STORE"
    if chosen := subscription or environ.get("SENDONCE_SUBSCRIPTION"):
        raw["subscription"] = chosen
        given["subscription"] = "--subscription" if subscription else "SENDONCE_SUBSCRIPTION"
    for name, variable in _BY_ENVIRONMENT.items():
        if chosen := environ.get(variable):
            raw[name], given[name] = chosen, variable
    try:
        return Config.model_validate(raw)
    except ValidationError as fault:
        raise ConfigFault(*(_explain(error, path, marks, given) for error in fault.errors())) from None


def read_lanes(text: str) -> tuple[LaneName, ...]:
    """The lanes that `--lanes A,B` names, the most urgent first. ConfigFault for none, and for one that is no lane."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    known = ", ".join(LANE_NAMES)
    if not names:
        raise ConfigFault(f"--lanes names no lane; lanes are {known}")
    if unknown := [name for name in names if name not in LANE_NAMES]:
        raise ConfigFault(f"there is no lane {unknown[0]!r}; lanes are {known}")
    return tuple(lane for lane in LANE_NAMES if lane in names)


def _read(path: Path) -> tuple[dict[str, Any], Marks]:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigFault(f"{path}: no such file; `sendonce init` writes one, or name another with --config") from None
    except UnicodeDecodeError:
        raise ConfigFault(f"{path}: not UTF-8 text; save it as UTF-8") from None
    except OSError as fault:
        raise ConfigFault(f"{path}: cannot be read ({fault.strerror}); check its permissions") from None
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        marks: Marks = {}
        if node is not None:
            if (found := endless(node)) is not None:
                raise ConfigFault(
                    f"{path}, line {found.start_mark.line + 1}: not usable YAML (an alias that repeats without end); "
                    "write the values out"
                )
            _mark(node, (), marks, path)
        raw = yaml.safe_load(text)
    except yaml.MarkedYAMLError as fault:
        line = fault.problem_mark.line + 1 if fault.problem_mark else 1
        raise ConfigFault(
            f"{path}, line {line}: not valid YAML ({fault.problem}); check indentation, colons and quotes"
        ) from None
    except RecursionError:
        raise ConfigFault(f"{path}: not usable YAML (nested too deeply); keep it flat, with plain values") from None
    except yaml.YAMLError:
        raise ConfigFault(
            f"{path}: not valid YAML (a character that YAML does not allow); save it as plain text"
        ) from None
    if raw is None:
        return {}, marks
    if not isinstance(raw, dict):
        raise ConfigFault(
            f"{path}, line 1: holds no settings; it should start like `store: sqlite:///.sendonce/sendonce.db`"
        )
    return raw, marks


def _mark(node: yaml.Node, place: tuple[str | int, ...], marks: Marks, path: Path) -> None:
    marks[place] = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            inner = (*place, str(key.value))
            if inner in marks:
                raise ConfigFault(f"{path}, line {key.start_mark.line + 1}: {key.value} is set twice; keep one")
            _mark(value, inner, marks, path)
            marks[inner] = key.start_mark.line + 1
    elif isinstance(node, yaml.SequenceNode):
        for number, value in enumerate(node.value):
            _mark(value, (*place, number), marks, path)


def _anchored(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The settings with relative paths counted from the file's folder; the outbox absolute: jobs start anywhere."""
    raw = dict(raw)
    if folder != Path():
        store = raw.get("store")
        if isinstance(store, str) and store.startswith("sqlite:///") and not store.startswith("sqlite:////"):
            raw["store"] = f"sqlite:///{(folder / store.removeprefix('sqlite:///')).resolve()}"
    templates = raw.get("templates", ["templates"])
    if isinstance(templates, str):
        templates = [templates]
    if isinstance(templates, list) and all(isinstance(name, str) for name in templates):
        raw["templates"] = [str(folder / name) for name in templates]
    senders = raw.get("senders", {"outbox": {"adapter": "outbox"}})
    if isinstance(senders, dict):
        raw["senders"] = {name: _anchored_sender(sender, folder) for name, sender in senders.items()}
    return raw


def _anchored_sender(sender: object, folder: Path) -> object:
    model = SETTINGS.get(str(sender.get("adapter"))) if isinstance(sender, dict) else None
    if not isinstance(sender, dict) or model is None:
        return sender
    paths = {name: sender.get(name, model.model_fields[name].default) for name in model.paths}
    return {**sender, **{name: os.path.abspath(folder / path) for name, path in paths.items() if isinstance(path, str)}}


def _explain(error: Any, path: Path | None, marks: Marks, given: Mapping[str, str]) -> str:
    place = tuple(part for part in error["loc"] if part != "[key]")
    if len(place) == 1 and place[0] in given:
        return f"{given[place[0]]}: {_problem(error, place, '')}"
    adapter = ""
    if place[:1] == ("senders",):
        if error["type"].startswith("union_tag"):
            place = (*place, "adapter")
        elif len(place) > 2:  # pydantic names the adapter as one more step of the way
            adapter, place = str(place[2]), place[:2] + place[3:]
    name = ".".join(str(part) for part in place)
    where = str(path) if path else "settings"
    known = next((marks[place[:end]] for end in range(len(place), 0, -1) if place[:end] in marks), None)
    line = f", line {known}" if known else ""
    return f"{where}{line}: {name + ': ' if name else ''}{_problem(error, place, adapter)}"


def _problem(error: Any, place: tuple[Any, ...], adapter: str) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind == "extra_forbidden":
        known = _settings_at(place, adapter)
        close = difflib.get_close_matches(str(place[-1]), known, n=1)
        if close:
            return f"no such setting; did you mean {close[0]}?"
        return f"no such setting; known: {', '.join(known)}" if known else "no such setting"
    if kind in ("missing", "union_tag_not_found"):
        return "is missing; set it"
    if kind == "literal_error":
        return f"must be {context['expected']}"
    if kind == "union_tag_invalid":
        return f"must be {context['expected_tags'].replace(', ', ' or ')}"
    if kind == "string_pattern_mismatch":
        return "must be a plain name: letters, digits, dots, dashes, underscores"
    return str(error["msg"]).removeprefix("Value error, ")


def _settings_at(place: tuple[Any, ...], adapter: str) -> list[str]:
    """The names that may stand where one does not belong; none where nothing is known of the place."""
    model: Any = Config
    if "limits" in place[:-1]:
        model = LimitSetting
    elif "warm_up" in place[:-1]:
        model = WarmUp
    elif len(place) > 1:
        parts = {
            "lanes": Lane,
            "senders": SETTINGS.get(adapter),
            "unsubscribe": Unsubscribe,
            "domains": DomainGroup,
        }
        model = parts.get(place[0])
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items() if name != "name"]
