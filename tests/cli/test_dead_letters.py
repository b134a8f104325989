"""Looking at dead letters: bodies only when asked for, and nothing in them that could play with a terminal."""

import base64
from dataclasses import replace
from datetime import timedelta

import pytest

from schemas.elements import DeadLetter
from schemas.outcomes import Outcome
from schemas.tables import DeadLetterRow
from sendonce.control.dead_letters import write_dead_letters
from sendonce.stores.base import Store, Tx
from tests.cli.conftest import Answer, Call
from tests.control.made import batch_row, campaign_row, outcomes, seal

BODY = b'{"v":1,"to":"canary@one.example"}\x1b[2J\n'
LETTERS = [
    DeadLetter("trigger", "invalid", "to: has a field that is not known", body=BODY),
    DeadLetter("trigger", "not_utf8", "the body is not UTF-8 from byte 0 on", body=b"\xff\xfe"),
    DeadLetter("render", "render_error", "divides by zero", "spring", 3, 7, "m" * 52),
]


@pytest.fixture
def ids(store: Store, sendonce: Call) -> dict[str, str]:
    write_dead_letters(store, LETTERS)
    return {row["reason"]: row["id"] for row in sendonce("dead-letters", "list", "--json").json}


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        ((), {"invalid", "not_utf8", "render_error"}),
        (("--stage", "trigger"), {"invalid", "not_utf8"}),
        (("--campaign", "spring"), {"render_error"}),
        (("--campaign", "spring", "--stage", "trigger"), set()),
    ],
)
def test_list_shows_those_asked_for(
    sendonce: Call, ids: dict[str, str], options: tuple[str, ...], reasons: set[str]
) -> None:
    assert {row["reason"] for row in sendonce("dead-letters", "list", *options, "--json").json} == reasons
    shown = sendonce("dead-letters", "list", *options)
    assert (shown.code, shown.widest <= 80, "canary" in shown.out) == (0, True, False)
    assert all(reason in shown.out for reason in reasons)


def test_a_body_is_shown_only_when_asked_for(sendonce: Call, ids: dict[str, str]) -> None:
    short = ids["invalid"][:10]
    for options in ((), ("--json",)):
        assert "canary" not in sendonce("dead-letters", "show", short, *options).out
    shown = sendonce("dead-letters", "show", short, "--body").out
    assert "canary@one.example" in shown
    assert "\x1b" not in shown
    assert sendonce("dead-letters", "show", short, "--body", "--json").json["body"].encode() == BODY


def test_a_body_that_is_no_text_is_base64_in_json(sendonce: Call, ids: dict[str, str]) -> None:
    shown = sendonce("dead-letters", "show", ids["not_utf8"], "--body", "--json").json
    assert (shown["body"], base64.b64decode(shown["body_base64"])) == (None, b"\xff\xfe")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [(("nobody",), "there is no dead letter 'nobody'"), (("",), "dead-letters list --json` shows whole ids")],
)
def test_an_id_that_names_no_letter_is_a_wrong_call(
    sendonce: Call, ids: dict[str, str], arguments: tuple[str, ...], said: str
) -> None:
    answer = sendonce("dead-letters", "show", *arguments)
    assert answer.code == 2
    assert said in answer.err


def test_a_letter_without_a_body_says_so(sendonce: Call, ids: dict[str, str]) -> None:
    answer = sendonce("dead-letters", "show", ids["render_error"], "--body")
    assert answer.code == 2
    assert "has no body" in answer.err


def test_a_long_list_is_shown_in_parts(sendonce: Call, ids: dict[str, str]) -> None:
    whole = sendonce("dead-letters", "list", "--json").json
    first = sendonce("dead-letters", "list", "--limit", "2")
    rest = sendonce("dead-letters", "list", "--limit", "2", "--after", whole[1]["id"][:10])

    assert f"More: `sendonce dead-letters list --limit 2 --after {whole[1]['id'][:10]}`" in " ".join(first.out.split())
    assert whole[2]["id"][:10] in rest.out
    assert whole[0]["id"][:10] not in rest.out
    assert "More:" not in rest.out
    assert sendonce("dead-letters", "list", "--json", "--limit", "1").json == whole[:1]
    assert sendonce("dead-letters", "list", "--json", "--after", whole[2]["id"]).json == []
    assert sendonce("dead-letters", "list", "--after", "nobody").code == 2


