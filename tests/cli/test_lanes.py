import json
import signal
import subprocess
import sys
from pathlib import Path

from schemas.tables import Limit
from sendonce.stores.base import Store
from tests.cli.conftest import Call, hears_ctrl_c
from tests.control.made import seal

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
    assert list(bulk) == ["scope", "sender", "limits", "recipients_per_s", "open", "waiting", "stops"]
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
