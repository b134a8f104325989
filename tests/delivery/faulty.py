"""What the protocol's tests share: a kill that is an exception, a store with one method replaced, lost replies."""

from dataclasses import replace

from sendonce.stores.base import StoreUnavailable
from tests.delivery.world import TERMS, World

IDEMPOTENT = {"idempotency_window_s": 3600.0}
AGAIN = replace(TERMS, asks_again_s=3600.0)


class Killed(Exception):
    """In place of a kill: nothing after it runs."""


def die(_: object) -> None:
    raise Killed


class With:
    """A store with one method replaced."""

    def __init__(self, store: object, **replaced: object) -> None:
        self._store = store
        self.__dict__.update(replaced)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


def losing_replies(world: World, tags: set[str]):  # type: ignore[no-untyped-def]
    """Commits that are applied while their reply gets lost, once for each of these tags."""
    left = set(tags)

    def transact(work, *, tag):  # type: ignore[no-untyped-def]
        result = world.store.transact(work, tag=tag)
        if tag in left:
            left.remove(tag)
            raise StoreUnavailable("the reply was lost", maybe_applied=True)
        return result

    return transact