# -- filters, replay, drop ----------------------------------------------------------------------------------------


def reasons(answer: Answer) -> set[str]:
    return {row["reason"] for row in answer.json}


def age(store: Store, reason: str, by: timedelta) -> None:
    """Make a dead letter older."""

    def work(tx: Tx) -> None:
        rows = [row for row in tx.scan(DeadLetterRow) if row.reason == reason]
        tx.put(*(replace(row, at=row.at - by) for row in rows))

    store.transact(work, tag="test")


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (("--reason", "invalid"), {"invalid"}),
        (("--older-than", "2h"), {"invalid"}),
        (("--newer-than", "2h"), {"not_utf8", "render_error"}),
        (("--newer-than", "2h", "--stage", "trigger"), {"not_utf8"}),
        (("--older-than", "1h", "--newer-than", "1w"), {"invalid"}),
        (("--older-than", "4d"), set()),
    ],
)
def test_filters_by_reason_and_age_choose_the_same_for_list_show_and_dry_runs(
    store: Store, sendonce: Call, ids: dict[str, str], options: tuple[str, ...], found: set[str]
) -> None:
    age(store, "invalid", timedelta(days=3))
    assert reasons(sendonce("dead-letters", "list", *options, "--json")) == found
    assert reasons(sendonce("dead-letters", "show", *options, "--json")) == found
    for verb in ("replay", "drop"):
        told = sendonce("dead-letters", verb, *options, "--dry-run", "--json").json
        assert {row["reason"] for row in told["letters"]} == found
        assert told["chosen"] == len(found)
    assert len(sendonce("dead-letters", "list", "--json").json) == 3


@pytest.mark.parametrize("wrong", ["2", "h", "-1h", "2 years", "1e3s", ""])
def test_an_age_that_is_none_is_a_wrong_call(sendonce: Call, ids: dict[str, str], wrong: str) -> None:
    answer = sendonce("dead-letters", "list", f"--older-than={wrong}")
    assert answer.code == 2
    assert "write it like 90s, 30m, 2h, 3d or 2w" in answer.err


@pytest.mark.parametrize("verb", ["show", "replay", "drop"])
def test_without_an_id_or_a_filter_nothing_is_chosen(sendonce: Call, ids: dict[str, str], verb: str) -> None:
    answer = sendonce("dead-letters", verb)
    assert answer.code == 2
    assert "say which" in answer.err


def test_drop_by_id_remembers_who_and_leaves_the_list(store: Store, sendonce: Call, ids: dict[str, str]) -> None:
    assert sendonce("dead-letters", "drop", ids["invalid"][:10]).code == 0
    assert reasons(sendonce("dead-letters", "list", "--json")) == {"not_utf8", "render_error"}
    (dropped,) = sendonce("dead-letters", "list", "--state", "dropped", "--json").json
    assert (dropped["reason"], dropped["state"]) == ("invalid", "dropped")
    assert "@" in dropped["settled_by"]
    assert dropped["settled_at"]
    assert len(sendonce("dead-letters", "list", "--state", "all", "--json").json) == 3
    assert "erased when it was settled" in sendonce("dead-letters", "show", ids["invalid"]).out
    again = sendonce("dead-letters", "drop", ids["invalid"], "--json").json
    assert (again["dropped"], again["settled_before"]) == (0, 1)


def test_many_are_asked_for_first(store: Store, sendonce: Call, ids: dict[str, str]) -> None:
    for verb in ("replay", "drop"):
        answer = sendonce("dead-letters", verb, "--stage", "trigger", "--newer-than", "2h")
        assert answer.code == 2
        assert f"`sendonce dead-letters {verb} --stage trigger --newer-than 7200s --yes` does it" in answer.err
    told = sendonce("dead-letters", "drop", "--stage", "trigger", "--yes", "--json").json
    assert told == {"chosen": 2, "dropped": 2, "settled_before": 0}
    assert (
        sendonce("dead-letters", "drop", "--stage", "trigger", "--yes").out.strip() == "No open dead letters like that."
    )


