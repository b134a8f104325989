"""`sendonce events import` and `doubts show`, as a shell would call them."""

import gzip
import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest

from schemas.ids import attempt_id, message_id, shard_of
from schemas.ordinals import pack
from schemas.outcomes import Outcome
from schemas.tables import Batch, Decision, DeliveryEvent
from sendonce.control.event_payloads import events_in
from sendonce.control.events import record_events
from sendonce.control.status import campaign_status
from sendonce.delivery.lanes import running_lanes
from sendonce.delivery.resolver import Policy
from sendonce.delivery.sweeper import sweep_lane
from sendonce.stores.base import Store
from sendonce.stores.opening import store_key
from tests.cli.conftest import LINE_MAX, Call
from tests.control.made import outcomes, seal
from tests.delivery.world import TERMS

CANARY = "canary.address@one.example"
CASES = Path(__file__).parents[1] / "cases"


def in_doubt(store: Store, *, provider: str = "", state: str = "held", size: int = 3) -> Batch:
    """A batch whose one request, of all its recipients, nobody knows the fate of."""
    seal(store, "spring", [size], state="running")
    outcomes(store, "spring", 0, dict.fromkeys(range(size), Outcome.IN_DOUBT), state=state)
    account = provider or running_lanes(store, ("bulk",))["bulk"].terms.provider

    def ask(tx: Any) -> Batch:
        batch = tx.get(Batch, shard_of("spring", 0), "spring", 0)
        now = tx.now() - timedelta(minutes=2)
        asked = replace(
            batch,
            attempt_id=attempt_id(1_768_467_600_000, b"0123456789"),
            provider=account,
            payload_hash="0" * 64,
            intent_ordinals=pack(range(size)),
            intent_at=now,
            permit_at=now,
            doubt_since=now,
        )
        tx.put(asked)
        return asked

    found: Batch = store.transact(ask, tag="test")
    return found


def sendgrid_event(store: Store, batch: Batch, recipient: str = "1", **fields: object) -> dict[str, object]:
    return {
        "event": "delivered",
        "email": CANARY,
        "timestamp": 1768467600,
        "sg_event_id": f"e-{recipient}",
        "sg_message_id": "abc1.filter0001.1.2.0",
        "response": f"250 OK {CANARY}",
        "campaign_id": "spring",
        "batch_no": "0",
        "attempt_id": batch.attempt_id,
        "message_id": message_id(store_key(store), "spring", recipient),
        **fields,
    }


def lines(folder: Path, *values: object) -> str:
    path = folder / "events.ndjson"
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return str(path)


def sweep(store: Store) -> None:
    sweep_lane(store, store_key(store), TERMS, Policy("hold", "rows"), lambda: token_hex(16))


def rows(store: Store) -> list[DeliveryEvent]:
    return store.read(lambda reader: reader.scan(DeliveryEvent))


def test_an_imported_event_settles_the_request_and_says_so(sendonce: Call, store: Store, folder: Path) -> None:
    batch = in_doubt(store)

    answer = sendonce("events", "import", lines(folder, sendgrid_event(store, batch)))

    assert (answer.code, answer.err.count("Error")) == (0, 0)
    assert "1 event added" in answer.out
    assert "3 recipients of 1 request no longer in doubt" in answer.out
    assert sendonce("doubts", "show", "spring", "--json").json == []
    assert campaign_status(store, "spring").counts.outcomes["accepted"] == 3
    (row,) = store.read(lambda reader: reader.scan(Decision))
    assert (row.kind, row.by, row.reason, row.attempt_id) == ("evidence", "provider", "event", batch.attempt_id)


def test_status_counts_what_settled_doubts_and_says_that_some_are_left(
    sendonce: Call, store: Store, folder: Path
) -> None:
    batch = in_doubt(store, state="in_doubt")
    assert "3 recipients in doubt: `sendonce doubts show spring`" in sendonce("status", "spring").out
    part = sendgrid_event(store, batch, "2", part="1")
    sendonce("events", "import", lines(folder, part))
    sweep(store)
    sweep(store)
    assert campaign_status(store, "spring").campaign.state == "running"
    sendonce("doubts", "assume", "spring")

    told = sendonce("status", "spring", "--json").json["decisions"]

    none = {"requests": 0, "recipients": 0}
    assert told == {
        "evidence": {"requests": 1, "recipients": 1},
        "policy": {"hold": {"requests": 1, "recipients": 2}, "assume": none, "resend": none},
        "person": {"assume": {"requests": 1, "recipients": 2}, "resend": none},
    }
    shown = sendonce("status", "spring")
    assert shown.widest <= LINE_MAX
    words = " ".join(shown.out.split())
    assert "requests in doubt: 1 settled by proof, 1 left to a person, 1 assumed by a person" in words


