"""From good rows to a sealed snapshot: order, batches, first row wins, the same again, kills, two loads at once."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.ids import address_key
from schemas.tables import Campaign, TemplateContent
from sendonce.control import load as loading
from sendonce.control import load_plan, snapshots, staging
from sendonce.control.campaigns import begin_cancel
from sendonce.control.load import LoadFailed, LoadFault, LoadOptions, LoadProgress, load
from sendonce.control.snapshots import Snapshot
from sendonce.rendering.catalogue import source_of
from sendonce.rendering.faults import TemplateFault
from sendonce.stores.base import Store, StoreRefused, Tx
from sendonce.stores.opening import init_store, store_key
from tests.control.lists import CASES, HEADER, TEMPLATE, Loads, batches, campaign, recipients
from tests.control.made import Clock

ZONES = ("UTC", "Asia/Tokyo", "Europe/Paris")
LOCALES = ("fr", "en")


def people(count: int) -> bytes:
    """A list in no order: `count` people in three zones and two locales."""
    numbers = sorted(range(count), key=lambda number: (number * 7919) % (count + 1))
    return HEADER + b"".join(
        f"p{number},p{number}@one.example,{LOCALES[number % 2]},{ZONES[number % 3]},{{}}\n".encode()
        for number in numbers
    )


def test_the_snapshot_is_in_order_of_zone_locale_and_id_and_no_batch_spans_two_zones(loads: Loads) -> None:
    found = loads(people(50), campaign_id="spring", batch_size=7)

    rows = recipients(loads.store, "spring")
    keys = [(row.timezone, row.locale, row.recipient_id) for row in rows]
    assert len(rows) == 50
    assert keys == sorted(keys)
    cut = batches(loads.store, "spring")
    assert [batch.batch_no for batch in cut] == list(range(len(cut)))
    assert [batch.size for batch in cut] == [7, 7, 3, 7, 7, 2, 7, 7, 3]
    for batch in cut:
        members = [row for row in rows if row.batch_no == batch.batch_no]
        assert [row.ordinal for row in members] == list(range(batch.size))
        assert {(row.timezone, row.shard) for row in members} == {(batch.timezone, batch.shard)}
    assert (found.report.recipients, found.report.batches) == (50, 9)


def test_batches_wait_open_and_the_campaign_is_ready_with_its_template_pinned(loads: Loads, clock: Clock) -> None:
    loads(people(10), campaign_id="spring", sender="outbox", unsubscribe_base_url="https://shop.example/u")

    row = campaign(loads.store, "spring")
    assert row is not None
    assert (row.kind, row.state, row.priority, row.sender) == ("campaign", "ready", "bulk", "outbox")
    assert (row.recipients, row.batches) == (10, 3)
    assert row.sealed_at == row.changed_at >= row.created_at
    options = json.loads(row.options)
    assert options["unsubscribe_base_url"] == "https://shop.example/u"
    assert options["reply_to"] == "help@shop.example"
    assert options["load"]["rows_read"] == 10
    assert "loader" not in options
    pinned = loads.store.read(lambda reader: reader.get(TemplateContent, row.template_hash))
    assert pinned is not None
    assert pinned.name == "plain"
    for batch in batches(loads.store, "spring"):
        assert (batch.state, batch.open_state, batch.plan_no, batch.token) == ("pending", "pending", 0, 0)
        assert batch.outcomes == bytes(batch.size)
        assert batch.n_open == batch.size
        assert abs(batch.due_at - clock()) < timedelta(minutes=1)


def test_an_address_is_found_by_its_key_whatever_its_spelling(loads: Loads) -> None:
    found = loads(HEADER + b"1, Ann@ONE.Example ,en,UTC,{}\n")

    person = found.people["1"]
    assert person.email == "Ann@one.example"
    assert person.address_key == address_key(store_key(loads.store), "ann@one.example")


def test_the_first_row_wins_and_a_row_that_lost_takes_nobody_with_it(loads: Loads) -> None:
    found = loads(
        b"recipient_id,email\n1,a@one.example\n2,A@one.example\n2,b@one.example\n1,c@one.example\n3,B@one.example\n"
        b"4,c@one.example\n4,c@one.example\n"
    )

    assert found.emails == {"1": "a@one.example", "2": "b@one.example", "4": "c@one.example"}
    assert [(row["line"], row["reason"], row["detail"]) for row in found.rejects] == [
        (3, "duplicate_address", "the same as in line 2, which counts"),
        (5, "duplicate_id", "the same as in line 2, which counts"),
        (6, "duplicate_address", "the same as in line 4, which counts"),
        (8, "duplicate_id", "the same as in line 7, which counts"),
    ]


def first_rows(rows: list[tuple[str, str]]) -> dict[str, str]:
    """Who stays, told one row after the other."""
    kept: dict[str, str] = {}
    for number, mailbox in rows:
        if number not in kept and mailbox not in kept.values():
            kept[number] = mailbox
    return kept


@pytest.mark.parametrize("collide", [False, True])
def test_duplicates_are_found_across_the_whole_file(
    loads: Loads, monkeypatch: pytest.MonkeyPatch, collide: bool
) -> None:
    """Hashes only point at suspects: if all rows have one hash, the same rows are dropped."""
    if collide:
        monkeypatch.setattr(staging, "hash", lambda _: 1, raising=False)
    monkeypatch.setattr(staging, "_AT_ONCE", 11)
    rows = [(f"{(n * 31) % 97}", f"{(n * 17) % 89}@one.example") for n in range(400)]

    found = loads(b"recipient_id,email\n" + "".join(f"{a},{b}\n" for a, b in rows).encode())

    assert found.emails == first_rows(rows)
    assert found.report.rows_read == 400 == found.report.recipients + found.report.rows_duplicate


def test_the_numbers_add_up(loads: Loads) -> None:
    for place in sorted(CASES.glob("*/recipients.csv")):
        try:
            report = loads.case(str(place.relative_to(CASES))).report
        except LoadFault:
            continue
        assert report.rows_read == report.recipients + report.rows_rejected + report.rows_duplicate, place
        assert sum(report.rejected_by_reason.values()) == report.rows_rejected + report.rows_duplicate, place


def test_equal_snapshots_have_one_hash_in_any_store_and_from_any_format(loads: Loads, tmp_path: Path) -> None:
    lines = [line.split(",") for line in people(20).decode().splitlines()[1:]]
    objects = [dict(zip(("recipient_id", "email", "locale", "timezone"), line, strict=False)) for line in lines]
    other = Loads(init_store(f"sqlite:///{tmp_path}/other.db"), tmp_path)

    first = loads(people(20)).report.snapshot_hash

    assert other("\n".join(map(json.dumps, objects)).encode(), name="x.ndjson").report.snapshot_hash == first
    assert loads(people(20), batch_size=2).report.snapshot_hash != first
    assert loads(people(21)).report.snapshot_hash != first
    other.store.close()


def test_loading_the_same_again_changes_nothing_and_says_so(loads: Loads) -> None:
    content = people(20) + b"x,bad,en,Mars,{}\np1,other@one.example,en,UTC,{}\n"
    first = loads(content, campaign_id="spring").report
    before = campaign(loads.store, "spring"), recipients(loads.store, "spring"), batches(loads.store, "spring")

    again = loads(content, campaign_id="spring").report

    assert again.already_loaded
    assert not first.already_loaded
    assert replace(again, seconds=0, already_loaded=False) == replace(first, seconds=0)
    assert (
        campaign(loads.store, "spring"),
        recipients(loads.store, "spring"),
        batches(loads.store, "spring"),
    ) == before


def test_the_same_again_after_it_was_sent_changes_nothing(loads: Loads) -> None:
    loads(people(3), campaign_id="spring")
    row = campaign(loads.store, "spring")
    assert row is not None
    loads.store.transact(lambda tx: tx.put(replace(row, state="completed")), tag="test")

    assert loads(people(3), campaign_id="spring").report.already_loaded


OTHER = source_of("plain", {**TEMPLATE.files, "subject.j2": "Hello again"})


@pytest.mark.parametrize(
    ("content", "options", "words"),
    [
        (people(4), {}, "loaded from another file"),
        (people(3), {"template": OTHER}, "loaded from another version of template plain"),
        (people(3), {"batch_size": 2, "strict": True}, r"the same file with other options \(batch_size, strict\)"),
        (people(3), {"from_address": "x@shop.example"}, r"other options \(from_address\)"),
        (people(3), {"column_map": {"name": "locale"}}, r"other options \(column_map\)"),
    ],
)
def test_anything_else_under_its_name_is_refused(
    loads: Loads, content: bytes, options: dict[str, Any], words: str
) -> None:
    loads(people(3), campaign_id="spring")
    before = recipients(loads.store, "spring")

    with pytest.raises(LoadFault, match=f"campaign spring: it was .*{words}.*load under a new campaign id"):
        loads(content, campaign_id="spring", **options)

    assert recipients(loads.store, "spring") == before


def test_what_is_found_out_is_the_same_as_when_it_is_given(loads: Loads) -> None:
    loads(people(3), campaign_id="spring")

    given = loads(people(3), campaign_id="spring", format="csv", delimiter=",", quote='"', encoding="utf-8")

    assert given.report.already_loaded


def test_progress_tells_both_stages_to_their_end(loads: Loads, tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(people(30))
    told: list[LoadProgress] = []

    load(
        loads.store,
        campaign_id="spring",
        path=path,
        template=TEMPLATE,
        options=LoadOptions(rejects_folder=tmp_path),
        by="test",
        progress=told.append,
    )

    assert [(one.stage, one.done, one.total) for one in told] == [
        ("reading", len(people(30)), len(people(30))),
        ("writing", 30, 30),
    ]


KILLED = """
import os, signal, sys
from sendonce.control import load, snapshots
from sendonce.stores.opening import open_store
from tests.control.lists import TEMPLATE
snapshots._WRITE_ROWS = 50
def die(progress):
    if progress.stage == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)
