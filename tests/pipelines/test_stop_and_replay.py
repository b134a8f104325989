"""Pause, resume, cancel, replay and dead letters through the whole pipeline: the cases of that area by their files."""

import base64
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from schemas.elements import DeadLetter, TriggerMessage
from schemas.ids import shard_of
from schemas.outcomes import Outcome
from schemas.tables import Attempt, Batch, DeadLetterRow, Decision, OutboundMessage
from sendonce.control import suppressions
from sendonce.control.campaigns import pause, resume, submit
from sendonce.control.dead_letters import Wanted, list_dead_letters, write_dead_letters
from sendonce.control.faults import WrongState
from sendonce.control.status import campaign_status
from sendonce.control.suppression_import import import_suppressions
from sendonce.control.worth import BY_DEFAULT
from sendonce.delivery import batches
from sendonce.delivery.cancellation import cancel
from sendonce.delivery.replay import replay
from sendonce.delivery.retrying import plan_retry, retry
from sendonce.rendering.catalogue import source_of
from sendonce.stores.base import ANY_SHARD, Tx
from tests.control.lists import CASES, Loads
from tests.pipelines.shop import TEMPLATE, Shop, letters_in, people

ROOT = Path(__file__).parents[2]
GOLDEN = Path(__file__).parent / "golden" / "dead_letters.json"
pytestmark = pytest.mark.filterwarnings("ignore")


def case(slug: str, name: str) -> Any:
    return json.loads((CASES / slug / name).read_text())


def trigger(kind: str, campaign_id: str, number: int = 1) -> TriggerMessage:
    return TriggerMessage(json.dumps({"v": 1, "type": kind, "campaign_id": campaign_id}).encode(), "{}", str(number))


def due(shop: Shop, campaign_id: str, *batch_nos: int) -> None:
    """Only these of the batches that wait are due; the others in an hour."""

    def work(tx: Tx) -> None:
        rows = [row for row in tx.scan(Batch, ANY_SHARD, campaign_id) if row.state == "pending"]
        late = tx.now() + timedelta(hours=1)
        tx.put(*(replace(row, due_at=tx.now() if row.batch_no in batch_nos else late) for row in rows))

    shop.store.transact(work, tag="test")


def settle(shop: Shop, campaign_id: str, codes: dict[int, Outcome]) -> None:
    """Give the recipients of a campaign's one batch their outcomes, and rows that say so, as a run would have."""

    def work(tx: Tx) -> None:
        batch = tx.get(Batch, shard_of(campaign_id, 0), campaign_id, 0)
        assert batch is not None
        tx.put(batches.finished(batches.apply(batch, codes), tx.now()))
        rows = [OutboundMessage(f"m{o}", campaign_id, 0, o, int(code), tx.now()) for o, code in codes.items()]
        tx.put(*rows)

    shop.store.transact(work, tag="test")


def accepted(shop: Shop) -> int:
    return len(shop.letters())


def test_case_replay_only_failed(shop: Shop) -> None:
    """The first replay reaches the two whose fault passes, the second nobody; who was told no for good keeps it."""
    codes = {
        "sent": Outcome.ACCEPTED,
        "failed_transient": Outcome.EXHAUSTED,
        "failed_permanent": Outcome.PROVIDER_UNKNOWN_MAILBOX,
        "unsubscribed": Outcome.SUPPRESSED_UNSUBSCRIBED,
    }
    state = case("replay-only-failed", "state.json")
    shop.campaign("spring", [{"id": number} for number in state])
    settle(shop, "spring", {place: codes[was] for place, was in enumerate(state.values())})
    assert shop.run().ended == "done"
    assert (shop.state("spring")[0], accepted(shop)) == ("completed", 0)

    assert retry(shop.store, plan_retry(shop.store, "spring", BY_DEFAULT), "ann").recipients == 2
    shop.run()
    assert Counter(letter["To"] for letter in shop.letters()) == {"7@one.example": 1, "8@one.example": 1}
    assert retry(shop.store, plan_retry(shop.store, "spring", BY_DEFAULT), "ann").recipients == 0
    shop.run()
    assert accepted(shop) == 2

    shown = campaign_status(shop.store, "spring").as_json()
    assert (shown["sent_count"], shown["failed_count"], shown["suppressed"]) == (8, 1, 1)
    assert (shown["state"], shown["total_recipients"], shown["percent"]) == ("completed", 10, 100.0)


