"""Classes that are made quickly are in everything else the dataclasses that they were."""

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, InitVar, dataclass, field, fields, replace
from typing import Any

import pytest

from schemas.letters import Letter
from schemas.records import quick
from schemas.tables import OutboundMessage, Recipient
from sendonce.rendering.recipients import Addressee


@dataclass(frozen=True)
class Plain:
    one: int
    two: str = "b"
    three: list[int] = field(default_factory=list)


@quick
@dataclass(frozen=True)
class Quick:
    one: int
    two: str = "b"
    three: list[int] = field(default_factory=list)


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "x", [3]), {}),
    ((), {"one": 1, "three": [2]}),
    ((), {}),
    ((1, "x", [3], 4), {}),
    ((1,), {"four": 4}),
    ((1,), {"one": 1}),
]


@pytest.mark.parametrize(("args", "named"), CALLS)
def test_they_take_what_the_others_take(args: tuple[Any, ...], named: dict[str, Any]) -> None:
    def made(cls: type) -> Any:
        try:
            found = cls(*args, **named)
        except TypeError:
            return TypeError
        return [getattr(found, one.name) for one in fields(found)]

    assert made(Quick) == made(Plain)


def test_they_stay_frozen_equal_and_hashable_and_travel() -> None:
    one = Recipient(1, "c", 2, 3, "r", "a@b.example", "k", "", "", "{}")
    assert one == replace(one) == copy.copy(one) == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(replace(one))
    assert replace(one, email="").email == ""
    assert one.email == "a@b.example"
    assert repr(Quick(1)) == "Quick(one=1, two='b', three=[])"
    with pytest.raises(FrozenInstanceError):
        one.email = "x"  # type: ignore[misc]


def test_each_gets_a_default_of_its_own() -> None:
    first, second = Quick(1), Quick(1)
    first.three.append(1)
    assert second.three == []


@pytest.mark.parametrize("cls", [Recipient, OutboundMessage, Letter, Addressee, Quick])
def test_they_name_their_parameters(cls: type) -> None:
    assert list(inspect.signature(cls).parameters) == [one.name for one in fields(cls)]


def test_a_class_that_does_more_is_none_of_them() -> None:
    @dataclass(frozen=True)
    class Checks:
        one: int

        def __post_init__(self) -> None:
            raise ValueError

    @dataclass(frozen=True)
    class Not:
        one: int = field(init=False, default=1)

    @dataclass(frozen=True)
    class Given:
        one: InitVar[int]
        two: int = 2

        def __post_init__(self, one: int) -> None:
            raise ValueError

    for cls in (Checks, Not, Given):
        with pytest.raises(TypeError, match="does more than set its fields"):
            quick(cls)
