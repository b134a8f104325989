"""No letter leaves for people that comes from, or points to, a domain out of an example; tests may have them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sendonce.addresses import is_placeholder
from sendonce.config import Config, ConfigFault, apply_config, senders_in
from sendonce.config.placeholders import address_problem, link_problem
from sendonce.control.campaigns import get_campaign, submit
from sendonce.control.forecast import forecast
from sendonce.control.guards import NotReady, campaign_obstacle
from sendonce.control.pushed_templates import push_template
from sendonce.control.triggers import BadTrigger, Trigger, apply_trigger
from sendonce.stores.base import Store
from sendonce.stores.opening import init_store
from tests.control.made import seal
from tests.control.sending import body, take_one, template
from tests.control.test_guards import with_links

FAR = {"mail": {"adapter": "sendgrid", "api_key": "env:KEY"}}
NEAR = {"mail": {"adapter": "sendgrid", "api_key": "env:KEY", "base_url": "http://127.0.0.1:9"}}
OURS: dict[str, Any] = {"from": "Shop <news@shop.com>", "unsubscribe": {"base_url": "https://shop.com/u"}}
STARTERS: dict[str, Any] = {
    "from": "Example Shop <news@shop.example>",
    "unsubscribe": {"base_url": "https://shop.example/u"},
}


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Store]:
    store = init_store(f"sqlite:///{tmp_path}/live.db", "production")
    yield store
    store.close()


def configure(store: Store, senders: dict[str, Any], **settings: Any) -> None:
    apply_config(store, Config.model_validate({"senders": senders, **settings}), "ann")


@pytest.mark.parametrize(
    ("domain", "reserved"),
    [
        ("shop.example", True),
        ("Mail.Shop.EXAMPLE.", True),
        ("example.com", True),
        ("news.example.org", True),
        ("example.net", True),
        ("a.invalid", True),
        ("a.test", True),
        ("localhost", True),
        ("example.co", False),
        ("myexample.com", False),
        ("example.shop", False),
        ("example.com.shop", False),
        ("shop.com", False),
    ],
)
def test_which_domains_nobody_can_own(domain: str, reserved: bool) -> None:
    assert is_placeholder(domain) is reserved
    assert bool(address_problem(f'"A @ B" <news@{domain}>')) is reserved


@pytest.mark.parametrize(
    ("url", "works"),
    [
        ("https://shop.example/u", False),
        ("https://example.com", False),
        ("http://127.0.0.1:8080/u", False),
        ("http://localhost/u", False),
        ("https://shop.com/example.com", True),
        ("", True),
    ],
)
def test_which_links_lead_nowhere(url: str, works: bool) -> None:
    assert (link_problem(url) == "") is works


def test_settings_out_of_the_starter_are_refused_where_letters_reach_people(live: Store) -> None:
    with pytest.raises(ConfigFault) as fault:
        configure(live, FAR, **STARTERS)
    from_, links = fault.value.problems
    assert "from is Example Shop <news@shop.example>, in a domain that is for examples" in from_
    assert "unsubscribe.base_url is https://shop.example/u" in links
    assert "; set it to" in from_
    assert "; set it to" in links
    with pytest.raises(ConfigFault):  # nothing was applied
        senders_in(live)
    configure(live, FAR, **OURS)


def test_a_fallback_reaches_people_too(live: Store) -> None:
    senders = {"box": {"adapter": "outbox"}, **FAR}
    configure(live, senders, **STARTERS)  # no lane sends by it
    with pytest.raises(ConfigFault):
        configure(live, senders, lanes={"high": {"sender": "box", "fallback": "mail"}}, **STARTERS)


@pytest.mark.parametrize("senders", [{"outbox": {"adapter": "outbox"}}, NEAR], ids=["outbox", "on this machine"])
def test_what_stays_on_this_machine_may_come_from_anywhere(live: Store, senders: dict[str, Any]) -> None:
    seal(live, "spring", [2])
    with_links(live, "spring")
    configure(live, senders, **STARTERS)
    assert submit(live, "spring", "ann").after == "running"


def test_a_store_for_tests_may_have_them(store: Store) -> None:
    seal(store, "spring", [2])
    with_links(store, "spring")
    configure(store, FAR, **STARTERS, recipients_allowed=["@one.example"])
    assert submit(store, "spring", "ann").after == "running"


@pytest.mark.parametrize("priority", ["bulk", "high"])
def test_a_campaign_that_was_loaded_with_them_does_not_start(live: Store, priority: str) -> None:
    """Its addresses are its own from `load` on: settings that were mended later do not mend it."""
    seal(live, "spring", [2], priority=priority)
    with_links(live, "spring")
    configure(live, FAR, **OURS)

    with pytest.raises(NotReady, match=r"its from .* is Shop <news@shop.example>, in a domain") as fault:
        submit(live, "spring", "ann")
    with pytest.raises(BadTrigger) as trigger:
        apply_trigger(live, Trigger("start", "spring", None), "trigger")

    assert (fault.value.reason, trigger.value.reason) == ("placeholder", "placeholder")
    assert "load the list under a new campaign id" in str(fault.value)
    assert get_campaign(live, "spring").state == "ready"


def test_a_campaign_that_runs_is_held_when_its_lane_gets_a_sender_that_reaches_people(live: Store) -> None:
    campaign = seal(live, "spring", [2])
    assert submit(live, "spring", "ann").after == "running"
    configure(live, FAR, **OURS)
    obstacle = live.read(lambda reader: campaign_obstacle(reader, campaign))
    assert obstacle is not None
    assert obstacle.reason == "placeholder"


def test_a_send_is_refused_whose_template_comes_from_an_example(live: Store) -> None:
    configure(live, FAR, **OURS)
    push_template(live, template(), "ann")
    assert take_one(live, body("one")).ended == "applied", "it comes from the settings' own address"

    push_template(live, template(**{"template_yaml": "from: otp@example.com\nlocales: [en]\n"}), "ann")
    refused = take_one(live, body("two"))

    assert (refused.ended, refused.reason) == ("bad", "placeholder")
    assert "otp@example.com" in refused.detail
    assert "template.yaml of otp" in refused.detail


def test_what_starting_would_do_names_the_addresses(store: Store) -> None:
    seal(store, "spring", [2])
    with_links(store, "spring")
    plan = forecast(store, "spring").as_json()
    assert (plan["from"], plan["reply_to"], plan["unsubscribe"], plan["fallback"]) == (
        "Shop <news@shop.example>", None, "https://shop.example/u", None
    )  # fmt: skip
