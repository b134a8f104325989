"""A store that is plainly right: dictionaries. Random programs must give the same on it and on a real store."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from hypothesis import strategies as st

from schemas import ids
from schemas.tables import TABLES, Batch, DeadLetterRow, Permit, Recipient
from sendonce.stores.base import ANY_SHARD, AlreadyExists
from tests.stores.made import NOON, batch, recipient, row_of

Row = Any
TIMES = [NOON + timedelta(microseconds=number) for number in range(4)]
CAMPAIGNS = ["a", "ab", "é", "\U00010000"]
SHARDS = [0, 1, ids.SHARDS - 1]


class Model:
    def __init__(self) -> None:
        self._rows: dict[type, dict[tuple[Any, ...], Row]] = {kind: {} for kind in TABLES}

    def transact(self, writes: Sequence["Write"]) -> None:
        rows = {kind: dict(found) for kind, found in self._rows.items()}
        for write in writes:
            for row in write.rows:
                _apply(rows[type(row)], write.how, row)
        self._rows = rows

    def get(self, kind: type, *key: Any) -> Row | None:
        return self._rows[kind].get(key)

    def get_many(self, kind: type, keys: Sequence[tuple[Any, ...]]) -> list[Row]:
        return [self._rows[kind][key] for key in set(keys) & self._rows[kind].keys()]

    def scan(
        self,
        kind: type,
        *prefix: Any,
        index: str | None = None,
        upto: Any = None,
        after: Any = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> list[Row]:
        table = TABLES[kind]
        columns = table.index_named(index).columns if index else ()
        names = [*columns, *(name for name in table.key if name not in columns)]
        found = []
        for row in self._rows[kind].values():
            key = [getattr(row, name) for name in names]
            if index and table.index_named(index).null_filtered and None in key[: len(columns)]:
                continue
            if not all(wanted in (ANY_SHARD, given) for wanted, given in zip(prefix, key, strict=False)):
                continue
            bounded = key[len(prefix)] if len(prefix) < len(key) else None
            if upto is not None and not (bounded is not None and bounded <= upto):
                continue
            if after is not None and not (bounded is not None and bounded > after):
                continue
            found.append(row)
        found.sort(key=lambda row: [_order(getattr(row, name)) for name in names], reverse=newest_first)
        return found[:limit]

    def tally(self, kind: type, *prefix: Any, by: Sequence[str], sums: Sequence[str]) -> list[dict[str, Any]]:
        groups: dict[tuple[Any, ...], dict[str, Any]] = {}
        for row in self.scan(kind, *prefix):
            values = {name: getattr(row, name) for name in by}
            group = groups.setdefault(tuple(values.values()), values | {"rows": 0} | dict.fromkeys(sums, 0))
            group["rows"] += 1
            for name in sums:
                group[name] += getattr(row, name) or 0
        return list(groups.values())


@dataclass(frozen=True)
class Write:
    how: str
    rows: list[Row]


def _apply(rows: dict[tuple[Any, ...], Row], how: str, row: Row) -> None:
    table = TABLES[type(row)]
    key = tuple(getattr(row, name) for name in table.key)
    if how == "delete":
        rows.pop(key, None)
        return
    others = [other for other_key, other in rows.items() if other_key != key]
    for index in table.indexes:
        taken = {tuple(getattr(other, name) for name in index.columns) for other in others}
        if index.unique and tuple(getattr(row, name) for name in index.columns) in taken:
            raise AlreadyExists
    if how == "insert" and key in rows:
        raise AlreadyExists
    rows[key] = row


def _order(value: Any) -> tuple[bool, Any]:
    """Null first; text by its code points."""
    return value is not None, value.encode() if isinstance(value, str) else value


# Few different values, so that keys collide and prefixes match.

_ROWS: dict[type, st.SearchStrategy[Row]] = {
    Batch: st.builds(
        lambda shard, campaign, number, state, due, n: batch(
            number, campaign, shard=shard, open_state=state, state=state or "done", due_at=due, n_open=n, lease_s=n / 2
        ),
        st.sampled_from(SHARDS),
        st.sampled_from(CAMPAIGNS),
        st.integers(0, 3),
        st.sampled_from([None, "pending", "queued"]),
        st.sampled_from(TIMES),
        st.integers(0, 9),
    ),
    Recipient: st.builds(
        lambda shard, campaign, ordinal, name: recipient(1, ordinal, campaign, shard=shard, recipient_id=name),
        st.sampled_from(SHARDS),
        st.sampled_from(CAMPAIGNS[:2]),
        st.integers(0, 3),
        st.sampled_from(["r", "s", "t"]),
    ),
    Permit: st.builds(
        Permit,
        st.sampled_from(["lane:bulk", "sender:x"]),
        st.sampled_from(TIMES),
        st.sampled_from(CAMPAIGNS),
        st.integers(-3, 3),
        st.sampled_from(TIMES),
    ),
    DeadLetterRow: st.builds(
        lambda number, campaign: (
            row_of(DeadLetterRow, number) if campaign is None else row_of(DeadLetterRow, number, nulls=True)
        ),
        st.integers(0, 4),
        st.sampled_from([None, "a"]),
    ),
}
_WRITES = st.sampled_from(list(_ROWS)).flatmap(
    lambda kind: st.builds(
        Write, st.sampled_from(["insert", "put", "put", "delete"]), st.lists(_ROWS[kind], max_size=3)
    )
)
TRANSACTIONS = st.lists(_WRITES, min_size=1, max_size=4)

Query = Callable[[Any], Any]


def _scans(kind: type, index: str | None, domains: list[list[Any]]) -> st.SearchStrategy[Query]:
    """Scans by a key whose columns have these values, with any length of prefix, bounds, limit and direction."""

    def with_prefix(length: int) -> st.SearchStrategy[Query]:
        bounds = st.none() | st.sampled_from(domains[length]) if length < len(domains) else st.none()
        shapes = st.fixed_dictionaries(
            {
                "index": st.just(index),
                "upto": bounds,
                "after": bounds,
                "limit": st.none() | st.integers(0, 4),
                "newest_first": st.booleans(),
            }
        )
        prefixes = st.tuples(*(st.sampled_from(domain) for domain in domains[:length]))
        return st.builds(lambda prefix, how: lambda reader: reader.scan(kind, *prefix, **how), prefixes, shapes)

    return st.integers(0, len(domains)).flatmap(with_prefix)


def _tally(kind: type, prefix: Sequence[Any], by: Sequence[str], sums: Sequence[str]) -> Query:
    """The groups in an order of their own, since a store gives them in any."""
    return lambda reader: sorted(
        reader.tally(kind, *prefix, by=by, sums=sums), key=lambda group: repr([group[name] for name in by])
    )


def _get_many(kind: type, keys: Sequence[tuple[Any, ...]]) -> Query:
    """The rows in an order of their own, since a store gives them in any."""
    return lambda reader: sorted(reader.get_many(kind, keys), key=repr)


_SHARDS: list[Any] = [*SHARDS, ANY_SHARD]
QUERIES = st.one_of(
    _scans(Batch, None, [SHARDS, CAMPAIGNS, [0, 1, 2, 3]]),
    _scans(Batch, "batches_open", [SHARDS, CAMPAIGNS, ["pending", "queued"], TIMES, [0, 1, 2, 3]]),
    _scans(Recipient, "snapshot_by_recipient", [CAMPAIGNS, ["r", "s", "t"], SHARDS]),
    _scans(Permit, None, [["lane:bulk", "sender:x"], TIMES, CAMPAIGNS]),
    _scans(Permit, "permits_by_use", [["lane:bulk", "sender:x"], TIMES, TIMES, CAMPAIGNS]),
    _scans(DeadLetterRow, "dead_letters_by_campaign", [[None, row_of(DeadLetterRow, 1).campaign_id]]),
    st.builds(
        lambda campaign, limit, newest_first: (
            lambda reader: reader.scan(
                Batch,
                ANY_SHARD,
                campaign,
                "pending",
                index="batches_open",
                upto=TIMES[2],
                limit=limit,
                newest_first=newest_first,
            )
        ),
        st.sampled_from(CAMPAIGNS),
        st.none() | st.integers(0, 4),
        st.booleans(),
    ),
    st.builds(
        lambda shard, campaign, by: _tally(Batch, (shard, campaign), by, ("n_open", "lease_s")),
        st.sampled_from(_SHARDS),
        st.sampled_from(CAMPAIGNS),
        st.sampled_from([("state",), ("open_state", "due_at")]),
    ),
    st.builds(
        lambda shard, campaign, number: lambda reader: reader.get(Batch, shard, campaign, number),
        st.sampled_from(SHARDS),
        st.sampled_from(CAMPAIGNS),
        st.integers(0, 3),
    ),
    st.builds(
        lambda keys: _get_many(Batch, keys),
        st.lists(st.tuples(st.sampled_from(SHARDS), st.sampled_from(CAMPAIGNS), st.integers(0, 3)), max_size=5),
    ),
    st.builds(
        lambda keys: _get_many(Permit, keys),
        st.lists(
            st.tuples(st.sampled_from(["lane:bulk", "sender:x"]), st.sampled_from(TIMES), st.sampled_from(CAMPAIGNS)),
            max_size=5,
        ),
    ),
)
