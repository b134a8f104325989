"""Whole runs on one machine: the real graph, store and outbox."""

import json
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from pipelines import local
from pipelines.local import Round, pace_of
from schemas.elements import TriggerMessage
from schemas.tables import Job
from sendonce.cli.watching import wait_text
from sendonce.control.campaigns import resume
from sendonce.control.outcomes import recipient_outcome
from sendonce.delivery import letters
from tests.pipelines.shop import TEMPLATE, Shop, people


def trigger(number: int = 1, **fields: object) -> TriggerMessage:
    return TriggerMessage(json.dumps({"v": 1, **fields}).encode(), "{}", str(number))


def test_a_campaign_runs_to_its_end_and_every_letter_is_there_once(shop: Shop) -> None:
    shop.campaign("spring", people(25))
    report = shop.run()
    assert (report.ended, report.unfinished) == ("done", 0)
    assert shop.state("spring") == ("completed", None)
    assert Counter(shop.outcomes("spring").values()) == {"accepted": 25}
    assert Counter(letter["To"] for letter in shop.letters()) == Counter(f"p{n:04d}@one.example" for n in range(1, 26))


def test_a_second_run_sends_nothing(shop: Shop) -> None:
    shop.campaign("spring", people(5))
    shop.run()
    before = {path: path.stat().st_mtime_ns for path in shop.folder.rglob("*.mbox")}
    report = shop.run()
    assert (report.ended, report.rounds) == ("done", 0)
    assert {path: path.stat().st_mtime_ns for path in shop.folder.rglob("*.mbox")} == before


def test_one_bad_recipient_stops_nobody_and_is_a_dead_letter(shop: Shop) -> None:
    """The cases undefined-var and one-bad-stops-all: golden outcomes and golden dead letters."""
    someone = people(5)
    someone[2]["variables"] = {"Name": "Ann Canary"}
    shop.campaign("spring", someone)
    shop.run()
    assert shop.outcomes("spring") == {
        "p0001": "accepted",
        "p0002": "accepted",
        "p0003": "render.undefined_variable",
        "p0004": "accepted",
        "p0005": "accepted",
    }
    (dead,) = shop.dead_letters()
    assert (dead.stage, dead.reason, dead.batch_no, dead.ordinal) == ("render", "render.undefined_variable", 0, 2)
    assert "name" in dead.detail
    assert "Canary" not in dead.detail
    assert "@" not in dead.detail


def test_letters_are_the_plain_renders_byte_for_byte(shop: Shop) -> None:
    someone = people(3)
    someone[1]["locale"] = "fr"
    shop.campaign("spring", someone)
    shop.run()
    texts = {letter["To"]: letter.get_body(("plain",)).get_content() for letter in shop.letters()}  # type: ignore[union-attr]
    links = {letter["To"]: letter["List-Unsubscribe"].strip(" <>") for letter in shop.letters()}
    for person, hello in (("p0001", "Good day."), ("p0002", "Bonjour."), ("p0003", "Good day.")):
        address = f"{person}@one.example"
        assert texts[address] == f"Dear Name {person},\n{hello}\n{links[address]}\n"


def test_a_template_that_fails_for_all_halts_the_campaign_and_refuses_nobody(shop: Shop) -> None:
    broken = {**TEMPLATE, "body.txt.j2": "Dear {{ name"}
    shop.campaign("broken", people(3), files=broken)
    shop.campaign("whole", people(3, first=10))
    report = shop.run()
    state, reason = shop.state("broken")
    assert (report.ended, report.waits_for, state) == ("blocked", ("halted",), "halted")
    assert "body.txt.j2" in (reason or "")
    assert set(shop.outcomes("broken").values()) == {"open"}
    assert shop.state("whole")[0] == "completed"


def test_a_paused_campaign_is_left_alone_and_says_so(shop: Shop) -> None:
    shop.campaign("spring", people(3), state="paused")
    report = shop.run()
    assert (report.ended, report.unfinished, report.waits_for) == ("blocked", 3, ("paused",))
    assert shop.letters() == []


def test_once_is_one_round(shop: Shop) -> None:
    shop.campaign("spring", people(3))
    report = shop.run(once=True)
    assert (report.ended, report.rounds) == ("once", 1)


def test_a_limit_is_kept_over_rounds(shop: Shop) -> None:
    shop.configure(limits=[{"cap": "10/s"}])
    shop.campaign("spring", people(25))
    report = shop.run()
    assert report.ended == "done"
    times = sorted(path.stat().st_mtime for path in shop.folder.rglob("*.mbox"))
    sizes = {path.stat().st_mtime: path.read_text().count("\nTo: ") for path in shop.folder.rglob("*.mbox")}
    for start in times:
        assert sum(sizes[at] for at in times if start <= at < start + 1) <= 10
    assert len(shop.letters()) == 25


