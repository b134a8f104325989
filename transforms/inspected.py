"""DoFns whose methods Beam has looked at once.

Beam's local streaming runner starts every bundle of every step anew, and asks each time for the parameters of every
method of its DoFn: for one small element that was two thirds of a job's time. Which methods there are, Beam asks by
`dir`; what parameters one has, by `_inspect_METHOD` first (`apache_beam.transforms.core.get_function_arguments`). Here
the answers are made with the class, and only methods with defaults are named: Beam's parameters are defaults.
"""

from collections.abc import Iterator
from types import FunctionType, MethodType
from typing import Any

import apache_beam as beam
from apache_beam.transforms.core import get_function_args_defaults

_LIFECYCLE = ("process", "process_batch", "setup", "start_bundle", "finish_bundle", "teardown")


class InspectedDoFn(beam.DoFn):
    """A DoFn like any other: on every runner it does what `beam.DoFn` does."""

    _with_parameters: frozenset[str] = frozenset()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        named = set()
        for name, method in _methods(cls):
            answer = _Answer(method)
            setattr(cls, f"_inspect_{name}", answer)
            if answer()[1] and (name in _LIFECYCLE or not hasattr(beam.DoFn, name)):
                named.add(name)
        cls._with_parameters = frozenset(named)

    def __dir__(self) -> Iterator[str]:
        return iter(self._with_parameters)


def _methods(cls: type) -> Iterator[tuple[str, Any]]:
    for name in dir(cls):
        method = getattr(cls, name)
        if isinstance(method, FunctionType | MethodType) and not name.startswith(("_inspect_", "__")):
            yield name, method


class _Answer:
    """What `get_function_arguments` returns for one method of an instance: its parameters and their defaults.

    No function, so that an instance has no bound method of it that Beam would look at in turn.
    """

    def __init__(self, method: Any) -> None:
        bound = method if isinstance(method, MethodType) else MethodType(method, object())
        self._names, self._defaults = get_function_args_defaults(bound)

    def __call__(self) -> Any:
        return list(self._names), list(self._defaults)
