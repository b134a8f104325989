"""Mailbox groups and warm-ups in `sendonce.yaml`."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from schemas.tables import Limit
from sendonce.config import Config, ConfigFault, apply_config, config_changes, domain_groups_in, load_config
from sendonce.config.stored import limit_text
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store


@pytest.fixture
def store(tmp_path: Path):  # type: ignore[no-untyped-def]
    made = init_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield made
    made.close()


def config(folder: Path, text: str) -> Config:
    path = folder / "sendonce.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(path, {})


def fault(folder: Path, text: str) -> str:
    with pytest.raises(ConfigFault) as caught:
        config(folder, text)
    return str(caught.value)


def limits(store: Store) -> dict[str, Limit]:
    return {f"{row.scope} {row.name}": row for row in store.read(lambda reader: reader.scan(Limit))}


TEXT = """
domains:
  google: {limits: [{rate: 50/s, burst: 100}, {cap: 1000/day}]}
  partner: {domains: [Partner.example, "*.partner.example"], limits: [{rate: 5/s}]}
senders:
  outbox: {adapter: outbox, warm_up: {start: 2026-12-01, per_day: [50, 100, 100, 500]}}
"""


def test_groups_and_warm_ups_reach_the_store(store: Store, tmp_path: Path) -> None:
    apply_config(store, config(tmp_path, TEXT), "ann")

    groups = domain_groups_in(store)
    assert groups is not None
    assert [groups.of(f"a@{domain}") for domain in ("gmail.com", "x.partner.example", "one.example")] == [
        "google",
        "partner",
        None,
    ]
    found = limits(store)
    assert sorted(found) == [
        "domain:google cap:86400",
        "domain:google rate",
        "domain:partner rate",
        "warmup:outbox cap:86400",
    ]
    warm_up = found["warmup:outbox cap:86400"]
    assert (warm_up.plan, warm_up.starts_at) == ("[50,100,100,500]", datetime(2026, 12, 1, tzinfo=UTC))
    assert limit_text(warm_up) == "50, 100, 100, 500 a day in the 4 days from 2026-12-01 00:00 UTC"


def test_applying_again_changes_nothing_and_removing_removes(store: Store, tmp_path: Path) -> None:
    wanted = config(tmp_path, TEXT)
    apply_config(store, wanted, "ann")
    assert config_changes(store, wanted) == []

    changes = apply_config(store, config(tmp_path, ""), "ann")

    assert {change.what for change in changes if change.action == "remove"} == {
        "domain google",
        "domain partner",
        *(f"limit {name}" for name in limits_of(TEXT)),
    }
    assert limits(store) == {}
    assert domain_groups_in(store) is None


def limits_of(_: str) -> list[str]:
    return ["domain:google rate", "domain:google cap:86400", "domain:partner rate", "warmup:outbox cap:86400"]


def test_a_plan_that_changes_far_down_is_a_change(store: Store, tmp_path: Path) -> None:
    plan = "senders: {o: {adapter: outbox, warm_up: {start: 2026-12-01, per_day: [1, 2, 3, 4, 5, 6, 7, %s, 9]}}}"
    apply_config(store, config(tmp_path, plan % 7), "ann")

    (change,) = [c for c in config_changes(store, config(tmp_path, plan % 8)) if c.what.startswith("limit")]

    assert change.what == "limit warmup:o cap:86400"


@pytest.mark.parametrize("start", ["2026-12-01T08:00:00+01:00", "2026-12-01 07:00:00Z"])
def test_a_warm_up_may_start_at_a_moment_with_its_zone(tmp_path: Path, start: str) -> None:
    text = f"senders: {{o: {{adapter: outbox, warm_up: {{start: '{start}', per_day: [5]}}}}}}"
    warm_up = config(tmp_path, text).senders["o"].warm_up
    assert warm_up is not None
    assert warm_up.start == datetime(2026, 12, 1, 7, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("domains: {mine: {limits: [{rate: 5/s}]}}", "domains.mine: must list its domains; groups that are known"),
        ("domains: {google: {}}", "domains.google.limits"),
        ("domains: {google: {limits: []}}", "domains.google.limits"),
        ("domains: {google: {limits: [{rate: 5/s}, {rate: 6/s}]}}", "rate is set twice"),
        ("domains: {x: {domains: [a@b.example], limits: [{rate: 5/s}]}}", "'a@b.example' is not a domain"),
        (
            "domains: {x: {domains: [a.example], limits: [{rate: 5/s}]}, "
            "y: {domains: [a.example], limits: [{rate: 5/s}]}}",
            "the domain a.example is in the groups x and y",
        ),
        ("domains: [google]", "domains"),
        ("domains: {google: {limits: [{rate: 5/s}], warm_up: {}}}", "no such setting; known: domains, limits"),
        ("domains: {google: {limit: [{rate: 5/s}]}}", "did you mean limits?"),
        ("senders: {o: {adapter: outbox, warm_up: {start: 2026-12-01, per_dya: [5]}}}", "did you mean per_day?"),
        ("senders: {o: {adapter: outbox, warm_up: {start: soon, per_day: [5]}}}", "must be a date like 2026-12-01"),
        (
            "senders: {o: {adapter: outbox, warm_up: {start: '2026-12-01T08:00', per_day: [5]}}}",
            "must name its zone",
        ),
        ("senders: {o: {adapter: outbox, warm_up: {start: 2026-12-01, per_day: []}}}", "per_day"),
        ("senders: {o: {adapter: outbox, warm_up: {start: 2026-12-01, per_day: [0]}}}", "per_day"),
        ("senders: {o: {adapter: outbox, warm_up: {start: 2026-12-01, per_day: [9, 5]}}}", "must not fall"),
    ],
)
def test_a_bad_setting_names_the_place_and_the_mend(tmp_path: Path, text: str, said: str) -> None:
    assert said in fault(tmp_path, text)
