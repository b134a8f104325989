"""docs/adapters.md: its example is an adapter, as it stands there."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import TypeAdapter, ValidationError

from sendonce.delivery.lanes import make_sender
from tests.senders.conformance import Account, Conformance

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "adapters.md").read_text()
BLOCKS = dict(re.findall(r"^```python (\S+)\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE))


def module(path: str) -> ModuleType:
    """A block of the page as the module that it says it is."""
    name = path.removesuffix(".py").replace("/", ".")
    made = ModuleType(name)
    sys.modules[name] = made
    exec(compile(BLOCKS[path], path, "exec"), made.__dict__)
    return made


SETTINGS = module("sendonce/config/adapters/pigeon.py")
SENDER = module("sendonce/senders/pigeon.py")
TESTS = module("tests/senders/test_pigeon.py")


@pytest.fixture(scope="module", autouse=True)
def _nothing_stays() -> Iterator[None]:
    yield
    for path in BLOCKS:
        sys.modules.pop(path.removesuffix(".py").replace("/", "."), None)


class TestTheExample(TESTS.TestPigeon):  # type: ignore[misc, name-defined]
    """Collected here under this name: the page's own class is one of a module that is no file."""


def test_the_example_is_put_through_the_suite() -> None:
    assert issubclass(TestTheExample, Conformance)
    assert {"test_a_lost_answer_is_a_doubt", "test_the_same_bytes_again_are_one_letter_where_it_says_so"} <= {
        name for name in dir(TestTheExample) if callable(getattr(TestTheExample, name))
    }


def test_its_settings_are_read_and_made_into_a_sender(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIGEON_TOKEN", "secret")
    read = TypeAdapter(SETTINGS.PigeonSettings).validate_python
    settings = read({"name": "p", "adapter": "pigeon", "token": "env:PIGEON_TOKEN", "limits": [{"rate": "5/s"}]})
    sender = make_sender(settings)
    assert isinstance(sender, SENDER.Pigeon)
    assert Account(sender, None).sender.identity.startswith("p/")  # type: ignore[arg-type]
    sender.close()
    with pytest.raises(ValidationError, match="must say where the secret stands"):
        read({"name": "p", "adapter": "pigeon", "token": "secret"})


def test_links_lead_somewhere() -> None:
    for target in re.findall(r"\]\((\.\./[^)#]+)\)", PAGE):
        assert (ROOT / "docs" / target).resolve().exists(), target
