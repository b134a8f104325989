import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.tables import SCHEMA_VERSION, Switch
from sendonce.rendering.catalogue import manifest_of
from sendonce.stores.base import Store
from sendonce.stores.opening import open_store, store_environment, store_key
from tests.cli.conftest import Call
from tests.control.made import batch_row, doubted, seal
from tests.emulated import Emulator


def test_init_makes_store_settings_and_lanes_and_may_be_repeated(sendonce: Call, folder: Path) -> None:
    first = sendonce("init", "--json")
    key = store_key(open_store("sqlite:///.sendonce/sendonce.db"))
    again = sendonce("init", "--json")

    assert (first.code, again.code) == (0, 0)
    assert (first.json["config_written"], first.json["changes"]) == (True, 5)
    assert (again.json["config_written"], again.json["changes"]) == (False, 0)
    assert store_key(open_store("sqlite:///.sendonce/sendonce.db")) == key
    assert "*" in (folder / ".sendonce/.gitignore").read_text().splitlines()
    assert (folder / ".sendonce").stat().st_mode & 0o077 == 0


def test_init_keeps_a_settings_file_that_is_there(sendonce: Call, folder: Path) -> None:
    (folder / "sendonce.yaml").write_text("lanes: {bulk: {batch_size: 7}}")

    assert sendonce("init").code == 0

    assert (folder / "sendonce.yaml").read_text() == "lanes: {bulk: {batch_size: 7}}"
    assert sendonce("config", "show", "--json").json["settings"]["lanes"]["bulk"]["batch_size"] == 7


