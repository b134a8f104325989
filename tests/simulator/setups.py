"""What differs between seeds besides the faults: the campaign, its lane, its provider, which faults there may be."""

import math
import random
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import orjson

from schemas.tables import Limit
from sendonce.delivery import health
from tests.fakes import START

GROUPS = {"slow": ["slow.example"], "scarce": ["*.scarce.example"]}


@dataclass(frozen=True)
class Setup:
    """One simulated world.

    in_doubt, outbound_log, limits: of the lane. window_s: for how long the provider knows a request by its key (None:
    never). mixes_forms, per_call: what one request may carry. stops: who stops the campaign, and how: `pause`,
    `cancel`, `triggers` (those, published often and out of order), `switch` (the lane or everything is stopped).
    groups: recipients at mailbox providers that have limits. retries: whoever was refused is opened again.
    starts_s, ends_s: when the campaign starts and ends, from the beginning. aborts: percent of the store's
    transactions that it runs again. events: the provider tells later what it took. skewed: each process has a clock of
    its own, up to an hour wrong. jumps: the store's machine's clock is set ahead and back.
    """

    in_doubt: str
    window_s: float | None
    mixes_forms: bool
    per_call: int
    batch_size: int
    batches: int
    outbound_log: str
    limits: tuple[Limit, ...]
    stops: str
    groups: bool = False
    retries: bool = False
    failures_to_open: int = health.FAILURES_TO_OPEN
    fallback: bool = False
    starts_s: float | None = None
    ends_s: float | None = None
    aborts: int = 2
    events: bool = False
    skewed: bool = False
    jumps: bool = False


def setup_for(seed: int, **changes: Any) -> Setup:
    """The world of a seed. changes: fields that are not left to it."""
    chance = random.Random(f"{seed} setup")
    starts_s = chance.uniform(-5, 30) if chance.random() < 0.15 else None
    setup = Setup(
        in_doubt=chance.choice(("hold", "assume", "resend")),
        window_s=chance.choice((None, None, 60.0, math.inf)),
        mixes_forms=chance.random() < 0.5,
        per_call=chance.choice((1, 3, 100)),
        batch_size=chance.choice((1, 3, 6)),
        batches=chance.randint(1, 4),
        outbound_log=chance.choice(("rows", "packed")),
        limits=_limits(chance),
        stops=chance.choice(("", "", "", "pause", "pause", "cancel", "triggers", "switch")),
        retries=chance.random() < 0.3,
        failures_to_open=chance.choice((1, 3, health.FAILURES_TO_OPEN)),
        fallback=chance.random() < 0.2,
        starts_s=starts_s,
        ends_s=max(starts_s or 0.0, 0.0) + chance.uniform(1, 60) if chance.random() < 0.25 else None,
        aborts=chance.choice((2, 2, 2, 5, 50)),
        events=chance.random() < 0.4,
        skewed=chance.random() < 0.3,
        jumps=chance.random() < 0.2,
    )
    if chance.random() < 0.35:
        # Limits of mailbox providers are judged by when letters came, which a clock that jumps tells wrong.
        setup = replace(setup, groups=True, jumps=False, limits=(*setup.limits, *_of_groups(chance)))
    return replace(setup, **changes)


def _limits(chance: random.Random) -> tuple[Limit, ...]:
    rate = Limit("lane:bulk", "rate", "rate", per_s=chance.choice((2.0, 5.0, 20.0)), burst=chance.randint(1, 8))
    cap = Limit("sender:fake", "cap:20", "cap", most=chance.randint(1, 12), window_s=20.0)
    return chance.choice(((), (rate,), (rate, cap)))


def _of_groups(chance: random.Random) -> list[Limit]:
    """Recipients with three operators, of which one or two have limits of their own; now and then a warm-up."""
    rate = chance.choice((0.5, 2.0, 10.0))
    more = [Limit("domain:slow", "rate", "rate", per_s=rate, burst=chance.randint(1, 5))]
    if chance.random() < 0.5:
        more.append(Limit("domain:scarce", "cap:30", "cap", most=chance.randint(1, 4), window_s=30.0))
    if chance.random() < 0.4:
        plan = sorted(chance.randint(1, 9) for _ in range(chance.randint(1, 4)))
        starts_at = START + timedelta(seconds=chance.choice((-50, 0, 20)))
        warm_up = Limit("warmup:fake", "cap:60", "cap", most=plan[-1], window_s=60.0, starts_at=starts_at)
        more.append(replace(warm_up, plan=orjson.dumps(plan).decode()))
    return more
