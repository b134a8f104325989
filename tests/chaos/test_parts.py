"""The parts of the kill test that could make it blind: the plan of kills, the watch over the outbox, the canary."""

import os
import random
from collections import Counter
from pathlib import Path

import pytest

from sendonce.stores.opening import init_store
from tests.chaos import canary
from tests.chaos.ground import CommandFailed, Ground, Load, load_for
from tests.chaos.kills import LIVE_POINTS, POINTS, Kill, must_hurry, plan_kills, points_of
from tests.chaos.outages import Outages
from tests.chaos.person import Person
from tests.chaos.place import SqlitePlace, glance, held
from tests.chaos.provider import OutboxProvider, Providers
from tests.chaos.triggers import Starts
from tests.chaos.watch import OutboxWatch
from tests.stores.made import batch, campaign


def ground_in(folder: Path, load: Load) -> Ground:
    place = SqlitePlace(folder / "store.db")
    providers = Providers(OutboxProvider(folder / "outbox", folder / "seen"))
    return Ground(folder / "ground", load, random.Random(1), place, providers)


@pytest.mark.parametrize("points", [POINTS, LIVE_POINTS])
def test_kills_are_spread_evenly_over_the_failpoints_and_random_times(points: tuple[str, ...]) -> None:
    kills = plan_kills(random.Random(1), 30, points)
    hits = Counter(kill.where for kill in kills)
    assert set(hits) == {*points, "any time"}
    assert max(hits.values()) - min(hits.values()) <= 1
    assert {kill.failpoint for kill in kills if not kill.point} == {""}
    assert Kill("S3", 2).failpoint == "S3:kill9:2"


def test_a_seed_repeats_the_kills_and_another_does_not() -> None:
    assert plan_kills(random.Random(7), 30) == plan_kills(random.Random(7), 30)
    assert plan_kills(random.Random(7), 30) != plan_kills(random.Random(8), 30)


def test_a_mail_server_s_recipients_are_a_point_to_die_at() -> None:
    assert points_of(["outbox"], live=False) == POINTS
    assert points_of(["ses", "smtp"], live=True) == (*LIVE_POINTS, "M1")
    assert {kill.where for kill in plan_kills(random.Random(1), 30, points_of(["smtp"], live=False))} >= {"M1", "S4"}


@pytest.mark.parametrize(
    ("left", "kills_left", "hurry"),
    [(5000, 30, False), (3000, 18, False), (1700, 18, True), (90, 1, True), (90, 0, False)],
)
def test_kills_hurry_when_the_work_runs_out_before_them(left: int, kills_left: int, hurry: bool) -> None:
    """On a busy machine everything had ended after 28 of 30 kills."""
    assert must_hurry(left, 5000, kills_left, 30) is hurry


@pytest.mark.parametrize(("recipients", "kills"), [(5000, 30), (1, 0), (1, 30), (300, 6), (100_000, 200)])
def test_every_recipient_is_in_one_campaign(tmp_path: Path, recipients: int, kills: int) -> None:
    load = load_for(recipients, kills)
    ground = ground_in(tmp_path, load)
    rows = [row for number in range(load.campaigns) for row in ground._people(number)]
    good = [row for row in rows if not row[0].endswith(("-bad", "-again"))]
    assert len(good) == len({row[0] for row in good}) == len({row[1] for row in good}) == recipients
    assert load.batch_size >= 1
    assert load.burst >= 1


def test_every_campaign_has_somebody_who_cannot_be_rendered_and_canaries(tmp_path: Path) -> None:
    load = load_for(5000, 30)
    ground = ground_in(tmp_path, load)
    for number in range(load.campaigns):
        rows = list(ground._people(number))
        assert sum(row[-1] == "0" for row in rows) == load.recipients // load.campaigns // 100
        assert sum(ground.mark in row[1] for row in rows if not row[0].endswith(("-bad", "-again"))) == 2


def letter(name: str, attempt: str) -> str:
    return (
        f"From x@localhost Thu Jan 15 09:00:00 2026\nMessage-ID: <{name}@chaos.example>\n"
        f"X-Sendonce-Campaign: spring\nX-Sendonce-Batch: 0\nX-Sendonce-Attempt: {attempt}\n\nhello\n\n"
    )


