import json
from pathlib import Path

from sendonce.control.suppressions import list_of, lists_of
from sendonce.stores.base import Store
from tests.cli.conftest import Call
from tests.control.made import campaign_row


def test_an_address_is_added_explained_and_removed(sendonce: Call, store: Store) -> None:
    assert sendonce("suppressions", "add", "Ann@one.example", "--reason", "complained").code == 0
    assert "changed" in sendonce("suppressions", "add", "ann@one.example").out

    told = sendonce("suppressions", "why", "ann@ONE.example")
    found = sendonce("suppressions", "why", "ann@one.example", "--json").json

    assert told.code == 0
    assert told.out.startswith("complained (all letters) since 20")
    assert found["suppressed"]
    assert [(row["reason"], row["list"], row["source"]) for row in found["suppressions"]] == [
        ("complained", "*", "command")
    ]
    assert "it was complained" in sendonce("suppressions", "remove", "ann@one.example").out
    assert sendonce("suppressions", "why", "ann@one.example").out == "It is not suppressed.\n"
    assert sendonce("suppressions", "remove", "ann@one.example", "--json").json == {"removed": None, "left": []}


def test_a_list_shows_keys_and_never_addresses(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "gone.csv").write_text("email,reason\nann@one.example,bounce\nbob@one.example,spam\nnobody,\n")

    done = sendonce("suppressions", "import", "gone.csv", "--list", "offers")
    listed = sendonce("suppressions", "list")
    as_json = sendonce("suppressions", "list", "--limit", "1", "--json").json

    assert done.code == 0
    assert "2 suppressed (list offers), 0 were already." in done.out
    assert "not taken: bad_address: 1" in done.out
    assert "lines: 4" in done.out
    assert "@" not in done.out + listed.out + listed.err
    assert listed.widest <= 80
    assert as_json["counts"] == [
        {"list": "offers", "reason": "bounced", "addresses": 1},
        {"list": "offers", "reason": "complained", "addresses": 1},
    ]
    assert len(as_json["newest"]) == 1


def test_an_import_tells_machines_its_counts(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "gone.txt").write_text("ann@one.example\n")
    sendonce("suppressions", "import", "gone.txt")

    assert sendonce("suppressions", "import", "gone.txt", "--json").json == {
        "list": "*",
        "rows_read": 1,
        "added": 0,
        "already": 1,
        "rejected": 0,
        "rejected_by_reason": {},
        "first_rejected_lines": [],
        "unknown_reasons": 0,
    }


def test_wrong_calls_exit_with_2_and_repeat_no_address(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "x.csv").write_text("mail\nno\n")
    for call in (
        ("add", "ann one.example"),
        ("why", "ann@@one.example"),
        ("add", "ann@one.example", "--list", "a b"),
        ("import", "nowhere.csv"),
        ("import", "x.csv"),
        ("add", "ann@one.example", "--reason", "angry"),
    ):
        answer = sendonce("suppressions", *call)
        assert answer.code == 2, call
        assert "one.example" not in answer.err


def test_who_unsubscribes_from_a_newsletter_still_gets_codes(sendonce: Call, store: Store, folder: Path) -> None:
    """A bulk campaign that names no list is on the list `bulk`; a code's is on none, and only `*` holds for it."""
    (folder / "people.csv").write_text("recipient_id,email,code,minutes\n1,ann@one.example,123456,10\n")
    (folder / "readers.csv").write_text("recipient_id,email,name,points\n1,ann@one.example,Ann,3\n")
    sendonce("load", "news", "readers.csv", "-t", "newsletter")
    sendonce("load", "codes", "people.csv", "-t", "otp")
    options = {name: json.loads(campaign_row(store, name).options) for name in ("news", "codes")}
    assert {name: list_of(found) for name, found in options.items()} == {"news": "bulk", "codes": "*"}
    assert {name: lists_of(found) for name, found in options.items()} == {"news": ("*", "bulk"), "codes": ("*",)}
    sendonce("suppressions", "add", "ann@one.example", "--list", "bulk", "--reason", "unsubscribed")
    assert "list bulk" in sendonce("suppressions", "why", "ann@one.example").out
