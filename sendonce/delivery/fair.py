"""Fair shares of a lane: whoever got least of it goes next, counted in recipients, over all processes.

What a campaign got is read from its progress in the store, so that requests of every process count. What is remembered
here is only where each campaign began: it is owed nothing for the time before it came, or in which it had no work.
"""

from collections.abc import Collection, Mapping


class FairShare:
    """The running campaigns of one lane as one planner knows them. Forgets those that are gone; starts anew with the
    process."""

    def __init__(self) -> None:
        self._began: dict[str, int] = {}

    def served(self, done: Mapping[str, int]) -> dict[str, int]:
        """What each campaign got since it came, plus what those before it had got then.

        done: recipients that are no longer open, by campaign, of all that run now.
        """
        known = [done[name] - began for name, began in self._began.items() if name in done]
        least = min(known, default=0)
        self._began = {name: self._began.get(name, count - least) for name, count in done.items()}
        return {name: count - self._began[name] for name, count in done.items()}

    def idle(self, served: Mapping[str, int], names: Collection[str]) -> None:
        """These had nothing to send: they do not save up a claim on what the others get meanwhile."""
        least = min((got for name, got in served.items() if name not in names), default=0)
        for name in names:
            self._began[name] -= max(0, least - served[name])
