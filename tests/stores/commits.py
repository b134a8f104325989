"""What a Spanner store asks of Spanner, call by call: a seam at Google's own client."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from schemas.tables import TABLES
from sendonce.stores.base import Store

# https://cloud.google.com/spanner/quotas, "Commit": mutations, those of indexes too, and bytes.
MUTATIONS_MAX, BYTES_MAX = 80_000, 100 * 2**20
_TABLE = {table.name: table for table in TABLES.values()}


@dataclass
class Calls:
    """commits: (transaction tag, mutations, bytes) each. reads: (request tag, transaction tag, statement or table)."""

    commits: list[tuple[str, int, int]] = field(default_factory=list)
    reads: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def by_tag(self) -> Counter[str]:
        return Counter(tag for tag, _, _ in self.commits)

    @property
    def largest(self) -> int:
        return max(mutations for _, mutations, _ in self.commits)


def watched(store: Any, monkeypatch: pytest.MonkeyPatch) -> Calls:
    """Count what a store does from here on."""
    calls, api = Calls(), store._database.spanner_api

    def commit(found: Any) -> None:
        request = found["request"]
        written = sum(map(mutations_of, request.mutations))
        calls.commits.append((request.request_options.transaction_tag, written, request._pb.ByteSize()))

    def read(found: Any) -> None:
        request = found["request"]
        options = request.request_options
        text = getattr(request, "sql", "") or getattr(request, "table", "")
        calls.reads.append((options.request_tag, options.transaction_tag, text))

    for name, note in (("commit", commit), ("execute_streaming_sql", read), ("streaming_read", read)):
        monkeypatch.setattr(api, name, _noting(getattr(api, name), note))
    return calls


def _noting(call: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    def noted(*arguments: Any, **named: Any) -> Any:
        note(named)
        return call(*arguments, **named)

    return noted


def mutations_of(mutation: Any) -> int:
    """As Spanner counts: each cell, and for an index each column of a new entry; an entry that goes is one."""
    if mutation._pb.HasField("delete"):
        table = _TABLE[mutation.delete.table]
        return len(mutation.delete.key_set.keys) * (1 + len(table.indexes))
    insert = mutation._pb.HasField("insert")
    write = mutation.insert if insert else mutation.insert_or_update
    table = _TABLE[write.table]
    entries = sum(len({*index.columns, *table.key}) for index in table.indexes)
    gone = 0 if insert else len(table.indexes)
    return len(write.values) * (len(write.columns) + entries + gone)


def failing(store: Store, monkeypatch: pytest.MonkeyPatch, call: str, *faults: Exception, after: bool = False) -> None:
    """Let the next calls of one of the client's methods raise these, in order; `after` it did its work at Spanner."""
    api: Any = store._database.spanner_api  # type: ignore[attr-defined]
    real, left = getattr(api, call), list(faults)

    def faulty(*arguments: Any, **named: Any) -> Any:
        if not left:
            return real(*arguments, **named)
        if after:
            real(*arguments, **named)
        raise left.pop(0)

    monkeypatch.setattr(api, call, faulty)
