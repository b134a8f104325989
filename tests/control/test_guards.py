import json
from pathlib import Path

import pytest

from schemas.tables import Campaign, Setting
from sendonce.config import Config, ConfigFault, apply_config, config_changes
from sendonce.control.campaigns import get_campaign, submit
from sendonce.control.guards import Guards, NotReady, campaign_obstacle, guards_in, sender_obstacle
from sendonce.control.triggers import BadTrigger, Trigger, apply_trigger
from sendonce.stores.base import Store, Tx
from sendonce.stores.opening import init_store
from tests.control.made import seal

SENDGRID = {"mail": {"adapter": "sendgrid", "api_key": "env:KEY"}}


def configure(store: Store, **settings: object) -> None:
    apply_config(store, Config.model_validate({"senders": SENDGRID, **settings}), "ann")


def with_links(store: Store, campaign_id: str) -> None:
    def work(tx: Tx) -> None:
        row = tx.get(Campaign, campaign_id)
        assert row is not None
        options = json.dumps({"unsubscribe_base_url": "https://shop.example/u"})
        tx.put(Campaign(**{**row.__dict__, "options": options}))

    store.transact(work, tag="test")


@pytest.mark.parametrize(
    ("allowed", "email", "may"),
    [
        (None, "ann@one.example", True),
        (["ann@one.example"], "Ann@ONE.example", True),
        (["ann@one.example"], "bob@one.example", False),
        (["@one.example"], "bob@One.Example", True),
        (["@one.example"], "bob@sub.one.example", False),
        (["@one.example"], "bob@notone.example", False),
        (["@xn--bcher-kva.example"], "bob@bücher.example", True),
        (["@one.example"], "not an address", False),
    ],
)
def test_who_is_allowed(allowed: list[str] | None, email: str, may: bool) -> None:
    assert Guards(None if allowed is None else frozenset(allowed)).allows(email) is may


def test_guards_go_through_the_settings_into_the_store_and_out_again(store: Store) -> None:
    configure(store, recipients_allowed=["Ann@One.example", "@BÜCHER.example"], redirect_all_to="QA@Shop.example")
    found = store.read(guards_in)
    assert found == Guards(frozenset({"ann@one.example", "@xn--bcher-kva.example"}), "QA@shop.example")

    configure(store)
    assert not store.read(guards_in)
    assert store.read(lambda reader: reader.scan(Setting, "guard")) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"recipients_allowed": []},
        {"recipients_allowed": ["ann"]},
        {"recipients_allowed": ["@"]},
        {"recipients_allowed": ["Ann <ann@one.example>"]},
        {"redirect_all_to": "qa"},
        {"redirect_all_to": "a@one.example, b@one.example"},
        {"environment": "staging"},
    ],
    ids=str,
)
def test_a_guard_that_cannot_hold_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Config.model_validate(settings)


@pytest.mark.parametrize("guard", [{"recipients_allowed": ["@one.example"]}, {"redirect_all_to": "qa@shop.example"}])
def test_a_real_sender_works_from_a_test_store_only_under_a_guard(store: Store, guard: dict[str, object]) -> None:
    configure(store)
    told = store.read(lambda reader: sender_obstacle(reader, "mail"))
    assert "sender mail reaches real people, and this store was made for tests" in told
    assert "`sendonce init --environment production`" in told

    configure(store, **guard)
    assert store.read(lambda reader: sender_obstacle(reader, "mail")) == ""


def test_a_store_for_production_and_the_outbox_need_no_guard(store: Store, tmp_path: Path) -> None:
    assert store.read(lambda reader: sender_obstacle(reader, "outbox")) == ""
    live = init_store(f"sqlite:///{tmp_path}/live.db", "production")
    configure(live)
    assert live.read(lambda reader: sender_obstacle(reader, "mail")) == ""
    live.close()


def test_a_bulk_campaign_by_a_real_sender_needs_unsubscribe_links(store: Store) -> None:
    seal(store, "spring", [2])
    seal(store, "codes", [2], priority="critical")
    configure(store, recipients_allowed=["@one.example"])

    with pytest.raises(NotReady, match="its letters have no unsubscribe links; set `unsubscribe:") as fault:
        submit(store, "spring", "ann")
    assert fault.value.reason == "no_unsubscribe"
    assert get_campaign(store, "spring").state == "ready"
    assert submit(store, "codes", "ann").after == "running"

    with_links(store, "spring")
    assert submit(store, "spring", "ann").after == "running"


def test_a_trigger_is_refused_for_the_same_reasons(store: Store) -> None:
    seal(store, "spring", [2])
    configure(store)
    with pytest.raises(BadTrigger) as no_guard:
        apply_trigger(store, Trigger("start", "spring", None), "trigger")
    configure(store, redirect_all_to="qa@shop.example")
    with pytest.raises(BadTrigger) as no_links:
        apply_trigger(store, Trigger("start", "spring", None), "trigger")
    assert (no_guard.value.reason, no_links.value.reason) == ("no_guard", "no_unsubscribe")


def test_a_campaign_by_the_outbox_starts_as_it_is(store: Store) -> None:
    campaign = seal(store, "spring", [2])
    assert store.read(lambda reader: campaign_obstacle(reader, campaign)) is None
    assert submit(store, "spring", "ann").after == "running"


def test_settings_for_production_never_meet_a_store_for_tests(store: Store) -> None:
    with pytest.raises(ConfigFault, match=r"the settings are for production, .* was made for test"):
        configure(store, environment="production")
    assert store.read(lambda reader: reader.scan(Setting, "sender")) == []
    configure(store, environment="test")


def test_changes_name_a_guard(store: Store) -> None:
    configure(store)
    config = Config.model_validate({"senders": SENDGRID, "redirect_all_to": "qa@shop.example"})
    assert [(change.action, change.what) for change in config_changes(store, config)] == [
        ("add", "guard redirect_all_to")
    ]
