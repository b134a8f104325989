"""The DDL that both stores are made from, word for word, and the rules it keeps."""

import re
import sqlite3
from pathlib import Path

import pytest

from schemas.tables import TABLES, Batch, Table
from sendonce.stores import ddl

GOLDEN = Path(__file__).parent / "golden"

# https://cloud.google.com/spanner/docs/reference/standard-sql/data-definition-language
SPANNER_COLUMN = re.compile(
    r"  `[a-z][a-z_0-9]*` (STRING\(\d+\)|BYTES\(\d+\)|INT64|FLOAT64|BOOL|TIMESTAMP)( NOT NULL)?"
    r"( OPTIONS \(allow_commit_timestamp = true\))?,"
)
SPANNER_LIMITS = {"STRING": 2_621_440, "BYTES": 10_485_760}


@pytest.mark.parametrize(
    ("name", "statements"),
    [("sqlite.sql", ddl.sqlite_ddl()), ("spanner.sql", ddl.spanner_ddl())],
    ids=["sqlite", "spanner"],
)
def test_the_ddl_is_what_it_was(name: str, statements: list[str]) -> None:
    """A change here changes every store: write a migration and raise SCHEMA_VERSION before the golden file follows."""
    assert ";\n\n".join(statements) + ";\n" == (GOLDEN / name).read_text()


def test_sqlite_takes_the_ddl() -> None:
    connection = sqlite3.connect(":memory:")
    for statement in ddl.sqlite_ddl():
        connection.execute(statement)
    for table in TABLES.values():
        columns = connection.execute(f"PRAGMA table_info({table.name})").fetchall()
        assert {column[1] for column in columns} == {column.name for column in table.columns}
        assert [column[1] for column in sorted(columns, key=lambda column: column[5]) if column[5]] == list(table.key)
        assert {column[1]: bool(column[3]) for column in columns} == {
            column.name: not column.nullable for column in table.columns
        }


def test_large_columns_stand_last_in_a_sqlite_row() -> None:
    connection = sqlite3.connect(":memory:")
    connection.execute(ddl.sqlite_table(TABLES[Batch]))
    names = [column[1] for column in connection.execute("PRAGMA table_info(campaign_batches)")]
    assert names[-2:] == ["outcomes", "intent_ordinals"]
    assert names[:3] == ["shard", "campaign_id", "batch_no"]


def test_every_spanner_column_is_in_the_grammar_and_within_the_limits() -> None:
    for statement in ddl.spanner_ddl():
        if statement.startswith("CREATE TABLE"):
            _, *columns, key = statement.splitlines()
            assert key.startswith(") PRIMARY KEY (`")
            for column in columns:
                found = SPANNER_COLUMN.fullmatch(column)
                assert found, column
                kind, _, size = found[1].rstrip(")").partition("(")
                assert kind not in SPANNER_LIMITS or 0 < int(size) <= SPANNER_LIMITS[kind]


@pytest.mark.parametrize("table", TABLES.values(), ids=lambda table: table.name)
def test_keys_can_be_keys_in_spanner(table: Table) -> None:
    """A key holds at most 8,192 bytes, index entries with their table's key too; a primary key is never null here.

    https://cloud.google.com/spanner/quotas#tables
    """
    columns = {column.name: column for column in table.columns}
    assert not any(columns[name].nullable for name in table.key)
    for index in [(), *(index.columns for index in table.indexes)]:
        names = dict.fromkeys((*index, *table.key))
        assert sum(4 * (columns[name].limit or 2) for name in names) <= 8_192
        assert not any(columns[name].type is float for name in names)


def test_times_that_may_lie_ahead_are_no_commit_timestamps_in_spanner() -> None:
    by_table = {table.name: table for table in TABLES.values()}
    for table_name, column_name in ddl.NEVER_COMMIT_TIME:
        table = by_table[table_name]
        column = next(column for column in table.columns if column.name == column_name)
        assert not ddl.takes_commit_time(table, column)
    spanner = "\n".join(ddl.spanner_ddl())
    assert "`claimed_at` TIMESTAMP OPTIONS (allow_commit_timestamp = true)," in spanner
    assert "`due_at` TIMESTAMP NOT NULL,\n" in spanner


def test_null_filtered_indexes_are_so_in_both_stores() -> None:
    assert any("CREATE NULL_FILTERED INDEX `batches_open`" in statement for statement in ddl.spanner_ddl())
    assert any(
        'INDEX "batches_open"' in statement and statement.endswith('WHERE "open_state" IS NOT NULL')
        for statement in ddl.sqlite_ddl()
    )
