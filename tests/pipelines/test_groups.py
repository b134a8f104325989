"""Limits of mailbox groups and warm-ups through the real graph."""

import threading
from datetime import UTC, datetime, timedelta

from pipelines.local import Round
from sendonce.cli.watching import wait_text
from tests.pipelines.shop import Shop

DOMAINS = ("gmail.com", "one.example", "googlemail.com", "mx.partner.example")


def mixed(count: int) -> list[dict[str, str]]:
    return [{"id": f"p{n}", "email": f"p{n}@{DOMAINS[n % len(DOMAINS)]}"} for n in range(count)]


def test_only_the_mailboxes_of_a_used_up_group_wait_and_the_run_says_so(shop: Shop) -> None:
    groups = {
        "google": {"limits": [{"cap": "7/day"}]},
        "partner": {"domains": ["*.partner.example"], "limits": [{"cap": "3/day"}]},
    }
    shop.configure(guards={"domains": groups})
    shop.campaign("spring", mixed(48), batch_size=8)
    stop = threading.Event()
    told: list[Round] = []

    def look(found: Round) -> None:
        told.append(found)
        if found.sleep_s > 0.5:
            stop.set()

    report = shop.run(stop=stop, progress=look)

    sent = [letter["To"].rpartition("@")[2] for letter in shop.letters()]
    assert sum(domain in ("gmail.com", "googlemail.com") for domain in sent) == 7
    assert sent.count("mx.partner.example") == 3
    assert sent.count("one.example") == 12
    assert report.unfinished == 48 - 22
    left = told[-1].left
    assert left.due_for == "limit"
    # A batch that waits for two groups says which comes first.
    assert {"domain google: 7/day"} <= set(left.full_limits) <= {"domain google: 7/day", "domain partner: 3/day"}
    assert "domain google: 7/day" in wait_text(left)


def test_a_rate_of_a_group_lets_everybody_through_in_the_end(shop: Shop) -> None:
    shop.configure(guards={"domains": {"google": {"limits": [{"rate": "20/s", "burst": 4}]}}})
    shop.campaign("spring", mixed(60), batch_size=20)
    assert shop.run().ended == "done"
    assert len(shop.letters()) == 60


def test_a_warm_up_sends_its_first_day_and_waits(shop: Shop) -> None:
    start = datetime.now(UTC) - timedelta(hours=1)
    shop.configure(sender={"warm_up": {"start": start.isoformat(), "per_day": [5, 9]}})
    shop.campaign("spring", mixed(20), batch_size=8)
    assert shop.run(once=True).unfinished == 15
    assert shop.run(once=True).unfinished == 15
    assert len(shop.letters()) == 5
