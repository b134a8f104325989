"""docs/triggers.md: every JSON in it is what it says, and every reason of a dead trigger is explained."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from schemas.elements import DeadLetter
from schemas.tables import Notice
from sendonce.config import Config, apply_config
from sendonce.control.dead_letters import write_dead_letters
from sendonce.control.triggers import read_trigger
from sendonce.stores.opening import init_store

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "triggers.md").read_text()
SCHEMA = json.loads((ROOT / "schemas" / "trigger.schema.json").read_text())


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```json {kind}\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


def test_every_json_block_says_what_it_is() -> None:
    kinds = re.findall(r"^```json(.*)$", PAGE, re.MULTILINE)
    assert {kind.strip() for kind in kinds} == {"trigger", "outcome", "dead-letter"}


def inline() -> list[str]:
    """Triggers within a sentence."""
    return re.findall(r'`(\{"v":.*?\})`', PAGE)


def test_every_trigger_is_one() -> None:
    found = [*blocks("trigger"), *inline()]
    assert len(found) >= 4
    for text in found:
        jsonschema.validate(json.loads(text), SCHEMA)
        read_trigger(text.encode())


def test_every_field_of_the_schema_is_explained() -> None:
    fields = {*SCHEMA["$defs"]["start"]["properties"], *SCHEMA["$defs"]["send"]["properties"]}
    fields |= {*SCHEMA["$defs"]["send"]["properties"]["recipients"]["items"]["properties"]}
    assert {field for field in fields if f"`{field}`" not in PAGE} == set()


def test_every_reason_of_a_dead_trigger_is_explained() -> None:
    code = "\n".join(path.read_text() for path in (ROOT / "sendonce" / "control").glob("*.py"))
    reasons = set(re.findall(r'BadTrigger\(\s*"(\w+)"', code)) | {"no_guard", "no_unsubscribe", "expired", "bad_at"}
    assert len(reasons) > 15
    assert {reason for reason in reasons if f"`{reason}`" not in PAGE} == set()


@pytest.mark.needs("google.cloud.pubsub_v1")
def test_the_outcome_is_one() -> None:
    from sendonce.listen import read_outcome

    (text,) = blocks("outcome")
    outcome = read_outcome(text.encode())
    assert (outcome.outcome, outcome.at.year) == ("accepted", 2026)
    assert set(json.loads(text)) == {"v", "message_id", "idempotency_key", "outcome", "reason", "at"}


def test_the_dead_letter_has_the_fields_of_one(tmp_path: Path) -> None:
    (text,) = blocks("dead-letter")
    store = init_store(f"sqlite:///{tmp_path / 'store.db'}")
    apply_config(store, Config.model_validate({"dead_letters_topic": "projects/shop-test/topics/dead"}), "test")
    write_dead_letters(store, [DeadLetter("trigger", "invalid", "", body=b"x")])
    (notice,) = store.read(lambda reader: reader.scan(Notice))
    store.close()
    told: dict[str, Any] = json.loads(notice.body)
    assert list(json.loads(text)) == list(told)


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((\.\.?/[^)#]+)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