load.load(open_store(sys.argv[1]), campaign_id="spring", path=sys.argv[2], template=TEMPLATE,
          options=load.LoadOptions(rejects_folder=load.Path(sys.argv[4])), by="test", progress=die)
"""


@pytest.mark.parametrize(("stage", "rows_left"), [("reading", 0), ("writing", 50)])
def test_a_killed_load_leaves_no_half_snapshot_and_the_next_one_starts_over(
    loads: Loads, tmp_path: Path, stage: str, rows_left: int
) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(people(200))
    command = [sys.executable, "-c", KILLED, loads.store.url, str(path), stage, str(tmp_path / "rejects")]

    killed = subprocess.run(command, cwd=Path(__file__).parents[2], check=False, capture_output=True)

    assert killed.returncode == -signal.SIGKILL, killed.stderr
    row = campaign(loads.store, "spring")
    assert row is not None
    assert (row.state, row.recipients) == ("loading", 0)
    assert len(recipients(loads.store, "spring")) == rows_left
    assert loads(path, campaign_id="spring", batch_size=40).report.recipients == 200
    assert len(recipients(loads.store, "spring")) == 200
    assert sum(batch.size for batch in batches(loads.store, "spring")) == 200
    assert [file.name for file in (tmp_path / "rejects").iterdir()] == []


def hold(store: Store, campaign_id: str = "spring") -> Snapshot:
    """A load of another process of this machine that is in the middle of its work."""
    held = Snapshot(store, plan(campaign_id), f"token-{campaign_id}")
    assert held.claim() is None
    return held


def plan(campaign_id: str) -> Campaign:
    return load_plan.campaign_row(campaign_id, TEMPLATE, LoadOptions(), "test")


def staged(count: int) -> list[snapshots.StagedRow]:
    return [(f"{n}", f"{n}@one.example", f"{n}", "en", "UTC", "{}") for n in range(count)]


def test_a_second_load_is_refused_while_the_first_lives(loads: Loads) -> None:
    hold(loads.store)

    with pytest.raises(LoadFault, match=rf"another load of it is running \(process {os.getpid()} on .*wait for it"):
        loads(people(3), campaign_id="spring")


def test_a_load_that_fell_silent_is_overtaken_and_can_change_nothing_any_more(loads: Loads, clock: Clock) -> None:
    silent = hold(loads.store)
    assert [one.recipients for one in silent.write(staged(5), 10)] == [5]
    clock.at += timedelta(seconds=snapshots.DEAD_AFTER_S + 1)

    found = loads(people(3), campaign_id="spring")

    for late in (lambda: silent.beat(), lambda: list(silent.write(staged(5), 10))):
        with pytest.raises(LoadFailed, match="another load took it over"):
            late()
    silent.abandon()
    assert [row.recipient_id for row in recipients(loads.store, "spring")] == sorted(
        found.people, key=lambda p: (found.people[p].timezone, found.people[p].locale, p)
    )
    assert len(recipients(loads.store, "spring")) == 3


def test_a_load_that_shows_signs_of_life_is_not_overtaken(loads: Loads, clock: Clock) -> None:
    alive = hold(loads.store)
    clock.at += timedelta(seconds=snapshots.DEAD_AFTER_S - 1)
    alive.beat()
    clock.at += timedelta(seconds=snapshots.DEAD_AFTER_S - 1)

    with pytest.raises(LoadFault, match="another load of it is running"):
        loads(people(3), campaign_id="spring")


def test_a_load_shows_signs_of_life_while_it_reads(loads: Loads, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "BEAT_S", -1.0)
    beats: list[str] = []
    beat = Snapshot.beat
    monkeypatch.setattr(Snapshot, "beat", lambda self: (beats.append("beat"), beat(self))[1])

    loads(people(3))

    assert len(beats) == 3


def test_the_number_of_a_dead_process_that_lives_again_fools_nobody(
    loads: Loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim holds this process's own number, but another start: a new process got the number of the dead load."""
    started = snapshots._started
    monkeypatch.setattr(snapshots, "_started", lambda pid: "1")
    hold(loads.store)
    monkeypatch.setattr(snapshots, "_started", started)

    assert loads(people(3), campaign_id="spring").report.recipients == 3


