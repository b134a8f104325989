"""Settings that are applied while a job runs hold from its next request on, also those of a new scope."""

import threading

from pipelines.local import Round
from sendonce.delivery.lanes import running_lanes
from tests.pipelines.shop import Shop


def people(count: int) -> list[dict[str, str]]:
    return [{"id": f"p{number:04}", "email": f"p{number:04}@gmail.com"} for number in range(count)]


def test_a_limit_of_a_new_scope_holds_at_once(shop: Shop) -> None:
    """A cap on a mailbox group, applied between the first request and the second: the second counts by it."""
    shop.configure(batch_size=10)
    shop.campaign("spring", people(60), batch_size=10)
    stop = threading.Event()
    shop.run(once=True, stop=stop)  # the process has read the settings and keeps them for some seconds
    assert len(shop.letters()) == 60
    shop.campaign("summer", people(60), batch_size=10)
    shop.configure(batch_size=10, guards={"domains": {"google": {"limits": [{"cap": "7/day"}]}}})
    told: list[Round] = []

    def look(found: Round) -> None:
        told.append(found)
        if found.sleep_s > 0.5:
            stop.set()

    assert shop.run(stop=stop, progress=look).unfinished == 53
    assert len(shop.letters()) == 67


def test_applying_the_same_again_disturbs_nobody(shop: Shop) -> None:
    before = running_lanes(shop.store, ("bulk",))["bulk"].terms
    shop.configure()
    assert running_lanes(shop.store, ("bulk",))["bulk"].terms.revision == before.revision
