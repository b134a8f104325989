"""`sendonce retry`: says whom it opens and whom it leaves, asks, and is shown in status and outcome."""

import io
from collections.abc import Mapping

import pytest

from schemas.outcomes import Outcome
from sendonce.stores.base import Store
from tests.cli.conftest import Call
from tests.control.made import batch_row, campaign_row, outcomes, seal

FULL, UNKNOWN, ACCEPTED = Outcome.PROVIDER_MAILBOX_FULL, Outcome.PROVIDER_UNKNOWN_MAILBOX, Outcome.ACCEPTED


def sent(store: Store, codes: Mapping[int, Outcome], *, state: str = "completed") -> None:
    seal(store, "spring", [6], state=state)
    outcomes(store, "spring", 0, {**dict.fromkeys(range(6), ACCEPTED), **codes})


def test_it_shows_whom_it_opens_and_why_the_others_are_left(store: Store, sendonce: Call) -> None:
    sent(store, {1: FULL, 2: FULL, 3: Outcome.EXHAUSTED, 4: UNKNOWN})
    shown = sendonce("retry", "spring", "--failed", "--dry-run")
    words = " ".join(shown.out.split())
    assert (shown.code, shown.widest <= 80) == (0, True)
    assert "the provider: the mailbox is full provider.mailbox_full 2 again" in words
    assert "provider.unknown_mailbox 1 left" in words
    assert "provider.unknown_mailbox is left: there is no such mailbox" in words
    assert "Would open 3 recipients, as round 1. Nothing changed." in words
    assert campaign_row(store, "spring").state == "completed"

    told = sendonce("retry", "spring", "--failed", "--dry-run", "--json").json
    assert told == {
        "campaign": "spring",
        "dry_run": True,
        "round": 1,
        "reopened": 3,
        "batches": None,
        "reasons": {"provider.mailbox_full": 2, "exhausted": 1},
        "warnings": {},
        "left": {"provider.unknown_mailbox": {"recipients": 1, "why": "there is no such mailbox"}},
        "under_way": 0,
        "maybe_reached": 0,
    }


def test_it_warns_of_reasons_that_last_whoever_names_them(store: Store, sendonce: Call) -> None:
    """`--failed` said why it leaves such; `--reason` opened them without a word."""
    pinned = Outcome.RENDER_BAD_VARIABLE
    sent(store, {1: pinned, 2: FULL, 3: Outcome.EXPIRED})
    named = ("--reason", pinned.reason, "--reason", FULL.reason, "--reason", UNKNOWN.reason, "--reason", "expired")

    shown = sendonce("retry", "spring", *named, "--dry-run")
    told = sendonce("retry", "spring", *named, "--dry-run", "--json").json

    said = " ".join(shown.out.split())
    assert shown.widest <= 80
    assert (
        "render.bad_variable will most likely be refused again: template and variables are pinned, so the letter fails "
        "in the same way"
    ) in said
    assert said.count("will most likely") == 1, "a full mailbox empties, an end may be moved, the fourth has nobody"
    assert list(told["warnings"]) == ["render.bad_variable"]
    assert "fails in the same way" in told["warnings"]["render.bad_variable"]


def test_a_script_has_to_say_yes_and_then_the_campaign_runs_again(store: Store, sendonce: Call) -> None:
    sent(store, {1: FULL})
    answer = sendonce("retry", "spring", "--failed", "--reason", "provider.mailbox_full")
    assert answer.code == 2
    assert "`sendonce retry spring --failed --reason provider.mailbox_full --yes` does it" in answer.err
    assert campaign_row(store, "spring").state == "completed"

    done = sendonce("retry", "spring", "--failed", "--yes", "--json").json
    assert (done["reopened"], done["batches"], done["round"], done["dry_run"]) == (1, 1, 1, False)
    assert campaign_row(store, "spring").state == "running"
    assert batch_row(store, "spring", 0).n_open == 1
    again = sendonce("retry", "spring", "--failed", "--yes")
    assert (again.code, "Nobody to send to again." in again.out) == (0, True)
    assert sendonce("retry", "spring", "--failed", "--yes", "--json").json["reopened"] == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("spring",), "--failed means whoever was refused"),
        (("nobody", "--failed"), "there is no campaign 'nobody'"),
        (("spring", "--failed", "--reason", "no.such"), "known are exhausted, provider.mailbox_full"),
        (("spring", "--reason", "no.such"), "known are exhausted, provider.mailbox_full"),
        (("spring", "--failed", "--reason", "accepted"), "the provider took their letter"),
        (("spring", "--failed", "--reason", "assumed"), "nobody may get two"),
        (("spring", "--failed", "--reason", "suppressed"), "a suppression holds"),
        (("spring", "--failed", "--expires", "yesterday"), "is no time"),
        (("spring", "--failed", "--expires", "2001-01-01T00:00Z"), "is past"),
    ],
)
def test_a_wrong_call_changes_nothing_and_names_the_mend(
    store: Store, sendonce: Call, arguments: tuple[str, ...], said: str
) -> None:
    sent(store, {1: FULL})
    answer = sendonce("retry", *arguments, "--yes")
    assert answer.code == 2
    assert said in answer.err
    assert batch_row(store, "spring", 0).n_refused == 1


