"""The contract of every store on the Spanner emulator, and what only Spanner does."""

import socket
import time
from collections.abc import Callable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import COMMIT_TIME, SCHEMA_VERSION, Batch, Meta
from sendonce.stores import migrations
from sendonce.stores.base import AlreadyExists, StoreRefused, StoreUnavailable
from sendonce.stores.migrations import Migration
from sendonce.stores.opening import init_store, migrate_store, open_store, store_key
from tests.emulated import Emulator
from tests.stores import workers
from tests.stores.contract import StoreContract
from tests.stores.made import batch, suppression
from tests.stores.processes import in_child, started, told

pytest.importorskip("google.cloud.spanner", reason="google-cloud-spanner is not installed")
from google.auth.credentials import AnonymousCredentials
from google.cloud.spanner import Client

from sendonce.stores.spanner_opening import place_of

_numbers = count(1)


def fresh_url() -> str:
    """The URL of a new store. An instance holds at most a hundred databases."""
    number = next(_numbers)
    made = f"spanner://sendonce-test/tests-{number // 90}/store-{number}"
    init_store(made).close()
    return made


@pytest.fixture
def url(spanner: Emulator) -> str:
    return fresh_url()


class TestContract(StoreContract):
    @pytest.fixture
    def url(self, spanner: Emulator) -> str:
        return fresh_url()


# What only Spanner does.


def test_the_url_names_project_instance_and_database() -> None:
    assert place_of("spanner://shop-1/main/mail_2") == ("shop-1", "main", "mail_2")


@pytest.mark.parametrize("url", ["spanner://", "spanner://p/i", "spanner://p/i/d/x", "spanner://Shop/main/mail"])
@pytest.mark.parametrize("use", [init_store, open_store, migrate_store])
def test_what_is_no_spanner_url_is_refused_with_the_form(use: Callable[[str], Any], url: str) -> None:
    with pytest.raises(StoreRefused, match="spanner://PROJECT/INSTANCE/DATABASE"):
        use(url)


def test_init_twice_changes_nothing(url: str) -> None:
    key = store_key(open_store(url))
    assert store_key(init_store(url)) == key


def test_init_for_another_environment_is_refused(url: str) -> None:
    with pytest.raises(StoreRefused, match="was made for environment test, not production"):
        init_store(url, "production")


def test_two_inits_at_once_make_one_store(spanner: Emulator) -> None:
    url = f"spanner://sendonce-test/race/store-{next(_numbers)}"
    with started(workers.init_and_tell_key, url) as (_, one), started(workers.init_and_tell_key, url) as (_, two):
        for report in (one, two):
            assert told(report) == "ready"
        for report in (one, two):
            report.send("go")
        assert told(one) == told(two)


def test_a_database_that_is_not_there_is_refused_with_the_command(spanner: Emulator) -> None:
    with pytest.raises(StoreRefused, match="run `sendonce init`"):
        open_store("spanner://sendonce-test/nowhere/nothing")


