"""How often a campaign's batches are summed up: each time is a transaction that a request could have had."""

from schemas.tables import Progress
from sendonce.delivery.resolver import Policy
from sendonce.delivery.sweeper import SweepMemory, sweep_lane
from tests.control.sending import rows
from tests.delivery.world import CAMPAIGN, TERMS, World


def sweep(world: World, memory: SweepMemory) -> list[Progress]:
    sweep_lane(world.store, world.key, TERMS, Policy("hold", "rows"), world._id, memory)
    return rows(world.store, Progress, CAMPAIGN)


def test_a_campaign_is_summed_up_once_a_second_and_exactly_at_its_end(world: World) -> None:
    world.campaign([3, 3])
    memory, sender = SweepMemory(), world.sender()
    (first,) = sweep(world, memory)
    assert (first.n_open, first.batches_pending) == (6, 2)
    world.owner(sender).deliver(world.render(world.plan_one()))
    world.pass_s(0.9)
    assert sweep(world, memory) == [first]
    world.pass_s(0.2)
    (second,) = sweep(world, memory)
    assert (second.n_open, second.n_accepted) == (3, 3)
    world.owner(sender).deliver(world.render(world.plan_one()))
    (last,) = sweep(world, memory)  # the campaign's end does not wait for the next second
    assert (last.n_open, last.n_accepted, last.batches_done) == (0, 6, 2)
    assert memory.summed_at.keys() == {CAMPAIGN}
    sweep(world, memory)
    assert memory.summed_at == {}


def test_another_process_sums_up_by_itself(world: World) -> None:
    world.campaign([3])
    (first,) = sweep(world, SweepMemory())
    world.pass_s(0.1)
    (second,) = sweep(world, SweepMemory())
    assert second.at > first.at
