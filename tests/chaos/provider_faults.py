"""What goes wrong at a provider: by chance, drawn from a seed, and by order, while an outage lasts.

Nothing here halts a sender: that waits for a person who mends the account, and ends a run.
"""

import random
import threading
from dataclasses import replace
from typing import Any

from tests.providers.http import Fate
from tests.providers.smtp import Fault

# Orders: all is well; every request is answered "not now"; every request is heard, and no answer comes.
UP, UNAVAILABLE, SILENT = "up", "unavailable", "silent"
# A provider that asks to slow down halves the rates, and they come back slowly: twice in a run is enough.
THROTTLES_MAX = 2

_OF_REQUESTS = 0.07
_OF_PHASES = 0.003
_OF_CONNECTIONS = 0.03
_LATE_S = (0.2, 1.0, 3.0)
# Later than a lease lasts, and in time for a sender that waits for it.
_VERY_LATE_S = 7.0

# A reply that is lost or odd, of a provider that took the request, and of one that did not.
_LOST = (
    *("close_after_read", "reset_after_read", "stall", "half_status", "garbage", "interim_only"),
    *("status_only", "headers_cut", "broken_body", "broken_chunks", "interim", "twice", "close_when_idle"),
)
_NOT_TAKEN = (
    *(Fate(200, fault=fault) for fault in ("close_before_read", "reset_before_read")),
    *(Fate(200, fault=fault, accepts=False) for fault in ("close_after_read", "stall", "half_status", "garbage")),
    *(Fate(status) for status in (400, 500, 502, 503, 504)),
)
_TAKEN = (
    *(Fate(200, fault=fault) for fault in _LOST),
    *(Fate(status, accepts=True) for status in (500, 502, 503, 504)),
    *(Fate(200, delay_s=delay_s) for delay_s in _LATE_S),
)
_BUSY = Fate(429, {"Retry-After": "1"})

_ENDS = ("close", "reset")
_LEAVES = Fault("dot", "leave", "421 4.3.2 closing")


def _smtp_faults() -> dict[str, list[Fault]]:
    """By phase; a letter's answer at the dot may be lost whether it was taken or not."""
    answers = {
        "mail": ("451 4.3.0 later", "452 4.3.1 too much"),
        "rcpt": ("550 5.1.1 nobody", "450 4.2.0 later", "452 4.2.2 full", "551 5.1.6 moved"),
        "data": ("451 4.3.0 later", "554 5.6.0 not this"),
        "dot": ("451 4.3.0 later", "452 4.3.1 too much", "554 5.6.0 not this", "550 5.7.1 not this"),
    }
    found: dict[str, list[Fault]] = {
        "connect": [Fault("connect", act) for act in (*_ENDS, "silence")],
        "banner": [
            Fault("banner", "leave", "421 4.3.2 later"),
            *(Fault("banner", act) for act in ("close", "garbage")),
        ],
        "ehlo": [Fault("ehlo", act) for act in (*_ENDS, "half", "silence")],
        "body": [Fault("body", act, body_bytes=size) for act in _ENDS for size in (0, 200)],
        "after": [Fault("after", "close"), Fault("after", "leave", "421 4.3.2 idle")],
    }
    for phase, texts in answers.items():
        found[phase] = [Fault(phase, "reply", text) for text in texts]
        found[phase] += [Fault(phase, act) for act in (*_ENDS, "silence")]
        found[phase].append(replace(_LEAVES, at=phase))
    odd = [Fault("dot", act) for act in ("half", "unended", "slow", "twice", "lines", "mixed")]
    late = [Fault("dot", "late", delay_s=delay_s) for delay_s in (*_LATE_S, _VERY_LATE_S)]
    lost = [replace(fault, takes=True) for fault in found["dot"] if fault.act != "reply"]
    found["dot"] += [*odd, *late, *lost, Fault("dot", "garbage"), Fault("dot", "garbage", takes=True)]
    return found


SMTP_FAULTS = _smtp_faults()


class Troubles:
    """Decides what befalls each request of one provider. Safe for threads.

    at_random: whether faults come by chance too, or by `order` alone. honest_503: whether 503 means that nothing was
    taken, as the sender's settings may say.
    """

    def __init__(self, seed: int, *, at_random: bool = True, honest_503: bool = False) -> None:
        self._chance = random.Random(seed)
        self._seed = seed
        self._at_random = at_random
        self._drawing = threading.Lock()
        self._throttles = 0
        taken = [fate for fate in _TAKEN if not (honest_503 and fate.status == 503)]
        self._fates = [*taken, *_NOT_TAKEN, *[_BUSY] * 3]
        self.order = UP

    # -- over HTTP: in place of a fake's script ---------------------------------------------------------------------

    def __bool__(self) -> bool:
        return True

    def popleft(self) -> Fate | None:
        with self._drawing:
            if self.order == UNAVAILABLE:
                return Fate(503)
            if self.order == SILENT:
                return Fate(200, fault="stall", accepts=self._chance.random() < 0.5)
            if not self._hits(_OF_REQUESTS):
                return None
            found = self._chance.choice(self._fates)
            return self._unless_often(found, found.status == 429)

    # -- over SMTP: a fake's rule -----------------------------------------------------------------------------------

    def at(self, phase: str, argument: str) -> Fault | None:
        with self._drawing:
            if self.order == UNAVAILABLE and phase in ("banner", "mail"):
                return Fault(phase, "leave", "554 5.3.2 closed") if phase == "banner" else Fault("mail", "close")
            if self.order == SILENT and phase in ("mail", "dot"):
                return Fault(phase, "silence", takes=phase == "dot" and self._chance.random() < 0.5)
            often = _OF_CONNECTIONS if phase in ("connect", "banner", "ehlo") else _OF_PHASES
            if phase not in SMTP_FAULTS or not self._hits(often):
                return None
            found = self._chance.choice(SMTP_FAULTS[phase])
            return self._unless_often(found, found.reply[:3] in ("421", "452"))

    # -- of one recipient, or one key -------------------------------------------------------------------------------

    def refuses(self, address: str) -> bool:
        """One recipient in sixty, always the same."""
        return self._at_random and random.Random(f"{self._seed} {address}").randrange(60) == 0

    def hits(self, share: float) -> bool:
        with self._drawing:
            return self._hits(share)

    def _hits(self, share: float) -> bool:
        return self._at_random and self._chance.random() < share

    def _unless_often(self, found: Any, throttles: bool) -> Any:
        if not throttles:
            return found
        self._throttles += 1
        return found if self._throttles <= THROTTLES_MAX else None
