"""A lane with a second sender, through the whole graph."""

from collections import Counter
from pathlib import Path

import pytest

from schemas.tables import OutboundMessage
from sendonce.config import Config, apply_config
from sendonce.control.status import campaign_status
from tests.pipelines.shop import Shop, people


def configure(shop: Shop, own: Path) -> None:
    settings = {
        "senders": {
            "mail": {"adapter": "outbox", "path": str(own)},
            "backup": {"adapter": "outbox", "path": str(shop.folder / "outbox")},
        },
        "lanes": {"bulk": {"sender": "mail", "fallback": "backup"}},
    }
    apply_config(shop.store, Config.model_validate(settings), "test")


def providers(shop: Shop) -> Counter[str]:
    rows = shop.store.read(lambda reader: reader.scan(OutboundMessage))
    return Counter(str(row.provider).partition("/")[0] for row in rows)


def test_letters_go_by_the_second_sender_while_the_first_is_halted_and_come_back(shop: Shop) -> None:
    own = shop.folder / "mail"
    own.write_text("a file stands where the folder should be")
    configure(shop, own)
    shop.campaign("spring", people(50))
    shop.run()
    assert shop.state("spring")[0] == "completed"
    assert set(shop.outcomes("spring").values()) == {"accepted"}
    assert providers(shop) == {"backup": 50}
    assert len(shop.letters()) == 50

    own.unlink()
    shop.campaign("summer", people(20, first=100))
    shop.run()  # whoever starts a job has mended it
    assert shop.state("summer")[0] == "completed"
    assert providers(shop) == {"backup": 50, "mail": 20}
    assert len(list(own.rglob("*.mbox"))) == 2


def test_status_says_by_which_sender_letters_go_meanwhile(shop: Shop) -> None:
    own = shop.folder / "mail"
    own.write_text("a file stands where the folder should be")
    configure(shop, own)
    shop.campaign("spring", people(10))
    shop.campaign("later", people(10, first=50), state="paused")
    found = campaign_status(shop.store, "spring")
    assert (found.sender, found.sender_now) == ("mail", "mail")
    shop.run()
    found = campaign_status(shop.store, "later")
    assert (found.sender, found.sender_now, found.health.state) == ("mail", "backup", "halted")
    assert found.as_json()["sender_now"] == "backup"


@pytest.mark.parametrize(
    ("lane", "said"),
    [
        ({"sender": "mail", "fallback": "mail"}, "fallback must be another sender"),
        ({"sender": "mail", "fallback": "nobody"}, "names the sender 'nobody'"),
    ],
)
def test_a_fallback_is_another_sender_that_there_is(lane: dict[str, str], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Config.model_validate({"senders": {"mail": {"adapter": "outbox"}}, "lanes": {"bulk": lane}})