@pytest.mark.parametrize("by", ["option", "environment"])
def test_init_writes_the_store_that_it_made_into_the_settings(
    sendonce: Call, folder: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    url = "sqlite:///a #1: b/é.db"
    with monkeypatch.context() as patch:
        if by == "environment":
            patch.setenv("SENDONCE_STORE", url)
        made = sendonce("init", "--json", *(["--store", url] if by == "option" else []))

    assert (made.code, made.json["store"]) == (0, f"sqlite:///{folder}/a #1: b/é.db")
    assert sendonce("config", "show", "--json").json["settings"]["store"] == url
    assert sendonce("list").code == 0
    assert not (folder / ".sendonce/sendonce.db").exists()


def test_init_tells_that_settings_which_are_there_name_another_store(sendonce: Call, folder: Path) -> None:
    sendonce("init")

    other = sendonce("init", "--store", "sqlite:///other.db")

    assert other.code == 0
    assert "the settings name another store, sqlite:///.sendonce/sendonce.db: commands without" in other.out
    assert f"store        sqlite:///{folder}/other.db (test)\n" in other.out
    assert "another store" not in sendonce("init", "--store", "sqlite:///.sendonce/sendonce.db").out


def test_init_writes_a_relative_store_as_it_counts_from_the_settings(
    sendonce: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "etc").mkdir()

    made = sendonce("init", "--json", "--config", "etc/sendonce.yaml", "--store", "sqlite:///s.db")

    assert (made.code, (folder / "s.db").exists()) == (0, True)
    assert sendonce("list", "--config", "etc/sendonce.yaml").code == 0


def test_init_leaves_no_settings_of_a_store_that_it_could_not_make(sendonce: Call, folder: Path) -> None:
    assert sendonce("init", "--store", "mysql://x").code == 2
    (folder / "blocked").write_text("a file where a folder should be")
    assert sendonce("init", "--store", "sqlite:///blocked/s.db").code == 1
    assert not (folder / "sendonce.yaml").exists()

    assert sendonce("init", "--store", "sqlite:///good.db").code == 0
    assert "store: sqlite:///good.db\n" in (folder / "sendonce.yaml").read_text()


@pytest.mark.needs("google.cloud.spanner")
def test_init_writes_a_store_on_spanner_into_the_settings(
    spanner: Emulator, sendonce: Call, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "spanner://local/sendonce/settings"
    monkeypatch.setenv("SENDONCE_STORE", url)
    assert sendonce("init").code == 0
    assert f"store: {url}\n" in (folder / "sendonce.yaml").read_text()


def test_a_store_keeps_its_environment(sendonce: Call) -> None:
    assert sendonce("init", "--environment", "production").code == 0
    assert sendonce("init").code == 0

    answer = sendonce("init", "--environment", "test")

    assert answer.code == 1
    assert "made for environment production" in answer.err
    assert store_environment(open_store("sqlite:///.sendonce/sendonce.db")) == "production"


def test_init_in_a_folder_without_permission_names_it(sendonce: Call, folder: Path) -> None:
    (folder / "blocked").write_text("a file where a folder should be")

    answer = sendonce("init", "--store", "sqlite:///blocked/s.db")

    assert answer.code == 1
    assert "blocked is a file, not a folder" in answer.err


def test_config_apply_shows_what_changes_and_dry_run_writes_nothing(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "sendonce.yaml").write_text("lanes: {bulk: {limits: [{rate: 500/s, burst: 500}]}}")

    dry = sendonce("config", "apply", "--dry-run")
    assert "500/s, burst 500" in dry.out
    assert sendonce("config", "show", "--json").json["differs_from_store"] == 3

    changes = {change["what"]: change for change in sendonce("config", "apply", "--json").json}
    assert changes.pop("letters from")["action"] == "remove"  # what `init` wrote named an address to send from
    assert changes == {
        "lane bulk": {"action": "change", "what": "lane bulk", "fields": []},
        "limit lane:bulk rate": {
            "action": "add",
            "what": "limit lane:bulk rate",
            "fields": [{"field": None, "before": None, "after": "500/s, burst 500"}],
        },
    }
    assert "has these settings already" in sendonce("config", "apply").out
    assert sendonce("config", "show", "--json").json["differs_from_store"] == 0


def test_config_apply_shows_what_changed_inside_a_lane_or_sender(sendonce: Call, store: Store, folder: Path) -> None:
    settings = "senders: {outbox: {adapter: outbox}, mail: {adapter: sendgrid, api_key: env:KEY, base_url: %s}}"
    (folder / "sendonce.yaml").write_text(settings % "https://api.sendgrid.com")
    added = sendonce("config", "apply")
    assert "api_key env:KEY" in " ".join(added.out.split())
    (folder / "sendonce.yaml").write_text(
        settings % "https://api.eu.sendgrid.com" + "\nlanes: {bulk: {in_doubt: hold, limits: [{rate: 5/s}]}}"
    )

    changed = sendonce("config", "apply", "--dry-run")
    found = {change["what"]: change["fields"] for change in sendonce("config", "apply", "--json").json}

    assert found["lane bulk"] == [{"field": "in_doubt", "before": "assume", "after": "hold"}]
    assert found["sender mail"] == [
        {"field": "base_url", "before": "https://api.sendgrid.com", "after": "https://api.eu.sendgrid.com"}
    ]
    assert max(map(len, changed.out.splitlines())) <= 80
    assert "in_doubt" in changed.out
    assert "assume" in changed.out


def test_config_show_works_without_a_store(sendonce: Call) -> None:
    answer = sendonce("config", "show", "--json")

    assert answer.code == 0
    assert (answer.json["file"], answer.json["differs_from_store"]) == (None, None)


def test_migrate_says_from_where_to_where(sendonce: Call, store: Store) -> None:
    assert sendonce("migrate", "--json").json == {"from": SCHEMA_VERSION, "to": SCHEMA_VERSION}


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Templates are read but not rendered, which takes a process each."""
    monkeypatch.setattr("sendonce.rendering.check.check_template", lambda source: [manifest_of(source)][1:])


def test_doctor_finds_a_fresh_installation_well(sendonce: Call, store: Store) -> None:
    answer = sendonce("doctor", "--json")

    assert answer.code == 0, answer.out
    assert {finding["what"] for finding in answer.json} >= {
        "python",
        "settings",
        "templates",
        "store",
        "clock",
        "times",
    }


@pytest.mark.usefixtures("quick_checks")
def test_doctor_fits_80_columns(sendonce: Call, store: Store) -> None:
    answer = sendonce("doctor")

    assert (answer.code, answer.widest <= 80) == (0, True)


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize(
    ("name", "text", "what", "mend"),
    [
        ("sendonce.yaml", "lanes: {bulk: {shards: 0}}", "settings", "mend the file"),
        ("sendonce.yaml", "store: sqlite:///nowhere/s.db", "store", "run `sendonce init`"),
        (
            "sendonce.yaml",
            "senders: {outbox: {adapter: outbox, path: sendonce.yaml/outbox}}",
            "disk of outbox",
            "choose another path",
        ),
        ("templates/torn/template.yaml", "priority: urgent", "template torn", ""),
    ],
)
def test_doctor_names_what_is_broken_and_the_mend(
    sendonce: Call, store: Store, folder: Path, name: str, text: str, what: str, mend: str
) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)

    answer = sendonce("doctor", "--json")

    failed = [finding for finding in json.loads(answer.out) if finding["level"] == "fail"]
    assert answer.code == 1
    assert [finding["what"] for finding in failed] == [what]
    assert mend in (failed[0]["mend"] or "")


@pytest.mark.usefixtures("quick_checks")
@pytest.mark.parametrize(("target", "words"), [("circle", "Too many levels"), ("nowhere", "No such file")])
def test_doctor_says_of_an_outbox_behind_a_broken_link(
    sendonce: Call, store: Store, folder: Path, target: str, words: str
) -> None:
    (folder / "circle").symlink_to(folder / target)
    (folder / "sendonce.yaml").write_text("senders: {outbox: {adapter: outbox, path: circle/box}}")

    answer = sendonce("doctor", "--json")

    (found,) = [finding for finding in answer.json if finding["what"] == "disk of outbox"]
    assert (answer.code, found["level"], found["mend"]) == (1, "fail", "choose another path")
    assert words in found["found"]


@pytest.mark.usefixtures("quick_checks")
def test_doctor_warns_when_the_store_differs_from_the_settings(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "sendonce.yaml").write_text("lanes: {bulk: {batch_size: 7}}")

    answer = sendonce("doctor", "--json")

    assert answer.code == 0
    assert [finding["mend"] for finding in answer.json if finding["level"] == "warn"] == ["`sendonce config apply`"]


SENDGRID = (
    "senders: {mail: {adapter: sendgrid, api_key: env:A_KEY_THAT_NOBODY_SET}}\nrecipients_allowed: [a@b.example]\n"
)


def test_doctor_tells_of_a_key_that_is_missing_and_of_a_sender_that_is_halted(
    sendonce: Call, store: Store, folder: Path
) -> None:
    (folder / "sendonce.yaml").write_text(SENDGRID)
    sendonce("config", "apply")
    halted = Switch("sender:mail", "halted", datetime.now(UTC), "worker", "credentials", None, "{}")
    store.transact(lambda tx: tx.put(halted), tag="test")
    answer = sendonce("doctor", "--json")
    assert answer.code == 1
    told = [finding for finding in answer.json if finding["what"] == "sender mail"]
    assert [finding["level"] for finding in told] == ["fail", "fail"]
    assert "A_KEY_THAT_NOBODY_SET" in told[0]["found"] + told[0]["mend"]
    assert "halted (credentials)" in told[1]["found"]
    assert told[1]["mend"]


def test_doctor_tells_of_doubts_that_wait_for_a_person(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3], state="running")
    row = batch_row(store, "spring", 0)
    held = replace(row, state="held", open_state="held", outcomes=bytes([1, 1, 0]), n_open=1, n_in_doubt=2)
    store.transact(lambda tx: tx.put(doubted(held, tx.now())), tag="test")
    told = {finding["what"]: finding for finding in sendonce("doctor", "--json").json}
    assert told["doubts"]["level"] == "warn"
    assert told["doubts"]["found"].startswith("2 recipients")