def put(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.1.tmp")
    beside.write_text(text)
    os.rename(beside, path)


@pytest.fixture
def watch(tmp_path: Path) -> OutboxWatch:
    return OutboxWatch(tmp_path / "outbox", tmp_path / "seen")


def test_the_watch_sees_a_letter_that_another_attempt_replaced(tmp_path: Path, watch: OutboxWatch) -> None:
    file = tmp_path / "outbox" / "spring" / "batch-0.mbox"
    watch.look()
    put(file, letter("m1", "A0") + letter("m2", "A0"))
    watch.look()
    put(file, letter("m1", "A1"))
    watch.look()
    letters, requests = watch.arrivals()
    assert [(one.message_id, one.attempt_id) for one in letters] == [("m1", "A0"), ("m2", "A0"), ("m1", "A1")]
    assert [one.n for one in requests] == [2, 1]
    assert watch.repeats == 1


def test_the_same_request_again_is_one_acceptance_and_two_arrivals(tmp_path: Path, watch: OutboxWatch) -> None:
    file = tmp_path / "outbox" / "spring" / "batch-0.mbox"
    for seconds in (1_768_467_600, 1_768_467_660):
        put(file, letter("m1", "A0"))
        os.utime(file, (seconds, seconds))
        watch.look()
        watch.look()
    letters, requests = watch.arrivals()
    assert [one.message_id for one in letters] == ["m1"]
    assert [int(one.at.timestamp()) for one in requests] == [1_768_467_600, 1_768_467_660]


def test_the_watch_looks_until_it_is_stopped_and_once_more_then(tmp_path: Path, watch: OutboxWatch) -> None:
    watch.start()
    put(tmp_path / "outbox" / "spring" / "batch-0.mbox", letter("m1", "A0"))
    watch.stop()
    assert len(watch.arrivals()[0]) == 1


def test_the_canary_is_found_in_names_and_contents_but_not_where_it_may_be(tmp_path: Path) -> None:
    for name in ("logs/run.log", "logs/clean.log", "outbox/a/b.mbox", "db/store.db", "db/store.db-wal", "db/other"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if name.endswith("clean.log") else "x CANARY9 y")
    (tmp_path / "logs" / "canary9.txt").write_text("")
    found = canary.find(tmp_path, "Canary9", (tmp_path / "outbox", tmp_path / "db" / "store.db"))
    assert found == ["db/other", "logs/canary9.txt", "logs/run.log"]


def test_a_start_that_was_published_and_not_followed_is_a_lost_trigger() -> None:
    starts = Starts(["a", "b", "c"])
    published = dict.fromkeys([*starts.bodies(0), *starts.bodies(1)], 3)
    assert starts.lost(published, {"a": "completed", "b": "ready", "c": "ready"}) == [
        "the start of b was published, and it is ready"
    ]
    assert starts.lost(published, {"a": "completed"}) == ["the start of b was published, and it is gone"]
    assert starts.lost(published, {"a": "running", "b": "cancelled"}) == [], "followed, whatever came of it"


def test_outages_lie_between_the_kills_and_take_turns() -> None:
    outages = Outages(2, random.Random(1), spanner=None, proxy=None, pubsub=None)
    assert not outages.due(9, 9), "nothing can fail"
    struck: list[str] = []
    outages._kinds = [("one", lambda: struck.append("one")), ("two", lambda: struck.append("two"))]
    due = []
    for killed in range(10):
        if outages.due(killed, 9):
            due.append(killed)
            outages.strike()
    assert due == [3, 6]
    assert struck == outages.done == ["one", "two"]


def held_store(folder: Path, attempts: list[str]) -> SqlitePlace:
    store = init_store(f"sqlite:///{folder / 'store.db'}")
    rows = [batch(n, state="held", open_state="held", attempt_id=name) for n, name in enumerate(attempts)]
    store.transact(lambda tx: tx.put(campaign(), *rows, batch(9)), tag="test")
    return SqlitePlace(folder / "store.db")


def test_a_glance_tells_open_work_and_who_waits_for_a_person(tmp_path: Path) -> None:
    place = held_store(tmp_path, ["A0"])
    seen = glance(place)
    assert (seen.open, seen.total, seen.unfinished, seen.running, seen.released) == (6, 6, 6, 1, 1)
    assert held(place) == [("spring", 0, "A0")]


def test_the_person_decides_each_doubt_by_what_the_provider_has(tmp_path: Path) -> None:
    place = held_store(tmp_path, ["A0", "A1"])
    provider = OutboxProvider(tmp_path / "outbox", tmp_path / "seen")
    put(tmp_path / "outbox" / "spring" / "batch-0.mbox", letter("m1", "A0"))
    provider._watch.look()
    said: list[tuple[str, ...]] = []

    def command(*arguments: str) -> str:
        said.append(arguments)
        if len(said) == 1:
            raise CommandFailed("the store is away")
        return ""

    person = Person(place, Providers(provider), command)
    for campaign_id, batch_no, attempt in held(place):
        person._decide(campaign_id, batch_no, attempt)
    assert [arguments[1:5] for arguments in said] == [
        ("assume", "spring", "--batch", "0"),
        ("resend", "spring", "--batch", "1"),
    ]
    assert said[1][-1] == "--yes"
    assert person.decisions == 1
