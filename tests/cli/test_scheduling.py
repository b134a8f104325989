"""`submit --at`, and what people see of a campaign until it starts."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sendonce.cli.watching import wait_text
from sendonce.control.campaigns import submit
from sendonce.control.schedule import NOW, start_of
from sendonce.delivery.outlook import Left
from sendonce.stores.base import Store
from tests.cli.conftest import Call
from tests.cli.test_starting import GUARD, MAIL, Terminal
from tests.control.made import campaign_row, seal
from tests.control.sending import body, ready, take

AT = (datetime.now(UTC) + timedelta(days=3, hours=2, minutes=30)).replace(microsecond=0)
TIME, SHOWN = AT.isoformat(), f"{AT:%Y-%m-%d %H:%M:%S} UTC"
LONG = "spring-sale-for-everybody-who-bought-last-year-2026"


def words(text: str) -> str:
    return " ".join(text.split())


def test_submit_at_says_when_and_status_and_list_show_it(sendonce: Call, store: Store) -> None:
    seal(store, LONG, [3])
    answer = sendonce("submit", LONG, "--at", TIME)
    assert answer.code == 0, answer.err
    assert f"starts {SHOWN}" in words(answer.out)
    assert f"{LONG}: ready → scheduled" in words(answer.out)
    assert "a job must run then: `sendonce run`" in words(answer.out)

    shown, listed = sendonce("status", LONG), sendonce("list")
    assert f"starts {SHOWN}, in 3 d 2 h" in words(shown.out)
    assert "scheduled" in shown.out
    assert "left" not in shown.out
    assert "A job of the lane bulk must run then" in words(shown.out)
    assert "scheduled" in listed.out
    assert f"{LONG}: starts {SHOWN}" in words(listed.out)
    assert max(answer.widest, shown.widest, listed.widest) <= 80
    found = sendonce("status", LONG, "--json").json
    assert (found["state"], found["eta_minutes"]) == ("running", None)
    assert datetime.fromisoformat(found["started_at"]) == AT
    assert 0 < found["starts_in_s"] <= timedelta(days=4).total_seconds()


def test_for_machines_submit_says_when_it_starts(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3])
    found = sendonce("submit", "spring", "--at", TIME, "--json").json
    assert (found["state"], found["changed"]) == ("running", True)
    assert datetime.fromisoformat(found["starts_at"]) == datetime.fromisoformat(found["plan"]["starts_at"]) == AT
    assert sendonce("submit", "spring", "--json").json["starts_at"] is None


def test_submitting_again_moves_it_and_without_a_time_starts_it_now(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3])
    sendonce("submit", "spring", "--at", TIME)
    same = sendonce("submit", "spring", "--at", TIME)
    assert (same.code, "nothing changed; it starts at" in words(same.out)) == (0, True)
    later = (AT + timedelta(hours=1)).isoformat()
    assert "spring: scheduled" in sendonce("submit", "spring", "--at", later).out
    assert sendonce("submit", "spring", "--expires", (AT + timedelta(days=9)).isoformat()).code == 0
    assert start_of(campaign_row(store, "spring")) == AT + timedelta(hours=1), "another end alone leaves the start"

    now = sendonce("submit", "spring")
    assert (now.code, now.widest <= 80) == (0, True)
    assert "spring: running" in now.out
    assert "it starts now, not at" in words(now.out)
    begun = sendonce("submit", "spring", "--at", later)
    assert (begun.code, "so another time changes nothing" in words(begun.out)) == (0, True)


def test_a_time_that_is_past_starts_it_at_once(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3])
    answer = sendonce("submit", "spring", "--at", "2020-01-01T00:00Z")
    assert "spring: ready → running" in words(answer.out)
    assert "The time given is past, so it starts now." in words(answer.err)
    assert "starts 20" not in words(answer.out)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (("--at", "soon"), "is no time"),
        (("--at", "2026-12-24T18:00"), "time zone"),
        (("--at", "never"), "is no time"),
        (("--at", (AT + timedelta(days=400)).isoformat()), "more than 366 days ahead"),
        (("--at", TIME, "--expires", TIME), "not before the campaign's end"),
    ],
)
def test_a_time_that_will_not_do_is_a_wrong_call_and_nothing_is_shown(
    sendonce: Call, store: Store, more: tuple[str, ...], says: str
) -> None:
    seal(store, "spring", [3])
    answer = sendonce("submit", "spring", *more)
    assert (answer.code, answer.out, says in words(answer.err)) == (2, "", True)
    assert campaign_row(store, "spring").state == "ready"


def test_a_real_sender_is_asked_for_when_it_begins_and_not_when_only_the_time_moves(
    sendonce: Call, store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it a `submit` of somebody who forgot that it was to start on Monday would have sent it."""
    seal(store, "codes", [250], priority="high")
    (folder / "sendonce.yaml").write_text(MAIL + GUARD)
    assert sendonce("config", "apply").code == 0
    asked: list[str] = []
    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("click.confirm", lambda question, **options: asked.append(question))

    sendonce("submit", "codes", "--at", TIME)
    sendonce("submit", "codes", "--at", (AT + timedelta(hours=1)).isoformat())
    sendonce("submit", "codes")
    sendonce("submit", "codes")

    assert asked == [f"Send to 250 recipients by mail from {SHOWN} on?", "Send to 250 recipients by mail?"]
    assert campaign_row(store, "codes").state == "running"


def test_pause_resume_and_cancel_before_it_begins(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3])
    sendonce("submit", "spring", "--at", TIME)
    assert sendonce("pause", "spring").code == 0
    paused = sendonce("status", "spring")
    assert "paused" in paused.out
    assert f"starts {SHOWN}" in words(paused.out)
    resumed = sendonce("resume", "spring")
    assert "paused → scheduled" in words(resumed.out)
    assert f"It starts {SHOWN}, as before." in words(resumed.out)
    cancelled = sendonce("cancel", "spring", "--json")
    assert (cancelled.code, cancelled.json["state"]) == (0, "cancelled")
    assert "starts" not in sendonce("status", "spring").out


def test_status_without_a_name_is_of_one_that_has_begun(sendonce: Call, store: Store) -> None:
    seal(store, "now", [3], state="running")
    seal(store, "later", [3])
    submit(store, "later", "ann", at=AT)
    assert sendonce("status", "--json").json["campaign"] == "now"
    submit(store, "later", "ann", at=NOW)
    assert sendonce("status", "--json").json["campaign"] == "later"


def test_status_without_a_name_is_of_a_campaign_rather_than_of_a_stream(sendonce: Call, store: Store) -> None:
    seal(store, "news", [3], state="running")
    ready(store)
    take(store, body("a"))
    assert sendonce("list", "--json").json[0]["kind"] == "stream"
    assert sendonce("status", "--json").json["campaign"] == "news"


def test_lanes_say_who_waits_for_a_start(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3])
    submit(store, "spring", "ann", at=AT)
    answer = sendonce("lanes")
    assert f"3 recipients wait for their campaign's start, until {SHOWN}" in words(answer.out)
    assert answer.widest <= 80


def test_a_run_says_what_it_waits_for() -> None:
    said = wait_text(Left(3, AT, (), "scheduled"))
    assert said == f"Waiting until {SHOWN}: a campaign starts then. Ctrl-C is safe, `sendonce run` goes on."
