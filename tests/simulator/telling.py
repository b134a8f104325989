"""A history in words: the steps, the faults in them, and what happened at the provider, in the order of time."""

from schemas.tables import Batch, Decision
from tests.fakes import START, Action
from tests.simulator.course import Event, digest
from tests.simulator.world import World


def lines_of(world: World) -> list[str]:
    """One line each. The same history gives the same lines, in every process."""
    told = [(event.at, number, _of_event(event)) for number, event in enumerate(world.course.events)]
    # The log's own order is kept; what happened at one moment is told after the step or fault that led to it.
    told += [(action.at, 1_000_000 + number, _of_action(action)) for number, action in enumerate(world.log.actions)]
    return [f"{(at - START).total_seconds():11.3f} s  {text}" for at, _, text in sorted(told)]


def trace_of(world: World) -> str:
    """A name for the whole history, to its last outcome: two runs with the same name went the same way."""
    moment = world.moment()
    ended = [
        f"{row.batch_no} {row.state} {row.token} {row.plan_no} {row.round} {row.outcomes.hex()}"
        for row in moment.of(Batch)
    ]
    decided = [f"{row.decision_id} {row.kind} {row.at}" for row in moment.of(Decision)]
    return digest([*lines_of(world), *ended, *decided])


def _of_event(event: Event) -> str:
    indent = "  " * event.step.count(".")
    return f"{indent}{event.name}: {event.fault} {event.what}" if event.fault else f"{indent}{event.name}: {event.what}"


def _of_action(action: Action) -> str:
    people = ",".join(map(str, action.ordinals))
    what = f"{action.what} {action.verdict}".strip()
    attempt = f"attempt …{action.attempt_id[-6:]}, batch {action.batch_no}, ordinals {people}"
    return f"    provider {action.sender}: {what}, {attempt}"
