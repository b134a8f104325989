"""Four deliberate bugs, each of which takes one guard of the delivery protocol away: a suite that does not fail with
every one of them proves nothing. They are put in from outside, by tests alone.

    no_fence      whoever was overtaken writes all the same
    no_intent     a request leaves without a trace in the store
    no_deadline   nobody looks at the clock before the first byte
    no_permit     every request is granted, whatever its limits say
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from schemas.tables import Batch
from sendonce.delivery import batches, limits
from sendonce.delivery.deliver import Deliverer
from sendonce.delivery.limits import Grant
from sendonce.delivery.protocol import owning
from sendonce.delivery.terms import Move

# Puts another value in the place of an attribute.
Put = Callable[[Any, str, Any], None]


class _AsSeen:
    """A transaction in which one batch looks as `seen` makes it look."""

    def __init__(self, tx: Any, seen: Callable[[Batch], Batch]) -> None:
        self._tx = tx
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)

    def get(self, kind: type[Any], *key: Any) -> Any:
        found = self._tx.get(kind, *key)
        return self._seen(found) if kind is Batch and found is not None else found


def _no_fence(put: Put) -> None:
    real = owning.advance

    def advance(tx: Any, terms: Any, mine: Batch, *rest: Any) -> Any:
        def as_owned(found: Batch) -> Batch:
            owned = {"token": mine.token, "attempt_id": mine.attempt_id, "permit_at": mine.permit_at}
            return replace(found, state="sending", **owned)  # type: ignore[arg-type]

        return real(_AsSeen(tx, as_owned), terms, mine, *rest)  # type: ignore[arg-type]

    put(owning, "advance", advance)


def _no_intent(put: Put) -> None:
    """The owner remembers what it asked for, as if the store did."""
    claimed, advanced = owning.claim, owning.advance

    def unwritten(tx: Any, turn: Any) -> Any:
        if turn.move is Move.GO:
            tx.put(replace(turn.batch, **batches.NO_INTENT))
        return turn

    def claim(tx: Any, *rest: Any) -> Any:
        return unwritten(tx, claimed(tx, *rest))

    def advance(tx: Any, terms: Any, mine: Batch, *rest: Any) -> Any:
        def as_remembered(found: Batch) -> Batch:
            if (found.state, found.token, found.attempt_id) != ("sending", mine.token, None):
                return found
            return replace(found, **{name: getattr(mine, name) for name in batches.NO_INTENT})

        return unwritten(tx, advanced(_AsSeen(tx, as_remembered), terms, mine, *rest))  # type: ignore[arg-type]

    put(owning, "claim", claim)
    put(owning, "advance", advance)


def _no_deadline(put: Put) -> None:
    real = Deliverer.__init__

    def made(owner: Deliverer, *given: Any, **named: Any) -> None:
        real(owner, *given, **named)
        owner._clocks = replace(owner._clocks, own_s=lambda: 0.0)

    put(Deliverer, "__init__", made)


def _no_permit(put: Put) -> None:
    put(limits, "ask", lambda reader, found, n, now: Grant(n, ()))
    put(limits, "take", lambda *_, **__: None)
    put(limits, "ask_shares", lambda reader, shares, now: ({}, []))


BUGS: dict[str, Callable[[Put], None]] = {
    "no_fence": _no_fence,
    "no_intent": _no_intent,
    "no_deadline": _no_deadline,
    "no_permit": _no_permit,
}


@contextmanager
def bug(name: str | Callable[[Put], None] | None) -> Iterator[None]:
    """This process has the bug inside the block; None: no bug."""
    before: list[tuple[Any, str, Any]] = []

    def put(owner: Any, attribute: str, value: Any) -> None:
        before.append((owner, attribute, getattr(owner, attribute)))
        setattr(owner, attribute, value)

    if name is not None:
        (BUGS[name] if isinstance(name, str) else name)(put)
    try:
        yield
    finally:
        for owner, attribute, value in reversed(before):
            setattr(owner, attribute, value)
