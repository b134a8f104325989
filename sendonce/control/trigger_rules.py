"""What of the trigger's schema a body breaks, in words that hold nothing of anybody's.

A detail goes into logs, notices and terminals, so it holds no value, and of names only the schema's own: a name that a
publisher chose may be a person's (`{"ann@one.example": {...}}`). A field that is not known is told by its place in its
object, counted from 1 as it was written, and by the known name that it looks like.
"""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import resources
from typing import Any, Final

import jsonschema

# Unknown fields of one object that are told one by one.
_TOLD: Final = 5


def broken_rules(shape: str, value: Any) -> str:
    """What is wrong at the place in a body that matters most, all of it; empty if nothing is.

    shape: `start`, `control` or `send`, as `schemas/trigger.schema.json` defines them.
    """
    faults = list(_validator(shape).iter_errors(value))
    worst = jsonschema.exceptions.best_match(faults)
    if worst is None:
        return ""
    here = [fault for fault in faults if fault.absolute_path == worst.absolute_path]
    rules = dict.fromkeys(_rule(fault) for fault in [worst, *here])
    return f"{_place(worst)}: {'; '.join(rules)}"


@cache
def _validator(shape: str) -> Any:
    schema = json.loads(resources.files("schemas").joinpath("trigger.schema.json").read_text("utf-8"))
    return _STRICT({"$ref": f"#/$defs/{shape}", "$defs": schema["$defs"]})


def _pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[jsonschema.ValidationError]:
    """In JSON Schema (ECMA-262) `$` is the end; in Python there may be a line break behind it."""
    if isinstance(value, str) and (value.endswith("\n") or not re.search(pattern, value)):
        yield jsonschema.ValidationError("does not match the pattern")


_STRICT: Final = jsonschema.validators.extend(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator, {"pattern": _pattern}
)


def _place(fault: jsonschema.ValidationError) -> str:
    return ".".join(str(step) for step in fault.absolute_path) or "the body"


def _rule(fault: jsonschema.ValidationError) -> str:
    """What the schema asks for there."""
    rule: Any = fault.validator_value
    if fault.validator == "required" and isinstance(fault.instance, dict):
        return f"needs {', '.join(name for name in rule if name not in fault.instance)}"
    if (
        fault.validator == "additionalProperties"
        and isinstance(fault.instance, dict)
        and isinstance(fault.schema, dict)
    ):
        return _unknown_fields(fault.instance, fault.schema.get("properties", {}))
    return f"does not match {fault.validator} {json.dumps(rule)}"


def _unknown_fields(found: Mapping[str, Any], known: Iterable[str]) -> str:
    """Which fields of an object are not known, by place, with the known one that each looks like and is missing."""
    known = list(known)
    missing = [name for name in known if name not in found]
    unknown = [(place, name) for place, name in enumerate(found, 1) if name not in known]
    told = [f"field {place}{_meant(name, missing)}" for place, name in unknown[:_TOLD]]
    more = f" and {len(unknown) - _TOLD} more" if len(unknown) > _TOLD else ""
    verb = "is" if len(unknown) == 1 else "are"
    return f"{', '.join(told)}{more} {verb} not known (counted from 1); known are {', '.join(known)}"


def _meant(name: str, missing: list[str]) -> str:
    """A known name that an unknown one nearly is: `campaign`, `campaignId`, `Recipients`."""
    plain = {word.replace("_", ""): word for word in missing}
    near = difflib.get_close_matches(name.lower().replace("_", "").replace("-", ""), plain, 1, 0.75)
    return f" ({plain[near[0]]}?)" if near else ""
