"""DoFns whose methods Beam has looked at once.

Beam's local streaming runner starts every bundle of every step anew, and asks each time what parameters every method
of its DoFn has: for one small element that was two thirds of a job's time. Beam asks an object for `_inspect_METHOD`
first (`apache_beam.transforms.core.get_function_arguments`); here the answers are made with the class.
"""

from types import MethodType
from typing import Any

import apache_beam as beam
from apache_beam.transforms.core import get_function_args_defaults


class InspectedDoFn(beam.DoFn):
    """A DoFn like any other: on every runner it does what `beam.DoFn` does."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        for name in dir(cls):
            method = getattr(cls, name)
            if callable(method) and not name.startswith("_inspect_") and not isinstance(method, type):
                setattr(cls, f"_inspect_{name}", _Answer(method))


class _Answer:
    """What `get_function_arguments` returns for one method of an instance: its parameters and their defaults.

    No function, so that an instance has no bound method of it that Beam would look at in turn.
    """

    def __init__(self, method: Any) -> None:
        self._method = method
        self._found: Any = None

    def __call__(self) -> Any:
        if self._found is None:
            bound = self._method if isinstance(self._method, MethodType) else MethodType(self._method, object())
            self._found = get_function_args_defaults(bound)
        names, defaults = self._found
        return list(names), list(defaults)
