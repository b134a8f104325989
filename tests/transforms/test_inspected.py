"""Beam asks a step about its methods for each bundle; it gets the answers of any other DoFn, but made once."""

import inspect
from collections.abc import Iterator
from typing import Any

import apache_beam as beam
import pytest
from apache_beam.runners.common import DoFnSignature
from apache_beam.transforms import core
from apache_beam.transforms.timeutil import TimeDomain
from apache_beam.transforms.userstate import BagStateSpec, TimerSpec, get_dofn_specs, on_timer

from transforms.inspected import InspectedDoFn


def _methods(base: type) -> type:
    class Step(base):  # type: ignore[misc]
        SEEN = BagStateSpec("seen", beam.coders.StrUtf8Coder())
        LATER = TimerSpec("later", TimeDomain.REAL_TIME)

        def __init__(self, word: str = "word") -> None:
            self.word = word

        def setup(self) -> None:
            pass

        def process(
            self,
            element: tuple[str, str],
            seen=beam.DoFn.StateParam(SEEN),
            later=beam.DoFn.TimerParam(LATER),
            at=beam.DoFn.TimestampParam,
        ) -> Iterator[str]:
            yield element[1]

        @on_timer(LATER)
        def fires(self, seen=beam.DoFn.StateParam(SEEN)) -> None:
            pass

        @staticmethod
        def helper(one: int, two: int = 2) -> int:
            return one + two

    return Step


@pytest.mark.parametrize("name", ["process", "setup", "fires", "start_bundle", "finish_bundle", "get_type_hints"])
def test_beam_is_told_what_it_would_find(name: str) -> None:
    plain, inspected = _methods(beam.DoFn)(), _methods(InspectedDoFn)()
    (names, defaults), (told, told_defaults) = (core.get_function_arguments(x, name) for x in (plain, inspected))
    assert told == names
    assert [type(default) for default in told_defaults] == [type(default) for default in defaults]


def test_state_and_timers_are_found() -> None:
    step = _methods(InspectedDoFn)()
    states, timers = get_dofn_specs(step)
    assert ({spec.name for spec in states}, {spec.name for spec in timers}) == ({"seen"}, {"ts-later"})
    assert DoFnSignature(step).is_stateful_dofn()


def test_a_second_bundle_inspects_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    step_type = _methods(InspectedDoFn)
    DoFnSignature(step_type())
    asked: list[object] = []
    real = inspect.signature

    def ask(method: Any) -> inspect.Signature:
        asked.append(getattr(method, "__self__", None))
        return real(method)

    monkeypatch.setattr("apache_beam.typehints.decorators.inspect.signature", ask)
    DoFnSignature(step_type())
    assert not [owner for owner in asked if isinstance(owner, step_type)]
    DoFnSignature(_methods(beam.DoFn)())
    assert [owner for owner in asked if isinstance(owner, beam.DoFn)], "Beam asks in another way now"


def test_beam_looks_only_at_methods_that_may_take_its_parameters() -> None:
    assert sorted(dir(_methods(InspectedDoFn)())) == ["fires", "helper", "process"]


def test_what_is_told_may_be_changed_by_who_asked() -> None:
    step = _methods(InspectedDoFn)()
    core.get_function_arguments(step, "process")[0].clear()
    assert core.get_function_arguments(step, "process")[0] == ["element", "seen", "later", "at"]
