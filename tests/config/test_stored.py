from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from schemas.tables import Limit, Setting
from sendonce.config import (
    Config,
    ConfigFault,
    apply_config,
    config_changes,
    lanes_in,
    load_config,
    senders_in,
    topic_in,
    topics_in,
)
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store, open_store

NOW = datetime(2026, 1, 15, 9, 0, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    url = f"sqlite:///{tmp_path / 'store.db'}"
    init_store(url).close()
    opened = open_store(url, clock=lambda: NOW)
    yield opened
    opened.close()


def config(tmp_path: Path, text: str = "") -> Config:
    path = tmp_path / "sendonce.yaml"
    path.write_text(text)
    return load_config(path, {})


def limits(store: Store) -> dict[tuple[str, str], Limit]:
    return {(row.scope, row.name): row for row in store.read(lambda reader: reader.scan(Limit))}


def test_jobs_read_from_the_store_what_was_applied(store: Store, tmp_path: Path) -> None:
    wanted = config(tmp_path, "lanes: {bulk: {batch_size: 77, limits: [{rate: 5/s}]}}")
    apply_config(store, wanted, "ann")

    assert list(lanes_in(store)) == ["critical", "high", "bulk"]
    assert lanes_in(store)["bulk"] == wanted.lanes["bulk"]
    assert senders_in(store) == wanted.senders
    assert limits(store)["lane:bulk", "rate"].per_s == 5


def test_applying_twice_changes_nothing_and_says_so(store: Store, tmp_path: Path) -> None:
    wanted = config(tmp_path, "lanes: {bulk: {limits: [{rate: 5/s}, {cap: 100/day}]}}")

    first = apply_config(store, wanted, "ann")
    before = store.read(lambda reader: reader.scan(Setting))

    assert {change.action for change in first} == {"add"}
    assert config_changes(store, wanted) == []
    assert apply_config(store, wanted, "bob") == []
    assert store.read(lambda reader: reader.scan(Setting)) == before


def test_what_is_no_longer_set_goes_away_and_other_scopes_stay(store: Store, tmp_path: Path) -> None:
    text = "senders: {o: {adapter: outbox, limits: [{rate: 9/s}]}}\nlanes: {bulk: {limits: [{cap: 100/day}]}}"
    apply_config(store, config(tmp_path, text), "ann")
    other = Limit("other:new", "rate", "rate", per_s=1.0, burst=1)
    store.transact(lambda tx: tx.put(other), tag="test")

    changes = apply_config(store, config(tmp_path), "ann")

    assert {(change.action, change.what) for change in changes if change.action == "remove"} == {
        ("remove", "sender o"),
        ("remove", "limit lane:bulk cap:86400"),
        ("remove", "limit sender:o rate"),
    }
    assert limits(store) == {("other:new", "rate"): other}


@pytest.mark.parametrize(
    ("passed_s", "text", "level"),
    [
        (0.0, "5/s, burst: 100", 2.0),
        (1.0, "5/s, burst: 100", 12.0),  # filled at the old rate of 10/s
        (60.0, "5/s, burst: 100", 20.0),  # never above the old bucket: a change grants nothing
        (60.0, "5/s, burst: 7", 7.0),
    ],
)
def test_changing_a_limit_keeps_the_level_of_its_bucket(
    store: Store, tmp_path: Path, passed_s: float, text: str, level: float
) -> None:
    apply_config(store, config(tmp_path, "lanes: {bulk: {limits: [{rate: 10/s, burst: 20}]}}"), "ann")
    drawn = limits(store)["lane:bulk", "rate"]
    at = store.read(lambda reader: reader.now()) - timedelta(seconds=passed_s)
    store.transact(lambda tx: tx.put(replace(drawn, level=2.0, level_at=at, slow=1.0)), tag="test")

    apply_config(store, config(tmp_path, f"lanes: {{bulk: {{limits: [{{rate: {text}}}]}}}}"), "ann")

    changed = limits(store)["lane:bulk", "rate"]
    assert changed.level == pytest.approx(level, abs=0.01)
    assert changed.per_s == 5


def test_a_store_without_lanes_says_how_to_put_them_there(store: Store) -> None:
    with pytest.raises(ConfigFault, match=r"holds no lanes; run `sendonce config apply`"):
        lanes_in(store)


def test_a_setting_of_another_release_is_named(store: Store) -> None:
    row = Setting("lane", "bulk", '{"name": "bulk", "sender": "o", "colour": "red"}', NOW, "ann")
    store.transact(lambda tx: tx.put(row), tag="test")

    with pytest.raises(ConfigFault, match=r"the lane 'bulk' in the store was written by another release"):
        lanes_in(store)


TOPICS = "outcomes_topic: projects/shop-test/topics/told\ndead_letters_topic: projects/shop-test/topics/dead"


def test_topics_are_read_where_jobs_read_them_and_go_with_their_setting(store: Store, tmp_path: Path) -> None:
    apply_config(store, config(tmp_path, TOPICS), "ann")
    assert store.read(topics_in) == {
        "outcomes": "projects/shop-test/topics/told",
        "dead_letters": "projects/shop-test/topics/dead",
    }
    assert store.read(lambda reader: topic_in(reader, "outcomes")) == "projects/shop-test/topics/told"

    changes = apply_config(store, config(tmp_path, TOPICS.splitlines()[1]), "ann")

    assert [(change.action, change.what) for change in changes] == [("remove", "topic outcomes")]
    assert store.read(lambda reader: topic_in(reader, "outcomes")) is None


def test_topics_from_the_environment_win(tmp_path: Path) -> None:
    (tmp_path / "sendonce.yaml").write_text(TOPICS)
    environment = {"SENDONCE_OUTCOMES_TOPIC": "projects/shop-test/topics/other"}
    assert load_config(tmp_path / "sendonce.yaml", environment).topics() == {
        "outcomes": "projects/shop-test/topics/other",
        "dead_letters": "projects/shop-test/topics/dead",
    }


@pytest.mark.parametrize(
    "name", ["told", "projects/shop-test/subscriptions/told", "projects/x/topics/", "projects/shop-test/topics/goog-x"]
)
@pytest.mark.parametrize("setting", ["outcomes_topic", "dead_letters_topic"])
def test_a_topic_is_named_in_full(tmp_path: Path, setting: str, name: str) -> None:
    (tmp_path / "sendonce.yaml").write_text(f"{setting}: {name}")
    with pytest.raises(ConfigFault, match=f"line 1: {setting}: must be the full name of a Pub/Sub topic"):
        load_config(tmp_path / "sendonce.yaml", {})
    with pytest.raises(ConfigFault, match=f"^SENDONCE_{setting.upper()}: must be the full name of a Pub/Sub topic"):
        load_config(None, {f"SENDONCE_{setting.upper()}": name})