def test_somebody_elses_database_is_left_alone(spanner: Emulator) -> None:
    url = f"spanner://sendonce-test/other/store-{next(_numbers)}"
    place = place_of(url)
    client = Client(project=place.project, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    config = f"projects/{place.project}/instanceConfigs/emulator-config"
    instance = client.instance(place.instance, configuration_name=config, node_count=1)
    instance.create().result(30)
    theirs = "CREATE TABLE orders (id INT64) PRIMARY KEY (id)"
    instance.database(place.database, ddl_statements=[theirs]).create().result(30)
    with pytest.raises(StoreRefused, match="somebody else's"):
        init_store(url)


def test_a_newer_schema_is_refused(url: str) -> None:
    store = open_store(url)
    store.transact(lambda tx: tx.put(Meta("schema_version", b"99")), tag="test")
    for use in (open_store, migrate_store):
        with pytest.raises(StoreRefused, match="knows versions up to"):
            use(url)


def test_a_migration_runs_once_and_again_after_a_kill(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Migration(SCHEMA_VERSION + 1, (), ("CREATE TABLE IF NOT EXISTS extra (id INT64) PRIMARY KEY (id)",))
    monkeypatch.setattr(migrations, "SCHEMA_VERSION", SCHEMA_VERSION + 1)
    monkeypatch.setattr(migrations, "MIGRATIONS", (step,))
    with pytest.raises(StoreRefused, match="run `sendonce migrate`"):
        open_store(url)
    assert migrate_store(url) == (SCHEMA_VERSION, SCHEMA_VERSION + 1)
    assert migrate_store(url) == (SCHEMA_VERSION + 1, SCHEMA_VERSION + 1)
    store = open_store(url)
    store.transact(lambda tx: tx.put(Meta("schema_version", str(SCHEMA_VERSION).encode())), tag="test")
    assert migrate_store(url) == (SCHEMA_VERSION, SCHEMA_VERSION + 1)


def test_a_store_of_the_first_release_migrates_to_what_a_new_store_is(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = next(_numbers)
    old = f"spanner://sendonce-test/tests-{number // 90}/store-{number}"
    first = (Path(__file__).parent / "golden" / "spanner-1.sql").read_text()
    statements = [statement for statement in first.split(";\n") if statement.strip()]
    monkeypatch.setattr("sendonce.stores.spanner_opening.spanner_ddl", lambda: statements)
    monkeypatch.setattr("sendonce.stores.spanner_opening.SCHEMA_VERSION", 1)
    with pytest.raises(StoreRefused, match="run `sendonce migrate`"):
        init_store(old)

    assert migrate_store(old) == (1, SCHEMA_VERSION)
    killed_before_the_version = Meta("schema_version", b"1")
    open_store(old).transact(lambda tx: tx.put(killed_before_the_version), tag="test")
    assert migrate_store(old) == (1, SCHEMA_VERSION)

    assert schema_of(old) == schema_of(url)


def schema_of(url: str) -> list[list[Any]]:
    place = place_of(url)
    client = Client(project=place.project, credentials=AnonymousCredentials(), disable_builtin_metrics=True)
    database = client.instance(place.instance).database(place.database)
    found = []
    for query in (
        "SELECT table_name, column_name, spanner_type, is_nullable FROM information_schema.columns "
        "WHERE table_schema = '' ORDER BY 1, 2",
        "SELECT table_name, index_name, is_unique, is_null_filtered FROM information_schema.indexes "
        "WHERE table_schema = '' ORDER BY 1, 2",
    ):
        with database.snapshot() as snapshot:
            found += list(snapshot.execute_sql(query))
    return found


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setenv("SPANNER_EMULATOR_HOST", f"127.0.0.1:{closed.getsockname()[1]}")
        monkeypatch.setattr("sendonce.stores.spanner_opening.CALL_S", 1.0)
        with pytest.raises(StoreUnavailable, match="could not be reached"):
            open_store("spanner://sendonce-test/main/store")


def test_the_commit_time_is_spanners_own(url: str) -> None:
    store = open_store(url)
    store.transact(lambda tx: tx.put(batch(0, claimed_at=COMMIT_TIME)), tag="test")
    found = store.read(lambda reader: (reader.get(Batch, batch(0).shard, "spring", 0), reader.now()))
    assert found[0] is not None
    assert found[0].claimed_at is not None
    assert timedelta(0) < found[1] - found[0].claimed_at < timedelta(minutes=1)


def test_a_forked_child_says_that_it_cannot_use_the_store(url: str) -> None:
    store = open_store(url)
    store.read(lambda reader: reader.now())
    assert "was forked" in in_child(lambda: store.read(lambda reader: reader.now()))


def test_a_call_inside_a_transaction_is_an_error_of_the_caller(url: str) -> None:
    store = open_store(url)
    with pytest.raises(RuntimeError, match="inside a transaction"):
        store.transact(lambda tx: store.read(lambda reader: reader.now()), tag="test")


def test_a_stale_read_shows_an_earlier_moment(url: str) -> None:
    store = open_store(url)
    time.sleep(1.1)
    store.transact(lambda tx: tx.put(batch(0)), tag="test")
    assert store.read(lambda reader: reader.scan(Batch), stale_s=1.0) == []
    assert store.read(lambda reader: reader.scan(Batch)) == [batch(0)]


def test_an_error_holds_no_value(url: str) -> None:
    store = open_store(url)
    store.transact(lambda tx: tx.insert(suppression("ann-one-example", "*")), tag="test")
    with pytest.raises(AlreadyExists) as caught:
        store.transact(lambda tx: tx.insert(suppression("ann-one-example", "*")), tag="test")
    assert "one-example" not in str(caught.value)
    assert "suppressions" in str(caught.value)
