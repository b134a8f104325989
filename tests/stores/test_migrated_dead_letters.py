"""Dead letters of the first release had no end unless they had a body; migrated, they have one."""

import sqlite3
from contextlib import closing
from pathlib import Path

from schemas.tables import DeadLetterRow
from sendonce.stores.opening import migrate_store, open_store

FIRST = Path(__file__).parent / "golden" / "sqlite-1.sql"


def test_a_dead_letter_of_the_first_release_is_kept_for_ninety_days_more(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "old.db")) as connection:
        connection.executescript(FIRST.read_text())
        facts = [("schema_version", b"1"), ("environment", b"test"), ("clock", b"0"), ("pace", b"0 0 -")]
        connection.executemany("INSERT INTO meta (name, value) VALUES (?, ?)", [*facts, ("key", b"k" * 32)])
        columns = "(dead_letter_id, stage, reason, at, detail, state, expires_at, body)"
        rows = [("a", "render", "x", 1, "", "open", None, None), ("b", "trigger", "y", 1, "", "open", 7, b"body")]
        connection.executemany(f"INSERT INTO dead_letters {columns} VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
        connection.commit()
    migrate_store(f"sqlite:///{tmp_path / 'old.db'}")
    store = open_store(f"sqlite:///{tmp_path / 'old.db'}")
    one, two = store.read(lambda reader: reader.scan(DeadLetterRow))
    now = store.read(lambda reader: reader.now())
    assert one.expires_at is not None
    assert two.expires_at is not None
    assert 89 <= (one.expires_at - now).days <= 90
    assert (two.expires_at < now, two.body) == (True, b"body")
    store.close()