def test_a_slow_rate_is_used_within_a_round(shop: Shop) -> None:
    """One round waits for permits that are near, so that a limited lane does not pay for a round per permit."""
    shop.configure(limits=[{"rate": "20/s", "burst": 5}])
    shop.campaign("spring", people(30))
    report = shop.run()
    assert (report.ended, report.rounds) == ("done", 1)
    sizes = sorted((path.stat().st_mtime, path.read_text().count("\nTo: ")) for path in shop.folder.rglob("*.mbox"))
    for start, _ in sizes:
        for end, _ in sizes:
            inside = sum(n for at, n in sizes if start <= at <= end)
            assert inside <= 5 + 20 * (end - start + 2) or end < start


def test_a_stop_hands_everything_back_and_the_next_run_finishes(shop: Shop) -> None:
    shop.campaign("spring", people(40))
    stop = threading.Event()
    stop.set()
    report = shop.run(stop=stop)
    assert (report.ended, report.unfinished) == ("stopped", 40)
    assert {batch.state for batch in shop.batches("spring")} == {"pending"}
    assert shop.run().ended == "done"
    assert len(shop.letters()) == 40


def test_two_runs_at_once_share_the_work_and_send_once(shop: Shop) -> None:
    shop.campaign("spring", people(60), batch_size=2)
    with ThreadPoolExecutor(2) as pool:
        reports = list(pool.map(lambda _: shop.run(), range(2)))
    assert [report.ended for report in reports] == ["done", "done"]
    assert Counter(letter["To"] for letter in shop.letters()).most_common(1)[0][1] == 1
    assert len(shop.letters()) == 60


def test_triggers_start_pause_and_cancel(shop: Shop) -> None:
    for name in ("one", "two", "three"):
        shop.campaign(name, people(3), state="ready")
    report = shop.run(
        triggers=[
            trigger(1, type="start", campaign_id="one"),
            trigger(2, type="start", campaign_id="two", seq=1),
            trigger(3, type="pause", campaign_id="two", seq=2),
            trigger(4, type="cancel", campaign_id="three"),
            trigger(5, type="start", campaign_id="one"),
            trigger(6, type="start", campaign_id="two", seq=1),
        ]
    )
    assert [shop.state(name)[0] for name in ("one", "two", "three")] == ["completed", "paused", "cancelled"]
    assert report.waits_for == ("paused",)
    assert set(shop.outcomes("three").values()) == {"cancelled"}
    assert shop.dead_letters() == []


def test_bad_triggers_are_dead_letters_and_their_neighbours_are_applied(shop: Shop) -> None:
    """The case poison-message."""
    shop.campaign("good", people(2), state="ready")
    bad = [
        (b"\xff\xfe", "not_utf8"),
        (b'{"v":1,"type":"start","campaign_id":"x","v":1}', "not_json"),
        (b'{"v":NaN}', "not_json"),
        (b'{"v":2,"type":"start","campaign_id":"x"}', "unknown_version"),
        (b'{"v":true,"type":"start","campaign_id":"x"}', "unknown_version"),
        (b'{"v":1,"type":"stop","campaign_id":"x"}', "unknown_type"),
        (b'{"v":1,"type":"start","campaign_id":"good","extra":1}', "invalid"),
        (b'{"v":1,"type":"start","campaign_id":"../x"}', "invalid"),
        (b'{"v":1,"type":"start","campaign_id":"nobody"}', "unknown_campaign"),
        (b"[" * 200_000, "not_json"),
        (b" " * (1 << 20) + b"{}", "too_large"),
        (b'{"v":1,"type":"start","campaign_id":"good","seq":' + b"9" * 5000 + b"}", "not_json"),
    ]
    messages = [TriggerMessage(body, "{}", str(number)) for number, (body, _) in enumerate(bad)]
    good = trigger(99, type="start", campaign_id="good")
    shop.run(triggers=[*messages[:5], good, *messages[5:]])
    assert shop.state("good")[0] == "completed"
    dead = {row.body: row.reason for row in shop.dead_letters()}
    assert dead == dict(bad)
    assert all(row.expires_at is not None for row in shop.dead_letters())


def test_a_run_leaves_its_row_for_those_who_watch(shop: Shop) -> None:
    shop.campaign("spring", people(1))
    shop.run()
    (job,) = shop.store.read(lambda reader: reader.scan(Job))
    assert (job.state, job.lanes) == ("ended", "critical,high,bulk")


