"""A campaign on the Spanner store from its file to its last outcome: what it costs, and by which ways it reads."""

import re
from pathlib import Path
from typing import Any

import pytest

from schemas.tables import (
    TABLES,
    Attempt,
    Batch,
    DeliveryEvent,
    IdempotencyKey,
    OutboundMessage,
    Permit,
    Recipient,
    Table,
)
from sendonce.stores.opening import shared_store
from tests.cli.conftest import Call, folder, sendonce  # noqa: F401  (fixtures)
from tests.stores.commits import MUTATIONS_MAX, Calls, watched

pytestmark = pytest.mark.usefixtures("spanner")
pytest.importorskip("google.cloud.spanner", reason="google-cloud-spanner is not installed")
URL = "spanner://sendonce-test/campaign/store"
PEOPLE, BATCH, REQUEST = 60, 30, 10
# A bucket of 20 lets a request take 10: three requests a batch. It is full again before the next: nobody waits.
SETTINGS = f"""\
store: {URL}
from: Shop <news@shop.example>
unsubscribe: {{base_url: "https://shop.example/u"}}
lanes: {{bulk: {{batch_size: {BATCH}, parallel: 1, limits: [{{rate: 5000/s, burst: {2 * REQUEST}}}]}}}}
"""
# Tables that grow with what is sent; the others hold settings, campaigns, jobs: what people made, one by one.
LARGE = [TABLES[kind] for kind in (Recipient, Batch, Attempt, OutboundMessage, Permit, IdempotencyKey, DeliveryEvent)]


@pytest.fixture
def calls(sendonce: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Calls:  # noqa: F811
    """What everything asks of Spanner, from the load of a campaign on."""
    (folder / "sendonce.yaml").write_text(SETTINGS)
    rows = [f"r{number},u{number}@one.example,Ann" for number in range(PEOPLE)]
    (folder / "people.csv").write_text("\n".join(["recipient_id,email,name", *rows]))
    assert sendonce("init").code == 0
    return watched(shared_store(URL), monkeypatch)


@pytest.mark.filterwarnings("ignore")
def test_what_a_campaign_costs_and_that_nothing_reads_a_table_whole(sendonce: Call, calls: Calls) -> None:  # noqa: F811
    for command in (("load", "spring", "people.csv", "-t", "newsletter"), ("submit", "spring"), ("run",)):
        assert sendonce(*command).code == 0
    status = sendonce("status", "spring", "--json").json
    assert (status["state"], status["sent_count"]) == ("completed", PEOPLE)

    # Requests + 2 read-write transactions a batch: one for each request, the claim, and the plan, which batches share.
    batches, requests = PEOPLE // BATCH, PEOPLE // REQUEST
    steps = {tag: calls.by_tag[tag] for tag in ("plan", "claim", "advance")}
    assert steps["advance"] == requests
    assert steps["claim"] == batches
    assert 1 <= steps["plan"] <= batches
    assert calls.largest < MUTATIONS_MAX

    # Whoever plans looks outside transactions: it locks nothing that a claim writes.
    looks = [transaction for request, transaction, _ in calls.reads if request == "scan:batches_open"]
    assert "" in looks
    assert set(looks) <= {"", "settle_campaign"}, "only the end of a campaign is looked for again where it is written"

    for command in (
        ("list",),
        ("lanes",),
        ("doctor",),
        ("doubts", "list"),
        ("outcome", "spring", "r1"),
        ("export", "spring", "-o", "out.csv"),
        ("load", "autumn", "people.csv", "-t", "newsletter"),
        ("rehearse", "autumn"),
        ("submit", "autumn"),
        ("pause", "autumn"),
        ("cancel", "autumn"),
    ):
        assert sendonce(*command).code == 0, command
    statements = {text for _, _, text in calls.reads if text.startswith("SELECT")}
    assert len(statements) > 10
    assert [text for text in sorted(statements) if not _by_key(text)] == []


def _by_key(statement: str) -> bool:
    """Whether a statement over a large table names the beginning of its primary key, or of the index that it forces."""
    found = re.search(r"FROM `(\w+)`(?:@\{FORCE_INDEX=(\w+)[^}]*\})?", statement)
    if found is None:
        return True
    table = next((table for table in LARGE if table.name == found[1]), None)
    if table is None:
        return True
    key = _key(table, found[2])
    bound = {name for name in key if re.search(rf"`{name}` (=|IN|<=|>|IS NULL)", statement)}
    # A shard alone chooses nothing: what comes behind it must be bound as well.
    return set(key[: 2 if key[0] == "shard" else 1]) <= bound


def _key(table: Table, index: str | None) -> tuple[str, ...]:
    return table.key if index is None else table.index_named(index).columns


def test_the_judge_of_statements_sees_a_scan_of_a_whole_table() -> None:
    whole: list[Any] = ["SELECT `state` FROM `campaign_batches`"]
    whole.append("SELECT * FROM `campaign_batches` WHERE `shard` IN (0, 1) ORDER BY `shard`")
    whole.append("SELECT * FROM `campaign_batches` WHERE `campaign_id` = @p0")
    whole.append("SELECT * FROM `send_permits`@{FORCE_INDEX=permits_by_use} WHERE `used_by` > @p0")
    assert not any(map(_by_key, whole))
    assert _by_key("SELECT * FROM `campaign_batches` WHERE `shard` IN (0, 1) AND `campaign_id` = @p0")
    assert _by_key("SELECT * FROM `send_permits`@{FORCE_INDEX=permits_by_use} WHERE `scope` = @p0")
