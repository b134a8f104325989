"""The same notices on the Spanner emulator: the looks by index, the claim, and who comes second."""

import pytest

from schemas.elements import DeadLetter
from schemas.tables import Notice
from sendonce.config import Config, apply_config
from sendonce.control import notices
from sendonce.control.dead_letters import write_dead_letters
from sendonce.control.notices import (
    DEAD_LETTERS,
    OUTCOMES,
    claim_notices,
    drop_old_notices,
    forget_notices,
    hand_back_notices,
    late_notices,
    waiting_notices,
)
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store
from tests.emulated import Emulator

pytest.importorskip("google.cloud.spanner", reason="google-cloud-spanner is not installed")


@pytest.fixture(scope="module")
def store(spanner: Emulator) -> Store:
    return init_store("spanner://sendonce-test/notices/store")


def test_from_writing_to_forgetting(store: Store) -> None:
    apply_config(store, Config.model_validate({"dead_letters_topic": "projects/shop-test/topics/dead"}), "test")
    letters = [DeadLetter("render", "render_error", "no", "spring", number) for number in range(30)]
    assert write_dead_letters(store, letters) == 30
    (waiting,) = store.read(waiting_notices)
    assert (waiting.kind, waiting.count) == (DEAD_LETTERS, 30)
    assert store.read(lambda reader: late_notices(reader, reader.now())) == []

    seen = store.read(lambda reader: reader.scan(Notice))
    mine = [notice for some in claim_notices(store, DEAD_LETTERS, 10) for notice in some]
    assert len({notice.notice_id for notice in mine}) == len(mine) == 30
    assert notices._claimed(store, seen) == []
    assert [some for some in claim_notices(store, DEAD_LETTERS, 10) if some] == []
    assert [some for some in claim_notices(store, OUTCOMES, 10) if some] == []

    forget_notices(store, mine[:20])
    hand_back_notices(store, mine[20:])
    again = [notice for some in claim_notices(store, DEAD_LETTERS, 100) for notice in some]
    assert {notice.notice_id for notice in again} == {notice.notice_id for notice in mine[20:]}
    assert drop_old_notices(store) == 0
    forget_notices(store, again)
    assert store.read(lambda reader: reader.scan(Notice)) == []
