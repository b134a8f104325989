"""Who gets no letter, or gets it elsewhere: suppressions, lists and guards, through the whole pipeline."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from schemas.tables import Batch
from sendonce.config import Config, ConfigFault, apply_config
from sendonce.control import suppressions
from sendonce.control.campaigns import pause, resume
from sendonce.control.suppression_import import import_suppressions
from sendonce.control.unsubscribe import rotate_key, unsubscribe
from sendonce.delivery.letters import NotAllowed, compiled_for, render
from sendonce.delivery.planner import plan_lane
from sendonce.stores.base import ANY_SHARD, Tx
from tests.delivery.world import TERMS
from tests.pipelines.shop import Shop, people

CASES = Path(__file__).parents[1] / "cases"
pytestmark = pytest.mark.filterwarnings("ignore")


def address(number: int) -> str:
    return f"p{number:04d}@one.example"


def test_suppressions_of_all_letters_and_of_the_campaign_s_list_hold(shop: Shop) -> None:
    suppressions.add(shop.store, address(1), reason="bounced", by="ann")
    suppressions.add(shop.store, address(2), list_name="offers", by="ann")
    suppressions.add(shop.store, address(3), list_name="news", by="ann")
    shop.campaign("spring", people(4), options={"list": "offers"})
    shop.campaign("plain", people(4))
    shop.run()

    assert shop.outcomes("spring") == {
        "p0001": "suppressed.bounced",
        "p0002": "suppressed.manual",
        "p0003": "accepted",
        "p0004": "accepted",
    }
    assert shop.outcomes("plain")["p0002"] == "accepted"
    assert shop.dead_letters() == []


def test_case_unsubscribed_while_paused(shop: Shop) -> None:
    """Who is imported while a campaign is paused gets nothing after it goes on, in whatever letter case."""
    shop.campaign("spring", [{"id": f"u{number}"} for number in range(1, 11)], batch_size=4)
    due(shop, "spring", timedelta(hours=1), first=1)
    shop.run(once=True)
    assert sorted(shop.outcomes("spring").values()).count("accepted") == 4
    pause(shop.store, "spring", "ann")

    import_suppressions(shop.store, CASES / "unsubscribed-while-paused/suppressions.jsonl", by="ann")
    resume(shop.store, "spring", "ann")
    due(shop, "spring", timedelta(), first=1)
    shop.run()

    outcomes = shop.outcomes("spring")
    assert (outcomes["u6"], outcomes["u8"]) == ("suppressed.unsubscribed", "suppressed.bounced")
    assert sorted(outcomes.values()).count("accepted") == 8
    assert len(shop.letters()) == 8


def due(shop: Shop, campaign_id: str, after: timedelta, *, first: int) -> None:
    """Let the batches from `first` on be due a while after now."""

    def work(tx: Tx) -> None:
        rows = [row for row in tx.scan(Batch, ANY_SHARD, campaign_id) if row.batch_no >= first]
        tx.put(*(replace(row, due_at=tx.now() + after) for row in rows))

    shop.store.transact(work, tag="test")


def test_the_link_in_a_letter_takes_its_reader_off_the_next_campaign(shop: Shop) -> None:
    rotate_key(shop.store)
    shop.campaign("spring", people(3), options={"unsubscribe_key": 1, "list": "offers"})
    shop.run()
    letter = next(letter for letter in shop.letters() if address(2) in letter["To"])
    link = letter["List-Unsubscribe"].strip("<>")

    assert letter["List-Unsubscribe-Post"] == "List-Unsubscribe=One-Click"
    assert link in letter.get_body(("plain",)).get_content()  # type: ignore[union-attr]
    assert unsubscribe(shop.store, link.rpartition("/")[2])
    shop.campaign("summer", people(3), options={"list": "offers"})
    shop.campaign("other", people(3), options={"list": "news"})
    shop.run()

    assert shop.outcomes("summer")["p0002"] == "suppressed.unsubscribed"
    assert set(shop.outcomes("other").values()) == {"accepted"}


def test_only_those_who_are_allowed_get_a_letter(shop: Shop) -> None:
    shop.configure(guards={"recipients_allowed": [address(2).upper(), "@two.example"]})
    shop.campaign("spring", people(3))
    shop.run()
    assert shop.outcomes("spring") == {
        "p0001": "skipped.not_allowed",
        "p0002": "accepted",
        "p0003": "skipped.not_allowed",
    }
    assert [letter["To"] for letter in shop.letters()] == [address(2)]
    assert shop.state("spring") == ("completed", None)
    assert shop.dead_letters() == []


def test_a_redirect_changes_where_letters_go_and_nothing_else(shop: Shop) -> None:
    shop.campaign("plain", people(3))
    shop.run()
    plain = {letter["Message-ID"]: letter for letter in shop.letters()}
    suppressions.add(shop.store, address(3), by="ann")
    shop.configure(guards={"redirect_all_to": "qa@shop.example"})
    shop.campaign("spring", people(3))
    shop.run()

    letters = [letter for letter in shop.letters() if letter["Message-ID"] not in plain]
    assert [letter["To"] for letter in letters] == ["qa@shop.example"] * 2
    assert sorted(letter["Subject"] for letter in letters) == ["Hello Name p0001", "Hello Name p0002"]
    assert shop.outcomes("spring")["p0003"] == "suppressed.manual"


def test_a_running_campaign_halts_when_its_lane_turns_to_a_real_sender_that_may_not_work(shop: Shop) -> None:
    shop.campaign("spring", people(3))
    (reference,) = plan_lane(shop.store, TERMS, 10).references
    config = Config.model_validate({"senders": {"mail": {"adapter": "sendgrid", "api_key": "env:KEY"}}})
    apply_config(shop.store, config, "ann")

    with pytest.raises(NotAllowed, match="this store was made for tests"):
        render(shop.store, shop.key, reference, lambda name: compiled_for(shop.store, name))
    with pytest.raises(ConfigFault, match="this store was made for tests"):
        shop.run()
    assert shop.letters() == []
