"""Making, opening and migrating a store: what is refused, in which words, and what is left behind."""

import os
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import SCHEMA_VERSION, Batch
from sendonce.stores import migrations
from sendonce.stores.base import NoStore, StoreRefused
from sendonce.stores.migrations import Migration
from sendonce.stores.opening import (
    init_store,
    migrate_store,
    open_store,
    shared_store,
    store_environment,
    store_key,
)
from tests.stores import workers
from tests.stores.contract import everything, put
from tests.stores.made import batch
from tests.stores.processes import in_child, started, told


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "store.db"


@pytest.fixture
def url(path: Path) -> str:
    return f"sqlite:///{path}"


def change(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


# URLs.


@pytest.mark.parametrize(
    "url", ["", "store.db", "/store.db", "sqlite:store.db", "sqlite://store.db", "sqlite:///", "postgres://host/db"]
)
@pytest.mark.parametrize("use", [init_store, open_store, migrate_store, shared_store])
def test_what_is_no_store_url_is_refused_with_the_forms_that_are(use: Callable[[str], Any], url: str) -> None:
    with pytest.raises(
        StoreRefused, match="sqlite:///relative/path, sqlite:////absolute/path or spanner://PROJECT/INSTANCE/DATABASE"
    ):
        use(url)


@pytest.mark.parametrize("url", ["sqlite:///:memory:", "sqlite:///folder/"])
def test_a_store_is_a_file(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreRefused):
        init_store(url)
    assert list(tmp_path.iterdir()) == []


def test_a_spanner_url_is_refused_in_its_own_words() -> None:
    with pytest.raises(StoreRefused, match="spanner://PROJECT/INSTANCE/DATABASE, in small letters"):
        open_store("spanner://Project/instance/database")


def test_a_relative_url_is_relative_to_where_the_process_is_and_stays_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = init_store("sqlite:///.sendonce/sendonce.db")
    monkeypatch.chdir("/")
    assert store.url == f"sqlite:///{tmp_path}/.sendonce/sendonce.db"
    put(store, batch(0))
    assert everything(open_store(store.url), Batch) == [batch(0)]


@pytest.mark.parametrize("name", ["with space.db", "100%.db", "what?.db", "#1.db", "ünï.db", "a&mode=memory"])
def test_any_file_name_will_do(tmp_path: Path, name: str) -> None:
    store = init_store(f"sqlite:///{tmp_path}/{name}")
    put(store, batch(0))
    store.close()
    assert [file.name for file in tmp_path.iterdir()] == [name]


# init.


def test_init_makes_the_folder_and_a_file_that_only_its_owner_reads(tmp_path: Path) -> None:
    store = init_store(f"sqlite:///{tmp_path}/new/folder/store.db")
    put(store, batch(0))
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (tmp_path / "new" / "folder").iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    assert stat.S_IMODE((tmp_path / "new" / "folder").stat().st_mode) == 0o700


def test_init_again_changes_nothing(url: str) -> None:
    first = init_store(url)
    put(first, batch(0))
    again = init_store(url)
    assert store_key(again) == store_key(first)
    assert everything(again, Batch) == [batch(0)]


def test_stores_have_keys_of_their_own(tmp_path: Path) -> None:
    keys = {store_key(init_store(f"sqlite:///{tmp_path}/{number}.db")) for number in range(3)}
    assert len(keys) == 3


def test_an_environment_is_chosen_once(url: str) -> None:
    assert store_environment(init_store(url, "production")) == "production"
    assert store_environment(init_store(url, "production")) == "production"
    with pytest.raises(StoreRefused, match="made for environment production, not test"):
        init_store(url)
    assert store_environment(open_store(url)) == "production"


def test_an_unknown_environment_is_refused_before_anything_is_made(url: str, path: Path) -> None:
    with pytest.raises(StoreRefused, match="test or production, not 'staging'"):
        init_store(url, "staging")
    assert not path.exists()


def test_processes_that_init_at_once_make_one_store(url: str) -> None:
    with ExitStack() as stack:
        reports = [stack.enter_context(started(workers.init_and_tell_key, url))[1] for _ in range(4)]
        for report in reports:
            assert told(report) == "ready"
        for report in reports:
            report.send("go")
        keys = {told(report) for report in reports}
    assert keys == {store_key(open_store(url))}


def test_an_init_that_was_killed_half_way_can_be_run_again(url: str, path: Path) -> None:
    path.touch()
    with pytest.raises(StoreRefused, match="the file is empty; run `sendonce init`"):
        open_store(url)
    change(path, "PRAGMA journal_mode = WAL")
    with pytest.raises(StoreRefused, match="the file is empty; run `sendonce init`"):
        open_store(url)
    put(init_store(url), batch(0))


@pytest.mark.parametrize("use", [init_store, open_store, migrate_store])
def test_a_file_that_is_no_database_is_named_and_left_alone(use: Callable[[str], Any], url: str, path: Path) -> None:
    content = b"recipient_id,email\n" * 100
    path.write_bytes(content)
    with pytest.raises(StoreRefused, match="is not a SQLite database") as refused:
        use(url)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("use", [init_store, open_store, migrate_store])
def test_a_database_of_something_else_is_named_and_left_alone(use: Callable[[str], Any], url: str, path: Path) -> None:
    change(path, "CREATE TABLE meta (name, value)", "INSERT INTO meta VALUES ('schema_version', 1)")
    content = path.read_bytes()
    with pytest.raises(StoreRefused, match="not a Sendonce store") as refused:
        use(url)
    assert str(path) in str(refused.value)
    assert path.read_bytes() == content


@pytest.mark.parametrize("use", [init_store, open_store, migrate_store])
def test_a_folder_in_the_place_of_the_file_is_named(use: Callable[[str], Any], url: str, path: Path) -> None:
    path.mkdir()
    with pytest.raises(StoreRefused, match="check that it is a file") as refused:
        use(url)
    assert str(path) in str(refused.value)


def test_a_file_in_the_place_of_the_folder_is_named(path: Path) -> None:
    path.touch()
    with pytest.raises(StoreRefused) as refused:
        init_store(f"sqlite:///{path}/store.db")
    assert str(path) in str(refused.value)


# open.


@pytest.mark.parametrize("use", [open_store, migrate_store, shared_store])
def test_a_missing_store_says_how_to_make_it_and_is_not_made(use: Callable[[str], Any], url: str, path: Path) -> None:
    with pytest.raises(NoStore, match=r"there is no store at .*; run `sendonce init`") as refused:
        use(url)
    assert str(path) in str(refused.value)
    assert list(path.parent.iterdir()) == []


def test_a_store_restored_without_its_journal_mode_gets_it_back(url: str, path: Path) -> None:
    init_store(url).close()
    change(path, "PRAGMA journal_mode = DELETE")
    put(open_store(url), batch(0))
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_process_has_one_shared_store_for_a_url(url: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    init_store(url)
    monkeypatch.chdir(path.parent)
    store = shared_store(url)
    assert shared_store(url) is store
    assert shared_store("sqlite:///store.db") is store
    assert store is not open_store(url)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user can reach, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
        folder.chmod(0o755)


def test_a_read_only_folder_is_named_when_a_store_is_made(open_folder: Path) -> None:
    open_folder.chmod(0o555)
    problem = in_child(lambda: init_store(f"sqlite:///{open_folder}/store.db"), plain_user=True)
    assert problem.startswith("StoreRefused: ")
    assert f"{open_folder}/store.db" in problem
    assert "choose a path where this user may write" in problem
    below = in_child(lambda: init_store(f"sqlite:///{open_folder}/new/store.db"), plain_user=True)
    assert below.startswith("StoreRefused: ")
    assert "choose a path where this user may write" in below


def test_a_read_only_store_is_named_when_it_is_opened(open_folder: Path) -> None:
    url = f"sqlite:///{open_folder}/store.db"
    init_store(url).close()
    (open_folder / "store.db").chmod(0o444)
    open_folder.chmod(0o555)
    problem = in_child(lambda: put(open_store(url), batch(0)), plain_user=True)
    assert problem.startswith("StoreRefused: ")
    assert f"{open_folder}/store.db" in problem


def test_a_folder_that_cannot_be_entered_is_named(open_folder: Path) -> None:
    (open_folder / "locked").mkdir(mode=0o700)
    if os.geteuid() != 0:
        (open_folder / "locked").chmod(0o000)
    problem = in_child(lambda: open_store(f"sqlite:///{open_folder}/locked/store.db"), plain_user=True)
    assert problem.startswith("StoreRefused: ")
    assert "Permission denied" in problem


# Versions.

STEPS = (
    Migration(SCHEMA_VERSION + 1, ("ALTER TABLE campaigns ADD COLUMN colour TEXT",)),
    Migration(
        SCHEMA_VERSION + 2, ("CREATE INDEX by_colour ON campaigns (colour)", "UPDATE campaigns SET colour = 'red'")
    ),
)


@pytest.fixture
def two_versions_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", SCHEMA_VERSION + 2)
    monkeypatch.setattr(migrations, "MIGRATIONS", STEPS)


def test_every_version_has_its_step() -> None:
    assert [step.version for step in migrations.MIGRATIONS] == list(range(2, SCHEMA_VERSION + 1))


def schema_of(path: Path) -> tuple[dict[str, set[Any]], set[str]]:
    """The columns of each table (name, type, not null, place in the key), and the indexes, whatever their order."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = {
            name: {(row[1], row[2], row[3], row[5]) for row in connection.execute(f"PRAGMA table_info({name})")}
            for name in tables
        }
        indexes = {sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'index'") if sql}
    return columns, indexes


def test_a_store_of_the_first_release_migrates_to_what_a_new_store_is(tmp_path: Path) -> None:
    old, new = tmp_path / "old.db", tmp_path / "new.db"
    first = (Path(__file__).parent / "golden" / "sqlite-1.sql").read_text()
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript(first)
        facts = [("schema_version", b"1"), ("environment", b"test"), ("clock", b"0"), ("pace", b"0 0 -")]
        connection.executemany("INSERT INTO meta (name, value) VALUES (?, ?)", [*facts, ("key", b"k" * 32)])
        connection.commit()
    init_store(f"sqlite:///{new}").close()

    assert migrate_store(f"sqlite:///{old}") == (1, SCHEMA_VERSION)

    assert schema_of(old) == schema_of(new)
    migrated = open_store(f"sqlite:///{old}")
    put(migrated, batch(0))
    assert everything(migrated, Batch) == [batch(0)]


@pytest.mark.parametrize("use", [init_store, open_store, migrate_store])
def test_a_store_of_a_newer_release_is_refused_with_both_versions_and_the_mend(
    use: Callable[[str], Any], url: str, path: Path
) -> None:
    init_store(url).close()
    change(path, "UPDATE meta SET value = CAST('99' AS BLOB) WHERE name = 'schema_version'")
    with pytest.raises(StoreRefused) as refused:
        use(url)
    assert str(refused.value) == (
        f"store {path} has schema version 99, but this release of sendonce knows versions up to {SCHEMA_VERSION}; "
        "upgrade sendonce"
    )


def test_a_store_of_an_older_release_is_refused_until_it_is_migrated(
    url: str, path: Path, request: pytest.FixtureRequest
) -> None:
    store = init_store(url)
    put(store, batch(0))
    key = store_key(store)
    store.close()
    request.getfixturevalue("two_versions_on")
    with pytest.raises(StoreRefused, match=rf"has schema version {SCHEMA_VERSION}.*run `sendonce migrate`"):
        open_store(url)
    assert migrate_store(url) == (SCHEMA_VERSION, SCHEMA_VERSION + 2)
    assert migrate_store(url) == (SCHEMA_VERSION + 2, SCHEMA_VERSION + 2)
    migrated = open_store(url)
    assert store_key(migrated) == key
    assert everything(migrated, Batch) == [batch(0)]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT count(*) FROM campaigns WHERE colour IS NULL").fetchone() == (0,)


def test_a_store_that_is_up_to_date_is_left_as_it_is(url: str) -> None:
    init_store(url)
    assert migrate_store(url) == (SCHEMA_VERSION, SCHEMA_VERSION)


def test_a_step_that_fails_leaves_the_version_before_it_and_can_be_run_again(
    url: str, path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    init_store(url).close()
    request.getfixturevalue("two_versions_on")
    broken = Migration(SCHEMA_VERSION + 2, (*STEPS[1].sqlite, "UPDATE no_such_table SET x = 1"))
    monkeypatch.setattr(migrations, "MIGRATIONS", (STEPS[0], broken))
    with pytest.raises(StoreRefused, match="no such table: no_such_table"):
        migrate_store(url)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT value FROM meta WHERE name = 'schema_version'").fetchone() == (
            str(SCHEMA_VERSION + 1).encode(),
        )
        assert connection.execute("SELECT count(*) FROM sqlite_master WHERE name = 'by_colour'").fetchone() == (0,)
    monkeypatch.setattr(migrations, "MIGRATIONS", STEPS)
    assert migrate_store(url) == (SCHEMA_VERSION + 1, SCHEMA_VERSION + 2)


@pytest.mark.parametrize("name", ["key", "environment"])
def test_a_store_that_has_lost_a_fact_says_so(url: str, path: Path, name: str) -> None:
    init_store(url).close()
    change(path, f"DELETE FROM meta WHERE name = '{name}'")
    read = store_key if name == "key" else store_environment
    with pytest.raises(StoreRefused, match=f"has lost its {name}; restore it from a backup"):
        read(open_store(url))


# Damage, and odd places.


@pytest.mark.parametrize("name", ["schema_version", "clock", "pace"])
@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("UPDATE meta SET value = 'x' WHERE name = ?", "its {} is damaged; restore the store from a backup"),
        ("UPDATE meta SET value = x'ff00' WHERE name = ?", "its {} is damaged; restore the store from a backup"),
        ("DELETE FROM meta WHERE name = ?", "has lost its {}; restore it from a backup"),
    ],
)
def test_a_damaged_number_of_the_stores_own_is_named_with_the_mend(
    path: Path, url: str, name: str, damage: str, words: str
) -> None:
    init_store(url).close()
    opened = open_store(url)
    change(path, damage.replace("?", f"'{name}'"))

    with pytest.raises(StoreRefused, match=words.format(name)):
        store_key(opened)
    opened.close()


def test_a_store_lies_in_a_folder_of_any_name(tmp_path: Path) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 %41?#"))
    folder.mkdir()

    init_store(f"sqlite:///{folder}/store.db").close()

    assert (folder / "store.db").stat().st_size > 0
    assert [file.name for file in folder.iterdir() if file.suffix == ".db"] == ["store.db"]
    open_store(f"sqlite:///{folder}/store.db").close()
