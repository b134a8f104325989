"""Rows and letters are made a thousand at a time, and a frozen dataclass sets each of its fields by a call."""

from dataclasses import MISSING, fields
from typing import Any, TypeVar

Record = TypeVar("Record")


def quick(cls: type[Record]) -> type[Record]:
    """A frozen dataclass whose instances are made in a third of the time. Everything else about it stays.

    For classes of which there is one for each recipient. TypeError for a dataclass that does more than set its fields
    (`__post_init__`, fields that only one of the two ways sets).
    """
    own = fields(cls)  # type: ignore[arg-type]
    if hasattr(cls, "__post_init__") or not all(field.init and not field.kw_only for field in own):
        raise TypeError(f"{cls.__name__} does more than set its fields")
    names: dict[str, Any] = {}
    parameters, body = [], ["own = self.__dict__"]
    for field in own:
        default, value = f"_{field.name}", field.name
        if field.default is not MISSING:
            names[default] = field.default
            parameters.append(f"{field.name}={default}")
        elif field.default_factory is not MISSING:
            names[default], names["_missing"] = field.default_factory, MISSING
            parameters.append(f"{field.name}=_missing")
            value = f"{default}() if {field.name} is _missing else {field.name}"
        else:
            parameters.append(field.name)
        body.append(f"own[{field.name!r}] = {value}")
    text = f"def __init__(self, {', '.join(parameters)}):\n " + "\n ".join(body)
    exec(text, names)  # as `dataclass` itself makes its methods; the names are those of the class
    made = names["__init__"]
    made.__qualname__, made.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    made.__annotations__ = dict(cls.__init__.__annotations__)
    cls.__init__ = made  # type: ignore[method-assign]
    return cls