def at(stage: str, do: Callable[[], object]) -> Callable[[LoadProgress], None]:
    return lambda progress: do() if progress.stage == stage else None  # type: ignore[return-value,func-returns-value]


def load_with(loads: Loads, tmp_path: Path, progress: Callable[[LoadProgress], None]) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(people(30))
    options = LoadOptions(rejects_folder=tmp_path / "rejects", batch_size=4)
    load(loads.store, campaign_id="spring", path=path, template=TEMPLATE, options=options, by="test", progress=progress)


@pytest.mark.parametrize("stage", ["reading", "writing"])
def test_a_campaign_cancelled_while_it_loads_stays_cancelled_and_empty(
    loads: Loads, tmp_path: Path, stage: str
) -> None:
    with pytest.raises(LoadFailed, match="campaign spring: it was cancelled while it was loaded"):
        load_with(loads, tmp_path, at(stage, lambda: begin_cancel(loads.store, "spring", "ann")))

    row = campaign(loads.store, "spring")
    assert row is not None
    assert row.state == "cancelled"
    assert recipients(loads.store, "spring") == batches(loads.store, "spring") == []
    with pytest.raises(LoadFault, match="it is cancelled and was never loaded to the end; choose another id"):
        loads(people(3), campaign_id="spring")


def test_a_stopped_load_leaves_nothing_behind(loads: Loads, tmp_path: Path) -> None:
    def stop() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load_with(loads, tmp_path, at("writing", stop))

    assert campaign(loads.store, "spring") is None
    assert recipients(loads.store, "spring") == batches(loads.store, "spring") == []
    assert list((tmp_path / "rejects").iterdir()) == []