def test_case_resume_from_start(shop: Shop) -> None:
    """Paused and resumed three times, with the start trigger once more in between: ten letters, each once."""
    Loads(shop.store, shop.folder).case("resume-from-start/recipients.csv", campaign_id="spring", batch_size=2)
    steps = iter(case("resume-from-start", "scenario.json")["steps"])
    assert next(steps) == "start"
    shop.run(triggers=[trigger("start", "spring")], once=True, lanes=["high"])
    snapshot = [(batch.batch_no, batch.size) for batch in shop.batches("spring")]
    for step in steps:
        word, last = step.split()[0], step.split()[-1]
        if word == "pause":
            goal = int(last)
            while accepted(shop) < goal:
                due(shop, "spring", accepted(shop) // 2)
                shop.run(once=True)
            pause(shop.store, "spring", "ann")
        elif word == "start":
            shop.run(triggers=[trigger("start", "spring", 2)], once=True)
            assert (shop.state("spring")[0], accepted(shop)) == ("paused", 4)
        else:
            resume(shop.store, "spring", "ann")
    due(shop, "spring", *range(5))
    shop.run()
    assert Counter(letter["To"] for letter in shop.letters()) == {f"u{n}@one.example": 1 for n in range(1, 11)}
    assert [(batch.batch_no, batch.size) for batch in shop.batches("spring")] == snapshot
    assert campaign_status(shop.store, "spring").as_json()["total_recipients"] == 10


@pytest.mark.parametrize("point", ["S3", "S4", "S5", "S6", "S7"])
def test_case_checkpoint_at_fetch(shop: Shop, point: str) -> None:
    """Killed while the first page is being sent: nobody of that page is lost, and nobody gets two letters."""
    faults = case("checkpoint-at-fetch", "faults.json")
    shop.configure(limits=[{"rate": "100/s", "burst": 2 * faults["kill_after_accepted"]}])
    Loads(shop.store, shop.folder).case("checkpoint-at-fetch/recipients.csv", campaign_id="spring", batch_size=5)
    submit(shop.store, "spring", "test")
    nth = 1 if point in ("S6", "S7") else 2  # the second request, once the first has taken two
    environment = {**os.environ, "SENDONCE_FAILPOINT": f"{point}:kill9:{nth}"}
    code = f"from pipelines.local import run_bounded; run_bounded({shop.url!r})"
    killed = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, check=False)
    assert killed.returncode == -9, killed.stderr.decode()
    assert campaign_status(shop.store, "spring").as_json()["state"] == "running"

    hurry(shop)
    assert shop.run().ended == "done"
    assert shop.state("spring")[0] == "completed"
    assert Counter(shop.outcomes("spring").values()) == {"accepted": 10}
    assert Counter(letter["To"] for letter in shop.letters()) == {f"u{n}@one.example": 1 for n in range(1, 11)}


def hurry(shop: Shop) -> None:
    """The dead job's leases are over, as they would be a minute later."""

    def work(tx: Tx) -> None:
        rows = [row for row in tx.scan(Batch, ANY_SHARD, "spring") if row.state in ("sending", "queued")]
        past = tx.now() - timedelta(minutes=10)
        tx.put(*(replace(row, heartbeat_at=past, visible_at=row.visible_at and past) for row in rows))

    shop.store.transact(work, tag="test")


