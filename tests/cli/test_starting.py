"""`submit` with its plan and its question, `stop`, and the guards, as a person at the command line meets them."""

import sys
from pathlib import Path

import pytest

from sendonce.control.stops import stops_of
from sendonce.stores.base import Store
from sendonce.stores.opening import shared_store
from tests.cli.conftest import Call
from tests.control.made import campaign_row, seal

MAIL = "senders: {mail: {adapter: sendgrid, api_key: env:KEY, limits: [{rate: 10/s, burst: 10}, {cap: 100/h}]}}\n"
GUARD = 'recipients_allowed: ["@one.example"]\n'


class Terminal:
    def isatty(self) -> bool:
        return True


@pytest.fixture
def real(sendonce: Call, store: Store, folder: Path) -> Store:
    """A transactional campaign of 250 by a real sender, in a test store under a guard."""
    seal(store, "codes", [250], priority="high")
    (folder / "sendonce.yaml").write_text(MAIL + GUARD)
    assert sendonce("config", "apply").code == 0
    return store


def test_submit_shows_the_plan_and_asks_nothing_of_the_outbox(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3])
    answer = sendonce("submit", "spring")
    assert answer.code == 0
    words = " ".join(answer.out.split())
    for fact in (
        "recipients 3",
        "sender outbox",
        "from Shop <news@shop.example>",
        "takes not known yet",
        "unsubscribe no links",
    ):
        assert fact in words
    assert answer.widest <= 80
    assert "recipients" not in sendonce("submit", "spring").out, "a second time there is nothing to decide"


def test_submit_tells_limits_and_the_earliest_end(sendonce: Call, real: Store) -> None:
    answer = sendonce("submit", "codes", "--yes", "--json")
    assert answer.json["plan"] == {
        "recipients": 250,
        "sender": "mail",
        "adapter": "sendgrid",
        "fallback": None,
        "from": "Shop <news@shop.example>",
        "reply_to": None,
        "unsubscribe": None,
        "limits": ["sender mail: 100/hour", "sender mail: 10/s, burst 10"],
        "starts_at": None,
        "expires_at": None,
        "at_least_s": 7200.0,
    }


def test_a_script_must_say_yes_to_a_real_sender(sendonce: Call, real: Store) -> None:
    refused = sendonce("submit", "codes")
    assert refused.code == 2
    assert "`sendonce submit codes --yes` starts it" in " ".join(refused.err.split())
    assert campaign_row(real, "codes").state == "ready"
    assert sendonce("submit", "codes", "--yes").code == 0
    assert campaign_row(real, "codes").state == "running"


@pytest.mark.parametrize(("answer", "state"), [("y", "running"), ("n", "ready")])
def test_a_person_is_asked_before_a_real_sender(
    sendonce: Call, real: Store, monkeypatch: pytest.MonkeyPatch, answer: str, state: str
) -> None:
    asked: list[str] = []

    def confirm(question: str, **options: object) -> bool:
        asked.append(question)
        if answer == "n":
            raise KeyboardInterrupt
        return True

    monkeypatch.setattr(sys, "stdin", Terminal())
    monkeypatch.setattr("click.confirm", confirm)
    code = sendonce("submit", "codes").code

    assert asked == ["Send to 250 recipients by mail?"]
    assert (code, campaign_row(real, "codes").state) == (int(answer == "n"), state)


def test_a_real_sender_in_a_test_store_without_a_guard_neither_starts_nor_runs(
    sendonce: Call, real: Store, folder: Path
) -> None:
    sendonce("submit", "codes", "--yes")
    seal(real, "more", [1], priority="high")
    (folder / "sendonce.yaml").write_text(MAIL)
    sendonce("config", "apply")

    for call in (("submit", "more", "--yes"), ("run",)):
        answer = sendonce(*call)
        assert answer.code == 2, answer
        assert "this store was made for tests; set recipients_allowed" in " ".join(answer.err.split())
    assert campaign_row(real, "more").state == "ready"


def test_the_environment_of_the_settings_makes_the_store_and_is_held_against_it(sendonce: Call, folder: Path) -> None:
    (folder / "sendonce.yaml").write_text("environment: production\n")
    assert sendonce("init", "--json").json["environment"] == "production"
    (folder / "sendonce.yaml").write_text("environment: test\n")
    answer = sendonce("config", "apply")
    assert answer.code == 2
    assert "the settings are for test" in answer.err


def test_doctor_names_a_real_sender_that_may_not_work(
    sendonce: Call, real: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sendonce.control.doctor.template_names", lambda folders: [])
    (folder / "sendonce.yaml").write_text(MAIL)
    sendonce("config", "apply")
    answer = sendonce("doctor", "--json")
    failed = [finding for finding in answer.json if finding["level"] == "fail"]
    # It may not work from this store, and its key is missing here.
    assert [finding["what"] for finding in failed] == ["sender mail", "sender mail"]
    assert "`sendonce init --environment production`" in failed[0]["mend"]


@pytest.mark.parametrize("scope", [("--all",), ("--lane", "bulk"), ("--sender", "outbox")], ids=" ".join)
def test_a_stop_shows_in_status_and_ends_with_off(sendonce: Call, store: Store, scope: tuple[str, ...]) -> None:
    seal(store, "spring", [3], state="running")
    name = "all" if scope == ("--all",) else f"{scope[0].removeprefix('--')}:{scope[1]}"

    first = sendonce("stop", *scope, "--reason", "wrong price", "--json").json
    again = sendonce("stop", *scope, "--json").json
    status = sendonce("status", "spring")
    (told,) = sendonce("status", "spring", "--json").json["stops"]
    (listed,) = sendonce("stop", "--json").json

    assert (first, again["changed"]) == ({"scope": name, "stopped": True, "changed": True}, False)
    assert "is stopped: wrong price" in status.out
    assert f"`sendonce stop {' '.join(scope)} --off`" in " ".join(status.out.split())
    assert (told["scope"], told["kind"], told["reason"]) == (name, "stopped", "wrong price")
    assert listed["scope"] == name
    assert sendonce("stop", *scope, "--off", "--json").json["changed"]
    assert not sendonce("stop", *scope, "--off", "--json").json["changed"]
    assert sendonce("status", "spring", "--json").json["stops"] == []
    assert sendonce("stop").out == "Nothing is stopped.\n"


@pytest.mark.parametrize(
    "call", [("--lane", "slow"), ("--sender", "nobody"), ("--all", "--lane", "bulk"), ("--off",), ("--reason", "x")]
)
def test_a_stop_of_nothing_is_a_wrong_call(sendonce: Call, store: Store, call: tuple[str, ...]) -> None:
    assert sendonce("stop", *call).code == 2
    found = shared_store(store.url).read(lambda reader: stops_of(reader, "bulk", "outbox", reader.now()))
    assert found == []


def test_a_letter_without_a_way_out_is_not_loaded_for_bulk(sendonce: Call, store: Store, folder: Path) -> None:
    (folder / "sendonce.yaml").write_text(
        'from: "Shop <news@shop.example>"\nunsubscribe: {base_url: "https://shop.example/u"}\n'
    )
    (folder / "one.csv").write_text("recipient_id,email,code\n1,ann@one.example,123456\n")
    answer = sendonce("load", "codes", "one.csv", "-t", "otp", "--priority", "bulk")
    assert answer.code == 2
    assert "no link to unsubscribe" in " ".join(answer.err.split())
    assert sendonce("load", "codes", "one.csv", "-t", "otp").code == 0