def test_the_same_file_again_changes_nothing(sendonce: Call, store: Store, folder: Path) -> None:
    file = lines(folder, *[sendgrid_event(store, in_doubt(store))] * 46)

    first, second = (sendonce("events", "import", file, "--json").json for _ in range(2))

    assert (first["events"], first["added"], first["already"]) == (46, 1, 45)
    assert [one["settled"] for one in (first, second)] == [
        {"requests": 1, "recipients": 3},
        {"requests": 0, "recipients": 0},
    ]
    assert (second["events"], second["added"], second["already"]) == (46, 0, 46)
    assert len(rows(store)) == 1


def test_nothing_personal_of_an_event_is_kept_or_said(sendonce: Call, store: Store, folder: Path) -> None:
    batch = in_doubt(store)
    good = sendgrid_event(store, batch)
    bad = [{**good, "sg_event_id": CANARY}, {**good, "sg_event_id": "e2", "timestamp": CANARY}]
    moved = {**good, "sg_event_id": "e3", "sg_message_id": CANARY, "message_id": CANARY}

    answer = sendonce("events", "import", lines(folder, good, *bad, moved, CANARY), "--json")

    assert answer.code == 1
    assert answer.json["rejected_by_reason"] == {"bad_timestamp": 1, "no_event_id": 1, "not_an_event": 1}
    assert len(rows(store)) == 2
    assert CANARY not in answer.out + answer.err + repr(rows(store))


def test_lines_that_are_no_events_are_named_and_the_others_are_taken(
    sendonce: Call, store: Store, folder: Path
) -> None:
    batch = in_doubt(store)
    good = [json.dumps(sendgrid_event(store, batch, str(number))) for number in (1, 2)]
    (folder / "e.ndjson").write_text(f'{good[0]}\n{{"event": "deliv\n\n[{good[1]}, null]\n')

    answer = sendonce("events", "import", "e.ndjson", "--json")

    assert answer.code == 1
    assert (answer.json["added"], answer.json["rejected"], answer.json["lines"]) == (2, 2, 4)
    assert answer.json["first_rejects"] == [
        {"line": 2, "entry": 0, "reason": "not_json"},
        {"line": 4, "entry": 2, "reason": "not_an_event"},
    ]
    said = sendonce("events", "import", "e.ndjson")
    assert "lines: 2, 4 (entry 2)" in said.out


def test_events_of_other_systems_are_counted_and_left_out(sendonce: Call, store: Store, folder: Path) -> None:
    good = sendgrid_event(store, in_doubt(store))
    other = attempt_id(1_768_467_600_000, b"9876543210")
    values = [
        {**good, "sg_event_id": "e2", "campaign_id": "theirs"},
        {**good, "sg_event_id": "e3", "attempt_id": other, "campaign_id": "theirs"},
        {**good, "sg_event_id": "e4", "attempt_id": other},
        {name: value for name, value in good.items() if name != "attempt_id"},
        {**good, "event": "account_status_change"},
    ]

    answer = sendonce("events", "import", lines(folder, *values), "--json")

    assert answer.code == 0
    assert answer.json["ignored"] == {"no_ids": 1, "unknown_kind": 1}
    assert (answer.json["unknown_attempt"], answer.json["unknown_campaign"]) == (1, 2)
    assert rows(store) == []


@pytest.mark.parametrize("packed", [False, True])
def test_a_list_over_many_lines_is_one_document(sendonce: Call, store: Store, folder: Path, packed: bool) -> None:
    batch = in_doubt(store)
    text = json.dumps([sendgrid_event(store, batch, str(number)) for number in (1, 2, 3)], indent=2).encode()
    (folder / "events").write_bytes(gzip.compress(text) if packed else text)

    answer = sendonce("events", "import", "events", "--json")

    assert (answer.code, answer.json["added"]) == (0, 3)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"recipient_id,email\n1,a@one.example\n", "holds no event"), (gzip.compress(b"{}" * 99)[:20], "cut off")],
)
def test_a_file_without_events_is_a_wrong_call(
    sendonce: Call, store: Store, folder: Path, content: bytes, reason: str
) -> None:
    (folder / "f").write_bytes(content)
    answer = sendonce("events", "import", "f")
    assert answer.code == 2
    assert reason in answer.err
    assert sendonce("events", "import", "missing").code == 2


def test_a_provider_may_be_asked_for(sendonce: Call, store: Store, folder: Path) -> None:
    file = lines(folder, sendgrid_event(store, in_doubt(store)))
    assert sendonce("events", "import", file, "--provider", "ses").code == 2
    assert sendonce("events", "import", file, "--provider", "sendgrid").code == 0