def test_case_cancel_drains_buffer(shop: Shop) -> None:
    """After the cancel no request starts, whatever was planned, rendered or waiting for another try."""
    scenario = case("cancel-drains-buffer", "scenario.json")
    rate = scenario["rate_per_second"]
    shop.configure(limits=[{"rate": f"{rate}/s", "burst": rate}])
    shop.campaign("spring", people(scenario["recipients"]), batch_size=5)
    waiting = max(batch.batch_no for batch in shop.batches("spring"))

    def work(tx: Tx) -> None:
        row = tx.get(Batch, shard_of("spring", waiting), "spring", waiting)
        assert row is not None
        tx.put(replace(row, due_at=tx.now() + timedelta(seconds=2), tries=3, wait_reason="connect"))

    shop.store.transact(work, tag="test")
    job = threading.Thread(target=shop.run)
    job.start()
    until(lambda: campaign_status(shop.store, "spring").counts.outcomes["accepted"] >= rate)
    assert cancel(shop.store, "spring", "ann").after in ("cancelling", "cancelled")
    job.join(60)

    decided = shop.store.read(lambda reader: reader.scan(Decision, "spring", index="decisions_by_campaign"))
    (at,) = [row.at for row in decided if row.kind == "cancel"]
    began = [row.started_at for row in shop.store.read(lambda reader: reader.scan(Attempt))]
    assert max(began) <= at
    shown = campaign_status(shop.store, "spring").as_json()
    assert shown["state"] == "cancelled"
    assert shown["sent_count"] + shown["cancelled"] == scenario["recipients"]
    assert shown["sent_count"] == accepted(shop)
    seconds = (at - min(began)).total_seconds()
    assert shown["sent_count"] <= rate + rate * (seconds + 2)
    with pytest.raises(WrongState, match="it is cancelled"):
        resume(shop.store, "spring", "ann")
    assert shop.run().ended == "done"
    assert shown["sent_count"] == accepted(shop)


def until(happens: Callable[[], bool], seconds: float = 60.0) -> None:
    ends = time.monotonic() + seconds
    while not happens():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def test_case_unsubscribed_while_paused(shop: Shop) -> None:
    """Who unsubscribes or bounces while it is paused gets nothing, also when a dead letter of theirs is replayed."""
    Loads(shop.store, shop.folder).case("unsubscribed-while-paused/recipients.csv", campaign_id="spring", batch_size=2)
    submit(shop.store, "spring", "test")
    due(shop, "spring", 0, 1)
    shop.run(once=True)
    assert accepted(shop) == 4
    pause(shop.store, "spring", "ann")
    imported = CASES / "unsubscribed-while-paused/suppressions.jsonl"
    import_suppressions(shop.store, imported, by="ann")
    resume(shop.store, "spring", "ann")
    due(shop, "spring", *range(5))
    shop.run()
    gone = {"6": "suppressed.unsubscribed", "8": "suppressed.bounced"}
    expected = {str(number): gone.get(str(number), "accepted") for number in range(1, 11)}
    assert shop.outcomes("spring") == expected
    assert accepted(shop) == 8

    sixth = next(batch for batch in shop.batches("spring") if batch.n_suppressed)
    place = list(sixth.outcomes).index(Outcome.SUPPRESSED_UNSUBSCRIBED)
    letter = DeadLetter("send", "exhausted", "refused when it was to be sent", "spring", sixth.batch_no, place, "m")
    write_dead_letters(shop.store, [letter])
    (told,) = replay(shop.store, list_dead_letters(shop.store), "ann", named=True)
    assert (told.done, "a suppression holds" in told.why) == (False, True)
    shop.run()
    assert shop.outcomes("spring") == expected
    assert accepted(shop) == 8


def test_a_retry_of_one_who_unsubscribed_since_is_no_letter(shop: Shop) -> None:
    shop.campaign("spring", people(3))
    settle(shop, "spring", dict.fromkeys(range(3), Outcome.EXHAUSTED))
    shop.run()
    suppressions.add(shop.store, "P0002@one.example", by="ann")
    assert retry(shop.store, plan_retry(shop.store, "spring", BY_DEFAULT), "ann").recipients == 3
    shop.run()
    assert shop.outcomes("spring") == {"p0001": "accepted", "p0002": "suppressed.manual", "p0003": "accepted"}
    assert accepted(shop) == 2


