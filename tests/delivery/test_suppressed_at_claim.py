"""A suppression that was recorded after the letters were made, and before their intent, is obeyed; by list, too."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sendonce.control import suppressions
from sendonce.control.suppression_import import import_suppressions
from tests.control.made import Clock
from tests.delivery.world import CAMPAIGN, World
from tests.fakes import START


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, Clock(START))
    made.campaign([3])
    changed = replace(made.campaign_row(CAMPAIGN), options='{"list": "offers"}')
    made.store.transact(lambda tx: tx.put(changed), tag="test")
    yield made
    made.close()


def test_all_letters_and_the_campaign_s_own_list_count_at_the_claim(world: World) -> None:
    element = world.render(world.plan_one())
    suppressions.add(world.store, "U1@one.example", by="ann")
    suppressions.add(world.store, "u2@one.example", list_name="offers", by="ann")
    suppressions.add(world.store, "u3@one.example", list_name="news", by="ann")
    world.owner(world.sender()).deliver(element)
    assert world.kinds() == "ssa"


def test_an_import_of_thousands_between_render_and_claim_is_obeyed(world: World, tmp_path: Path) -> None:
    element = world.render(world.plan_one())
    world.pass_s(1)
    lines = [*(f"x{number}@two.example" for number in range(2000)), "u2@one.example"]
    (tmp_path / "gone.txt").write_text("\n".join(lines))
    import_suppressions(world.store, tmp_path / "gone.txt", by="ann")
    world.owner(world.sender()).deliver(element)
    assert world.kinds() == "asa"
