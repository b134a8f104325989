import json
import signal
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

from schemas.tables import Limit, Permit, Switch
from sendonce.stores.base import Store, Tx
from tests.cli.conftest import Call, hears_ctrl_c
from tests.control.made import batch_row, seal

ROOT = Path(__file__).parents[2]


def limited(store: Store) -> None:
    seal(store, "spring", [4], state="running")
    limits = [
        Limit("lane:bulk", "rate", "rate", per_s=500.0, burst=500, slow=0.5),
        Limit("sender:outbox", "cap:86400", "cap", most=100_000, window_s=86_400.0),
    ]
    store.transact(lambda tx: tx.put(*limits), tag="test")


def test_lanes_fit_a_terminal_and_name_limits_and_slow_downs(sendonce: Call, store: Store) -> None:
    limited(store)

    answer = sendonce("lanes")

    assert answer.code == 0
    assert answer.widest <= 80
    assert "500/s, burst 500" in answer.out
    assert "100,000 of 100,000" in answer.out
    assert "500/s, burst 500 is at 50%" in answer.out


def test_lanes_say_what_is_stopped_and_how_to_end_it(sendonce: Call, store: Store) -> None:
    limited(store)
    sendonce("stop", "--lane", "bulk", "--reason", "odd letters")

    said = " ".join(sendonce("lanes").out.split())

    assert "lane bulk is stopped: odd letters; `sendonce stop --lane bulk --off`" in said
    assert "lane bulk: 4 recipients wait until the stop ends" in said


def test_lanes_as_json_have_the_documented_keys(sendonce: Call, store: Store) -> None:
    limited(store)

    found = sendonce("lanes", "--json").json
    bulk = next(scope for scope in found["scopes"] if scope["scope"] == "lane:bulk")

    assert list(found) == ["at", "scopes"]
    assert list(bulk) == [
        "scope", "sender", "fallback", "sender_now", "limits", "recipients_per_s", "open", "waiting", "stops",
        "awaiting_answers",
    ]  # fmt: skip
    assert bulk["sender"] == "outbox"
    assert bulk["limits"][0] == {
        "name": "rate",
        "limit": "500/s, burst 500",
        "kind": "rate",
        "most": 500,
        "used": 0,
        "free": 500,
        "slow": 0.5,
        "next_permit_at": None,
    }


def failed_over(sendonce: Call, folder: Path, store: Store) -> None:
    """Bulk goes by its fallback, whose cap is used up."""
    limited(store)
    (folder / "sendonce.yaml").write_text(
        "senders:\n"
        "  transactional: {adapter: outbox, path: one, limits: [{rate: 100/s}]}\n"
        "  second-account: {adapter: outbox, path: two, limits: [{cap: 2/hour}]}\n"
        "lanes:\n"
        "  bulk: {sender: transactional, fallback: second-account, limits: [{rate: 500/s}]}\n"
        "  high: {sender: second-account, fallback: transactional}\n"
    )
    assert sendonce("config", "apply").code == 0

    def work(tx: Tx) -> None:
        now = tx.now()
        switch = Switch("sender:transactional", "open", now, "w", "connect", now + timedelta(minutes=5))
        tx.put(replace(switch, detail='{"failures": 5, "opened": 1}'))
        tx.put(Permit("sender:second-account", now, "01A", 2, now))

    store.transact(work, tag="test")


def test_lanes_and_status_say_the_same_of_a_lane_that_goes_by_its_fallback(
    sendonce: Call, folder: Path, store: Store
) -> None:
    failed_over(sendonce, folder, store)

    lanes = sendonce("lanes")
    said = " ".join(lanes.out.split())
    scopes = {scope["scope"]: scope for scope in sendonce("lanes", "--json").json["scopes"]}
    status = sendonce("status", "spring", "--json").json

    assert lanes.widest <= 80
    assert "lane bulk → second-account" in said
    assert "lane bulk: goes by its fallback second-account until sender transactional can send again" in said
    assert "sender transactional has its breaker open: connect; tried again at" in said
    assert "lane bulk: 4 recipients wait for sender second-account, 2/hour, until" in said
    assert "lane high: its fallback is transactional" in said
    assert "the provider fails" not in said
    assert scopes["lane:bulk"]["sender_now"] == status["sender_now"] == "second-account"
    assert scopes["lane:bulk"]["sender"] == status["sender"] == "transactional"
    assert [waiting["scope"] for waiting in scopes["lane:bulk"]["waiting"]] == ["sender:second-account"]


def test_batches_that_a_breaker_sent_away_do_not_wait_for_it_once_a_fallback_takes_them(
    sendonce: Call, folder: Path, store: Store
) -> None:
    failed_over(sendonce, folder, store)
    away = replace(batch_row(store, "spring", 0), wait_reason="breaker_open")
    store.transact(lambda tx: tx.put(away), tag="test")

    said = " ".join(sendonce("status", "spring").out.split())

    assert "Meanwhile what was not sent goes by sender second-account" in said
    assert "trying again later" not in said


def test_lanes_of_a_store_without_any_say_what_to_do(sendonce: Call, store: Store) -> None:
    from schemas.tables import Setting

    store.delete_many(Setting, "lane")

    answer = sendonce("lanes")

    assert answer.code == 2
    assert "run `sendonce config apply`" in answer.err


def test_watching_lanes_gives_a_line_for_each_look_until_ctrl_c(store: Store, folder: Path) -> None:
    limited(store)
    child = subprocess.Popen(
        [sys.executable, "-m", "sendonce.cli", "lanes", "--watch", "--json", "--every", "0.2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        preexec_fn=hears_ctrl_c,
    )
    assert child.stdout is not None
    looks = [json.loads(child.stdout.readline()) for _ in range(2)]
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=30)

    assert looks[0]["at"] < looks[1]["at"]
    assert child.returncode == 1


def test_until_an_open_breaker_is_probed_lanes_and_status_say_by_whom_letters_go(
    sendonce: Call, folder: Path, store: Store
) -> None:
    """Once its time was over they named the lane's own sender, and a probe in the past, while others sent."""
    failed_over(sendonce, folder, store)

    def said() -> set[str]:
        scopes = {scope["scope"]: scope for scope in sendonce("lanes", "--json").json["scopes"]}
        status = sendonce("status", "spring", "--json").json
        assert status["sender_health"]["probe_due"]
        for command in ("lanes", "status"):
            assert "5 failures in a row; a probe is due" in " ".join(sendonce(command).out.split())
        return {scopes["lane:bulk"]["sender_now"], status["sender_now"]}

    def work(tx: Tx) -> None:
        now = tx.now()
        switch = tx.get(Switch, "sender:transactional")
        assert switch is not None
        tx.put(replace(switch, until_at=now - timedelta(seconds=1)))

    store.transact(work, tag="test")
    assert said() == {"transactional"}

    sending = replace(batch_row(store, "spring", 0), state="sending", open_state="sending", attempt_id="01A")
    sending = replace(sending, provider="second-account")
    store.transact(lambda tx: tx.put(replace(sending, permit_at=tx.now(), heartbeat_at=tx.now())), tag="test")
    assert said() == {"second-account"}