def test_a_store_that_is_full_fails_the_load_and_the_next_one_starts_over(
    loads: Loads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "_WRITE_ROWS", 10)
    writes: list[str] = []
    insert = Snapshot._insert

    def full(self: Snapshot, tx: Tx, *rows: Any) -> None:
        writes.append("write")
        if len(writes) == 2:
            raise StoreRefused("store x.db: the disk is full; make room and try again")
        insert(self, tx, *rows)

    monkeypatch.setattr(Snapshot, "_insert", full)

    with pytest.raises(StoreRefused, match="the disk is full"):
        load_with(loads, tmp_path, lambda _: None)

    assert campaign(loads.store, "spring") is None
    assert recipients(loads.store, "spring") == []
    assert loads(people(3), campaign_id="spring").report.recipients == 3


def test_a_full_folder_for_temporary_files_is_named(loads: Loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staging, "_TABLES", (*staging._TABLES, "PRAGMA max_page_count = 8"))

    with pytest.raises(
        LoadFailed, match=r"folder for temporary files \(.*full\); make room there, or set SQLITE_TMPDIR"
    ):
        loads(people(2000), campaign_id="spring")

    assert campaign(loads.store, "spring") is None


def test_a_rejects_folder_that_cannot_be_made_is_named(loads: Loads, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(LoadFailed, match=r"file/rejects: cannot write the rejects file \(.*\); check its permissions"):
        loads(people(3), campaign_id="spring", rejects_folder=tmp_path / "file" / "rejects")

    assert campaign(loads.store, "spring") is None


def test_rejects_of_an_earlier_try_go_when_nothing_is_rejected(loads: Loads, tmp_path: Path) -> None:
    with pytest.raises(LoadFault):
        loads(b"recipient_id,email\n1,bad\n", campaign_id="spring")
    assert (tmp_path / "rejects" / "spring.ndjson").exists()

    assert loads(people(3), campaign_id="spring").report.rejects_file is None
    assert list((tmp_path / "rejects").iterdir()) == []


def test_nothing_of_a_person_stands_in_rejects_or_errors(loads: Loads, tmp_path: Path) -> None:
    secret = "canary"
    rows = [
        f"{secret},x{secret}@one..example,en,UTC,{{}}",
        f"{secret}2,{secret}@one.example,{secret},{secret},{{}}",
        f"{secret}2,{secret}3@one.example,en,UTC,{{}}",
        f'{secret}4,{secret}4@one.example,en,UTC,"{{""{secret}"": }}"',
        f'{secret}5,{secret}5@one.example,en,UTC,"{{""{secret}"": 1, ""{secret}"": 2}}"',
        f"{secret}{'6' * 300},{secret}6@one.example,en,UTC,{{}}",
        f"{secret}7,{secret}7@one.example,en,UTC,{{}},{secret}",
        f'{secret}8,"{secret}',
    ]

    found = loads(HEADER + "\n".join(rows).encode(), strict=False)

    assert len(found.rejects) == 7
    assert secret not in "".join(file.read_text() for file in (tmp_path / "rejects").iterdir())
    assert secret not in repr(found.report)


def test_two_processes_that_load_one_campaign_at_once_make_one_snapshot(loads: Loads, tmp_path: Path) -> None:
    path = tmp_path / "list.csv"
    path.write_bytes(people(3000))
    command = [sys.executable, "-c", KILLED, loads.store.url, str(path), "never", str(tmp_path / "rejects")]

    both = [
        subprocess.Popen(command, cwd=Path(__file__).parents[2], stderr=subprocess.PIPE, text=True) for _ in range(2)
    ]
    ended = [(process.communicate()[1], process.returncode) for process in both]

    assert 0 in [code for _, code in ended], ended
    assert all(code == 0 or "another load of it is running" in words for words, code in ended), ended
    row = campaign(loads.store, "spring")
    assert row is not None
    assert (row.state, row.recipients) == ("ready", 3000)
    assert len(recipients(loads.store, "spring")) == 3000


def test_a_campaign_keeps_its_sender_as_it_goes_out(loads: Loads) -> None:
    loads(HEADER + b"1,ann@one.example,en,UTC,{}\n", from_address="Zo\u00eb\u00a0Plus <news@b\u00fccher.example>")

    kept = campaign(loads.store, "c1")
    assert kept is not None
    assert kept.from_address == "Zo\u00eb\u00a0Plus <news@xn--bcher-kva.example>"


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"body.txt.j2": "{{#if name}}Hi{{/if}}"}, "body.txt.j2, line 1: .*another template language"),
        ({"body.html.j2": "<style>a {#b}</style>"}, "body.html.j2, line 1: .*opens a comment"),
        ({"subject.j2": None}, "subject.j2: no such file"),
        ({"body.txt.j2": None}, "neither a text nor an HTML part"),
        ({"body.txt.j2": "{% include 'body.txt.j2' %}"}, "body.txt.j2, line 1: not allowed"),
        ({"body.txt.j2": "{% include '../other/body.txt.j2' %}"}, "body.txt.j2, line 1: not allowed"),
        ({"body.txt.j2": "{% block a %}{% endblock %}{% block a %}{% endblock %}"}, "body.txt.j2, line 1: .*twice"),
        (
            {"body.txt.j2": "{% if x %}{% include 'i.j2' %}{% endif %}", "i.j2": "{% block a %}1{% block a %}"},
            "i.j2",
        ),
        ({"body.txt.j2": '{{ "\\ud800" }}'}, "line 1: not allowed: half a surrogate pair"),
        ({"body.txt.j2": "{{ '%c' | format(55296) }}"}, "line 1: not allowed: the format %c"),
        ({"body.txt.j2": "{{ '%05c' % 55296 }}"}, "line 1: not allowed: the format %c"),
    ],
)
def test_a_template_that_makes_no_letter_is_never_pinned(
    loads: Loads, changed: dict[str, str | None], words: str
) -> None:
    """A campaign that was sealed with one could only halt."""
    files = {path: text for path, text in {**TEMPLATE.files, **changed}.items() if text is not None}

    with pytest.raises(TemplateFault, match=words):
        loads(HEADER + b"1,ann@one.example,en,UTC,{}\n", template=source_of("bad", files))

    assert campaign(loads.store, "c1") is None
    assert loads.store.read(lambda reader: reader.scan(TemplateContent)) == []
