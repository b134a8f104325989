"""The person whom held doubts wait for: looks each one up at the provider, and decides by what is there.

`sendonce doubts assume` for a request that was taken, `doubts resend` for one that was not, as an operator would do it.
"""

import threading
from collections.abc import Callable

from tests.chaos.ground import CommandFailed
from tests.chaos.place import Place, held
from tests.chaos.provider import Providers

LOOK_EVERY_S = 1.0


class Person:
    """Decides until it is told to stop. decisions: how many. command: runs one `sendonce` command; raises if it fails.

    A doubt is left alone at the first look, so that what was on its way to the provider has arrived there. A store that
    is away is looked at again.
    """

    def __init__(self, place: Place, providers: Providers, command: Callable[..., str]) -> None:
        self._place = place
        self._providers = providers
        self._seen: set[str] = set()
        self._command = command
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="person", daemon=True)
        self.decisions = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        while not self._stop.wait(LOOK_EVERY_S):
            found = held(self._place)
            for campaign, batch_no, attempt_id in found:
                if self._stop.is_set():
                    return
                if attempt_id in self._seen:
                    self._decide(campaign, batch_no, attempt_id)
            self._seen |= {attempt_id for _, _, attempt_id in found}

    def _decide(self, campaign: str, batch_no: int, attempt_id: str) -> None:
        taken = self._providers.has(attempt_id)
        kind = ["assume"] if taken else ["resend", "--yes"]
        reason = "the provider has it" if taken else "the provider does not have it"
        try:
            self._command("doubts", kind[0], campaign, "--batch", str(batch_no), "--reason", reason, *kind[1:])
        except CommandFailed:  # the store was away, or somebody else was faster: the next look tells
            return
        self.decisions += 1
