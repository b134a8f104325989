"""The delivery core under random faults keeps its invariants; without any one of its four guards it does not."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from schemas.outcomes import Outcome
from schemas.tables import Batch
from sendonce.delivery import batches, limits, reopening, retrying
from sendonce.delivery.limits import Grant
from sendonce.delivery.protocol import owning
from sendonce.delivery.terms import Move
from tests.chaos.simulation import World

SEEDS = (*range(40), 222, 297, 790, 1173)
MANY_SEEDS = range(300)
STEPS = 60


# Where doubts are resent and no provider de-duplicates, a request that starts too late makes a duplicate.
NO_SAFETY_NET = {"window_s": None, "in_doubt": "resend", "limits": ()}


def broken(seed: int, folder: Path, **changes: Any) -> set[str]:
    """The invariants that this seed breaks; `crash` if the core gave up."""
    folder.mkdir()
    try:
        return World(seed, folder, **changes).play(STEPS).broken
    except AssertionError:
        return {"crash"}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_keeps_every_invariant(seed: int, tmp_path: Path) -> None:
    findings = World(seed, tmp_path).play(STEPS)
    assert [str(violation) for violation in findings.violations] == []
    assert sum(findings.outcomes.values()) == findings.recipients
    assert findings.outcomes["open"] == 0


def test_a_breaker_that_opens_at_every_failure_lets_one_request_out_at_a_time(tmp_path: Path) -> None:
    probes = 0
    for seed in range(25):
        world = World(seed, tmp_path, failures_to_open=1)
        findings = world.play(STEPS)
        assert [str(violation) for violation in findings.violations] == [], f"seed {seed}"
        assert findings.outcomes["open"] == 0
        probes += world.probes
    assert probes >= 5


def test_seeds_retry_and_keep_every_invariant(tmp_path: Path) -> None:
    """Retries race claims, kills, pauses, cancels and each other; whoever was accepted is never opened (I10)."""
    rounds = 0
    for seed in range(100, 125):
        world = World(seed, tmp_path, retries=True)
        findings = world.play(STEPS)
        assert [str(violation) for violation in findings.violations] == [], f"seed {seed}"
        assert findings.outcomes["open"] == 0
        rounds += world.rounds
    assert rounds >= 10


def test_seeds_fail_over_and_keep_every_invariant(tmp_path: Path) -> None:
    """The first provider goes away and comes back; what it may have taken never moves, whoever dies meanwhile."""
    moved = back = 0
    for seed in range(200, 225):
        many = {"batches": 5, "batch_size": 4, "per_call": 1 + seed % 3}
        world = World(seed, tmp_path, fallback=True, failures_to_open=1 + seed % 3, **many)
        findings = world.play(STEPS)
        assert [str(violation) for violation in findings.violations] == [], f"seed {seed}"
        assert findings.outcomes["open"] == 0
        by_fallback, by_own_again = world.ways()
        moved, back = moved + (by_fallback > 0), back + (by_own_again > 0)
    assert moved >= 10
    assert back >= 10


def test_a_seed_repeats_itself(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    first, second = World(11, tmp_path), World(11, tmp_path / "again")
    assert first.play(STEPS).outcomes == second.play(STEPS).outcomes
    told = [[(a.what, a.attempt_id, a.ordinals, a.at) for a in world.log.actions] for world in (first, second)]
    assert told[0] == told[1]
    assert told[0]


class _WhoeverOwnsIt:
    """A transaction in which a batch always seems to be in this owner's hands, with this owner's request open."""

    def __init__(self, tx: Any, mine: Batch) -> None:
        self._tx = tx
        self._mine = mine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def get(self, kind: type[Any], *key: Any) -> Any:
        found = self._tx.get(kind, *key)
        if kind is not Batch or found is None:
            return found
        mine = self._mine
        return replace(found, state="sending", token=mine.token, attempt_id=mine.attempt_id, permit_at=mine.permit_at)


def no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever was overtaken writes all the same."""
    real = owning.advance

    def advance(tx: Any, terms: Any, mine: Batch, *rest: Any) -> Any:
        return real(_WhoeverOwnsIt(tx, mine), terms, mine, *rest)

    monkeypatch.setattr(owning, "advance", advance)


def no_intent(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(real: Callable[..., Any]) -> Callable[..., Any]:
        def step(tx: Any, *rest: Any) -> Any:
            turn = real(tx, *rest)
            if turn.move is Move.GO:
                tx.put(replace(turn.batch, **batches.NO_INTENT))
            return turn

        return step

    monkeypatch.setattr(owning, "claim", without(owning.claim))
    monkeypatch.setattr(owning, "advance", without(owning.advance))


def no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    real = World.owner

    def owner(world: World) -> Any:
        deliverer = real(world)
        deliverer._clocks = replace(deliverer._clocks, own_s=lambda: 0.0)
        return deliverer

    monkeypatch.setattr(World, "owner", owner)


def no_permit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ask", lambda reader, found, n, now: Grant(n, ()))
    monkeypatch.setattr(limits, "take", lambda *_: None)
    monkeypatch.setattr(limits, "ask_shares", lambda reader, shares, now: ({}, []))


def no_care(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry opens whoever has a final outcome, refused or not."""

    def final_in(batch: Batch, part: int | None = None) -> dict[int, Outcome]:
        ordinals = [ordinal for ordinal, code in enumerate(batch.outcomes) if Outcome(code).final]
        return {o: Outcome.PROVIDER_REFUSED for o in ordinals if part is None or reopening.slice_of(o) == part}

    def reopened(batch: Batch, ordinals: Any, round_no: int, due_at: Any) -> Batch:
        codes = bytearray(batch.outcomes)
        for ordinal in ordinals:
            codes[ordinal] = Outcome.OPEN
        opened = batches.recount(replace(batch, outcomes=bytes(codes), round=round_no))
        return batches.waiting(opened, due_at, None)

    monkeypatch.setattr(reopening, "refused_in", final_in)
    monkeypatch.setattr(retrying, "refused_in", final_in)
    monkeypatch.setattr(reopening, "_maybe_reached", lambda *_: frozenset())
    monkeypatch.setattr(batches, "reopened", reopened)


@pytest.mark.parametrize(
    ("remove", "changes"),
    [
        (no_fence, {}),
        (no_intent, {}),
        (no_deadline, NO_SAFETY_NET),
        (no_permit, {}),
        (no_care, {"retries": True}),
    ],
)
def test_without_one_of_its_guards_the_core_breaks(
    remove: Callable[[pytest.MonkeyPatch], None],
    changes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    with monkeypatch.context() as without:
        remove(without)
        found = next((seed for seed in MANY_SEEDS if broken(seed, tmp_path / f"without-{seed}", **changes)), None)
    assert found is not None
    assert broken(found, tmp_path / "with", **changes) == set()