def test_a_full_outbox_halts_its_sender_spends_no_try_and_loses_nobody(shop: Shop) -> None:
    (shop.folder / "outbox").write_text("in the way")
    shop.campaign("spring", people(3))
    report = shop.run()
    assert (report.ended, report.waits_for, report.unfinished) == ("blocked", ("sender_halted",), 3)
    (shop.folder / "outbox").unlink()
    assert shop.run().ended == "done"
    assert len(shop.letters()) == 3


def test_a_poison_template_stops_its_own_campaign_only(shop: Shop) -> None:
    """A letter that no encoding can carry, for everybody: neighbours are sent, nobody is lost, no run dies of it."""
    shop.campaign("poison", people(3), files={**TEMPLATE, "body.txt.j2": 'Dear {{ name }} {{ "\\ud800" }}'})
    shop.campaign("whole", people(3, first=10))
    shop.run()
    assert shop.state("whole")[0] == "completed"
    assert set(shop.outcomes("poison").values()) <= {"render.error", "open"}
    assert len(shop.letters()) == 3


def test_a_fault_that_nobody_foresaw_halts_its_campaign_and_tells_no_data(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = letters.render_batch

    def fail(compiled, addressees, **more):  # type: ignore[no-untyped-def]
        if more["campaign_id"] == "spring":
            raise RuntimeError("ann@one.example")
        return real(compiled, addressees, **more)

    monkeypatch.setattr(letters, "render_batch", fail)
    shop.campaign("spring", people(3))
    shop.campaign("whole", people(3, first=10))
    report = shop.run()
    state, reason = shop.state("spring")
    assert (state, report.waits_for) == ("halted", ("halted",))
    assert "RuntimeError" in (reason or "")
    assert "@" not in (reason or "")
    assert shop.state("whole")[0] == "completed"
    monkeypatch.undo()
    resume(shop.store, "spring", "test")
    assert shop.run().ended == "done"
    assert len(shop.letters()) == 6


def test_a_higher_cap_frees_those_who_wait_for_the_old_one(shop: Shop) -> None:
    shop.configure(limits=[{"cap": "10/day"}])
    shop.campaign("spring", people(25))
    assert shop.run(once=True).unfinished == 15
    shop.configure(limits=[{"cap": "1000/day"}])
    assert shop.run().ended == "done"
    assert len(shop.letters()) == 25


def test_a_run_says_which_limit_it_waits_for_and_until_when(shop: Shop) -> None:
    shop.configure(limits=[{"cap": "10/day"}])
    shop.campaign("spring", people(25))
    stop = threading.Event()
    told: list[Round] = []

    def look(found: Round) -> None:
        told.append(found)
        if found.sleep_s > 0.5:
            stop.set()

    assert shop.run(stop=stop, progress=look).unfinished == 15
    left = told[-1].left
    assert (left.due_for, left.full_limits) == ("limit", ("lane bulk: 10/day",))
    assert "lane bulk: 10/day is used up" in wait_text(left)


def test_the_store_says_why_somebody_was_refused(shop: Shop) -> None:
    someone = people(2)
    someone[1]["variables"] = {"Name": "Ann Canary"}
    shop.campaign("spring", someone)
    shop.run()
    found, _ = recipient_outcome(shop.store, "spring", "p0002")
    assert found.detail is not None
    assert "name" in found.detail
    assert "Canary" not in found.detail


@pytest.mark.parametrize(
    ("rendering_s", "sending_s", "threads", "pace"),
    [
        (0.1, 8.0, 16, 2000),  # 2 of 16 threads were busy for 4 s: all of them pass eight times as many
        (0.1, 64.0, 16, 250),
        (2.0, 8.0, 16, 500),  # more threads would wait for the one that renders
        (0.0, 0.0, 4, 20_000),
    ],
)
def test_a_pace_is_that_of_threads_which_all_have_something_to_do(
    rendering_s: float, sending_s: float, threads: int, pace: float
) -> None:
    """A round that kept 2 of 16 threads waiting for a slow provider planned no more for the next, and so for ever."""
    assert pace_of(1000, rendering_s, sending_s, threads) == pytest.approx(pace)


def test_what_a_round_took_is_measured_and_then_forgotten(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def noted(*took: float) -> float:
        measured.append(took)
        return pace_of(*took)  # type: ignore[arg-type]

    monkeypatch.setattr(local, "pace_of", noted)
    shop.campaign("spring", people(25))
    shop.run()
    shop.campaign("autumn", people(7))
    shop.run()
    assert [took[0] for took in measured] == [25, 7]
    assert all(rendering_s > 0 for _, rendering_s, _, _ in measured)