def test_a_reason_is_enough_to_say_whom(store: Store, sendonce: Call) -> None:
    sent(store, {1: FULL})
    with_both = sendonce("retry", "spring", "--failed", "--reason", FULL.reason, "--dry-run", "--json")
    alone = sendonce("retry", "spring", "--reason", FULL.reason, "--dry-run", "--json")
    assert (alone.code, alone.json) == (0, with_both.json)
    assert alone.json["reopened"] == 1


def test_a_cancelled_campaign_is_refused(store: Store, sendonce: Call) -> None:
    sent(store, {1: FULL}, state="cancelled")
    answer = sendonce("retry", "spring", "--failed", "--yes", "--json")
    assert (answer.code, answer.json["error"]["reason"]) == (2, "wrong_state")


def test_what_is_under_way_is_counted_and_left(store: Store, sendonce: Call) -> None:
    seal(store, "spring", [3, 1], state="running")
    outcomes(store, "spring", 0, {0: FULL}, state="sending")
    told = sendonce("retry", "spring", "--failed", "--yes")
    assert "1 recipient more: their batches are being sent or in doubt; call again later." in " ".join(told.out.split())


def test_status_and_outcome_tell_of_rounds(store: Store, sendonce: Call) -> None:
    sent(store, {1: FULL, 4: UNKNOWN})
    hint = " ".join(sendonce("status", "spring").out.split())
    assert "1 refused recipient may do better now: `sendonce retry spring --failed`" in hint
    assert sendonce("status", "spring", "--json").json["retries"] is None
    sendonce("retry", "spring", "--failed", "--yes")

    shown = sendonce("status", "spring")
    assert shown.widest <= 80
    assert "round 1: 1 recipient opened again by " in shown.out
    retries = sendonce("status", "spring", "--json").json["retries"]
    assert (retries["round"], retries["reopened"], retries["reopened_in_round"], retries["done"]) == (1, 1, 1, True)
    one = sendonce("outcome", "spring", "2", "--json").json
    assert [(row["round"], row["was"]) for row in one["rounds"]] == [(1, "provider.mailbox_full")]
    assert sendonce("outcome", "spring", "1", "--json").json["rounds"] == []
    told = " ".join(sendonce("outcome", "spring", "2").out.split())
    assert "was refused because" in told
    assert "the provider: the mailbox is full" in told


def test_people_read_words_and_machines_codes(store: Store, sendonce: Call) -> None:
    sent(store, {1: Outcome.RENDER_UNDEFINED_VARIABLE, 2: Outcome.EXPIRED})
    shown = sendonce("status", "spring")
    words = " ".join(shown.out.split())
    assert shown.widest <= 80
    assert "a variable of the letter is missing render.undefined_variable 1" in words
    assert "its end came first expired 1" in words
    assert sendonce("status", "spring", "--json").json["reasons"] == {"expired": 1, "render.undefined_variable": 1}
    assert "its end came first (expired)" in " ".join(sendonce("outcome", "spring", "3").out.split())


def test_list_says_who_was_left_out_or_assumed_where_anybody_was(store: Store, sendonce: Call) -> None:
    sent(store, {1: FULL})
    assert "suppressed" not in sendonce("list").out
    name = "a-campaign-with-a-long-name-2026-12-24"
    seal(store, name, [5], state="completed")
    codes = (Outcome.SUPPRESSED_MANUAL, Outcome.SUPPRESSED_BOUNCED, Outcome.SKIPPED_NOT_ALLOWED, Outcome.ASSUMED)
    outcomes(store, name, 0, {**dict(enumerate(codes)), 4: ACCEPTED})
    shown = sendonce("list")
    assert shown.widest <= 80
    assert f"{name}: 2 suppressed, 1 skipped, 1 assumed" in shown.out.splitlines()
    assert "spring: 1 refused" in shown.out.splitlines()  # its column gave way to the long name


@pytest.mark.parametrize(("says", "code", "opened"), [("y\n", 0, 1), ("n\n", 1, 0)])
def test_at_a_terminal_it_asks_and_no_is_no(
    store: Store, sendonce: Call, monkeypatch: pytest.MonkeyPatch, says: str, code: int, opened: int
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    sent(store, {1: FULL})
    monkeypatch.setattr("sys.stdin", Terminal(says))
    answer = sendonce("retry", "spring", "--failed")
    assert "Send again to 1 recipient of spring, as round 1?" in answer.err
    assert (answer.code, batch_row(store, "spring", 0).n_open) == (code, opened)
