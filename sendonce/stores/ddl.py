"""The DDL of both stores, made from `schemas.tables`.

SQLite: every table is WITHOUT ROWID, so that rows lie in primary key order and a secondary index is ordered by
its columns and then by the primary key, as in Spanner. Large columns stand last in a row, whatever their place
in the dataclass: counting a campaign's batches then need not walk through their overflow pages.

Spanner: GoogleSQL. Every identifier is quoted, since `by` and `at` are reserved words.
"""

from typing import Final

from schemas.tables import TABLES, Column, Index, Table

# Timestamps that may lie ahead of the store's clock, or that are set by somebody else's. Spanner refuses a value
# from the future in a commit timestamp column, so these are none, and no store takes COMMIT_TIME for them.
# https://cloud.google.com/spanner/docs/commit-timestamp
NEVER_COMMIT_TIME: Final = frozenset(
    {
        ("campaign_batches", "due_at"),
        ("campaign_batches", "visible_at"),
        ("campaign_batches", "expires_at"),
        ("limits", "level_at"),
        ("limits", "slow_at"),
        ("limits", "starts_at"),
        ("send_permits", "used_by"),
        ("delivery_events", "at"),
        ("dead_letters", "expires_at"),
        ("notices", "visible_at"),
        ("switches", "until_at"),
    }
)

_LARGE = 4096
_SQLITE_TYPES: Final = {
    "str": "TEXT",
    "int": "INTEGER",
    "float": "REAL",
    "bool": "INTEGER",
    "bytes": "BLOB",
    "datetime": "INTEGER",
}
_SPANNER_TYPES: Final = {"int": "INT64", "float": "FLOAT64", "bool": "BOOL", "datetime": "TIMESTAMP"}


def takes_commit_time(table: Table, column: Column) -> bool:
    """Whether a row may hold COMMIT_TIME in this column."""
    return column.type.__name__ == "datetime" and (table.name, column.name) not in NEVER_COMMIT_TIME


def is_large(column: Column) -> bool:
    """Whether a value may be so long that SQLite keeps it outside the row."""
    return column.limit is not None and column.limit > _LARGE


def sqlite_ddl() -> list[str]:
    """The statements that make an empty SQLite store, one per table and index, in the order of `schemas.tables`."""
    statements = []
    for table in TABLES.values():
        statements.append(sqlite_table(table))
        statements += [sqlite_index(table, index) for index in table.indexes]
    return statements


def sqlite_table(table: Table) -> str:
    # A stable sort: small columns keep their order, then the large ones keep theirs.
    columns = sorted(table.columns, key=lambda column: column.name not in table.key and is_large(column))
    lines = [f'"{column.name}" {_SQLITE_TYPES[column.type.__name__]}{_not_null(column)}' for column in columns]
    lines.append(f"PRIMARY KEY ({_names(table.key, chr(34))})")
    return f'CREATE TABLE "{table.name}" (\n  ' + ",\n  ".join(lines) + "\n) WITHOUT ROWID"


def sqlite_index(table: Table, index: Index) -> str:
    unique = "UNIQUE " if index.unique else ""
    statement = f'CREATE {unique}INDEX "{index.name}" ON "{table.name}" ({_names(index.columns, chr(34))})'
    condition = sqlite_index_condition(table, index)
    return f"{statement} WHERE {condition}" if condition else statement


def sqlite_index_condition(table: Table, index: Index) -> str:
    """What a row must fulfil to stand in the index, and what a query must repeat to use it; empty if every row does."""
    if not index.null_filtered:
        return ""
    nullable = {column.name for column in table.columns if column.nullable}
    return " AND ".join(f'"{name}" IS NOT NULL' for name in index.columns if name in nullable)


def spanner_ddl() -> list[str]:
    """The statements that make an empty Spanner store, one per table and index, in the order of `schemas.tables`."""
    statements = []
    for table in TABLES.values():
        statements.append(_spanner_table(table))
        statements += [_spanner_index(table, index) for index in table.indexes]
    return statements


def _spanner_table(table: Table) -> str:
    lines = [f"  {_spanner_column(table, column)},\n" for column in table.columns]
    return f"CREATE TABLE `{table.name}` (\n{''.join(lines)}) PRIMARY KEY ({_names(table.key, '`')})"


def _spanner_column(table: Table, column: Column) -> str:
    kind = column.type.__name__
    if kind in ("str", "bytes"):
        spanner_type = f"{'STRING' if kind == 'str' else 'BYTES'}({column.limit})"
    else:
        spanner_type = _SPANNER_TYPES[kind]
    option = " OPTIONS (allow_commit_timestamp = true)" if takes_commit_time(table, column) else ""
    return f"`{column.name}` {spanner_type}{_not_null(column)}{option}"


def _spanner_index(table: Table, index: Index) -> str:
    unique = "UNIQUE " if index.unique else ""
    filtered = "NULL_FILTERED " if index.null_filtered else ""
    return f"CREATE {unique}{filtered}INDEX `{index.name}` ON `{table.name}` ({_names(index.columns, '`')})"


def _not_null(column: Column) -> str:
    return "" if column.nullable else " NOT NULL"


def _names(names: tuple[str, ...], quote: str) -> str:
    return ", ".join(f"{quote}{name}{quote}" for name in names)