def test_replay_of_a_trigger_whose_campaign_was_loaded_since(store: Store, sendonce: Call) -> None:
    body = b'{"v":1,"type":"start","campaign_id":"spring"}'
    write_dead_letters(store, [DeadLetter("trigger", "unknown_campaign", "there is none", "spring", body=body)])
    (letter,) = sendonce("dead-letters", "list", "--json").json
    early = sendonce("dead-letters", "replay", letter["id"])
    assert (early.code, "it is still bad (unknown_campaign)" in early.out) == (1, True)
    seal(store, "spring", [2])

    done = sendonce("dead-letters", "replay", letter["id"][:8], "--json")
    assert (done.code, done.json["replayed"], done.json["left"], done.json["did"]) == (0, 1, 0, {"applied": 1})
    assert campaign_row(store, "spring").state == "running"
    again = sendonce("dead-letters", "replay", letter["id"], "--json")
    assert (again.code, again.json["replayed"]) == (1, 0)
    assert "it was replayed by" in again.json["why_left"][0]["why"]


def test_replay_opens_one_recipient_by_id_and_what_passes_by_filter(store: Store, sendonce: Call) -> None:
    seal(store, "spring", [4], state="completed")
    codes = {0: Outcome.EXHAUSTED, 1: Outcome.RENDER_ERROR, 2: Outcome.RENDER_ERROR, 3: Outcome.ACCEPTED}
    outcomes(store, "spring", 0, codes)
    stages = {0: "send", 1: "render", 2: "render"}
    letters = [DeadLetter(stages[n], codes[n].reason, "x", "spring", 0, n, "m") for n in stages]
    write_dead_letters(store, letters)
    told = sendonce("dead-letters", "replay", "--campaign", "spring", "--yes", "--json")
    assert (told.code, told.json["replayed"], told.json["left"]) == (1, 1, 2)
    assert list(batch_row(store, "spring", 0).outcomes) == [0, 65, 65, 2]
    one = next(row["id"] for row in sendonce("dead-letters", "list", "--json").json if row["ordinal"] == 2)
    named = sendonce("dead-letters", "replay", one)
    assert named.code == 0
    assert "render.error will most likely be refused again: template and variables are pinned" in " ".join(
        named.err.split()
    )
    assert list(batch_row(store, "spring", 0).outcomes) == [0, 65, 0, 2]
    assert campaign_row(store, "spring").state == "running"


def test_show_by_filter_shows_each_and_by_id_one(sendonce: Call, ids: dict[str, str]) -> None:
    assert sendonce("dead-letters", "show", ids["invalid"], "--json").json["reason"] == "invalid"
    assert "`--body` shows it" in " ".join(sendonce("dead-letters", "show", ids["invalid"]).out.split())
    assert "--body" not in sendonce("dead-letters", "show", ids["invalid"], "--body").out
    several = sendonce("dead-letters", "show", ids["invalid"], ids["not_utf8"])
    assert several.code == 0
    assert ids["invalid"] in several.out
    assert ids["not_utf8"] in several.out
    assert "canary" not in several.out
    with_bodies = sendonce("dead-letters", "show", "--stage", "trigger", "--body", "--json").json
    assert {row["body"] is None for row in with_bodies} == {True, False}


@pytest.mark.parametrize("verb", ["list", "show", "replay", "drop"])
def test_a_reason_that_no_dead_letter_can_have_is_a_wrong_call(sendonce: Call, ids: dict[str, str], verb: str) -> None:
    wrong = sendonce("dead-letters", verb, "--reason", "not_a_reason", "--json")
    said = " ".join(wrong.out.split() + wrong.err.split())
    assert wrong.code == 2
    assert "there is no reason 'not_a_reason'; known are" in said
    assert {"provider.mailbox_full", "not_json"} <= set(said.replace(",", " ").split())
    nobody = sendonce("dead-letters", verb, "--reason", "provider.mailbox_full")
    assert (nobody.code, "dead letters" in nobody.out) == (0, True)
