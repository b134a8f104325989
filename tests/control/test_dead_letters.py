"""Dead letters in the order in which people look at them, page by page."""

import itertools
from datetime import timedelta

import pytest

from schemas.elements import DeadLetter
from schemas.tables import DeadLetterRow
from sendonce.control import dead_letters
from sendonce.control.dead_letters import (
    UnknownDeadLetter,
    Wanted,
    find_dead_letter,
    list_dead_letters,
    write_dead_letters,
)
from sendonce.stores.base import Reader, Store
from tests.control.made import Clock


def fill(store: Store, clock: Clock) -> list[str]:
    """Many of one moment, of several campaigns, stages and none; their ids, newest first, as sorting them gives."""
    for minute in range(3):
        clock.at += timedelta(minutes=minute)
        write_dead_letters(
            store,
            [
                DeadLetter("render", "render_error", "", "spring", batch)
                for batch in range(minute * 100, minute * 100 + 33)
            ]
            + [DeadLetter("send", "gone", "", "summer", batch) for batch in range(minute * 100, minute * 100 + 5)]
            + [DeadLetter("trigger", "invalid", "", None, None, None, None, b"%d %d" % (minute, n)) for n in range(7)],
        )
    rows = store.read(lambda reader: reader.scan(DeadLetterRow))
    return [row.dead_letter_id for row in sorted(rows, key=lambda row: (row.at, row.dead_letter_id), reverse=True)]


@pytest.mark.parametrize("size", [1, 20, 23, 1000])
def test_pages_put_together_are_the_whole_list(store: Store, clock: Clock, size: int) -> None:
    whole = fill(store, clock)

    found: list[str] = []
    last = None
    while page := list(list_dead_letters(store, after=last, limit=size)):
        assert len(page) <= size
        found += [row.dead_letter_id for row in page]
        last = page[-1]

    assert found == whole
    assert [row.dead_letter_id for row in list_dead_letters(store)] == whole


def test_a_page_of_one_campaign_or_stage(store: Store, clock: Clock) -> None:
    fill(store, clock)

    assert {row.campaign_id for row in list_dead_letters(store, Wanted(campaign_id="summer"))} == {"summer"}
    assert sum(1 for _ in list_dead_letters(store, Wanted(stage="render"))) == 99
    assert sum(1 for _ in list_dead_letters(store, Wanted(campaign_id="summer", stage="render"))) == 0
    assert all(row.body is None for row in list_dead_letters(store, Wanted(stage="trigger")))


def test_the_first_page_reads_no_more_than_it_shows(
    store: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It read every row, and every body with it."""
    fill(store, clock)
    read = 0
    plain = type(store).read

    def counting(self: Store, work: object, **more: object) -> object:
        nonlocal read
        found = plain(self, work, **more)  # type: ignore[arg-type]
        read += len(found) if isinstance(found, list) and found and isinstance(found[0], DeadLetterRow) else 0
        return found

    monkeypatch.setattr(type(store), "read", counting)
    list(itertools.islice(list_dead_letters(store), 10))

    assert 10 <= read <= 3 * dead_letters._PAGE


def test_a_beginning_names_one_dead_letter_or_none(store: Store, clock: Clock) -> None:
    first, *_ = fill(store, clock)

    def shortest(reader: Reader) -> str:
        names = [row.dead_letter_id for row in reader.scan(DeadLetterRow)]
        return next(first[:n] for n in range(1, 41) if sum(name.startswith(first[:n]) for name in names) == 1)

    assert find_dead_letter(store, store.read(shortest)).dead_letter_id == first
    assert find_dead_letter(store, first).dead_letter_id == first
    for wrong in ("", "zzz", first[:1]):
        with pytest.raises(UnknownDeadLetter):
            find_dead_letter(store, wrong)


def test_large_bodies_go_in_commits_of_a_bounded_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine messages of 10 MB were one commit of 90 MB, which Spanner did not end."""
    commits: list[int] = []
    real = store.transact

    def counted(work, *, tag):  # type: ignore[no-untyped-def]
        commits.append(0)
        return real(work, tag=tag)

    monkeypatch.setattr(store, "transact", counted)
    letters = [DeadLetter("trigger", "too_large", "", body=bytes([number]) * 3_000_000) for number in range(7)]
    assert write_dead_letters(store, letters) == 7
    assert len(commits) == 4
    assert write_dead_letters(store, []) == 0
    many = [DeadLetter("render", "render.error", "", "spring", batch) for batch in range(1100)]
    assert write_dead_letters(store, many) == 1100
    assert len(commits) == 4 + 3
