import io
from pathlib import Path

import pytest

from sendonce.stores.base import Store
from tests.cli.conftest import Call
from tests.control.made import seal

LIST = "recipient_id,email\n1,ann@one.example\n2,not an address\n"


@pytest.fixture
def loaded(sendonce: Call, store: Store, folder: Path) -> str:
    (folder / "people.csv").write_text(LIST)
    assert sendonce("load", "spring", "people.csv", "-t", "newsletter").code == 0
    return "spring"


def test_unload_frees_the_id_for_another_list(sendonce: Call, loaded: str, folder: Path) -> None:
    assert (folder / ".sendonce/rejects/spring.ndjson").exists()

    answer = sendonce("unload", loaded, "--yes")

    assert (answer.code, "1 recipient" in answer.out) == (0, True)
    assert not (folder / ".sendonce/rejects/spring.ndjson").exists()
    assert sendonce("list", "--json").json == []
    (folder / "people.csv").write_text(LIST + "3,bob@two.example\n")
    assert sendonce("load", "spring", "people.csv", "-t", "newsletter", "--json").json["recipients"] == 2
    assert sendonce("unload", "spring", "--yes", "--json").json == {
        "campaign": "spring",
        "recipients": 2,
        "unloaded": True,
    }


def test_unload_asks_first(sendonce: Call, loaded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    unasked = sendonce("unload", loaded)
    assert unasked.code == 2
    assert "`sendonce unload spring --yes` does it" in unasked.err

    answers = io.StringIO("n\n")
    monkeypatch.setattr(answers, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin", answers)
    asked = sendonce("unload", loaded)
    assert asked.code == 1
    assert "Remove campaign spring and its 1 recipient" in asked.err
    assert len(sendonce("list", "--json").json) == 1


@pytest.mark.parametrize(("state", "mend"), [("running", "`sendonce cancel` stops it"), ("completed", "another id")])
def test_unload_refuses_what_was_submitted(sendonce: Call, store: Store, state: str, mend: str) -> None:
    seal(store, "spring", [2], state=state)

    answer = sendonce("unload", "spring", "--yes")

    assert answer.code == 2
    assert f"cannot unload campaign spring: it is {state}" in answer.err
    assert mend in answer.err
    assert sendonce("unload", "winter", "--yes").code == 2
