"""Triggers through the whole graph: late, again, and before their campaign."""

import json

from schemas.elements import TriggerMessage
from tests.pipelines.shop import Shop, people


def trigger(number: int, kind: str, campaign: str) -> TriggerMessage:
    return TriggerMessage(json.dumps({"v": 1, "type": kind, "campaign_id": campaign}).encode(), "{}", str(number))


def test_what_comes_late_is_ignored_and_no_dead_letter(shop: Shop) -> None:
    shop.campaign("spring", people(2), state="ready")
    first = shop.run(triggers=[trigger(1, "start", "spring")])
    late = shop.run(triggers=[trigger(n, kind, "spring") for n, kind in enumerate(("start", "pause", "resume"))])
    assert [result.ended for result in first.triggers] == ["applied"]
    assert [result.ended for result in late.triggers] == ["ignored"] * 3
    assert shop.dead_letters() == []
    assert shop.state("spring")[0] == "completed"


def test_a_campaign_that_was_called_off_before_it_was_loaded_sends_nothing(shop: Shop) -> None:
    """DESIGN: a cancel before its start is kept."""
    early = shop.run(triggers=[trigger(1, "cancel", "spring"), trigger(2, "cancel", "spring")])
    assert [result.ended for result in early.triggers] == ["applied", "ignored"]
    shop.campaign("spring", people(3), state="ready")
    report = shop.run(triggers=[trigger(3, "start", "spring"), trigger(4, "start", "spring")])
    assert [result.ended for result in report.triggers] == ["applied", "ignored"]
    assert shop.state("spring")[0] == "cancelled"
    assert set(shop.outcomes("spring").values()) == {"cancelled"}
    assert shop.letters() == []
    assert shop.dead_letters() == []
