"""Looking at dead letters: bodies only when asked for, and nothing in them that could play with a terminal."""

import base64

import pytest

from schemas.elements import DeadLetter
from sendonce.control.dead_letters import write_dead_letters
from sendonce.stores.base import Store
from tests.cli.conftest import Call

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