@pytest.mark.parametrize("name", ["single.json", "empty.json", "category.json", "unknown.json"])
def test_every_shape_of_a_payload_is_read(sendonce: Call, store: Store, name: str) -> None:
    """Of letters that are not from here: left out, and no fault."""
    answer = sendonce("events", "import", str(CASES / "payload-shape" / name), "--json")
    assert (answer.code, answer.json["rejected"], answer.json["added"]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("case", "files", "events", "added"),
    [("dup-event", ["batch1.json", "batch2.json"], 5, 3), ("out-of-order", ["events.json"], 7, 7)],
)
def test_recorded_deliveries_count_once_by_their_event_id(
    sendonce: Call, store: Store, folder: Path, case: str, files: list[str], events: int, added: int
) -> None:
    """Twice in one post, and again in another; `open` before `delivered`. Here with the ids of letters of ours."""
    batch = in_doubt(store)
    posts = [json.loads((CASES / case / name).read_text()) for name in files]
    told = [[{**sendgrid_event(store, batch, event["recipient_id"]), **event} for event in post] for post in posts]
    for post in told:
        for event in post:
            event["campaign_id"] = "spring"

    answer = sendonce("events", "import", lines(folder, *told), "--json").json

    assert (answer["events"], answer["added"], answer["already"]) == (events, added, events - added)
    assert {row.event_id for row in rows(store)} == {event["sg_event_id"] for post in told for event in post}
    assert campaign_status(store, "spring").counts.outcomes["accepted"] == 3


def test_junk_is_refused(sendonce: Call, store: Store) -> None:
    assert sendonce("events", "import", str(CASES / "payload-shape" / "junk.json")).code == 2


def test_a_doubt_is_shown_with_what_is_known_and_what_choices_risk(sendonce: Call, store: Store) -> None:
    batch = in_doubt(store)

    answer = sendonce("doubts", "show", "spring")

    assert answer.code == 0
    assert answer.widest <= LINE_MAX
    for words in (
        "waits for you",
        "outbox (outbox)",
        str(batch.attempt_id),
        "X-Sendonce-Attempt",
        "`sendonce doubts assume spring --batch 0`",
        "up to 3 may have got nothing",
        "`sendonce doubts resend spring --batch 0`",
        "up to 3 may get two letters",
        "`sendonce events import FILE`",
    ):
        assert words in " ".join(answer.out.split()), words
    assert "@" not in answer.out
    (told,) = sendonce("doubts", "show", "spring", "--json").json
    assert (told["recipients"], told["proven"], told["next"], told["adapter"]) == (3, 0, "person", "outbox")
    assert told["risks"] == {"assume": {"may_have_got_nothing": 3}, "resend": {"may_get_two": 3}}
    assert told["message_ids"] == [message_id(store_key(store), "spring", one) for one in "123"]


@pytest.mark.parametrize(("kind", "state"), [("assume", "assumed"), ("resend", "open")])
def test_a_choice_is_not_about_those_of_whom_there_is_proof(
    sendonce: Call, store: Store, kind: str, state: str
) -> None:
    """No job has looked at it yet: who was reached for certain gets no second letter, and is no assumption."""
    batch = in_doubt(store)
    record_events(store, events_in(sendgrid_event(store, batch, "2", part="1")))  # type: ignore[arg-type]
    (told,) = sendonce("doubts", "show", "spring", "--json").json
    assert (told["next"], told["proven"], told["risks"][kind].popitem()[1]) == ("evidence", 1, 2)
    assert "proof for 1 of 3" in sendonce("doubts", "show", "spring").out

    answer = sendonce("doubts", kind, "spring", *(["--yes"] if kind == "resend" else []), "--json")

    assert answer.json == {"decision": kind, "batches": 1, "recipients": 2}
    counts = campaign_status(store, "spring").counts.outcomes
    assert (counts["accepted"], counts[state], counts["in_doubt"]) == (1, 2, 0)


def test_a_doubt_that_a_job_can_ask_again_says_so(sendonce: Call, store: Store) -> None:
    in_doubt(store, state="in_doubt")
    assert "asks again under the same key" in " ".join(sendonce("doubts", "show", "spring").out.split())
    assert sendonce("doubts", "show", "spring", "--json").json[0]["next"] == "ask_again"


def test_a_doubt_at_an_account_that_is_gone_waits_for_the_lanes_policy(sendonce: Call, store: Store) -> None:
    in_doubt(store, provider="old", state="in_doubt")
    answer = sendonce("doubts", "show", "spring")
    assert "old (not configured any more)" in answer.out
    assert "counts them as assumed in 23 h 5" in " ".join(answer.out.split())


def test_a_cancelling_campaign_offers_no_second_letter(sendonce: Call, store: Store) -> None:
    in_doubt(store)
    sendonce("cancel", "spring")
    answer = sendonce("doubts", "show", "spring")
    assert "being cancelled" in answer.out
    assert "doubts resend" not in answer.out


def test_only_what_is_in_doubt_is_shown(sendonce: Call, store: Store) -> None:
    seal(store, "spring", [3], state="running")
    assert "No doubts." in sendonce("doubts", "show", "spring").out
    assert sendonce("doubts", "show", "spring", "--batch", "7").code == 2
    assert sendonce("doubts", "show", "winter").code == 2