def test_case_one_bad_stops_all_and_its_replay(shop: Shop) -> None:
    """Nine are sent once; the fourth is a dead letter that names template and recipient, and holds no variable."""
    body = (CASES / "one-bad-stops-all/body.txt.j2").read_text()
    template = source_of(
        "hello",
        {
            "template.yaml": "priority: bulk\nfrom: news@shop.example\nvariables:\n"
            "  name: {type: text, required: false}\n",
            "subject.j2": "Hello",
            "body.txt.j2": body + "\n{{ unsubscribe_url }}",
        },
    )
    loads = Loads(shop.store, shop.folder)
    loads.case("one-bad-stops-all/recipients.csv", campaign_id="spring", template=template)
    submit(shop.store, "spring", "test")
    shop.run()
    sent = Counter(letter["To"] for letter in shop.letters())
    assert sent == {f"u{n}@one.example": 1 for n in range(1, 11) if n != 4}
    (dead,) = list_dead_letters(shop.store)
    person = shop.outcomes("spring")
    assert person["4"] == "render.undefined_variable"
    assert (dead.stage, dead.reason, dead.campaign_id) == ("render", "render.undefined_variable", "spring")
    assert ("body.txt.j2" in dead.detail, "name" in dead.detail, dead.body) == (True, True, None)

    # Replayed, it fails in the same way, for template and variables are pinned, and nobody else is sent to.
    (told,) = replay(shop.store, [dead], "ann", named=True)
    assert told.done
    assert list(list_dead_letters(shop.store)) == []
    shop.run()
    assert [row.dead_letter_id for row in list_dead_letters(shop.store)] == [dead.dead_letter_id]
    assert shop.outcomes("spring") == person
    assert Counter(letter["To"] for letter in shop.letters()) == sent
    assert shop.state("spring")[0] == "completed"


# -- golden dead letters ------------------------------------------------------------------------------------------


def test_a_mixed_bad_input_leaves_exactly_these_dead_letters(shop: Shop) -> None:
    """Bad triggers among good ones, bad recipients among good ones, a template that fails for all: golden rows."""
    someone = people(4)
    someone[1]["variables"] = {"Name": "Ann Canary"}
    someone[3]["variables"] = {"name": 7}
    shop.campaign("good", someone, state="ready")
    shop.campaign("broken", people(2, first=10), files={**TEMPLATE, "body.txt.j2": "Dear {{ name"}, state="ready")
    shop.campaign("over", people(1, first=20), state="completed")
    messages = [json.loads(line) for line in (CASES / "poison-message/messages.jsonl").read_text().splitlines()]
    bodies = [
        base64.b64decode(message["data_base64"]) if "data_base64" in message else json.dumps(message["data"]).encode()
        for message in messages
    ]
    ours = [
        trigger("start", "good").body,
        trigger("start", "broken").body,
        trigger("start", "over").body,
        trigger("start", "nobody").body,
        trigger("resume", "later").body,
        b'{"v":1,"type":"start","campaign_id":"good","seq":"1"}',
        b'{"v":7,"type":"start","campaign_id":"good"}',
    ]
    every = [*bodies, *ours]
    sent = [TriggerMessage(body, "{}", str(number)) for number, body in enumerate([*every, *every])]
    shop.run(triggers=sent)
    rows = shop.store.read(lambda reader: reader.scan(DeadLetterRow))
    found = [_golden(row) for row in sorted(rows, key=lambda row: row.dead_letter_id)]
    assert found == json.loads(GOLDEN.read_text())
    told = json.dumps([_golden(row, body=False) for row in rows])
    assert ("Canary" in told, "@" in told) == (False, False)


def _golden(row: DeadLetterRow, *, body: bool = True) -> dict[str, Any]:
    """A row without what differs from store to store: its time, and message ids, made with the store's key."""
    assert row.expires_at is not None
    return {
        "dead_letter_id": row.dead_letter_id,
        "stage": row.stage,
        "reason": row.reason,
        "detail": row.detail,
        "campaign_id": row.campaign_id,
        "batch_no": row.batch_no,
        "ordinal": row.ordinal,
        "has_message_id": row.message_id is not None,
        "body_base64": base64.b64encode(row.body).decode() if body and row.body is not None else None,
        "kept_days": (row.expires_at - row.at) / timedelta(days=1),
        "state": row.state,
        "settled_by": row.settled_by,
    }


def test_a_bundle_that_runs_again_leaves_the_same_rows(shop: Shop) -> None:
    someone = people(2)
    someone[0]["variables"] = {}
    shop.campaign("spring", someone)
    shop.run()
    (row,) = shop.dead_letters()
    same = DeadLetter(row.stage, row.reason, row.detail, row.campaign_id, row.batch_no, row.ordinal, row.message_id)
    assert write_dead_letters(shop.store, [same]) == 0
    assert shop.dead_letters() == [row]
    assert len(list(list_dead_letters(shop.store, Wanted(campaign_id="spring", stage="render")))) == 1
    assert len(letters_in(shop.folder / "outbox")) == 1
